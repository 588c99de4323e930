"""Processes killed with SIGKILL: what is killed and gone on with ends as if it never was.

A run is killed at a random instant, before one of its file operations, in the middle of a file, or at a step of an
evaluation, up to five times, in training and while it is resumed. A run of two processes loses one of them, both or
their launcher, and goes on with one or two. Suites, searches, `sft` and `reward-model` are given again, after a kill
with their workers or without them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch.distributed as dist

from rlzoo.core.system.errors import RunError
from rlzoo.core.system.progress import Operation
from rlzoo.runs.logs.display import Display
from rlzoo.runs.run import Run
from tests import short_runs
from tests.faults.campaign import again, tasks
from tests.faults.campaign.processes import Process, command
from tests.faults.campaign.sandbox import Sandbox

COUNTED = "kills"
counts: Counter[str] = Counter()
"""Kills so far: those that ended a process."""


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Kills a run or a command some times, and lets it end."""
    attack = rng.choices((_control, _language, _given_again, _together), (3, 2, 2, 1))[0]
    return attack(rng, sandbox) + sandbox.faults()


class Whole(NamedTuple):
    """A run that was never killed."""

    outcome: dict[str, Any]
    seconds: float
    moments: dict[str, int]
    """How many moments of each kind there were to kill it at."""


class Moments(Display):
    """Counts file operations in a folder, bytes written there and steps of evaluations; kills at one of them."""

    def __init__(self, folder: Path, kind: str = "", at: int = 0) -> None:
        self.folder, self.kind, self.at = str(folder), kind, at
        self.counts = {"operation": 0, "byte": 0, "evaluation": 0}

    def watch(self) -> None:
        opened = Path.open

        def open_watched(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            file = opened(path, mode, *args, **kwargs)
            if {*mode} & {*"wax"} and self.folder in str(path):
                write = file.write

                def write_watched(data: Any) -> Any:
                    left = self.at - self.counts["byte"]
                    if self.kind == "byte" and 0 < left <= len(data):
                        write(data[: left - 1])
                        file.flush()
                    self.passed("byte", len(data))
                    return write(data)

                return _Writing(file, write_watched)
            return file

        def set_watched(own: Operation, name: str, value: Any) -> None:
            object.__setattr__(own, name, value)
            if name == "done" and "evaluation" in own.name:
                self.passed("evaluation")

        Operation.__setattr__ = set_watched  # type: ignore[assignment,method-assign]
        Path.open = open_watched  # type: ignore[assignment,method-assign]
        sys.addaudithook(self.operation)

    def operation(self, event: str, args: Any) -> None:
        touches = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
        if touches and self.folder in str(args[0]):
            self.passed("operation")

    def passed(self, kind: str, number: int = 1) -> None:
        before = self.counts[kind]
        self.counts[kind] += number
        if kind == self.kind and before < self.at <= self.counts[kind]:
            os.kill(os.getpid(), signal.SIGKILL)


class _Writing:
    """A file whose `write` is another function."""

    def __init__(self, file: Any, write: Callable[[Any], Any]) -> None:
        self._file, self.write = file, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def go_on(path: Path, settings: dict[str, Any], moments: Moments | None = None) -> None:
    """What a user does who finds the run stopped, watched."""
    if moments is not None:
        moments.watch()
    short_runs.go_on(path, settings, progress=moments or False)


def killed_at(path: Path, settings: dict[str, Any], kind: str, number: int) -> bool:
    """Runs in a child until the n-th moment of a kind; whether it got so far, and was killed."""
    return os.WIFSIGNALED(short_runs.in_child(lambda: go_on(path, settings, Moments(path, kind, number))))


def _control(rng: Random, sandbox: Sandbox) -> list[str]:
    name = rng.choice(list(tasks.CONTROL))
    return _killed(rng, sandbox, name, "control", tasks.CONTROL[name])


def _language(rng: Random, sandbox: Sandbox) -> list[str]:
    kinds = tasks.language()
    name = rng.choice(list(kinds))
    if not name.startswith("walks"):
        return _killed(rng, sandbox, name, "language", kinds[name])
    with cache(tasks.scratch() / "cache"):
        whole(name)
    folder, kind = sandbox.root / "cache", rng.choice(("cold", "warm"))
    if kind == "warm":
        shutil.copytree(tasks.scratch() / "cache", folder)
    with cache(folder):
        return _killed(
            rng, sandbox, name, f"language, {kind} cache", kinds[name], cache if rng.random() < 0.3 else None
        )


def _killed(
    rng: Random, sandbox: Sandbox, name: str, room: str, settings: dict[str, Any], deleted: Path | None = None
) -> list[str]:
    """Kills a run up to five times. After each, `deleted` is deleted."""
    never, path = whole(name), sandbox.work / "run"
    for _ in range(rng.randint(2, 5)):
        kind = rng.choice(("instant", "instant", "operation", "operation", "byte", "evaluation"))
        at = rng.randint(1, max(1, never.moments.get(kind, 1)))
        if kind == "operation" and rng.random() < 0.3:
            at = rng.randint(1, 30)  # in the first operations, those of a resumption
        moments = Moments(path, kind, at)
        process = Process(functools.partial(go_on, path, settings, moments), sandbox.root)
        ended = process.wait(rng.uniform(0, never.seconds)) if kind == "instant" else process.end()
        if ended is None:
            process.kill()
            ended = process.end()
        if not ended.killed:
            if faults := ended.faults():
                return [f"{name}: {fault}" for fault in faults]
            break
        counts[f"{room}, {kind}"] += 1
        if deleted is not None:
            shutil.rmtree(deleted, ignore_errors=True)
    faults = Process(lambda: go_on(path, settings), sandbox.root).end().faults()
    return [f"{name}: {fault}" for fault in faults or differences(path, never.outcome)]


@functools.cache
def whole(name: str) -> Whole:
    """The run of a kind that was never killed: once in this process, which then has imported what it needs."""
    settings = tasks.CONTROL.get(name) or tasks.language()[name]
    folder = tasks.scratch() / name.replace(" ", "-")
    folder.mkdir()
    go_on(folder / "run", settings)

    def again() -> None:
        moments = Moments(folder / "again")
        go_on(folder / "again", settings, moments)
        (folder / "moments.json").write_text(json.dumps(moments.counts))

    start = time.monotonic()
    ended = Process(again, folder).end(300)
    seconds = time.monotonic() - start
    never = Whole(left(folder / "run"), seconds, json.loads((folder / "moments.json").read_text()))
    assert not (faults := ended.faults() or differences(folder / "again", never.outcome)), faults
    return never


def left(path: Path) -> dict[str, Any]:
    """All that a run leaves, but times."""
    files = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and "tfevents" not in p.name)
    models = {str(p): (path / p).read_bytes() for p in files if p.startswith(("start/", "actor/"))}
    return {**short_runs.outcome(Run(path)), "files": files, **models}


