"""The configuration of a run: typed dataclasses, and their flat form in the command line, presets and `config.json`."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_args

import numpy as np

from rlzoo.algorithms import Algorithm
from rlzoo.core.env import env_name
from rlzoo.core.estimators import ALIASES as ESTIMATOR_ALIASES
from rlzoo.core.estimators import ESTIMATORS, Estimator
from rlzoo.core.system.errors import ConfigError, no_class, require
from rlzoo.core.system.fields import (
    Advanced,
    Checked,
    Count,
    MinibatchSize,
    NonNegativeInt,
    ScheduleRange,
    schedule_fault,
)
from rlzoo.core.system.functions import load_function, load_object
from rlzoo.core.system.progress import SILENT, Progress
from rlzoo.core.system.schedules import linear_ends
from rlzoo.core.system.screen import complain
from rlzoo.core.task import Setup, TaskSettings
from rlzoo.runs.configuration.objects import (
    as_json,
    as_short_json,
    describe_object,
    first_description,
    import_name,
    with_tuples,
)
from rlzoo.runs.configuration.settings import RESERVED, Setting, is_part, of_others, settings_of, unknown_name
from rlzoo.runs.configuration.unused import unused
from rlzoo.runs.registry import ALGORITHMS, ALIASES, algorithm_class, check_neighbour, task_class

_ALGORITHMS: dict[str, type[Algorithm]] = {name: algorithm_class(name) for name in ALGORITHMS}
_ALIASES = ALIASES | ESTIMATOR_ALIASES


@dataclass(frozen=True)
class Config(Checked):
    """Everything that a run depends on."""

    title: ClassVar[str] = "Run"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Evaluation and files": (
            *("eval_interval", "eval_episodes", "final_eval_episodes", "checkpoint_interval", "stop_return"),
        ),
        "Memory and speed": ("device", "fast", "compile"),
    }
    """Groups of fields in the help page, by title; the other fields are below `title`."""

    env: Any
    """Name or `module:Class` of a task, Gymnasium id, or `module:Id` of an environment that a module registers."""
    algorithm: Algorithm
    task: TaskSettings
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    total_steps: Count = 100_000
    """Environment steps to train for."""
    device: str = "cpu"
    """PyTorch device of the model."""
    fast: Advanced[bool] = True
    """Use implementations that are only faster: written-out gradients, acting in NumPy, packed weights."""
    compile: bool = False
    """Compile the update to native code. On by default for runs of 200,000 steps and more, where it can be."""
    eval_interval: Count | None = None
    """Steps between evaluations; none for a tenth of total_steps."""
    eval_episodes: Count = 20
    """Episodes of each evaluation."""
    final_eval_episodes: Count = 100
    """Episodes of each of the two final evaluations, stochastic and deterministic."""
    checkpoint_interval: Advanced[Count | None] = None
    """Steps between checkpoints; none for a tenth of total_steps."""
    stop_return: float | None = None
    """Stop when the mean return of an evaluation reaches this."""

    @property
    def table(self) -> dict[str, Setting]:
        """Every setting by its name.

        Raises:
            ConfigError: two parts have a setting of the same name, or one has a name of `RESERVED` or of a part.
        """
        table = settings_of(self, units=self.task.units)
        for name in sorted({*RESERVED, *self.task.named_parts} & table.keys()):
            raise ConfigError(f"setting {name!r} of {table[name].part.__name__} has a name of rlzoo's own: rename it")
        return table

    @property
    def names(self) -> set[str]:
        """The settings, and the parts that can be given as a whole."""
        parts = (f.name for f in dataclasses.fields(self.task) if is_part(getattr(self.task, f.name)))
        return {*self.table, *parts, "estimator", "task"} - {"env"}

    @property
    def of_model(self) -> set[str]:
        """The settings of a new model, which a model of the user's own does not take."""
        parts = self.task.named_parts
        return {*self.task.of_model, *parts, *settings_of(*(getattr(self.task, part) for part in parts))}

    def to_dict(self) -> dict[str, Any]:
        """Every setting by its name, as values for JSON. The algorithm, its estimator and the network are names.

        An object is `"module:name"` if it can be imported from there, else `{"object": "<short description>"}`.
        """
        kept = self.task.kept
        flat = {name: (as_short_json if name in kept else as_json)(x.value) for name, x in self.table.items()}
        return {
            "env": flat.pop("env"),
            "algorithm": _name_of(self.algorithm, _ALGORITHMS),
            "estimator": _name_of(self.algorithm.estimator, ESTIMATORS),
            **{name: _name_of(getattr(self.task, name), kind.known) for name, kind in self.task.named_parts.items()},
            **flat,
        }

    @property
    def objects(self) -> dict[str, str]:
        """The settings that `to_dict` can only describe and that a loaded run needs again, with their descriptions."""
        texts = {name: first_description(x) for name, x in self.to_dict().items() if name not in self.task.kept}
        return {name: text for name, text in texts.items() if text is not None}

    def setup(self, folder: Path | None = None, progress: Progress = SILENT) -> Setup:
        """What the task needs to know about the run."""
        estimator, idle = self.algorithm.estimator, unused(self.to_dict())
        sizes = {name: x.value for name, x in self.table.items() if x.hint == MinibatchSize and name not in idle}
        return Setup(
            env=self.env,
            algorithm=self.algorithm.name,
            seed=self.seed,
            device=self.device,
            gamma=estimator.gamma,
            whole_episodes=estimator.whole_episodes,
            grouped=estimator.grouped,
            second_order=self.algorithm.second_order,
            fisher_fraction=getattr(self.algorithm, "fisher_fraction", 1.0),
            minibatch_sizes=sizes,
            compile=self.compile,
            folder=folder,
            progress=progress,
        )


