"""Files that may not grow, as on a full disk or under a quota: one line, and all is well once there is room."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.campaign import tasks
from tests.faults.campaign.kill import differences, left, whole_suite
from tests.faults.campaign.processes import Process, command
from tests.faults.campaign.sandbox import Sandbox
from tests.faults.campaign.twins import QUICK, contents, sft_words, trained, tuned

SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 50_000, 300_000)


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Runs a command with a limit on the size of files, and again without it."""
    size, kind = rng.choice(SIZES), rng.choice(("train", "train", "sft", "benchmark"))
    work, wrong = _command(kind, sandbox.work / "out")

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return work()

    first, faults = Process(limited, sandbox.root).end(120), []
    if first.code != 0:
        faults = first.faults((1,)) or ([] if "/" in first.errors else [f"no file is named: {first.errors}"])
        faults = faults or Process(work, sandbox.root).end(120).faults() or wrong()
    return [f"{kind}, {size} bytes: {fault}" for fault in faults] + sandbox.faults()


def _command(kind: str, out: Path) -> tuple[Callable[[], int], Callable[[], list[str]]]:
    """A command that writes to `out`, and what is wrong with what it has left in the end."""
    if kind == "sft":
        model = contents(tuned(0))
        return command(*sft_words(0, out)), lambda: _unequal(contents(out), model)
    if kind == "benchmark":
        results, suite = whole_suite()[0], tasks.scratch() / "tiny.yaml"
        suite.write_text(tasks.SUITE)
        work = command("benchmark", suite, "--out", out, "--jobs", 1)
        return work, lambda: _unequal((out / "results.jsonl").read_bytes(), results)

    def train() -> int:
        new = ["train", "ppo-clip", "CartPole-v1", "--seed", "0", *QUICK, "--out", out]
        return command(*(["resume", out, "--quiet"] if (out / "config.json").exists() else new))()

    expected = left(trained(0))
    return train, lambda: differences(out, expected)


def _unequal(files: object, expected: object) -> list[str]:
    return [] if files == expected else ["what is left differs"]
