"""rlzoo beside Stable-Baselines3 and sb3-contrib: environment steps per second, and seconds to a solved CartPole.

    pip install -e '.[peers]'
    python benchmarks/speed/throughput.py speed        # same settings, one after the other, several rounds
    python benchmarks/speed/throughput.py recurrent    # the same for policies with an LSTM
    python benchmarks/speed/throughput.py threshold    # from command to first evaluation of at least 475
    python benchmarks/speed/throughput.py environments # steps per second of the vectorised environments

Contestants take turns, each in a process of its own, so that a slow minute of the machine hits all alike.
Settings are those of rl-baselines3-zoo for CartPole-v1 and CartPoleNoVel-v1. Both libraries run with `--threads`
PyTorch threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
TRAINING_CONTESTANTS = {
    "speed": {
        "PPO, rlzoo": ("rlzoo", "ppo-clip", False),
        "PPO, rlzoo --compile": ("rlzoo", "ppo-clip", True),
        "PPO, Stable-Baselines3": ("sb3", "ppo", False),
        "TRPO, rlzoo": ("rlzoo", "trpo", False),
        "TRPO, rlzoo --compile": ("rlzoo", "trpo", True),
        "TRPO, sb3-contrib": ("sb3", "trpo", False),
    },
    "recurrent": {
        "Recurrent PPO, rlzoo": ("rlzoo", "recurrent-ppo", False),
        "Recurrent PPO, rlzoo --compile": ("rlzoo", "recurrent-ppo", True),
        "Recurrent PPO, sb3-contrib": ("sb3", "recurrent-ppo", False),
    },
}
"""By table; the last of those with the same first word is the peer."""
RLZOO_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo-clip": {
        "num_envs": 8, "num_steps": 32, "minibatch_size": 256, "epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
        "learning_rate": "linear:1e-3:0", "clip_coef": "linear:0.2:0", "vf_coef": 1.0,
        "ent_coef": 0.0, "max_grad_norm": 0.5, "activation": "tanh", "hidden": (64, 64),
    },
    "trpo": {
        "num_envs": 2, "num_steps": 512, "gamma": 0.99, "gae_lambda": 0.98, "max_kl": 0.01, "cg_iters": 15,
        "cg_damping": 1e-3, "backtrack_coef": 0.8, "backtrack_iters": 10, "vf_learning_rate": 1e-3,
        "vf_epochs": 20, "vf_minibatch_size": 512, "activation": "tanh", "hidden": (64, 64),
    },
}  # fmt: skip
RLZOO_SETTINGS["recurrent-ppo"] = RLZOO_SETTINGS["ppo-clip"] | {
    "network": "lstm", "hidden": (64,), "activation": "relu", "normalize_obs": True, "normalize_reward": True,
}  # fmt: skip


def train_rlzoo(algorithm: str, steps: int, compiled: bool) -> float:
    """Steps per second of a run, imports and compilation left out."""
    from rlzoo import Trainer, make_config

    settings = {**RLZOO_SETTINGS[algorithm], "total_steps": steps, "compile": compiled}
    name, env = ("ppo-clip", "CartPoleNoVel-v1") if algorithm == "recurrent-ppo" else (algorithm, "CartPole-v1")
    trainer = Trainer(make_config(name, env, **settings))
    if compiled:
        list(Trainer(trainer.config))  # compiles, where the cache is empty
    start = time.perf_counter()
    while not trainer.done:
        trainer.iterate()
    return trainer.step / (time.perf_counter() - start)


def make_sb3(algorithm: str, seed: int = 0) -> Any:
    """The peer's model at the zoo's settings; its other settings are its defaults."""
    from sb3_contrib import TRPO, RecurrentPPO
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize
    from torch import nn

    from rlzoo.control.envs import no_velocity  # noqa: F401 - registers CartPoleNoVel-v1

    if algorithm == "recurrent-ppo":
        env = VecNormalize(make_vec_env("CartPoleNoVel-v1", 8, seed=seed), gamma=0.98)
        networks = {"net_arch": {"pi": [64], "vf": [64]}, "lstm_hidden_size": 64, "activation_fn": nn.ReLU}
        return RecurrentPPO(
            "MlpLstmPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0,
            learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, seed=seed, device="cpu",
            policy_kwargs=networks | {"ortho_init": False, "enable_critic_lstm": True},
        )  # fmt: skip
    if algorithm == "ppo":
        env = make_vec_env("CartPole-v1", 8, seed=seed)
        return PPO(
            "MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0,
            learning_rate=lambda left: 1e-3 * left, clip_range=lambda left: 0.2 * left, seed=seed, device="cpu",
        )  # fmt: skip
    env = make_vec_env("CartPole-v1", 2, seed=seed)
    return TRPO(
        "MlpPolicy", env, n_steps=512, batch_size=512, cg_damping=1e-3, gae_lambda=0.98, gamma=0.99,
        learning_rate=1e-3, n_critic_updates=20, seed=seed, device="cpu",
    )  # fmt: skip


def train_sb3(algorithm: str, steps: int) -> float:
    model = make_sb3(algorithm)
    start = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - start)


def evaluate_sb3(algorithm: str, seed: int) -> dict[str, float]:
    """Trains until 32 stochastic episodes, played every 2,048 steps, average at least 475."""
    import numpy as np
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    class Evaluate(BaseCallback):
        due, seconds, reached = 2048, 0.0, 0

        def _on_step(self) -> bool:
            if self.num_timesteps < self.due:
                return True
            self.due += 2048
            start = time.perf_counter()
            env = make_vec_env("CartPole-v1", 32, seed=1000 + seed)
            mean, _ = evaluate_policy(self.model, env, n_eval_episodes=32, deterministic=False, warn=False)
            self.seconds += time.perf_counter() - start
            self.reached = self.num_timesteps if np.mean(mean) >= 475 else 0
            return not self.reached

    callback = Evaluate()
    make_sb3(algorithm, seed).learn(100_000, callback=callback)
    return {"evaluation": callback.seconds, "steps": callback.reached}


def child(*words: object) -> str:
    """Runs this script as `_child WORDS` in a fresh process and returns its last line of output."""
    command = [sys.executable, __file__, "_child", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def speed(table: str, rounds: int, steps: int, threads: int) -> str:
    contestants = TRAINING_CONTESTANTS[table]
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (library, algorithm, compiled) in contestants.items():
            rates[name].append(float(child("speed", library, algorithm, steps, int(compiled), threads)))
            print(f"{name:30} {rates[name][-1]:10,.0f} steps/s", flush=True)
    lines = ["| contestant | steps/s (median) | ratio to the peer (median of rounds; min – max) |", "|---|---|---|"]
    for name, values in rates.items():
        peer = next(rates[other] for other in reversed(contestants) if other.split(",")[0] == name.split(",")[0])
        ratios = [mine / theirs for mine, theirs in zip(values, peer, strict=True)]
        lines.append(
            f"| {name} | {statistics.median(values):,.0f} | "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f}) |"
        )
    env = "CartPoleNoVel-v1" if table == "recurrent" else "CartPole-v1"
    title = f"{env}, {steps:,} steps, {rounds} rounds, {threads} PyTorch thread(s) each"
    return "\n".join([f"### Training speed\n\n{title}.\n", *lines, ""])


def threshold(seeds: int, threads: int) -> str:
    seconds: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    for seed in range(seeds):
        for name, run in {
            "PPO, rlzoo": lambda s: threshold_rlzoo("ppo-clip", s, threads),
            "PPO, Stable-Baselines3": lambda s: threshold_sb3("ppo", s, threads),
            "TRPO, rlzoo": lambda s: threshold_rlzoo("trpo", s, threads),
            "TRPO, sb3-contrib": lambda s: threshold_sb3("trpo", s, threads),
        }.items():
            taken, at = run(seed)
            seconds.setdefault(name, []).append(taken)
            steps.setdefault(name, []).append(at)
            print(f"{name:26} seed {seed}: {taken:6.2f} s, {at:,} steps", flush=True)
    lines = ["| contestant | seconds (median; all seeds) | steps (median) |", "|---|---|---|"]
    for name, values in seconds.items():
        every = ", ".join(f"{x:.2f}" for x in values)
        lines.append(f"| {name} | {statistics.median(values):.2f} ({every}) | {statistics.median(steps[name]):,.0f} |")
    title = (
        "From command to the first stochastic evaluation of 32 episodes, every 2,048 steps, that averages at least "
        f"475; imports included, evaluation time left out; seeds 0 – {seeds - 1}; rlzoo with its preset, the peers "
        f"with the zoo's settings; {threads} PyTorch thread(s) each"
    )
    return "\n".join([f"### Time to a solved CartPole\n\n{title}.\n", *lines, ""])


def threshold_rlzoo(algorithm: str, seed: int, threads: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = f"--seed {seed} --eval-interval 2048 --eval-episodes 32 --stop-return 475 --threads {threads}"
        command = ["rlzoo", "train", algorithm, "CartPole-v1", "--out", str(out), *options.split()]
        start = time.perf_counter()
        subprocess.run([str(Path(sys.executable).with_name("rlzoo")), *command[1:]], check=True, capture_output=True)
        total = time.perf_counter() - start
        evaluations = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    reached = next((e["step"] for e in evaluations if e["mean_return"] >= 475), 0)
    return total - sum(e["seconds"] for e in evaluations), reached


def threshold_sb3(algorithm: str, seed: int, threads: int) -> tuple[float, int]:
    start = time.perf_counter()
    record = json.loads(child("threshold", algorithm, seed, threads))
    return time.perf_counter() - start - record["evaluation"], int(record["steps"])


def environments(rounds: int) -> str:
    """Steps per second of 64 copies with random actions, autoreset and time limits included."""
    import numpy as np

    from rlzoo.control.envs.source import make

    lines = ["| environment | million steps/s (median; min – max) |", "|---|---|"]
    for env_id in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"):
        env = make(env_id, 64, seed=0)
        space = env.action_space
        actions = [np.stack([space.sample() for _ in range(64)]) for _ in range(100)]
        env.reset()
        rates = []
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(20):
                for action in actions:
                    env.step(action)
            rates.append(64 * 2000 / (time.perf_counter() - start) / 1e6)
        lines.append(f"| {env_id} | {statistics.median(rates):.2f} ({min(rates):.2f} – {max(rates):.2f}) |")
        print(lines[-1], flush=True)
    return "\n".join([f"### Environments\n\n64 copies on one core, {rounds} rounds of 128,000 steps.\n", *lines, ""])


def run_child(words: list[str]) -> None:
    import torch

    torch.set_num_threads(int(words[-1]))
    if words[0] == "threshold":
        print(json.dumps(evaluate_sb3(words[1], int(words[2]))))
    else:
        library, algorithm, steps, compiled = words[1:5]
        rlzoo = library == "rlzoo"
        print(train_rlzoo(algorithm, int(steps), compiled == "1") if rlzoo else train_sb3(algorithm, int(steps)))


def main() -> None:
    if sys.argv[1:2] == ["_child"]:
        run_child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["speed", "recurrent", "threshold", "environments"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all tables but `threshold`")
    parser.add_argument("--steps", type=int, default=50_000, help="steps of each run of `speed` and `recurrent`")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of `threshold`")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads of every contestant")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.table in TRAINING_CONTESTANTS:
        text = speed(options.table, options.rounds, options.steps, options.threads)
    elif options.table == "threshold":
        text = threshold(options.seeds, options.threads)
    else:
        text = environments(options.rounds)
    command = " ".join(["python benchmarks/speed/throughput.py", *sys.argv[1:]])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"throughput-{options.table}.md").write_text(f"{text}\n`{command}`\n")
    print("\n" + text)


if __name__ == "__main__":
    main()
