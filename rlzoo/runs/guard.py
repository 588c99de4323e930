"""What another program does to the files of a run while it trains: noticed, said, and undone as far as possible."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from rlzoo.core.errors import ConfigError
from rlzoo.core.files import read_bytes
from rlzoo.runs.checkpoint import FILES
from rlzoo.runs.files import write_atomically
from rlzoo.runs.run import Run

_INTERVAL = 1.0
"""Seconds between checks."""
_KEPT = ("config.json", "tracker.json", "checkpoints/best.json")
"""Small files whose content is remembered."""


class Guard:
    """Watches a run directory, except for its logs, from which each `_Lines` restores itself.

    Args:
        begin: writes what the task needs in the directory, as far as it is missing.
        say: called with a line for each file that was restored.
    """

    def __init__(self, run: Run, begin: Callable[[Path], None], say: Callable[[str], None]) -> None:
        self._run, self._begin, self._say = run, begin, say
        self._contents: dict[Path, bytes] = {}
        for path in (run.path / name for name in _KEPT):
            if path.is_file():
                self.keep(path)
        self._folders = [path for path in run.path.iterdir() if path.is_dir() and path != run.checkpoints]
        self._checked = time.monotonic()
        steps = run.steps()
        self._last: tuple[int, object] | None = None
        if steps:
            self.saved(steps[-1])

    @property
    def due(self) -> bool:
        """Whether the last check was a second ago."""
        return time.monotonic() - self._checked > _INTERVAL

    def keep(self, path: Path) -> None:
        """Notes the content of a small file."""
        self._contents[path] = read_bytes(path)

    def saved(self, step: int) -> None:
        """Notes the last checkpoint."""
        self._last = step, _identity(self._run.checkpoints / str(step))

    def restore(self) -> int | None:
        """Restores what can be restored. Returns the step of the last checkpoint if it was deleted or changed.

        Raises:
            RunError: another process uses the directory now.
            OSError: a file cannot be written.
        """
        self._checked = time.monotonic()
        self._run.keep_lock()
        for path, content in self._contents.items():
            if _content(path) != content:
                write_atomically(path, content)
                self._say(f"another program deleted or changed {path}: it was written again")
        for folder in [path for path in self._folders if not path.is_dir()]:
            self._folders.remove(folder)
            try:
                self._begin(self._run.path)
                self._say(f"another program deleted {folder}: it was written again")
            except ConfigError as error:
                self._say(f"another program deleted {folder}, and it cannot be written again: {error}")
        if self._last is None or _identity(self._run.checkpoints / str(self._last[0])) == self._last[1]:
            return None
        step, self._last = self._last[0], None
        return step


def _content(path: Path) -> bytes | None:
    """The content of a file itself, not of one that a symbolic link leads to."""
    try:
        return None if path.is_symlink() else read_bytes(path)
    except OSError:
        return None


def _identity(folder: Path) -> object:
    """Equal as long as the files of a checkpoint are neither replaced nor written; None if one is missing."""
    try:
        found = [os.lstat(folder / name) for name in FILES]
    except OSError:
        return None
    return [(x.st_ino, x.st_size, x.st_mtime_ns) for x in found]