def differences(path: Path, expected: dict[str, Any]) -> list[str]:
    try:
        found = left(path)
    except (OSError, ValueError, KeyError, IndexError, RunError) as error:
        return [f"the run cannot be read: {type(error).__name__}: {error}"]
    return [f"{key} differs" for key in sorted(expected.keys() | found.keys()) if found.get(key) != expected.get(key)]


def cache(folder: Path) -> AbstractContextManager[Any]:
    return mock.patch.dict(os.environ, RLZOO_CACHE=str(folder))


def _given_again(rng: Random, sandbox: Sandbox) -> list[str]:
    """Kills a command up to four times, alone or with its workers, and gives it again until it ends."""
    kind = rng.choices(again.KINDS, (1, 2, 2, 1))[0]
    seconds, out = again.whole(kind)[1], sandbox.work / "out"
    work = command(*again.words(kind, out))

    for _ in range(rng.randint(1, 4)):
        if kind in ("sft", "reward-model") and out.exists():
            break
        moments = Moments(sandbox.work, "operation", rng.randint(1, 60))
        group, at = rng.random() < 0.5, rng.choice(("instant", "operation"))
        process = Process(functools.partial(_watched, moments, work) if at == "operation" else work, sandbox.root)
        ended = process.end(120) if at == "operation" else process.wait(rng.uniform(0, seconds))
        if ended is None:
            process.kill(group)
            ended = process.end()
        if not ended.killed:
            if faults := ended.faults():
                return [f"{kind}: {fault}" for fault in faults]
            break
        counts[f"{kind}, {'with its workers' if group and at == 'instant' else 'alone'}"] += 1
        if processes := process.left():
            process.kill(group=True)
            return [f"{kind}: left 5 s after the kill: {processes}"]
    complete = kind in ("sft", "reward-model") and out.exists()  # the command would refuse to replace it
    faults = [] if complete else Process(work, sandbox.root).end(120).faults()
    return [f"{kind}: {fault}" for fault in faults or again.wrong(kind, out)]


