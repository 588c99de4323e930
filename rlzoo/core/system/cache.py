"""The cache directory, and the directories in it that are made once and checked at each use."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.files import check_sealed


def cache_directory() -> Path:
    """`$RLZOO_CACHE`, or else `$XDG_CACHE_HOME/rlzoo`, or else `~/.cache/rlzoo`. Its files may be deleted."""
    if own := os.environ.get("RLZOO_CACHE"):
        return Path(own)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlzoo"
    except RuntimeError as error:
        raise ConfigError("this user has no home directory for a cache; set RLZOO_CACHE to a directory") from error


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Raises `ConfigError` for an `OSError` within, which writes to the cache."""
    try:
        yield
    except OSError as error:
        fault = f"the cache {directory} cannot be written: {error.strerror}"
        raise ConfigError(f"{fault}; set RLZOO_CACHE to another directory") from error


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A directory of the cache. If it is missing, one process makes it while the others wait.

    `make` writes a sealed directory (see `files.seal`) at the path that it gets, which is renamed afterwards. Raises
    `ConfigError` if the cache cannot be written, or the files have changed since they were written.
    """
    if not folder.is_dir():
        with writing(folder.parent):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder.parent).close()
        lock = folder.with_name(f".{folder.name}.lock")
        with FileLock(lock):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as scratch:
                    make(Path(scratch, "new"))
                    Path(scratch, "new").rename(folder)
            with contextlib.suppress(OSError):  # Windows does not delete an open file
                lock.unlink()
    try:
        check_sealed(folder, always=True)
    except OSError as error:
        raise ConfigError(f"{error}; delete {folder}, and it is made again") from error
    return folder
