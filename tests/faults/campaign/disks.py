"""Files that may not grow, as on a full disk or under a quota: one line, and all is well once there is room."""

from __future__ import annotations

import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from tests.faults.campaign import again, tasks
from tests.faults.campaign.again import contents
from tests.faults.campaign.directories import control_run, language_run
from tests.faults.campaign.kill import differences, left
from tests.faults.campaign.processes import Process, command
from tests.faults.campaign.sandbox import Sandbox
from tests.faults.campaign.twins import QUICK, trained

SIZES = (500, 1000, 2000, 4000, 8000, 16_000, 50_000, 300_000)
USES = {
    "export": ["export", control_run, "--out"],
    "push": ["push", control_run],
    "push language": ["push", language_run],
    "report": ["report", control_run, "--out"],
}
"""Commands that read a run, but the path to which they write."""
KINDS = ("train", "train", "train", "sft", "reward-model", "benchmark", *USES)
"""Without `search`: a trial that failed is not repeated, so what a search leaves is another study."""


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Runs a command with a limit on the size of files, and again without it."""
    size, kind = rng.choice(SIZES), rng.choice(KINDS)
    out = sandbox.work / ("out.h" if kind == "export" else "out")
    work, wrong = _command(kind, out)

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
    if kind in again.KINDS:
        return command(*again.words(kind, out)), lambda: again.wrong(kind, out)
    if kind in USES:
        return command(*_use(kind, out)), lambda: [] if _files(out) == _used(kind) else ["other files are left"]

    def train() -> int:
        new = ["train", "ppo-clip", "CartPole-v1", "--seed", "0", *QUICK, "--out", out]
        return command(*(["resume", out, "--quiet"] if (out / "config.json").exists() else new))()

    expected = left(trained(0))
    return train, lambda: differences(out, expected)


def _use(kind: str, out: Path) -> list[object]:
    return [*(x() if callable(x) else x for x in USES[kind]), out]


def _files(out: Path) -> set[str]:
    return {out.suffix} if out.is_file() else {*contents(out)}


@cache
def _used(kind: str) -> set[str]:
    """The files of the undisturbed command."""
    out = tasks.scratch() / ("out.h" if kind == "export" else f"used-{kind}")
    assert not (faults := Process(command(*_use(kind, out)), tasks.scratch()).end().faults()), faults
    return _files(out)
