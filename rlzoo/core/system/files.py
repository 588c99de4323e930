"""Files: those that a user or a run directory named are read if they are regular and of a sensible size."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

SMALL = 64 * 2**20
"""Largest size of a file of settings, in bytes."""
LARGE = 2**30
"""Largest size of a log or a tokenizer, in bytes."""


def read_bytes(path: Path | str, most: int = SMALL) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: the file cannot be read, is too large, or is not a regular file, such as a pipe or a device.
    """
    check_regular(path, most)
    return Path(path).read_bytes()


def check_regular(path: Path | str, most: int = SMALL) -> None:
    """Raises `OSError` unless `path` is a regular file of at most `most` bytes."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes; at most {most:,} are read", str(path))


def most_in_memory() -> int:
    """Largest size of a file of weights or data, in bytes: half of the memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if hasattr(os, "sysconf") else 2**36


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the name of a file to errors of writing to it, which have none if it was open: the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
