"""Presets, tuned settings in one TOML file for each algorithm with one table for each task; and recipes."""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from rlzoo.core.system.errors import ConfigError, no_such, require
from rlzoo.core.system.files import read_bytes

_RECIPES, _KINDS = "recipes.toml", "kinds.toml"


def find_preset(algorithm: str, env: str) -> dict[str, Any] | None:
    """Settings for `make_config`, or None if the pair has no preset."""
    files = {file.name: file for file in resources.files(__name__).iterdir()}
    file = files.get(f"{algorithm}.toml")
    return None if file is None else _tables(file).get(env)


def preset_of_kind(algorithm: str, kind: str | None) -> dict[str, Any] | None:
    """Settings for a task that has no preset, by its kind (see `TaskSettings.kind`)."""
    kinds = _tables(resources.files(__name__) / _KINDS)
    table = kinds.get(kind or "")
    if table is None or algorithm not in table:
        return None
    base = preset_of_kind(algorithm, table["as"]) if "as" in table else {}
    own = {name: x for name, x in table.items() if name != "as" and not isinstance(x, dict)}
    return {**(base or {}), **own, **table[algorithm]}


def find_recipe(name: str) -> dict[str, Any]:
    """Settings of a recipe, those of a known system.

    Raises:
        ConfigError: there is no such recipe; the nearest name is suggested.
    """
    names = recipes()
    if name not in names:
        raise ConfigError(f"{no_such('preset', name, names)} (a file ends in .toml)")
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
    require(other == algorithm, f"preset {path} is for {other}, not for {algorithm}")
    table = tables.get(env)
    if not isinstance(table, dict):
        raise ConfigError(f"preset {path} has no table [{env}]; it has {', '.join(tables) or 'none'}")
    return table


def recipes() -> dict[str, dict[str, Any]]:
    """All recipes by name."""
    return _tables(resources.files(__name__) / _RECIPES)


def _tables(file: Traversable) -> dict[str, dict[str, Any]]:
    """Settings by table. TOML cannot write None, so "none" stands for it where a setting can be None."""
    return tomllib.loads(file.read_text())


def environments() -> dict[str, list[str]]:
    """Environments and tasks that have presets, with the algorithms of these presets."""
    presets: dict[str, list[str]] = {}
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml") and file.name not in (_RECIPES, _KINDS):
            for env in _tables(file):
                presets.setdefault(env, []).append(file.name.removesuffix(".toml"))
    return dict(sorted(presets.items()))
