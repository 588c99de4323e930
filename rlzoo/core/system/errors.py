"""The exceptions that users can meet.

The command line prints them as one line. The exit code is 1 for `TrainingError`, `NonFiniteError` and `ProcessError`, 2
for the others; after a signal, 128 and its number.
"""

from __future__ import annotations

import difflib
import os
import sysconfig
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A setting is invalid. The message names the field and the values it accepts."""


class UnknownEnv(ValueError):  # noqa: N818
    """No environment or task has this name."""


class UnsupportedSpace(ValueError):  # noqa: N818
    """No policy can be built for an observation or action space."""


class EnvError(RuntimeError):
    """An environment or score function cannot be made, or failed while it ran."""


class NonFiniteError(FloatingPointError):
    """A loss or gradient became NaN or infinite. The message names the quantity."""


class RunError(RuntimeError):
    """A run directory or checkpoint is missing, damaged, of another format, or in use."""


class ProcessError(RuntimeError):
    """Another process that trains the same run has died or failed. The message names it."""


OF_THE_FIRST = "The first process has reported it."
"""Note at an error that the first process sent to the others."""


class TrainingError(RunError):
    """Training failed. The message names the step, the cause and the last checkpoint."""


class Interrupted(KeyboardInterrupt):
    """A signal stopped training after a checkpoint was written; `signal` is its number."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def describe_error(error: BaseException) -> str:
    """The kind and message of an error in one line. Of code that the user wrote, even the message may be an error."""
    try:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:
        message = "its message cannot be made"
    return ": ".join(filter(None, (type(error).__name__, " ".join(message.split()))))


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its kind if there is no message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


_PACKAGE = str(Path(__file__).parents[2]) + os.sep
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Folders of code that is not the user's."""


def place(error: BaseException, function: Any = None) -> str:
    """' (file:line)' of the last line of user code in the traceback, or of the function; '' if unknown."""
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        return f" ({error.filename}:{error.lineno})"
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [(file, line) for file, line in places if not file.startswith((_PACKAGE, "<"))]
    code = getattr(function, "__code__", None)
    if code is not None:
        places.insert(0, (code.co_filename, code.co_firstlineno))
    own = [(file, line) for file, line in places if not file.startswith(LIBRARIES)]
    return " ({}:{})".format(*(own or places)[-1]) if places else ""


def no_such(kind: str, name: str, names: Iterable[str]) -> str:
    """The message for an unknown name: "no setting 'gama'; did you mean 'gamma'?"."""
    known = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"no {kind} {name!r}" + (f"; did you mean {known[near[0]]!r}?" if near else "")


def no_class(kind: str, name: str, known: Collection[str], aliases: Collection[str] = ()) -> str:
    """`no_such` with all names, where `module:Class` is another. Other libraries write a dot for the colon."""
    form = f"; a class of your own is {':'.join(name.rsplit('.', 1))}" if "." in name else ""
    return f"{no_such(kind, name, (*known, *aliases))} (known: {', '.join(known)}){form}"


def require(condition: bool, message: str) -> None:
    """Raises `ConfigError(message)` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
