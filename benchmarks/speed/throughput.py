"""rlzoo beside Stable-Baselines3 and sb3-contrib: environment steps per second, and seconds to a solved CartPole.

    pip install -e '.[peers]'
    python benchmarks/speed/throughput.py speed        # same settings, one after the other, several rounds
    python benchmarks/speed/throughput.py locomotion   # the same for the shapes of the PPO paper
    python benchmarks/speed/throughput.py recurrent    # the same for policies with an LSTM
    python benchmarks/speed/throughput.py threshold    # from command to first evaluation of at least 475
    python benchmarks/speed/throughput.py environments # steps per second of the vectorised environments

Contestants take turns, each in a process of its own, so that a slow minute of the machine hits all alike.
Settings are those of rl-baselines3-zoo for CartPole-v1 and CartPoleNoVel-v1, and the peers' defaults, which are the PPO
paper's, for HalfCheetah-v5. Both libraries run with `--threads` PyTorch threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parents[1] / "results"


class Contest(NamedTuple):
    """An algorithm of rlzoo beside its peer in an environment, in one of the tables."""

    table: str
    title: str
    algorithm: str
    env: str
    peer: str
    """Name in `peers/with_sb3.py`."""
    library: str


CONTESTS = {
    "ppo": Contest("speed", "PPO", "ppo-clip", "CartPole-v1", "PPO", "Stable-Baselines3"),
    "trpo": Contest("speed", "TRPO", "trpo", "CartPole-v1", "TRPO", "sb3-contrib"),
    "locomotion-ppo": Contest("locomotion", "PPO", "ppo-clip", "HalfCheetah-v5", "DEFAULT_PPO", "Stable-Baselines3"),
    "locomotion-trpo": Contest("locomotion", "TRPO", "trpo", "HalfCheetah-v5", "DEFAULT_TRPO", "sb3-contrib"),
    "recurrent-ppo": Contest(
        "recurrent", "Recurrent PPO", "ppo-clip", "CartPoleNoVel-v1", "RECURRENT_PPO", "sb3-contrib"
    ),
}
TABLES = tuple(dict.fromkeys(contest.table for contest in CONTESTS.values()))
WAYS = ("rlzoo", "rlzoo --compile", "peer")
RLZOO_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "num_envs": 8, "num_steps": 32, "minibatch_size": 256, "epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
        "learning_rate": "linear:1e-3:0", "clip_coef": "linear:0.2:0", "vf_coef": 1.0,
        "ent_coef": 0.0, "max_grad_norm": 0.5, "activation": "tanh", "hidden": (64, 64),
    },
    "trpo": {
        "num_envs": 2, "num_steps": 512, "gamma": 0.99, "gae_lambda": 0.98, "max_kl": 0.01, "cg_iters": 15,
        "cg_damping": 1e-3, "backtrack_coef": 0.8, "backtrack_iters": 10, "vf_learning_rate": 1e-3,
        "vf_epochs": 20, "vf_minibatch_size": 512, "activation": "tanh", "hidden": (64, 64),
    },
    "locomotion-ppo": {
        "num_envs": 1, "num_steps": 2048, "minibatch_size": 64, "epochs": 10, "gamma": 0.99, "gae_lambda": 0.95,
        "learning_rate": 3e-4, "clip_coef": 0.2, "vf_coef": 1.0, "ent_coef": 0.0, "max_grad_norm": 0.5,
        "activation": "tanh", "hidden": (64, 64),
    },
    "locomotion-trpo": {
        "num_envs": 1, "num_steps": 2048, "gamma": 0.99, "gae_lambda": 0.95, "max_kl": 0.01, "cg_iters": 15,
        "cg_damping": 0.1, "backtrack_coef": 0.8, "backtrack_iters": 10, "vf_learning_rate": 1e-3, "vf_epochs": 10,
        "vf_minibatch_size": 128, "activation": "tanh", "hidden": (64, 64),
    },
}  # fmt: skip
RLZOO_SETTINGS["recurrent-ppo"] = RLZOO_SETTINGS["ppo"] | {
    "network": "lstm", "hidden": (64,), "activation": "relu", "normalize_obs": True, "normalize_reward": True,
}  # fmt: skip


def train_rlzoo(contest: str, steps: int, compiled: bool) -> float:
    """Steps per second of a run, imports and compilation left out."""
    from rlzoo import Trainer, make_config

    settings = {**RLZOO_SETTINGS[contest], "total_steps": steps, "compile": compiled}
    trainer = Trainer(make_config(CONTESTS[contest].algorithm, CONTESTS[contest].env, **settings))
    if compiled:
        list(Trainer(trainer.config))  # compiles, where the cache is empty
    start = time.perf_counter()
    while not trainer.done:
        trainer.iterate()
    return trainer.step / (time.perf_counter() - start)


def sb3_peers() -> Any:
    """The module `peers/with_sb3.py`."""
    from rlzoo.benchmark import known_peers
    from rlzoo.core.system.functions import import_source

    return import_source(str(known_peers()["sb3"]))


def make_sb3(contest: str, seed: int = 0) -> Any:
    """The peer's model, at the zoo's settings or with the library's defaults."""
    env, peer = CONTESTS[contest].env, getattr(sb3_peers(), CONTESTS[contest].peer)
    return peer.model(env, seed, peer.settings(env))


