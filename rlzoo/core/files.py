"""Files: those that a user named are read if they are regular and of a sensible size; errors name them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

SMALL = 64 * 2**20
"""Largest size of a file of settings, in bytes."""
LOG = 8 * 2**30
"""Largest size of a log that is read line by line, in bytes."""


def read_bytes(path: Path | str, most: int = SMALL) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: the file cannot be read, is too large, or is not a regular file, such as a pipe or a device.
    """
    check_regular(path, most)
    return Path(path).read_bytes()


def check_regular(path: Path | str, most: int = SMALL) -> None:
    """Raises `OSError` unless `path` is a regular file of at most `most` bytes."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    if found.st_size > most:
        raise OSError(errno.EFBIG, f"is too large: {found.st_size:,} bytes, at most {most:,} are read", str(path))


def memory() -> int:
    """Physical memory of the machine in bytes, which bounds the size of a file of weights."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**36


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the name of a file to errors of writing to it, which have none if it was open: the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