def _watched(moments: Moments, work: Callable[[], int]) -> int:
    moments.watch()
    return work()


def _together(rng: Random, sandbox: Sandbox) -> list[str]:
    """Kills one of two processes, their launcher or all. One or two processes go on with the run."""
    name, path = rng.choice(("ppo-clip", "trpo", "prompts ppo-clip", "walks ppo-clip")), sandbox.work / "run"
    settings = {**tasks.CONTROL, **tasks.language()}[name]
    folder, sizes = sandbox.root / "cache", [2]
    with cache(folder if rng.random() < 0.5 else tasks.scratch() / "cache"):
        never = whole_together(name)
        for _ in range(rng.randint(1, 3)):
            victim = rng.choice(("one of two", "launcher", "all"))
            process = Process(functools.partial(_two, path, settings), sandbox.root)
            if process.wait(rng.uniform(0.1, never.seconds)) is not None:
                break
            workers = process.children()
            if victim == "one of two" and not (workers and all(_met(path, pid).exists() for pid in workers)):
                victim = "launcher"  # who waits for a partner that is dead is ended by torchrun
            if victim == "one of two":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                if process.end(30).hung:
                    return [f"{name}: the other process goes on"]
            else:
                process.kill(group=victim == "all")
                process.end()
            counts[f"torchrun, {victim}"] += 1
            if processes := process.left(10):
                process.kill(group=True)
                return [f"{name}: left 10 s after the kill of {victim}: {processes}"]
            if rng.random() < 0.3:
                sizes.append(1)
                process = Process(functools.partial(go_on, path, settings), sandbox.root)
                if process.wait(rng.uniform(0, never.seconds)) is None:
                    process.kill()
                    counts["one process after torchrun"] += process.end().killed
        sizes.append(rng.choice((1, 2)))
        last = functools.partial(_two if sizes[-1] == 2 else go_on, path, settings)
        faults = Process(last, sandbox.root).end(120).faults()
    faults = faults or (_apart if 1 in sizes else differences)(path, never.outcome)
    return [f"{name}, processes {sizes}: {fault}" for fault in faults]


def _two(path: Path, settings: dict[str, Any]) -> int:
    def work() -> None:
        meet = dist.init_process_group

        def meet_and_say_so(*arguments: Any, **options: Any) -> None:
            meet(*arguments, **options)
            _met(path, os.getpid()).touch()

        dist.init_process_group = meet_and_say_so
        short_runs.go_on(path, settings)

    return max(map(abs, short_runs.in_processes(2, work)))


def _met(path: Path, pid: int) -> Path:
    """A file that says that a process has met the other one."""
    return path.with_name(f"met-{pid}")


def _apart(path: Path, expected: dict[str, Any]) -> list[str]:
    """Where the numbers of a run are not those expected, up to rounding."""
    run = left(path)
    same = run["files"] == expected["files"] and len(run["metrics"]) == len(expected["metrics"])
    for one, other in zip(run["metrics"], expected["metrics"], strict=same):
        same = same and one == pytest.approx(other, rel=1e-3, abs=1e-3)
    return [] if same else ["metrics differ by more than rounding"]


@functools.cache
def whole_together(name: str) -> Whole:
    """The run of two processes that were never killed."""
    settings = {**tasks.CONTROL, **tasks.language()}[name]
    path = tasks.scratch() / f"two-{name.replace(' ', '-')}" / "run"
    path.parent.mkdir()
    start = time.monotonic()
    ended = Process(functools.partial(_two, path, settings), path.parent).end(300)
    assert not (faults := ended.faults()), faults
    return Whole(left(path), time.monotonic() - start, {})
