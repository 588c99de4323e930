"""Running one attack: what the command printed, how long it took, and what it touched."""

from __future__ import annotations

import contextlib
import io
import signal
import socket
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

LIMIT = 20
"""Seconds after which an attack counts as a hang, without those in which other processes had the processor."""
EXIT_CODES = (0, 1, 2)


class Hang(BaseException):
    """Raised in the middle of whatever takes longer than the limit."""


@dataclass
class Sandbox:
    """A folder for one attack. Only `work` may be written to."""

    root: Path
    work: Path = field(init=False)
    outside: Path = field(init=False)
    canary: Path = field(init=False)
    """A file that hostile inputs try to create by being executed."""

    def __post_init__(self) -> None:
        self.work, self.outside = self.root / "work", self.root / "outside"
        self.canary = self.root / "canary"
        for folder in (self.work, self.outside):
            folder.mkdir(parents=True, exist_ok=True)
        (self.outside / "precious.txt").write_text("precious")

    def faults(self) -> list[str]:
        """What was touched that nobody asked for."""
        found = ["code was executed"] if self.canary.exists() else []
        left = {p.relative_to(self.outside): p.read_bytes() for p in self.outside.rglob("*") if p.is_file()}
        if left != {Path("precious.txt"): b"precious"}:
            found.append("a file outside the working directory was touched")
        return found


def attack(sandbox: Sandbox, command: Sequence[str]) -> list[str]:
    """Runs a command in this process. Returns what went wrong: nothing, for a command that behaves."""
    from rlzoo.cli import main

    return watched(sandbox, lambda: main(list(command)))


def watched(sandbox: Sandbox, act: Callable[[], int]) -> list[str]:
    """Calls `act`, which returns an exit code, in the working directory."""
    out, err = io.StringIO(), io.StringIO()
    faults = []
    code: int | None = None
    lookup, asked = socket.getaddrinfo, []

    def only_here(host: Any, *args: Any, **more: Any) -> Any:
        if host == "127.0.0.1":
            return lookup(host, *args, **more)
        asked.append(host)
        raise OSError("attacks have no network")

    try:
        with (
            mock.patch("socket.getaddrinfo", only_here),
            mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True),  # a name that is no file is looked for there
            _limit(),
            contextlib.chdir(sandbox.work),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = act()
    except Hang:
        faults.append(f"no answer in {LIMIT} s")
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        faults.append(
            f"traceback: {type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:150]}"
        )
    if code is not None and code not in EXIT_CODES:
        faults.append(f"exit code {code}")
    lines = err.getvalue().splitlines()
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("rlzoo: ")):
        faults.append(f"exit code 2 with {len(lines)} lines: {lines[:2]}")
    if any(unicodedata.category(c) in ("Cc", "Cs") for line in lines if line.startswith("rlzoo: ") for c in line):
        faults.append("control characters on the screen")
    if "Traceback" in err.getvalue():
        faults.append("a traceback was printed")
    if asked:
        faults.append(f"the network was asked for {asked[0]}")
    return faults + sandbox.faults()


@contextlib.contextmanager
def _limit() -> Iterator[None]:
    """Raises `Hang` after `LIMIT` seconds, in or after the block: an error handler may have caught the first one."""
    start = _own_time()

    def check(number: int = 0, frame: FrameType | None = None) -> None:
        if _own_time() - start > LIMIT:
            raise Hang

    before = signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    check()


def _own_time() -> float:
    """Seconds by the clock, without those in which this thread waited for a processor, where the system tells."""
    told = Path("/proc/self/schedstat")
    return time.monotonic() - (int(told.read_text().split()[1]) / 1e9 if told.exists() else 0)
