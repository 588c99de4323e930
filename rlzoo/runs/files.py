"""Atomic writes, JSON-lines files, and a lock on a folder. Nothing is written through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlzoo.core.system.errors import RunError
from rlzoo.core.system.files import LARGE, check_regular, naming, read_bytes, sync

_FIGURES = ("overview", "overall", "pairs", "against")
_REPORT = ("report.html", "report.md", "scores.csv", "curves.csv", *(f"figures/{name}.svg" for name in _FIGURES))


def write_and_sync(path: Path, data: bytes) -> None:
    """Writes a new file and flushes it to disk."""
    with naming(path), path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name, flushes it to disk, and renames it."""
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(temporary)
    try:
        write_and_sync(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def remove(path: Path) -> None:
    """Deletes a file, a directory with what can be deleted of it, or a symbolic link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_report(folder: Path) -> None:
    """Deletes what `rlzoo report` has written in a folder whose content is replaced."""
    if (folder / "figures").is_symlink():
        remove(folder / "figures")
    for name in _REPORT:
        remove(folder / name)
    with contextlib.suppress(OSError):  # it holds other files
        (folder / "figures").rmdir()


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        record = json.loads(read_bytes(path))
        return record if isinstance(record, dict) else {}
    return {}


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Lines of a JSON-lines file with the objects in them; None for a line that is not a complete object.

    Raises:
        RunError: the file cannot be read.
    """
    if not path.exists():
        return
    try:
        check_regular(path, LARGE)
        file = path.open(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        for line in file:
            yield line, parse_line(line)


def append_jsonl(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Adds lines to a JSON-lines file."""
    if path.is_symlink():
        path.unlink()
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write("".join([json.dumps(record) + "\n" for record in records]))


def parse_line(line: str) -> dict[str, Any] | None:
    """The object in a line of a JSON-lines file; None if the line is not a complete object."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if line.endswith("\n") and isinstance(record, dict) else None


@contextlib.contextmanager
def lock(folder: Path, file: Path | None = None) -> Iterator[None]:
    """Locks a folder against other processes. The operating system releases the lock if this process is killed.

    Args:
        file: the file that is locked, which is deleted in the end; by default `.lock` in the folder, which stays.

    Raises:
        RunError: another process holds the lock.
        OSError: the file cannot be written, or is a link.
    """
    from filelock import FileLock, Timeout

    path = file or folder / ".lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, through which nothing is written", str(path))
    path.touch()  # a file that cannot be made is an error, not a lock that another process holds
    try:
        held = FileLock(path, timeout=0).acquire()
    except Timeout as error:
        raise RunError(f"{folder} is in use by another process") from error
    with held:
        try:
            yield
        finally:
            if file is not None:
                with contextlib.suppress(OSError):  # Windows does not delete an open file
                    file.unlink()
