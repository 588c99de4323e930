"""Errors that a user can mend. The command line prints them as one line and exits with code 2."""

from __future__ import annotations


class ConfigError(ValueError):
    """A setting that cannot work; the message names the field and the values it may take."""


class NonFiniteError(FloatingPointError):
    """A loss or gradient became NaN or infinite; the message names the quantity."""


class RunError(RuntimeError):
    """A run directory or checkpoint that is missing, damaged, foreign or already in use."""


def require(condition: bool, message: str) -> None:
    """Raises `ConfigError(message)` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
