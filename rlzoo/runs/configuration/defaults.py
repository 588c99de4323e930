"""What a run starts from: the preset of its algorithm and task, a recipe, a preset file, or another run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlzoo.algorithms import Algorithm
from rlzoo.core.env import env_name
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.functions import load_object
from rlzoo.runs.acceleration import gains_by_compiling
from rlzoo.runs.configuration.config import Config, assemble, merge, present_names
from rlzoo.runs.configuration.objects import first_description
from rlzoo.runs.configuration.presets import find_preset, find_recipe, is_file, preset_of_kind, read_preset
from rlzoo.runs.configuration.record import read_settings
from rlzoo.runs.configuration.unused import unused
from rlzoo.runs.registry import ALGORITHMS, ALIASES, algorithm_class, task_class


def configure(
    algorithm: str | Algorithm | Config | None,
    env: Any,
    config: Config | os.PathLike[str] | str | None,
    preset: bool | str,
    settings: Mapping[str, Any],
) -> tuple[Config, list[str]]:
    """The configuration that the arguments of `train` describe, unchecked, and lines that say what it started from."""
    if isinstance(algorithm, Config):
        require(config is None, "give a Config once")
        algorithm, config = None, algorithm
    if isinstance(config, Config):
        alone = algorithm is None and env is None and not settings and isinstance(preset, bool)
        require(alone, "give either a Config or settings, not both")
        return config, []
    if config is not None:
        require(isinstance(preset, bool), "give either config or preset, not both")
        file = os.fspath(config)
        algorithm, env, base = from_config(file, algorithm, env, settings)
        filled, lines = merge(algorithm, env, settings, {file: base})[0], [f"settings of {file}"]
    elif algorithm is None:
        raise ConfigError('algorithm is missing: train("ppo-clip", "CartPole-v1")')
    else:
        require(env is not None, "env is missing")
        filled, lines = starting_from(algorithm, env, settings, preset)
    result = assemble(algorithm, env, filled)
    lines += [f"{name} does nothing {why}" for name, why in unused(result.to_dict()).items() if name in settings]
    if config is None and "compile" not in filled and gains_by_compiling(result):
        result = replace(result, compile=True)
        lines.append("compile=True: a long run gains by native code")
    return result, lines


def starting_from(
    algorithm: str | Algorithm, env: Any, settings: Mapping[str, Any], preset: bool | str = True, of: str | None = None
) -> tuple[dict[str, Any], list[str]]:
    """`settings` on top of what `preset` asks for (see `rlzoo.train`), and lines that say what was used.

    Args:
        of: use the preset of this algorithm instead; an algorithm of one's own takes the settings that it has too.
    """
    settings, sources = merge(algorithm, env, settings, _sources(algorithm, env, preset, settings, of))
    if not sources and preset and isinstance(algorithm, str):
        pair = f"{ALIASES.get(algorithm, algorithm)} on {env_name(env)}"
        return settings, [f"no preset for {pair}: starting from the defaults"]
    texts = {title: (f"{name}={x}" for name, x in source.items()) for title, source in sources.items() if source}
    return settings, [f"{title}: {', '.join(text)}" for title, text in texts.items()]


def _sources(
    algorithm: str | Algorithm, env: Any, preset: bool | str, settings: Mapping[str, Any], of: str | None = None
) -> dict[str, dict[str, Any]]:
    """The preset of the pair or of the task's kind, if there is one, and the recipe or file that `preset` names."""
    sources: dict[str, dict[str, Any]] = {}
    name = algorithm if isinstance(algorithm, str) else getattr(algorithm, "name", "")
    name = ALIASES.get(name, name)
    if preset and isinstance(algorithm, str) and isinstance(env, str):
        tuned = ALIASES.get(of, of) if of else name
        title, pair = f"preset {tuned}/{env}", find_preset(tuned, env)
        if pair is None and preset is True:
            kind = task_class(env).Settings.kind(env, settings)
            title, pair = f"no preset for {name} on {env}: settings for {kind}", preset_of_kind(tuned, kind)
        if pair is not None and of is not None and name in ALGORITHMS:
            pair = present_names(algorithm_class(name), pair, say=False)  # where the other algorithm has the old name
        elif pair is not None and of is not None:
            own = getattr(load_object("algorithm", name, "class"), "__dataclass_fields__", {})
            lacks = pair.keys() & (algorithm_class(tuned).__dataclass_fields__.keys() - own.keys())
            title += f" without {', '.join(sorted(lacks))}" if lacks else ""
            pair = {setting: x for setting, x in pair.items() if setting not in lacks}
        sources |= {} if pair is None else {title: pair}
    if isinstance(preset, str):
        sources[f"preset {preset}"] = read_preset(Path(preset), name, env) if is_file(preset) else find_recipe(preset)
    return sources


def from_config(
    path: Path | str, algorithm: str | Algorithm | None, env: Any, settings: Mapping[str, Any]
) -> tuple[str | Algorithm, Any, dict[str, Any]]:
    """Algorithm, environment and settings of a `config.json`.

    Args:
        path: the file, or the run directory that holds it.
        algorithm, env: None, or the same as in the file; the object, if the file could only describe it.
        settings: those that are given beside the file, with the objects that it could only describe.

    Raises:
        RunError: the file cannot be used.
        ConfigError: the file has another algorithm or environment, or an object of the run is missing.
    """
    file = Path(path, "config.json") if Path(path).is_dir() else Path(path)
    base = read_settings(file)
    require({"algorithm", "env"} <= base.keys(), f"{file} names no algorithm or no env")
    arguments = {name: x for name, x in {**settings, "algorithm": algorithm, "env": env}.items() if x is not None}
    for name, x in base.items():
        if (text := first_description(x)) is not None:
            require(name in arguments, f"{file} was made from an object: pass {name}=... ({text})")
            base[name] = arguments[name]
    for name in ("algorithm", "env"):
        x = arguments.get(name, base[name])
        if ALIASES.get(str(x), x) != base[name]:
            raise ConfigError(f"{file} has {name} {base[name]}, not {x}: leave the {name} out")
    return base.pop("algorithm"), base.pop("env"), base
