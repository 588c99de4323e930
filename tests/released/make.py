"""Makes the fixtures of a release: one of everything that this version writes and later ones must read.

python tests/released/make.py tests/released/0.1.0

    control, boxes   run directories with checkpoints
    sft, reward      a saved language model and a reward model
    language         a run that starts from `sft` and is scored by `reward`, with the models that it writes
    policy           what `rlzoo push` writes
    results          the result folder of a suite
    expected.json    what the version that made them says of them

Paths in them are relative: use them from their own folder.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 24}
TEXTS = ["a bad day", "a good day", "a good good walk", "the walk was bad"] * 4
PROMPTS = ["a", "the"]
QUICK = {"num_envs": 4, "num_steps": 25, "hidden": (8,), "eval_episodes": 3, "final_eval_episodes": 3}
SUITE = """\
title: Two algorithms
description: The suite of a fixture.
seeds: [0, 1]
eval_episodes: 2
final_episodes: 2
algorithms: [trpo, ppo-clip]
environments:
  CartPole-v1: {total_steps: 400, eval_interval: 200, threshold: 20}
"""
OBSERVATIONS = {"control": np.linspace(-0.2, 0.2, 20).reshape(5, 4), "boxes": np.linspace(-1, 1, 15).reshape(5, 3)}


def make(folder: Path) -> None:
    """Fills an empty folder."""
    import rlzoo
    from rlzoo.cli import main

    folder.mkdir(parents=True)
    with contextlib.chdir(folder):
        cartpole = {"normalize_obs": True, "normalize_reward": True, "learning_rate": "linear:0.001:0", "epochs": 2}
        rlzoo.train("ppo-clip", "CartPole-v1", out="control", total_steps=600, minibatch_size=50, **cartpole, **QUICK)
        rlzoo.train("trpo", "Pendulum-v1", out="boxes", total_steps=800, vf_minibatch_size=50, **QUICK)
        rlzoo.push("control", "./policy")

        Path("tiny.json").write_text(json.dumps(TINY))
        Path("prompts.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
        rlzoo.sft(TEXTS, "tiny.json", "sft", epochs=2, vocab_size=258)
        pairs = [{"prompt": "a", "chosen": " good day", "rejected": " bad day"}] * 4
        rlzoo.train_reward_model(pairs, "sft", "reward", epochs=1, held_out=0.0)
        sizes = {"responses_per_batch": 4, "minibatch_responses": 2, "max_new_tokens": 4}
        counts = {"total_steps": 64, "eval_episodes": 2, "final_eval_episodes": 2, "epochs": 1}
        given = {"model": "sft", "reward": "reward", "prompts": "prompts.txt"}
        rlzoo.train("ppo-clip", "Prompts", out="language", **given, **sizes, **counts)

        Path("suite.yaml").write_text(SUITE)
        assert main(["benchmark", "suite.yaml", "--out", "results", "--jobs", "1", "--quiet"]) == 0
        _leave_out_the_machine()
        Path("expected.json").write_text(json.dumps(said(), indent=1) + "\n")


def said() -> dict[str, Any]:
    """What the fixtures of the current directory give: the same for the version that made them and for later ones."""
    import rlzoo
    from rlzoo.benchmark.results import Results

    found: dict[str, Any] = {}
    for name in (name for name in OBSERVATIONS if Path(name).exists()):
        policy = rlzoo.load_policy(name)
        found[name] = {
            "evaluations": rlzoo.Run.open(name).evaluations(),
            "returns": rlzoo.evaluate(name, 3, seed=1).returns.tolist(),
            "best": rlzoo.evaluate(name, 3, seed=1, checkpoint="best", deterministic=True).returns.tolist(),
            "actions": np.asarray(policy(OBSERVATIONS[name].astype(np.float32))).tolist(),
        }
    found["responses"] = [sample.response for sample in rlzoo.play("language", 4, seed=3)]
    found["scores"] = [sample.score for sample in rlzoo.play("language", 4, seed=3)]
    found["results"] = {f"{x.label} {x.seed}": x.final_stochastic for x in Results.read("results").outcomes}
    return found


def _leave_out_the_machine() -> None:
    """Deletes what names the machine, and what nothing reads again."""
    for path in [*Path().rglob("events.out.tfevents.*"), *Path().rglob(".lock"), Path("policy/curve.png")]:
        path.unlink()
    suite = Path("results/suite.json")
    suite.write_text(json.dumps(json.loads(suite.read_text()) | {"machine": {"cores": 2}}, indent=2) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
