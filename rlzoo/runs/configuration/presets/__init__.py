"""Presets, tuned settings in one TOML file for each algorithm with one table for each task; and recipes."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

from rlzoo.core.system.errors import ConfigError, no_such, require
from rlzoo.core.system.files import read_bytes
from rlzoo.runs.registry import ALGORITHMS, ALIASES


def find_preset(algorithm: str, env: str) -> dict[str, Any] | None:
    """Settings for `make_config`, or None if the pair has no preset."""
    return _tables(algorithm).get(env) if algorithm in ALGORITHMS else None


def preset_of_kind(algorithm: str, kind: str | None) -> dict[str, Any] | None:
    """Settings for a task that has no preset, by its kind (see `TaskSettings.kind`)."""
    table = _tables("kinds").get(kind or "")
    if table is None or algorithm not in table:
        return None
    base = preset_of_kind(algorithm, table.get("as")) or {}
    own = {name: x for name, x in table.items() if name != "as" and not isinstance(x, dict)}
    return {**base, **own, **table[algorithm]}


def find_recipe(name: str) -> dict[str, Any]:
    """Settings of a recipe, those of a known system. Raises `ConfigError` with the nearest name if there is none."""
    names = recipes()
    require(name in names, f"{no_such('preset', name, names)} (a file ends in .toml)")
    return names[name]


def is_file(preset: str) -> bool:
    """Whether `preset` is a file rather than the name of a recipe."""
    return preset.endswith(".toml") or Path(preset).is_file()


def read_preset(path: Path, algorithm: str, env: str) -> dict[str, Any]:
    """The table of `env` in a preset file, such as `rlzoo search` writes.

    Raises:
        ConfigError: there is no such file or table, or the file is for another algorithm.
    """
    try:
        tables = tomllib.loads(read_bytes(path).decode())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"preset {path} cannot be read: {reason}") from error
    other = tables.pop("algorithm", algorithm)
    other = ALIASES.get(str(other), other)
    require(other == algorithm, f"preset {path} is for {other}, not for {algorithm}")
    table = tables.get(env)
    if not isinstance(table, dict):
        raise ConfigError(f"preset {path} has no table [{env}]; it has {', '.join(tables) or 'none'}")
    return table


def recipes() -> dict[str, dict[str, Any]]:
    return _tables("recipes")


def _tables(name: str) -> dict[str, dict[str, Any]]:
    """Settings by table; none without a file. TOML cannot write None: "none" stands for it."""
    file = resources.files(__name__) / f"{name}.toml"
    return tomllib.loads(file.read_text()) if file.is_file() else {}


def environments() -> dict[str, list[str]]:
    """Environments and tasks that have presets, with the algorithms of these presets."""
    presets = defaultdict(list)
    for algorithm in sorted(ALGORITHMS):
        for env in _tables(algorithm):
            presets[env].append(algorithm)
    return dict(sorted(presets.items()))
