"""The file `config.json`: what a run was told, and what made it."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlzoo.core.errors import ConfigError, RunError, UnknownEnv
from rlzoo.core.files import read_bytes
from rlzoo.core.version import __version__
from rlzoo.runs.checkpoint import FORMAT, READABLE
from rlzoo.runs.configuration.upgrade import upgrade

_NOT_SETTINGS = ("objects", "spaces", "model_class", "extended_at", "threads", "versions", "git_commit")
"""Entries of `config.json` beside its format and the settings."""


def config_file(path: Path | str) -> Path:
    """The `config.json` that a path names: the file itself, or that of a run directory."""
    path = Path(path)
    return path / "config.json" if path.is_dir() else path


def read_record(file: Path) -> dict[str, Any]:
    """The contents of a `config.json`.

    Raises:
        RunError: it is missing, damaged, or has an unknown format.
    """
    try:
        record = json.loads(read_bytes(file))
        version = record["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {reason(error)}") from error
    if version not in READABLE:
        raise RunError(other_format(file, record, READABLE))
    return dict(record)


def other_format(file: Path, record: Mapping[str, Any], readable: Sequence[int]) -> str:
    """The message for a file of an unknown format: what can read it."""
    made, commit = record.get("versions"), record.get("git_commit")
    by = f", {made['rlzoo']}" if isinstance(made, dict) and "rlzoo" in made else ""
    by += f" at commit {commit}" if commit else ""
    known = " and ".join(map(str, readable))
    return f"{file} has format {record['format']}; this rlzoo reads {known}: use the rlzoo that wrote it{by}"


def read_settings(file: Path) -> dict[str, Any]:
    """The settings in a `config.json` under their present names, with `algorithm` and `env`.

    Raises:
        RunError: as for `read_record`.
    """
    record = read_record(file)
    version = record.pop("format")
    for name in _NOT_SETTINGS:
        record.pop(name, None)
    try:
        return record if version == FORMAT else upgrade(record)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise RunError(f"{file} cannot be used: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The error in one line. Its type is included where the message says little without it."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {Path(error.filename).name}"
    text = " ".join(str(error).split())
    return text if isinstance(error, (ConfigError, UnknownEnv)) else f"{type(error).__name__}: {text}"


def versions() -> dict[str, str]:
    """Versions of rlzoo and of the libraries that its results depend on."""
    return {
        "rlzoo": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def git_commit() -> str | None:
    """Git commit of rlzoo, if it runs from a repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        git = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return git.stdout.strip()
