"""Full and read-only disks: one line, nothing damaged, and the same command goes on once there is room.

The disk is a small tmpfs or a read-only mount, in a mount namespace of a process of its own. Where this user may not
mount anything, the size of files is limited instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.campaign import tasks
from tests.faults.campaign.kill import differences, left, whole_suite
from tests.faults.campaign.processes import Ended, Process, command
from tests.faults.campaign.sandbox import Sandbox
from tests.faults.campaign.twins import QUICK, contents, sft_words, trained, tuned

_NEW_NAMESPACE = 0x20000
Work = Callable[[], int]


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Runs a command on a disk that is full or read-only."""
    attack = rng.choices((_full, _read_only, _limited), (3, 2, 1) if may_mount() else (0, 0, 1))[0]
    return [f"{attack.__name__[1:]}: {fault}" for fault in attack(rng, sandbox)] + sandbox.faults()


@functools.cache
def may_mount() -> bool:
    """Whether this user may mount file systems in a namespace."""
    return Process(lambda: _mounted(["-t", "tmpfs", "tmpfs", "/mnt"]), tasks.scratch()).end().code == 0


def _mounted(words: list[str]) -> int:
    """Mounts something that only this process and its children see. Returns an exit code."""
    if ctypes.CDLL(None).unshare(_NEW_NAMESPACE) != 0:
        return 1
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    commands = (["mount", "--make-rprivate", "/"], ["mount", *words])
    return max(subprocess.run(x, check=False, **quiet).returncode for x in commands)  # type: ignore[call-overload]


def _commands(rng: Random, disk: Path) -> tuple[str, Work, Callable[[], list[str]]]:
    """A command that writes on a disk, and what is wrong with what it has left in the end."""
    kind = rng.choice(("train", "train", "sft", "benchmark"))
    out = disk / "out"
    if kind == "sft":
        model = contents(tuned(0))
        words = sft_words(0, out)
        return kind, command(*words), lambda: _unequal(contents(out), model)
    if kind == "benchmark":
        results = whole_suite()[0]
        work = command("benchmark", _suite(), "--out", out, "--jobs", 1)
        return kind, work, lambda: _unequal((out / "results.jsonl").read_bytes(), results)

    def train() -> int:
        words = ["resume", out, "--quiet"] if (out / "config.json").exists() else ["train", *_TRAIN, "--out", out]
        return command(*words)()

    expected = left(trained(0))
    return kind, train, lambda: differences(out, expected)


_TRAIN = ["ppo-clip", "CartPole-v1", "--seed", "0", *QUICK]


def _unequal(found: object, expected: object) -> list[str]:
    return [] if found == expected else ["what is left differs"]


def _full(rng: Random, sandbox: Sandbox) -> list[str]:
    disk = sandbox.work / "disk"
    disk.mkdir()
    room = rng.choice((4, 16, 32, 48, 64, 96, 128, 192, 256, 512))
    kind, work, wrong = _commands(rng, disk)

    def attack() -> list[str]:
        if _mounted(["-t", "tmpfs", "-o", f"size={room}k", "tmpfs", str(disk)]):
            return ["cannot mount"]
        first = Process(work, sandbox.root).end(120)
        if first.code == 0 or (faults := _stopped(first)):
            return [] if first.code == 0 else faults
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        return Process(work, sandbox.root).end(120).faults() or wrong()

    return [f"{kind}, {room} kB: {fault}" for fault in _in_process(attack, sandbox)]


def _stopped(ended: Ended) -> list[str]:
    """What is wrong with how a command ended whose disk was full."""
    return ended.faults((1,)) or ([] if "/" in ended.errors else [f"no file is named: {ended.errors}"])


def _read_only(rng: Random, sandbox: Sandbox) -> list[str]:
    disk = sandbox.work / "disk"
    shutil.copytree(trained(0), disk / "run")
    shutil.copytree(tuned(0), disk / "model")
    out = rng.choice((disk / "new", disk / "run", disk / "model"))
    over = ["--overwrite"] * rng.randrange(2)
    words = rng.choice((
        ["train", *_TRAIN, "--out", out, *over], ["resume", disk / "run"], ["eval", disk / "run", "--episodes", 2],
        ["resume", disk / "run", "--total-steps", 600], ["diagnose", disk / "run"], ["report", disk / "run"],
        ["report", disk / "run", "--out", disk / "report"], ["export", disk / "run", "--out", disk / "policy.pt"],
        [*sft_words(1, out), *over], ["benchmark", _suite(), "--out", out, "--jobs", 1, *over],
        ["search", "ppo-clip", "CartPole-v1", "--out", out, "--trials", 1],
    ))  # fmt: skip
    before = contents(disk)

    def attack() -> list[str]:
        if _mounted(["--bind", "-o", "ro", str(disk), str(disk)]):
            return ["cannot mount"]
        return Process(command(*words), sandbox.root).end(120).faults((0, 1, 2))

    faults = [f"{' '.join(map(str, words[:2]))}: {fault}" for fault in _in_process(attack, sandbox)]
    return faults or _unequal(contents(disk), before)


def _suite() -> Path:
    path = tasks.scratch() / "tiny.yaml"
    path.write_text(tasks.SUITE)
    return path


def _limited(rng: Random, sandbox: Sandbox) -> list[str]:
    """Files of a limited size, as on some file systems and under quotas."""
    size = rng.choice((500, 1000, 2000, 4000, 8000, 16_000, 50_000, 300_000))
    kind, work, wrong = _commands(rng, sandbox.work)

    def limited() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return work()

    first = Process(limited, sandbox.root).end(120)
    if first.code == 0:
        return []
    faults = _stopped(first) or Process(work, sandbox.root).end(120).faults() or wrong()
    return [f"{kind}, {size} bytes: {fault}" for fault in faults]


def _in_process(attack: Callable[[], list[str]], sandbox: Sandbox) -> list[str]:
    """The faults that an attack finds in a process of its own."""
    answer = sandbox.root / "faults.json"

    def work() -> None:
        answer.write_text(json.dumps(attack()))

    ended = Process(work, sandbox.root).end(300)
    with contextlib.suppress(OSError, ValueError):
        return [str(fault) for fault in json.loads(answer.read_text())]
    return [f"the attack itself failed: {ended}"]