def make_config(algorithm: str | Algorithm, env: Any, **settings: Any) -> Config:
    """A `Config` from flat settings. Each setting goes to the part that has a field of that name.

    `algorithm` and the settings `estimator` and `network` are names, `module:Class`, or instances. The setting `task`
    is an instance. "none" means None for a setting that can be None.

    Raises:
        ConfigError: no part has such a field (the nearest name is suggested), a value is out of range, or the parts do
            not work together.
        UnknownEnv: there is no such environment or task.
    """
    config = assemble(algorithm, env, settings)
    check(config)
    return config


def assemble(algorithm: str | Algorithm, env: Any, settings: Mapping[str, Any]) -> Config:
    """`make_config` without the final `check`."""
    settings = present_names(_class_of(algorithm, "algorithm", Algorithm, _ALGORITHMS), settings)
    config = _with_parts(algorithm, env, settings)
    parts = {"task", "estimator", *config.task.named_parts}
    settings = {name: x for name, x in settings.items() if name not in parts}
    for name in sorted(settings.keys() - config.names):
        fault = of_others(config.algorithm, name, config.names)
        raise ConfigError(fault or unknown_name("setting", name, config.names))
    for name, setting in config.table.items():
        if isinstance(settings.get(name), str) and settings[name] == "none" and NoneType in get_args(setting.hint):
            settings[name] = None
    return _replace(config, settings, config.task.units)


