"""The settings that a run starts from: the preset of its algorithm and task, and recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlzoo.algorithms import Algorithm
from rlzoo.core.env import env_name
from rlzoo.core.errors import ConfigError, require
from rlzoo.runs.configuration.config import ALIASES, assemble
from rlzoo.runs.configuration.objects import first_description, holds_object
from rlzoo.runs.configuration.presets import find_preset, find_recipe, is_file, read_preset
from rlzoo.runs.configuration.record import config_file, read_settings

Settings = dict[str, Any]


def with_preset(
    algorithm: str, env: Any, settings: Settings, of: str | None = None
) -> tuple[Settings, Settings | None]:
    """`settings` on top of the pair's preset, and what the preset contributed; None if there is no preset.

    If `settings` name an estimator, the preset's settings that this estimator does not have are left out.

    Args:
        of: use the preset of this algorithm instead.
    """
    name = of or algorithm
    preset = find_preset(ALIASES.get(name, name), env) if isinstance(env, str) else None
    if preset is None:
        return settings, None
    preset = _not_overridden(preset, settings, algorithm, env)
    return preset | settings, preset


def with_recipe(recipe: str, algorithm: str | Algorithm, env: Any, settings: Settings) -> tuple[Settings, Settings]:
    """`settings` on top of a recipe or a preset file, and what it contributed.

    A recipe may name an estimator. If `settings` name another one, settings that it does not have are left out.

    Raises:
        ConfigError: there is no such recipe or file, or it sets something that the algorithm or task does not have.
    """
    name = algorithm if isinstance(algorithm, str) else algorithm.name
    given = read_preset(Path(recipe), ALIASES.get(name, name), env) if is_file(recipe) else find_recipe(recipe)
    missing = given.keys() - _known(algorithm, env, given)
    if missing:
        raise ConfigError(f"preset {recipe!r} sets {min(missing)}, which {name} on {env_name(env)} does not have")
    given = _not_overridden(given, settings, algorithm, env)
    return given | settings, given


def from_config(path: Path | str, algorithm: str | None, env: Any, settings: Settings) -> tuple[str, Any, Settings]:
    """Algorithm, environment and settings of a `config.json`, changed by `settings`.

    If `settings` name an estimator, settings of the file that this estimator does not have are left out.

    Args:
        path: the file, or the run directory that holds it.
        algorithm, env: None, or the same as in the file; the object, if the file could only describe it.

    Raises:
        RunError: the file cannot be used.
        ConfigError: the file has another algorithm or environment, or an object of the run is missing.
    """
    file = config_file(path)
    base = read_settings(file)
    require({"algorithm", "env"} <= base.keys(), f"{file} names no algorithm or no env")
    given = settings | {name: x for name, x in (("algorithm", algorithm), ("env", env)) if x is not None}
    for name, x in base.items():
        if holds_object(x):
            wanted = f"{file} was made from an object: pass {name}=... ({first_description(x)})"
            require(name in given, wanted)
            base[name] = given[name]
    for name in ("algorithm", "env"):
        wanted = given.get(name, base[name])
        if ALIASES.get(str(wanted), wanted) != base[name]:
            raise ConfigError(f"{file} has {name} {base[name]}, not {wanted}: leave the {name} out")
    pair = base.pop("algorithm"), base.pop("env")
    return *pair, _not_overridden(base, settings, *pair) | settings


def starting_from(
    algorithm: str | Algorithm, env: Any, settings: Settings, preset: bool | str
) -> tuple[Settings, list[str]]:
    """`settings` on top of the preset and the recipe that `preset` asks for (see `rlzoo.train`).

    Also returns lines of text that say what was used.
    """
    lines: list[str] = []
    if isinstance(preset, str):
        settings, given = with_recipe(preset, algorithm, env, settings)
        lines = [_describe(preset, given)]
    if preset and isinstance(algorithm, str):
        name = ALIASES.get(algorithm, algorithm)
        settings, tuned = with_preset(algorithm, env, settings)
        if tuned is not None:
            lines.insert(0, _describe(f"{name}/{env}", tuned))
        elif not lines:
            lines = [f"no preset for {name} on {env_name(env)}: starting from the defaults"]
    return settings, lines


def _describe(name: str, given: Settings) -> str:
    return f"preset {name}: " + ", ".join(f"{setting}={value}" for setting, value in given.items())


def _not_overridden(defaults: Settings, settings: Settings, algorithm: str | Algorithm, env: Any) -> Settings:
    """The defaults that `settings` leave in force."""
    if {"estimator", "network"} & settings.keys():
        known = _known(algorithm, env, settings)
        defaults = {name: x for name, x in defaults.items() if name in known}
    return {name: x for name, x in defaults.items() if name not in settings}


def _known(algorithm: str | Algorithm, env: Any, settings: Settings) -> set[str]:
    """Names of all settings, with the estimator that `settings` name."""
    named = {name: x for name, x in settings.items() if name in ("estimator", "network")}
    config = assemble(algorithm, env, named)
    return {"estimator", *config.task.named_parts, *config.table}
