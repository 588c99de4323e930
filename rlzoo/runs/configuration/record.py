"""The file `config.json`: the settings of a run, and the versions that made it."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlzoo.core.system.errors import ConfigError, RunError, UnknownEnv
from rlzoo.core.system.files import read_bytes
from rlzoo.core.system.version import __version__
from rlzoo.runs.checkpoint import FORMAT
from rlzoo.runs.configuration.config import Config, present_names
from rlzoo.runs.registry import ALGORITHMS, algorithm_class

NOT_SETTINGS = ("format", "objects", "spaces", "extended_at", "threads", "versions", "git_commit")
"""Entries of `config.json` beside the settings."""
_KINDS = {"versions": dict, "spaces": dict, "git_commit": str | None}


def new_record(
    config: Config,
    objects: Mapping[str, str],
    spaces: Mapping[str, str],
    extended_at: int | None,
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """The contents of a `config.json`; `objects` has the descriptions of what it cannot hold.

    Args:
        before: the contents so far of a run that is resumed; empty for a new one.
    """
    return {
        "format": FORMAT,
        **config.to_dict(),
        "objects": {name: f"pass {name}=... ({what})" for name, what in objects.items()},
        "spaces": dict(spaces),
        "extended_at": extended_at,
        "threads": torch.get_num_threads(),
        "versions": {**versions(), **dict(before.get("versions") or {}), **changed_versions(before)},
        "git_commit": git_commit(),
    }


def read_record(file: Path, readable: int = FORMAT) -> dict[str, Any]:
    """The contents of a `config.json`, or of another file with a format, versions and a commit.

    Raises:
        RunError: it is missing, damaged, has an entry of the wrong kind, or another format than the readable one; then
            the message says what reads it.
    """
    try:
        record = json.loads(read_bytes(file))
        version = record["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{file} cannot be read: {reason(error)}") from error
    if version != readable:
        versions, commit = record.get("versions"), record.get("git_commit")
        writer = f", {versions['rlzoo']}" if isinstance(versions, dict) and "rlzoo" in versions else ""
        writer += f" at commit {commit}" if commit else ""
        raise RunError(f"{file} has format {version}; this rlzoo reads {readable}: use the rlzoo that wrote it{writer}")
    for name, kind in _KINDS.items():
        if name in record and not isinstance(record[name], kind):
            raise RunError(f"{file} cannot be used: {name} is {record[name]!r:.80}, which is of the wrong kind")
    return dict(record)


def read_settings(file: Path) -> dict[str, Any]:
    """The settings in a `config.json` by their present names, with `algorithm` and `env`. Raises as `read_record`."""
    settings = {name: x for name, x in read_record(file).items() if name not in NOT_SETTINGS}
    if settings.get("algorithm") in list(ALGORITHMS):
        return present_names(algorithm_class(settings["algorithm"]), settings, say=False)
    return settings


def reason(error: BaseException) -> str:
    """The error in one line. Its type is included where the message says little without it."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {Path(error.filename).name}"
    text = " ".join(str(error).split())
    return text if isinstance(error, (ConfigError, UnknownEnv)) else f"{type(error).__name__}: {text}"


_version = functools.cache(importlib.metadata.version)  # which searches all directories of packages


def versions() -> dict[str, str]:
    """Versions of rlzoo and of the libraries that its results depend on; of language models, where they are in use."""
    # The metadata of PyTorch lacks the version of CUDA.
    known = {"rlzoo": __version__, "python": platform.python_version(), "torch": torch.__version__}
    language = filter(sys.modules.get, ("transformers", "tokenizers", "peft"))
    for name in ("numpy", "gymnasium", "mujoco", *language):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[name] = _version(name)
    return known


def unequal_versions(records: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The libraries whose versions differ between records, with the version of each record that names one."""
    versions: dict[str, dict[str, str]] = {}
    for name, record in records.items():
        for library, version in dict(record.get("versions") or {}).items():
            versions.setdefault(library, {})[name] = str(version)
    return {library: x for library, x in versions.items() if len(set(x.values())) > 1}


def changed_versions(record: Mapping[str, Any]) -> dict[str, str]:
    """The libraries that a run had in another version, such as {"torch": "2.11.0, then 2.13.0"}."""
    unequal = unequal_versions({"before": record, "now": {"versions": versions()}}).items()
    both = ((library, x["before"], f"then {x['now']}") for library, x in unequal)
    return {library: f"{before}, {now}" for library, before, now in both if not before.endswith(now)}


def git_commit() -> str | None:
    """Git commit of rlzoo, if it runs from a repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    return None
