"""Standard streams that are closed, broken, full or hold junk: an exit code, no traceback, and work that goes on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.campaign import tasks
from tests.faults.campaign.directories import control_run, language_run
from tests.faults.campaign.kill import differences, left
from tests.faults.campaign.processes import Process
from tests.faults.campaign.sandbox import Sandbox
from tests.faults.campaign.twins import QUICK, trained

NEW = ["train", "ppo-clip", "CartPole-v1", "--seed", "0", *QUICK, "--out", "new"]
COMMANDS: tuple[list[str], ...] = (
    *(NEW, NEW[:-3], ["resume", "run", "--total-steps", "320"], ["list"], ["list", "--json"]),
    *(["--help"], ["train", "--help"], ["train", "trpo", "CartPole-v1", "--help"], ["--version"], ["lisst"], []),
    *(["eval", "run", "--episodes", "1", *more] for more in ([], ["--json"], ["--checkpoint", "x"])),
    *(["play", run, "--episodes", "1", *more] for run in ("run", "language") for more in ([], ["--json"])),
    *(["play", "language", "--prompt", "ab"], ["chat", "language"], ["chat", "model"], ["chat", "absent"]),
    *(["diagnose", "run"], ["report", "run", "--out", "page"], ["report", "run", "--json"]),
    *(["export", "run", "--out", "policy.h"], ["push", "run", "./shared"], ["benchmark", "absent"]),
    ["sft", "texts.txt", "--model", "model", "--out", "tuned", "--epochs", "1"],
)
OUT = ("as it is", "as it is", "closed", "broken", "full", "read-only", "ascii")
IN = ("closed", "empty", "junk")


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Runs a command with odd streams. A run that stopped goes on, and ends as if it had not."""
    words = rng.choice(COMMANDS)
    for name, source in (("run", control_run()), ("language", language_run()), ("model", tasks.data() / "model")):
        if name in words:
            shutil.copytree(source, sandbox.work / name)
    shutil.copy(tasks.data() / "texts.txt", sandbox.work)
    kinds = {0: rng.choice(IN), 1: rng.choice(OUT), 2: rng.choice(OUT[1:])}
    junk = b"\xff\xfehello\x00\x1b[2J\n" + rng.randbytes(rng.randrange(200)) + b"\n" * rng.randrange(3)
    faults = _faults(Process(_command(words, sandbox.work, kinds, junk), sandbox.root), kinds)
    if not faults and words == NEW:
        again = ["resume", "new"] if (sandbox.work / "new" / "config.json").exists() else NEW
        faults = Process(_command(again, sandbox.work, {}, b""), sandbox.root).end().faults()
        faults = faults or differences(sandbox.work / "new", left(trained(0)))
    return [f"{fault}: {words} {kinds}" for fault in faults] + sandbox.faults()


def _faults(process: Process, kinds: dict[int, str]) -> list[str]:
    ended = process.end()
    if ended.hung or ended.code not in (0, 1, 2):
        return ended.faults((0, 1, 2))
    return ["a traceback"] if "Traceback" in ended.errors or "Exception ignored" in ended.errors else []


def _command(words: list[str], folder: Path, kinds: dict[int, str], junk: bytes) -> Callable[[], int]:
    def work() -> int:
        from rlzoo.__main__ import main

        os.chdir(folder)
        for number, kind in kinds.items():
            _replace(number, kind, junk)
        sys.argv = ["rlzoo", *words]
        try:
            main()
        except SystemExit as done:
            if sys.stdout is not None:
                sys.stdout.flush()  # as Python does at the end, which complains if it fails
            return int(done.code or 0)

    return work


def _replace(number: int, kind: str, junk: bytes) -> None:
    """Makes a standard stream what Python makes of it when it starts with such a file."""
    name = ("stdin", "stdout", "stderr")[number]
    if kind == "closed":
        os.close(number)
        setattr(sys, name, None)
        return
    if kind in ("broken", "junk"):
        end, other = os.pipe()
        if kind == "junk":
            os.write(other, junk)
            os.close(other)
            other = end
        else:
            os.close(end)
        os.dup2(other, number)
    elif kind != "as it is" and kind != "ascii":
        path, mode = {
            "full": ("/dev/full", os.O_WRONLY), "read-only": ("/dev/null", os.O_RDONLY),
            "empty": ("/dev/null", os.O_RDONLY),
        }[kind]  # fmt: skip
        os.dup2(os.open(path, mode), number)
    encoding = "ascii" if kind == "ascii" else "utf-8"
    errors = "backslashreplace" if number == 2 else "strict"
    setattr(sys, name, open(number, "w" if number else "r", encoding=encoding, errors=errors, closefd=False))  # noqa: SIM115
