"""Short runs of every kind, for attacks on running processes."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import short_runs

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


def vowels(prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
    """A score: the share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in responses]


def language() -> dict[str, dict[str, Any]]:
    """Settings of language runs of a few iterations. Those of RandomWalks make their SFT checkpoint, or find it."""
    files = data()
    prompts = {
        "env": "Prompts", "model": str(files / "model"), "prompts": str(files / "prompts.txt"),
        "reward": f"{__file__}:vowels", "ptx": str(files / "texts.txt"), "ptx_rows": 2, "responses_per_batch": 6,
        "max_new_tokens": 4, "total_steps": 100, "eval_episodes": 3, "final_eval_episodes": 5, "beta": 0.1,
        "beta_target": 1.0, "beta_horizon": 50.0,
    }  # fmt: skip
    ppo = {"algorithm": "ppo-clip", "minibatch_responses": 3, "epochs": 2, "learning_rate": 1e-3}
    trpo = {"algorithm": "trpo", "cg_iters": 2, "vf_epochs": 2, "vf_minibatch_responses": 3}
    walks = {
        "env": "tests.faults.campaign.walks:Walks", "critic": "actor", "responses_per_batch": 20, "total_steps": 300,
        "eval_episodes": 3, "final_eval_episodes": 5,
    }  # fmt: skip
    return {
        "prompts ppo-clip": {**prompts, **ppo, "score_normalization": "running"},
        "prompts trpo": {**prompts, **trpo, "score_normalization": "reference"},
        "prompts lora": {**prompts, **ppo, "lora_rank": 2, "critic": "actor"},
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
    """A folder with a tiny language model, prompts and texts."""
    from tests import tiny

    folder = scratch() / "data"
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    (folder / "texts.txt").write_text("an aeon\nout of\nan idea, a one\n")
    return folder
