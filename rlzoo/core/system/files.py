"""Reads the files that a user or a run directory names, if they are regular and of a sensible size; flushes files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

SMALL = 64 * 2**20
"""Largest size of a file of settings, in bytes."""
LARGE = 2**30
"""Largest size of a log or a tokenizer, in bytes."""
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Where a container of Linux (control groups, version 2) sees its own limit."""
MANIFEST = "manifest.json"
"""File of a sealed directory with the SHA-256 of every other file."""


def read_bytes(path: Path | str, most: int = SMALL) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: the file cannot be read, is too large, or is not a regular file, such as a pipe or a device.
    """
    check_regular(path, most)
    return Path(path).read_bytes()


def sync(path: Path) -> None:
    """Flushes a file, or the file names in a directory, to disk."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_regular(path: Path | str, most: int = SMALL) -> None:
    """Raises `OSError` unless `path` is a regular file of at most `most` bytes."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes; at most {most:,} are read", str(path))


def memory() -> int:
    """Size of the memory that this process may use, in bytes: the machine's, or the container's limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**37
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        return min(whole, int(_CONTAINER_LIMIT.read_text()))
    return whole


def most_in_memory() -> int:
    """Largest size of a file of weights or data, in bytes: half of the memory."""
    return memory() // 2


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checksums(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("[!.]*") if path.is_file() and path.name != MANIFEST)  # no .DS_Store
    return {path.relative_to(folder).as_posix(): checksum(path) for path in paths}


def seal(folder: Path) -> None:
    """Writes the checksums of a directory's files into it."""
    (folder / MANIFEST).write_text(json.dumps(_checksums(folder), indent=1))


def check_sealed(folder: Path, always: bool = False) -> None:
    """Raises `OSError` if a file of a sealed directory is missing, new, or another one than when it was sealed.

    A directory without checksums passes, unless it `always` has them: in runs, rlzoo 0.1.0 wrote none.
    """
    if not (folder / MANIFEST).exists():
        if always:
            raise OSError(f"{folder / MANIFEST} is missing")
        return
    try:
        sealed = json.loads(read_bytes(folder / MANIFEST))
    except (ValueError, RecursionError) as error:
        raise OSError(f"{folder / MANIFEST} is damaged") from error
    present = _checksums(folder)
    for name in sorted({*sealed, *present} if isinstance(sealed, dict) else {MANIFEST}):
        if not isinstance(sealed, dict) or sealed.get(name) != present.get(name):
            raise OSError(f"{folder / name} is damaged, or not the file that was saved there")


@contextlib.contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the name of a file to errors of writing to it, which have none if it was open: the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
