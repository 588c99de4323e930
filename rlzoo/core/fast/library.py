"""Native code: C++ that is compiled once per machine, and kept for later processes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from rlzoo.core.system.cache import cache_directory, make_once, writing
from rlzoo.core.system.errors import first_line
from rlzoo.core.system.files import check_sealed, seal

_log = logging.getLogger("rlzoo")
_LIBRARY = "library.so"
_BEGINNINGS = b"\x7fELF", b"\xcf\xfa\xed\xfe"
"""Of a library, on Linux and macOS."""
_NOT_OURS = "belongs to another user or others may write to it"


class Build:
    """A library of C++ code: that of the cache (see `cache_directory`), or one that a compiler makes meanwhile.

    Of several processes that need the same library, one compiles it and the others wait.

    Args:
        code: the C++ code. It may include the headers of `folder`.
        options: of the compiler, besides those that make a library for this processor.
    """

    def __init__(self, code: str, folder: Path, options: Sequence[str]) -> None:
        native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
        options = [*options, "-std=c++17", native, "-fno-math-errno", "-shared", "-fPIC"]
        headers = [path.read_text() for path in sorted(folder.glob("*.h"))]
        self._folder = _private(cache_directory()) / f"{_digest([code, *headers, *options])}-library"
        _remove_unsafe(self._folder)
        self._work: _Work | None = None
        if not self._folder.is_dir():
            self._work = _Work(self._folder, [_compiler(), *options, f"-I{folder}", "-x", "c++", "-"], code)
            self._work.start()
            weakref.finalize(self, self._work.end)

    @property
    def is_new(self) -> bool:
        """Whether it was not in the cache."""
        return self._work is not None

    def library(self) -> ctypes.CDLL:
        """The library, when it is compiled. Any exception of compiling or loading it."""
        if self._work is not None:
            self._work.join()
            if self._work.fault is not None:
                raise self._work.fault
        return ctypes.CDLL(str(make_once(self._folder, _no_making) / _LIBRARY))


class _Work(threading.Thread):
    """Compiles a library into a folder of the cache."""

    def __init__(self, folder: Path, command: Sequence[str], code: str) -> None:
        super().__init__(daemon=True)
        self._folder, self._command, self._code = folder, command, code
        self._process: subprocess.Popen[str] | None = None
        self._makes, self._ended = False, False
        self.fault: Exception | None = None

    def run(self) -> None:
        try:
            make_once(self._folder, self._make)
        except Exception as error:
            self.fault = error

    def end(self) -> None:
        """Ends the compiler, of whose result nobody is in need."""
        self._ended = True
        if self._process is not None:
            self._process.terminate()
        if self._makes:
            self.join(5)

    def _make(self, folder: Path) -> None:
        self._makes = True
        folder.mkdir(mode=0o700)
        command = [*self._command, "-o", str(folder / _LIBRARY)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True, start_new_session=True
        )
        if self._ended:
            self._process.terminate()
        _, errors = self._process.communicate(self._code)
        if self._process.returncode:
            faults = [line for line in errors.splitlines() if "error" in line or "failed" in line]
            raise RuntimeError(f"{command[0]}: {faults[0] if faults else self._process.returncode}")
        if not (folder / _LIBRARY).exists() or not (folder / _LIBRARY).read_bytes().startswith(_BEGINNINGS):
            raise RuntimeError(f"{command[0]} ended without an error, but has made no library")
        seal(folder)
        for path in folder.iterdir():
            path.chmod(0o600)


def build_library(source: Path, fused: bool = False) -> ctypes.CDLL | None:
    """The functions of a C++ file, compiled in 2 seconds if this is new; None if that is not possible.

    Args:
        fused: whether a product and a sum may become one operation, whose results are not those of NumPy.
    """
    try:
        contract = f"-ffp-contract={'fast' if fused else 'off'}"
        code = f'#line 1 "{source.name}"\n{source.read_text()}'
        return Build(code, Path(__file__).parent, ["-O3", contract]).library()
    except Exception as error:
        _log.debug("cannot build %s", source, exc_info=True)
        if compilers():  # else it is nothing that could be mended
            say(logging.WARNING, f"there is no native code, so results are rounded differently: {short(error)}")
        return None


def compilers() -> list[str]:
    """The C++ compilers of this machine."""
    if sys.platform == "darwin" and subprocess.run(["xcode-select", "-p"], capture_output=True).returncode:
        return []  # the names are there, but lead to a dialog that offers to install the compiler
    return [name for name in (os.environ.get("CXX"), "g++", "clang++") if name and shutil.which(name)]


def short(error: Exception) -> str:
    return textwrap.shorten(first_line(error), 200, placeholder=" ...")


@functools.cache
def say(level: int, message: str) -> None:
    """Logs what was not said before in this process: NPG and TRPO compile twice, which fails for one reason."""
    _log.log(level, message)


def _compiler() -> str:
    if names := compilers():
        return names[0]
    raise RuntimeError("there is no C++ compiler: neither g++ nor clang++, nor one that CXX names")


def _no_making(folder: Path) -> None:
    raise RuntimeError(f"{folder.parent} was deleted")


def _remove_unsafe(folder: Path) -> None:
    """Removes a library that another user may have written, or that is damaged."""
    try:
        for path in (folder, *folder.glob("*")) if os.path.lexists(folder) else ():
            if path.is_symlink() or not _is_ours(path.stat()):
                raise OSError(f"{path} {_NOT_OURS}")
        check_sealed(folder, always=folder.is_dir())
    except OSError as error:
        _log.warning("compiling again: %s", error)
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)


def _private(directory: Path) -> Path:
    """Creates `directory` if needed; PermissionError if another user could write native code into it."""
    with writing(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(directory.stat()):
        raise PermissionError(
            f"the cache {directory} belongs to another user or others may write to it; "
            "give it mode 700, or name another one in RLZOO_CACHE"
        )
    return directory


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(text: Sequence[str]) -> str:
    """A name for what is compiled. It depends on everything that affects the native code or where it can run."""
    parts = [*text, sys.platform, platform.machine(), _processor()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@functools.cache
def _processor() -> str:
    """The instruction sets, because machines that share a cache may have different processors."""
    if sys.platform != "linux":
        return ""
    with open("/proc/cpuinfo") as lines:
        return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
