"""Ctrl-C and SIGTERM, twice, at any time from the first import to the end: at most one line, and nothing lost."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.campaign import tasks
from tests.faults.campaign.kill import command_for, left, whole_command
from tests.faults.campaign.processes import Ended, Process
from tests.faults.campaign.sandbox import Sandbox
from tests.faults.campaign.twins import sft_words, trained

COUNTED = "signals"
counts: dict[str, int] = {"SIGINT": 0, "SIGTERM": 0}
"""Signals so far that found a process."""
CODES = (0, 128 + signal.SIGINT, 128 + signal.SIGTERM)


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Sends a command two signals, a moment or long apart, and lets a run end."""
    kind = rng.choices(("train", "sft", "benchmark", "eval"), (5, 2, 2, 1))[0]
    out = sandbox.work / "out"
    work = command_for(out) if kind == "train" else functools.partial(_interpreter, *_words(kind, out))
    process = Process(work, sandbox.root)
    ended = process.wait(rng.uniform(0, 1.1 * _seconds(kind)))
    for pause in (rng.choice((0.0, 0.001, 0.01, 0.1, rng.uniform(0, 1))), 30):
        if ended is None:
            name = rng.choice(("SIGINT", "SIGINT", "SIGTERM"))
            _send(process, name, rng.random() < 0.5)
            ended = process.wait(pause)
    ended = ended or process.end(1)
    faults = _said(ended)
    if not faults and (processes := process.left()):
        faults = [f"left 5 s after the signals: {processes}"]
    if not faults and kind == "train":
        faults = _resumed(out, sandbox)
    return [f"{kind}: {fault}" for fault in faults] + sandbox.faults()


def _send(process: Process, name: str, group: bool) -> None:
    """Sends a signal to a process, or to its group as a terminal does."""
    (os.killpg if group else os.kill)(process.pid, getattr(signal, name))
    counts[name] += 1


def _said(ended: Ended) -> list[str]:
    """What is wrong with how a command ended: at most one line, and none of another kind."""
    if ended.hung:
        return ["no answer in 30 s"]
    lines = ended.errors.splitlines()
    if len(lines) > 1 or (lines and not lines[0].startswith("rlzoo: ")):
        return [f"{len(lines)} lines: {lines[-4:]}"]
    at_once = os.WIFSIGNALED(ended.status) and os.WTERMSIG(ended.status) in (signal.SIGINT, signal.SIGTERM)
    return [] if at_once or ended.code in CODES else [f"ended with status {ended.status}: {lines}"]


def _resumed(out: Path, sandbox: Sandbox) -> list[str]:
    """A run that was stopped ends as if it was not. It may have one checkpoint more."""
    expected = whole_command()[0]
    if faults := Process(command_for(out), sandbox.root).end().faults():
        return faults
    found = left(out)
    return [f"{key} differs" for key in ("model", "metrics", "evaluations") if found[key] != expected[key]]


def _words(kind: str, out: Path) -> list[Any]:
    if kind == "sft":
        return sft_words(0, out)
    if kind == "eval":
        return ["eval", trained(0), "--episodes", 100]
    suite = tasks.scratch() / "tiny.yaml"
    suite.write_text(tasks.SUITE)
    return ["benchmark", suite, "--out", out, "--jobs", 2]


@functools.cache
def _seconds(kind: str) -> float:
    """How long a command takes."""
    if kind == "train":
        return whole_command()[1]
    start = time.monotonic()
    ended = Process(
        functools.partial(_interpreter, *_words(kind, tasks.scratch() / f"signals-{kind}")), tasks.scratch()
    )
    assert not (faults := ended.end(200).faults()), faults
    return time.monotonic() - start


def _interpreter(*words: Any) -> None:
    """Becomes `rlzoo` in a new interpreter, which heeds Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.execv(sys.executable, [sys.executable, "-m", "rlzoo", *map(str, words)])