def train_sb3(contest: str, steps: int) -> float:
    model = make_sb3(contest)
    start = time.perf_counter()
    model.learn(steps)
    return model.num_timesteps / (time.perf_counter() - start)


def evaluate_sb3(contest: str, seed: int) -> dict[str, float]:
    """Trains until 32 stochastic episodes, played every 2,048 steps, average at least 475."""
    import numpy as np
    import sb3_contrib  # noqa: F401 - its time counts, that of our adapter does not
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

    start, callback = time.perf_counter(), Evaluate()
    sb3_peers()
    callback.seconds = time.perf_counter() - start
    make_sb3(contest, seed).learn(100_000, callback=callback)
    return {"left_out": callback.seconds, "steps": callback.reached}


def child(*words: object) -> str:
    """Runs this script as `_child WORDS` in a fresh process and returns its last line of output."""
    command = [sys.executable, __file__, "_child", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]


def speed(table: str, rounds: int, steps: int, threads: int) -> str:
    names = [name for name, contest in CONTESTS.items() if contest.table == table]
    rates: dict[tuple[str, str], list[float]] = {x: [] for x in itertools.product(names, WAYS)}
    for _ in range(rounds):
        for (name, way), values in rates.items():
            values.append(float(child("speed", name, way, steps, threads)))
            print(f"{name + ', ' + way:30} {values[-1]:10,.0f} steps/s", flush=True)
    lines = ["| contestant | steps/s (median) | ratio to the peer (median of rounds; min – max) |", "|---|---|---|"]
    for (name, way), values in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(values, rates[name, "peer"], strict=True)]
        lines.append(
            f"| {CONTESTS[name].title}, {CONTESTS[name].library if way == 'peer' else way} "
            f"| {statistics.median(values):,.0f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f}) |"
        )
    title = f"{CONTESTS[names[0]].env}, {steps:,} steps, {rounds} rounds, {threads} PyTorch thread(s) each"
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
        rlzoo = Path(sys.executable).with_name("rlzoo")
        command = [str(rlzoo), "train", algorithm, "CartPole-v1", "--out", str(out), *options.split()]
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        total = time.perf_counter() - start
        evaluations = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    reached = next((e["step"] for e in evaluations if e["mean_return"] >= 475), 0)
    return total - sum(e["seconds"] for e in evaluations), reached


def threshold_sb3(algorithm: str, seed: int, threads: int) -> tuple[float, int]:
    start = time.perf_counter()
    record = json.loads(child("threshold", algorithm, seed, threads))
    return time.perf_counter() - start - record["left_out"], int(record["steps"])


def environments(rounds: int) -> str:
    """Steps per second of 64 copies: with random actions in NumPy, and with a policy in native code.

    Autoreset and time limits are included.
    """
    import numpy as np
    import torch

    from rlzoo import Trainer, make_config

    torch.set_num_threads(1)
    lines = [
        "| environment | NumPy, random actions | native, linear policy | native, two hidden layers of 64 |",
        "|---|---|---|---|",
    ]
    for env_id in ("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"):
        copies = {"num_envs": 64, "minibatch_size": "all"}
        tasks = [Trainer(make_config("ppo-clip", env_id, hidden=x, **copies)).task for x in ((), (64, 64))]
        env = tasks[0].make_env(64, 0)
        space = env.action_space
        actions = [np.stack([space.sample() for _ in range(64)]) for _ in range(100)]
        env.reset()

        def in_numpy(env: Any = env, actions: Any = actions) -> None:
            for _ in range(20):
                for action in actions:
                    env.step(action)

        def in_native_code(task: Any) -> None:
            obs, _ = task.env.reset()
            for _ in range(20):
                _, obs, *_ = task.actor().rollout(task.env, obs, 100)
                obs = obs[-1]

        cells = []
        for run in (in_numpy, *(partial(in_native_code, task) for task in tasks)):
            rates = []
            for _ in range(rounds):
                start = time.perf_counter()
                run()
                rates.append(64 * 2000 / (time.perf_counter() - start) / 1e6)
            cells.append(f"{statistics.median(rates):.2f} ({min(rates):.2f} – {max(rates):.2f})")
        lines.append(f"| {env_id} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    text = f"Million steps/s of 64 copies on one core, {rounds} rounds of 128,000 steps (median; min – max)."
    return "\n".join([f"### Environments\n\n{text}\n", *lines, ""])


def run_child(words: list[str]) -> None:
    import torch

    torch.set_num_threads(int(words[-1]))
    if words[0] == "threshold":
        print(json.dumps(evaluate_sb3(words[1], int(words[2]))))
    else:
        contest, way, steps = words[1], words[2], int(words[3])
        print(train_sb3(contest, steps) if way == "peer" else train_rlzoo(contest, steps, way != "rlzoo"))


def main() -> None:
    if sys.argv[1:2] == ["_child"]:
        run_child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=[*TABLES, "threshold", "environments"])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all tables but `threshold`")
    parser.add_argument("--steps", type=int, default=50_000, help="steps of each run of the other tables")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of `threshold`")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads of every contestant")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.table in TABLES:
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
