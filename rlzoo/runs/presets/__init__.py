"""Tuned settings as data: one TOML file an algorithm, a table an environment; and recipes for language tasks."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from rlzoo.core.errors import ConfigError, no_such

_RECIPES = "recipes.toml"


def find_preset(algorithm: str, env: str) -> dict[str, Any] | None:
    """Flat settings for `make_config`, or None if the pair has no preset."""
    file = resources.files(__name__) / f"{algorithm}.toml"
    if not file.is_file():
        return None
    return tomllib.loads(file.read_text()).get(env)


def find_recipe(name: str) -> dict[str, Any]:
    """Flat settings of a recipe, for any language task.

    Raises:
        ConfigError: there is none of that name; the nearest is suggested.
    """
    known = recipes()
    if name not in known:
        raise ConfigError(no_such("preset", name, known))
    return known[name]


def recipes() -> dict[str, dict[str, Any]]:
    """Named sets of settings for language tasks, one TOML table each."""
    return tomllib.loads((resources.files(__name__) / _RECIPES).read_text())


def environments() -> dict[str, list[str]]:
    """Environments that have presets, each with the algorithms that it has them for."""
    found: dict[str, list[str]] = {}
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml") and file.name != _RECIPES:
            for env in tomllib.loads(file.read_text()):
                found.setdefault(env, []).append(file.name.removesuffix(".toml"))
    return dict(sorted(found.items()))
