"""Commands that a user gives again after a failure, and what they leave in the end."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from tests.faults.campaign import tasks
from tests.faults.campaign.processes import Process, command

QUICK = ("--epochs", 1, "--batch-size", 2, "--threads", 1, "--held-out", 0, "--quiet")
SETTINGS = ("--set", "num_envs=4", "num_steps=32", "epochs=1", "minibatch_size=64")
KINDS = ("benchmark", "sft", "reward-model", "search")


def words(kind: str, out: Path, seed: int = 0) -> list[Any]:
    """The command of a kind, which writes to `out`."""
    data = tasks.data()
    if kind == "benchmark":
        return [kind, data / "tiny.yaml", "--out", out, "--jobs", 1]
    if kind == "search":
        short = ("--total-steps", 512, "--seeds", 0, "--validation-seeds", 1, "--trials", 2, "--jobs", 1)
        return [kind, "ppo-clip", "CartPole-v1", "--out", out, *short, *SETTINGS]
    texts = data / ("texts.txt" if kind == "sft" else "pairs.jsonl")
    return [kind, texts, "--model", data / "model", "--out", out, "--seed", seed, *QUICK]


def result(kind: str, out: Path) -> Any:
    """What the command has left, but times."""
    if kind == "benchmark":
        return (out / "results.jsonl").read_bytes()
    if kind == "search":
        from rlzoo.benchmark.search import _Problem

        assert (out / "preset.toml").is_file()
        trials = _Problem(out / "study.log", "ppo-clip", "CartPole-v1", {}, {}, (0,)).study().trials
        return [trial.value for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]
    return contents(out)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def wrong(kind: str, out: Path) -> list[str]:
    """What is wrong with what the command has left."""
    left = sorted(p.name for p in out.parent.iterdir() if p != out and not p.name.endswith(".lock"))
    differs = [] if result(kind, out) == result(kind, whole(kind)[0]) else ["what is left differs"]
    return [*differs, *(f"{name} is left" for name in left)]


@functools.cache
def whole(kind: str, seed: int = 0) -> tuple[Path, float]:
    """What the undisturbed command leaves, and its seconds. All that it imports is then imported in this process."""
    import optuna  # noqa: F401

    import rlzoo.benchmark.search
    import rlzoo.runs.finetune  # noqa: F401

    out = tasks.scratch() / f"{kind}-{seed}" / "out"
    out.parent.mkdir()
    start = time.monotonic()
    assert not (faults := Process(command(*words(kind, out, seed)), out.parent).end(300).faults()), faults
    for path in out.parent.glob("stderr-*"):
        path.unlink()
    return out, time.monotonic() - start
