"""Work in forked processes: what they print, how they end, and which of them are left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Ended:
    """How a process ended, and what it wrote to standard error."""

    status: int
    errors: str
    hung: bool = False

    @property
    def killed(self) -> bool:
        return not self.hung and os.WIFSIGNALED(self.status) and os.WTERMSIG(self.status) == signal.SIGKILL

    @property
    def code(self) -> int | None:
        return os.WEXITSTATUS(self.status) if os.WIFEXITED(self.status) else None

    def faults(self, codes: tuple[int, ...] = (0,)) -> list[str]:
        """What a user would object to, in a process that nobody killed."""
        if self.hung:
            return ["no answer"]
        lines = self.errors.splitlines()
        if any("Traceback" in line or "Exception ignored" in line for line in lines):
            return [f"a traceback: {self.errors[-600:]!r}"]
        if self.code not in codes:
            return [f"ended with {self.code if self.code is not None else -os.WTERMSIG(self.status)}: {lines[-1:]}"]
        if self.code and (len(lines) != 1 or not lines[0].startswith("rlzoo: ")):
            return [f"exit code {self.code} with {len(lines)} lines: {lines[:3]}"]
        return []


class Process:
    """A forked process in a session of its own, with its output in files in `folder`."""

    def __init__(self, work: Callable[[], int | None], folder: Path) -> None:
        self._errors = folder / f"stderr-{time.monotonic_ns()}"
        begun, begins = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 70
            try:
                os.setsid()
                os.close(begun)
                os.close(begins)
                for descriptor, name in ((1, os.devnull), (2, str(self._errors))):
                    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
                sys.stdout, sys.stderr = (os.fdopen(x, "w", buffering=1, closefd=False) for x in (1, 2))
                code = work() or 0
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)
        os.close(begins)
        os.read(begun, 1)  # waits until the session is there, so that it can be killed
        os.close(begun)

    def wait(self, seconds: float) -> Ended | None:
        """How it ended, or None if it is still running after some seconds."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return Ended(status, self._errors.read_text(errors="replace") if self._errors.exists() else "")
            if time.monotonic() >= end:
                return None
            time.sleep(min(0.002, max(0.0, end - time.monotonic())))

    def end(self, seconds: float = 60) -> Ended:
        """How it ended, within some seconds; a process that takes longer is killed with its session."""
        ended = self.wait(seconds)
        if ended is None:
            self.kill(group=True)
            ended = self.wait(10)
            assert ended is not None
            ended.hung = True
        return ended

    def kill(self, group: bool = False) -> None:
        if group:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)

    def left(self, seconds: float = 5) -> list[str]:
        """Processes of its session that are left after some seconds, but those that are dead and not waited for."""
        end = time.monotonic() + seconds
        while alive := _session(self.pid):
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return alive

    def children(self) -> list[int]:
        """Process ids of its children."""
        listed = subprocess.run(["ps", "-eo", "ppid=,pid="], check=True, capture_output=True, text=True).stdout
        pairs = [[int(x) for x in line.split()] for line in listed.splitlines()]
        return [pid for parent, pid in pairs if parent == self.pid]


def command(*words: object) -> Callable[[], int]:
    """The command line, as work for a process."""

    def work() -> int:
        from rlzoo.cli import main

        return main([str(word) for word in words])

    return work


def _session(session: int) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "sid=,stat=,args="], check=True, capture_output=True, text=True).stdout
    fields = [line.split(maxsplit=2) for line in listed.splitlines()]
    return [args for sid, stat, args in (f for f in fields if len(f) == 3) if sid == str(session) and "Z" not in stat]
