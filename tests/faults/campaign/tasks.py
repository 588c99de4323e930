"""Short runs of every kind, for attacks on running processes."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests import short_language_runs, short_runs

_MORE = {"checkpoint_interval": 100, "eval_interval": 200, "total_steps": 400}
_NATURAL = {**short_runs.TRPO, "checkpoint_interval": 100, "eval_interval": 100}
CONTROL: dict[str, dict[str, Any]] = {
    "reinforce": {**short_runs.QUICK, "algorithm": "reinforce", **_MORE},
    "npg": {**_NATURAL, "algorithm": "npg", "normalize_obs": True},
    "trpo": _NATURAL,
    "ppo-penalty": {**short_runs.PPO, "algorithm": "ppo-penalty", **_MORE},
    "ppo-clip": {**short_runs.PPO, **_MORE},
    "pendulum": {**short_runs.PPO, "env": "Pendulum-v1", **_MORE},
}
SUITE = """\
title: Tiny
algorithms: [trpo, ppo-clip]
environments:
  CartPole-v1: {total_steps: 1_000, eval_interval: 500}
overrides: {num_envs: 4}
seeds: 0-1
eval_episodes: 2
final_episodes: 3
"""
VOWELS = f"{short_language_runs.__file__}:vowels"
"""A score function."""


def language() -> dict[str, dict[str, Any]]:
    """Settings of language runs of a few iterations. Those of RandomWalks make their SFT checkpoint, or find it."""
    prompts = {}
    for kind in ("ppo-clip", "trpo", "lora"):
        algorithm, more = short_language_runs.KINDS[kind]
        prompts[f"prompts {kind}"] = short_language_runs.settings(data(), algorithm, **more, total_steps=100)
    walks = {
        "env": "tests.short_language_runs:Walks", "critic": "actor", "responses_per_batch": 20,
        "responses_per_prompt": 1, "estimator": "gae", "total_steps": 300,
        "eval_episodes": 3, "final_eval_episodes": 5,
    }  # fmt: skip
    return {
        **prompts,
        "walks ppo-clip": {**walks, "algorithm": "ppo-clip", "epochs": 1},
        "walks trpo": {**walks, "algorithm": "trpo", "vf_epochs": 1},
        "walks reinforce": {**walks, "algorithm": "reinforce"},
    }


@functools.cache
def scratch() -> Path:
    """A folder that is deleted when this process ends."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def data() -> Path:
    """A folder with a tiny language model, prompts, texts, pairs and a suite."""
    folder = scratch() / "data"
    short_language_runs.save_data(folder)
    pairs = [{"prompt": letter, "chosen": "aeiou", "rejected": "xyz"} for letter in "abcdefgh"]
    (folder / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    (folder / "tiny.yaml").write_text(SUITE)
    return folder