def merge(
    algorithm: str | Algorithm, env: Any, settings: Mapping[str, Any], sources: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """`settings` on top of those of `sources`, of which later ones win; and what each source contributes to them.

    If a later source or `settings` name an estimator or a network, a source may have settings that these lack, and its
    `vf_coef` of 0 does not count if the estimator needs a value. One that is an instance keeps the values of its
    fields, except for those that `settings` name.

    Args:
        sources: settings from elsewhere than the user, a preset, a recipe or a file, by title.

    Raises:
        ConfigError: a source sets something that the algorithm or task does not have.
    """
    cls = _class_of(algorithm, "algorithm", Algorithm, _ALGORITHMS)
    settings = present_names(cls, settings)
    present = {title: present_names(cls, defaults) for title, defaults in sources.items()}
    config = _with_parts(algorithm, env, ChainMap(settings, *reversed(present.values())))
    names, parts = config.names, {"estimator", "task", *config.task.named_parts}
    whole = [settings[part] for part in parts & settings.keys() if is_part(settings[part])]
    inside = {name for part in whole for name in settings_of(part, units=config.task.units)}
    for title, defaults in reversed(present.items()):
        if parts & settings.keys():
            own = _with_parts(algorithm, env, defaults)
            replaced = own.names - names
            untrained = not (own.algorithm.estimator.needs_value or defaults.get("vf_coef"))
            if untrained and config.algorithm.estimator.needs_value:  # a value that is not trained would be 0
                replaced |= {"vf_coef"}
            defaults = {name: x for name, x in defaults.items() if name not in replaced}
        for name in sorted(defaults.keys() - names):
            raise ConfigError(f"{title} sets {name}, which {cls.name} on {env_name(env)} does not have")
        present[title] = {name: x for name, x in defaults.items() if name not in {*settings, *inside}}
        settings = present[title] | settings
    return settings, present


def present_names(cls: type[Algorithm], settings: Mapping[str, Any], say: bool = True) -> dict[str, Any]:
    """Settings with the names that the algorithm gives them today, and a line for each that had another one.

    Numbers of NumPy become Python's and paths become strings, as JSON has no others.
    """
    present = {name: _plain(x) for name, x in settings.items()}
    for old, new in cls.renamed.items():
        if old in present:
            require(new not in present, f"{old} and {new} are two names of one setting: leave out {old}")
            present[new] = present.pop(old)
            if say:
                complain_once(f"{old} of {cls.name} is called {new}")
    return present


def _plain(x: Any) -> Any:
    """`x` with Python's numbers instead of NumPy's, and strings for paths, also in lists, tuples and dicts."""
    if type(x) is dict:
        return {key: _plain(item) for key, item in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(_plain, x))
    return x.item() if isinstance(x, np.generic) else os.fspath(x) if isinstance(x, os.PathLike) else x


@functools.cache
def complain_once(line: str) -> None:
    """`complain`, but once in a process for each line."""
    complain(line)


def _with_parts(algorithm: str | Algorithm, env: Any, settings: Mapping[str, Any]) -> Config:
    """The configuration with the algorithm, estimator, task and named parts of `settings`, and default values."""
    task = settings.get("task") or task_class(env).default_settings(env)
    require(isinstance(task, TaskSettings), f"task must be TaskSettings, got {task!r}")

    def instance(part: Any, kind: str, base: type, classes: Mapping[str, type]) -> Any:
        """The part itself, or one made from a name or class and the task's defaults."""
        cls = _class_of(part, kind, base, classes)
        try:
            made = part if isinstance(part, base) else cls()
            require(dataclasses.is_dataclass(made), f"{cls.__name__} is not decorated: @dataclass(frozen=True)")
            return part if made is part else _replace(made, task.defaults, task.units)
        except TypeError as error:  # a field without a default, or an abstract method
            raise ConfigError(f"{kind} {part!r}: {error}") from error

    whole = instance(algorithm, "algorithm", Algorithm, _ALGORITHMS)
    if "estimator" in settings:
        estimator = instance(settings["estimator"], "estimator", Estimator, ESTIMATORS)
        whole = dataclasses.replace(whole, estimator=estimator)
    for name, kind in task.named_parts.items():
        if name in settings:
            task = dataclasses.replace(task, **{name: instance(settings[name], name, kind.base, kind.known)})
    return Config(env, whole, task)


def _replace(part: Any, settings: Mapping[str, Any], units: Mapping[str, tuple[str, str]]) -> Any:
    """`part` with those settings that are fields of it, or of the dataclasses in it."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value, name = getattr(part, f.name), units.get(f.name, (f.name,))[0]
        if is_part(value):
            value, cls = settings.get(f.name, value), type(value)
            require(isinstance(value, cls), f"{f.name} must be a {cls.__name__}, got {value!r}")
            changes[f.name] = _replace(value, settings, units)
        elif name in settings:
            x = settings[name]
            changes[f.name] = tuple(x) if isinstance(x, list) else with_tuples(x) if isinstance(x, dict) else x
    try:
        return dataclasses.replace(part, **changes)
    except ConfigError as error:  # it names the field; the user knows the setting
        field, _, rest = str(error).partition(" ")
        raise ConfigError(f"{units.get(field, (field,))[0]} {rest}") from error


def check(config: Config) -> None:
    """Checks whether the parts of a configuration work together.

    Raises:
        ConfigError: they do not; two parts have a setting of the same name; or a number is too large for a tensor.
    """
    for setting in config.table.values():
        _check_magnitude(setting)
    fault = "compile is one of the faster implementations that fast=False switches off: leave out one of the two"
    require(config.fast or not config.compile, fault)
    setup, normalizes = config.setup(), getattr(config.algorithm, "normalize_advantage", False)
    for name, size in setup.minibatch_sizes.items() if normalizes else ():
        alike = name == "minibatch_size" or (name == "minibatch_responses" and setup.grouped)
        require(size != 1 or not alike, f"{name} must be at least 2: whitened advantages of one are all 0")
    task_class(config.env).check(config.task, setup)


def check_schedules(config: Config) -> None:
    """Loads the schedules given as `module:function`. Raises `ConfigError` unless their values are in range."""
    for name, setting in config.table.items():
        text, bounds = setting.value, _schedule_range(setting.hint)
        if bounds is None or not isinstance(text, str) or text.startswith("linear:"):
            continue
        try:
            function = load_function("schedule", text, "linear:START:END")
        except ConfigError as error:
            forms = "a number, linear:START:END or module:function"
            raise ConfigError(f"{name} must be {forms}, got {text!r}: {error}") from error
        fault = schedule_fault(function, bounds)
        require(fault is None, f"{name} must be {fault}, got {text!r}")


def _schedule_range(hint: Any) -> ScheduleRange | None:
    """The range of a schedule in a type hint."""
    if isinstance(hint, ScheduleRange):
        return hint
    return next(filter(None, map(_schedule_range, get_args(hint))), None)


LARGEST_INT = 2**31 - 1
_LARGEST_FLOAT = 3.4e38
ANY_INTEGER = ("seed", "total_steps", "eval_interval", "checkpoint_interval")
"""Settings that are not the size of a tensor, and may be larger."""


def _check_magnitude(setting: Setting) -> None:
    """Raises `ConfigError` if a size is no 32-bit integer, or a number is beyond single precision."""
    name, value = setting.name, setting.value
    linear = isinstance(value, str) and value.startswith("linear:")
    for x in linear_ends(value) if linear else value if isinstance(value, tuple) else (value,):
        if isinstance(x, int) and name not in ANY_INTEGER:
            require(x <= LARGEST_INT, f"{name} must be at most {LARGEST_INT}, got {value}")
        if isinstance(x, float) and math.isfinite(x):
            bound = f"at most {_LARGEST_FLOAT:g} in absolute value"
            require(abs(x) <= _LARGEST_FLOAT, f"{name} must be {bound}, got {value}")


def _name_of(part: Any, registry: Mapping[str, type]) -> str | dict[str, str]:
    """The name of a part's class: a registered one, or `module:Class`; else a description of the part."""
    cls = type(part)
    names = (name for name, registered in registry.items() if registered is cls)
    return next(names, None) or import_name(cls) or {"object": describe_object(part)}


def _class_of(part: Any, kind: str, base: type, classes: Mapping[str, type]) -> Any:
    """The class of a part that is a registered name, `module:Class`, a class, or an instance."""
    cls = part if isinstance(part, type) else type(part)
    if not issubclass(cls, base):
        cls = _named_class(part, kind, base, classes)
    for needed in {"algorithm": ("name", "estimator"), "estimator": ("gamma",)}.get(kind, ()):
        shown = repr(part) if isinstance(part, str) else cls.__name__
        fault = f"{kind} {shown} has no {needed}, which every {base.__name__} has"
        require(hasattr(cls, needed) or hasattr(part, needed), fault)
    return cls


def _named_class(part: Any, kind: str, base: type, classes: Mapping[str, type]) -> Any:
    """The class that a registered name or `module:Class` names."""
    example = f"such as {kind}={next(iter(classes))!r} or {kind}={next(iter(classes.values())).__name__}()"
    require(isinstance(part, str), f"{kind} must be a name or an instance of {base.__name__}, {example}, got {part!r}")
    if kind == "algorithm":
        check_neighbour(part)
    name = _ALIASES.get(part, part)
    if name in classes:
        return classes[name]
    aliases = [alias for alias, other in _ALIASES.items() if other in classes]
    require(":" in name, no_class(kind, name, classes, aliases))
    cls = load_object(kind, name, "class")
    require(isinstance(cls, type) and issubclass(cls, base), f"{name!r} is no {base.__name__}")
    return cls
