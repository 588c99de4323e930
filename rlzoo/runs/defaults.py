"""Settings that a run starts from: the preset of its algorithm and task, and recipes."""

from __future__ import annotations

from typing import Any

from rlzoo.algorithms import Algorithm
from rlzoo.core.errors import ConfigError
from rlzoo.runs.config import ALIASES, Config, assemble
from rlzoo.runs.presets import find_preset, find_recipe
from rlzoo.runs.settings import settings_of


def with_preset(
    algorithm: str, env: str, settings: dict[str, Any], of: str | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`settings` on top of the preset for the pair, and what the preset gave; None if there is no preset.

    If `settings` choose an estimator, the preset's settings for its own estimator are left out.

    Args:
        of: use the preset of this algorithm instead.
    """
    of = of or algorithm
    preset = find_preset(ALIASES.get(of, of), env)
    if preset is None:
        return settings, None
    preset = _below(settings, preset, algorithm, env)
    return preset | settings, preset


def with_recipe(
    recipe: str, algorithm: str | Algorithm, env: str, settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`settings` on top of a recipe, and what the recipe gave.

    A recipe may name an estimator. If `settings` choose another, the recipe's settings for its own are left out.

    Raises:
        ConfigError: there is no such recipe, or it sets something that the algorithm or task does not have.
    """
    given = find_recipe(recipe)
    lacking = given.keys() - _known(algorithm, env, given)
    if lacking:
        name = algorithm if isinstance(algorithm, str) else algorithm.name
        raise ConfigError(f"preset {recipe!r} sets {min(lacking)}, which {name} on {env} does not have")
    given = _below(settings, given, algorithm, env)
    return given | settings, given


def starting_from(
    algorithm: str | Algorithm, env: str, settings: dict[str, Any], preset: bool | str
) -> tuple[dict[str, Any], list[str]]:
    """`settings` on top of what `preset` asks for (see `rlzoo.train`), and that in words."""

    def describe(name: str, given: dict[str, Any]) -> str:
        return f"preset {name}: " + ", ".join(f"{setting}={value}" for setting, value in given.items())

    lines: list[str] = []
    if isinstance(preset, str):
        settings, given = with_recipe(preset, algorithm, env, settings)
        lines = [describe(preset, given)]
    if preset and isinstance(algorithm, str):
        name = ALIASES.get(algorithm, algorithm)
        settings, tuned = with_preset(algorithm, env, settings)
        if tuned is not None:
            lines.insert(0, describe(f"{name}/{env}", tuned))
        elif not lines:
            lines = [f"no preset for {name} on {env}: starting from the defaults"]
    return settings, lines


def _below(settings: dict[str, Any], defaults: dict[str, Any], algorithm: str | Algorithm, env: str) -> dict[str, Any]:
    """The defaults that `settings` do not override."""
    if "estimator" in settings:
        known = _known(algorithm, env, settings)
        defaults = {name: x for name, x in defaults.items() if name in known}
    return {name: x for name, x in defaults.items() if name not in settings}


def _known(algorithm: str | Algorithm, env: str, settings: dict[str, Any]) -> set[str]:
    """Names of all settings, given the estimator that is among `settings`, if there is one."""
    parts = assemble(algorithm, env, {name: x for name, x in settings.items() if name == "estimator"})
    return {"estimator", *settings_of(Config(env, **parts), units=parts["task"].units)}
