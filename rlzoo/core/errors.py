"""Errors that a user can mend.

The command line prints them as one line; the exit code is 1 for `TrainingError`, 2 for the others.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ConfigError(ValueError):
    """A setting that cannot work; the message names the field and the values it may take."""


class NonFiniteError(FloatingPointError):
    """A loss or gradient became NaN or infinite; the message names the quantity."""


class RunError(RuntimeError):
    """A run directory or checkpoint that is missing, damaged, foreign or already in use."""


class TrainingError(RunError):
    """Training broke off; the message names the step, the cause and the last checkpoint."""


class Interrupted(KeyboardInterrupt):
    """A signal stopped training after its checkpoint was written; `signal` is its number."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """'no setting 'gama'; did you mean 'gamma'?'"""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"no {kind} {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def require(condition: bool, message: str) -> None:
    """Raises `ConfigError(message)` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
