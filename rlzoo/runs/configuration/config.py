"""The configuration of a run: typed dataclasses, and their flat form in the command line, presets and `config.json`."""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_args

from rlzoo.algorithms import ALGORITHMS, Algorithm
from rlzoo.core.errors import ConfigError, no_such, require
from rlzoo.core.estimators import ALIASES as ESTIMATOR_ALIASES
from rlzoo.core.estimators import ESTIMATORS, Estimator
from rlzoo.core.fields import Count, NonNegativeInt, Range, ScheduleRange, check_fields
from rlzoo.core.progress import SILENT, Progress
from rlzoo.core.schedules import linear_ends, load_function
from rlzoo.core.task import Setup, TaskSettings
from rlzoo.runs.configuration.objects import describe, first_description, holds_object, import_name, saved, written
from rlzoo.runs.configuration.settings import Setting, is_part, settings_of, unknown_name
from rlzoo.runs.registry import task_class

ALIASES = {"ppo": "ppo-clip"}


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    title: ClassVar[str] = "Run"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Evaluation and files": (
            *("eval_interval", "eval_episodes", "final_eval_episodes", "checkpoint_interval", "stop_return"),
        ),
        "Memory and speed": ("device", "fast", "compile"),
    }
    """Groups of fields in the help page, by title; the other fields are below `title`."""
    advanced: ClassVar[tuple[str, ...]] = ("fast", "checkpoint_interval")
    """Fields that only `--help-all` shows."""

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
    fast: bool = True
    """Use implementations that are only faster: written-out gradients, acting in NumPy, packed weights."""
    compile: bool = False
    """Compile the training step to native code, which is kept in a cache for later runs."""
    eval_interval: Count | None = None
    """Steps between evaluations; none for a tenth of total_steps."""
    eval_episodes: Count = 20
    """Episodes of each evaluation."""
    final_eval_episodes: Count = 100
    """Episodes of each of the two final evaluations, stochastic and deterministic."""
    checkpoint_interval: Count | None = None
    """Steps between checkpoints; none for a tenth of total_steps."""
    stop_return: float | None = None
    """Stop when the mean return of an evaluation reaches this."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def table(self) -> dict[str, Setting]:
        """Every setting by its name."""
        return settings_of(self, units=self.task.units)

    def to_dict(self) -> dict[str, Any]:
        """Every setting by its name, as values for JSON. The algorithm, its estimator and the network are names.

        An object is `"module:name"` if it can be imported from there, else `{"object": "<short description>"}`.
        """
        kept = self.task.kept
        flat = {name: (saved if name in kept else written)(x.value) for name, x in self.table.items()}
        return {
            "env": flat.pop("env"),
            "algorithm": _name_of(self.algorithm, ALGORITHMS),
            "estimator": _name_of(self.algorithm.estimator, ESTIMATORS),
            **{name: _name_of(getattr(self.task, name), kind.known) for name, kind in self.task.named_parts.items()},
            **flat,
        }

    @property
    def objects(self) -> dict[str, str]:
        """The settings that `to_dict` can only describe and that a loaded run needs again, with their descriptions."""
        flat = self.to_dict()
        kept = self.task.kept
        return {name: first_description(x) for name, x in flat.items() if holds_object(x) and name not in kept}

    def setup(self, folder: Path | None = None, progress: Progress = SILENT) -> Setup:
        """What the task needs to know about the run."""
        estimator = self.algorithm.estimator
        return Setup(
            env=self.env,
            seed=self.seed,
            device=self.device,
            gamma=estimator.gamma,
            whole_episodes=estimator.whole_episodes,
            grouped=estimator.grouped,
            second_order=self.algorithm.second_order,
            fast=self.fast,
            values={name: x.value for name, x in self.table.items()} | {"algorithm": self.algorithm.name},
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
    settings = dict(settings)
    task = settings.pop("task", None) or task_class(env).default_settings(env)
    require(isinstance(task, TaskSettings), f"task must be TaskSettings, got {task!r}")

    def instance(part: Any, kind: str, base: type, registry: Mapping[str, type]) -> Any:
        """The part itself, or one made from a name or class and the task's defaults."""
        if isinstance(part, str):
            part = ESTIMATOR_ALIASES.get(part, part) if base is Estimator else part
            part = _class_of(part, registry, base, kind)
        if isinstance(part, type) and issubclass(part, base):
            part = _replace(part(), task.defaults, task.units)
        example = f"such as {kind}={next(iter(registry))!r} or {kind}={next(iter(registry.values())).__name__}()"
        require(isinstance(part, base), f"{kind} must be a name or {_a(base.__name__)}, {example}, got {part!r}")
        return part

    if isinstance(algorithm, str):
        algorithm = ALIASES.get(algorithm, algorithm)
    chosen = instance(algorithm, "algorithm", Algorithm, ALGORITHMS)
    if "estimator" in settings:
        estimator = instance(settings.pop("estimator"), "estimator", Estimator, ESTIMATORS)
        chosen = dataclasses.replace(chosen, estimator=estimator)
    for name, kind in task.named_parts.items():
        if name in settings:
            task = dataclasses.replace(task, **{name: instance(settings.pop(name), name, kind.base, kind.known)})
    config = Config(env, chosen, task)
    nested = (f.name for f in dataclasses.fields(task) if is_part(getattr(task, f.name)))
    known = {*config.table, *nested, "estimator"} - {"env"}
    unknown = settings.keys() - known
    if unknown:
        raise ConfigError(unknown_name("setting", min(unknown), known))
    optional = {name for name, x in config.table.items() if NoneType in get_args(x.hint)}
    settings = {name: None if x == "none" and name in optional else x for name, x in settings.items()}
    return _replace(config, settings, task.units)


def _replace(part: Any, settings: Mapping[str, Any], units: Mapping[str, tuple[str, str]]) -> Any:
    """`part` with those settings that are fields of it, or of the dataclasses in it."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        value, name = getattr(part, f.name), units.get(f.name, (f.name,))[0]
        if is_part(value):
            given, cls = settings.get(f.name, value), type(value)
            require(isinstance(given, cls), f"{f.name} must be a {cls.__name__}, got {given!r}")
            changes[f.name] = _replace(given, settings, units)
        elif name in settings:
            x = settings[name]
            changes[f.name] = tuple(x) if isinstance(x, list) else x
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
    algorithm = config.algorithm
    require(
        config.fast or not config.compile,
        "compile is one of the faster implementations that fast=False switches off: leave out one of the two",
    )
    require(
        not (config.compile and algorithm.estimator.whole_episodes),
        f"compile cannot be used with {algorithm.name}: each buffer of whole episodes has another shape",
    )
    task_class(config.env).check(config.task, config.setup())


def check_schedules(config: Config) -> None:
    """Loads the schedules that are given as `module:function`, and checks the range of their values.

    Raises:
        ConfigError: names the setting.
    """
    for name, setting in config.table.items():
        text = setting.value
        bounds = next((x for x in get_args(setting.hint) if isinstance(x, ScheduleRange)), None)
        if bounds is None or not isinstance(text, str) or text.startswith("linear:"):
            continue
        try:
            function = load_function(text)
        except ConfigError as error:
            forms = "a number, linear:START:END or module:function"
            raise ConfigError(f"{name} must be {forms}, got {text!r}: {error}") from error
        closed = Range(bounds.low, min(bounds.high, _LARGEST_FLOAT))
        try:
            inside = all(function(k / 8) in closed for k in range(8))
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{name}: {text} raised {type(error).__name__}: {error}") from error
        require(inside, f"{name} must be {bounds} throughout, got {text!r}")


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
            require(
                abs(x) <= _LARGEST_FLOAT, f"{name} must be at most {_LARGEST_FLOAT:g} in absolute value, got {value}"
            )


def _name_of(part: Any, registry: Mapping[str, type]) -> str | dict[str, str]:
    """The name of a part's class: a registered one, or `module:Class`; else a description of the part."""
    cls = type(part)
    names = (name for name, registered in registry.items() if registered is cls)
    return next(names, None) or import_name(cls) or {"object": describe(part)}


def _class_of(name: str, registry: Mapping[str, type], base: type, kind: str) -> Any:
    """The class of that name: a registered one, or `module:Class`."""
    if name in registry:
        return registry[name]
    module, _, qualname = name.partition(":")
    if not qualname:
        raise ConfigError(f"{no_such(kind, name, registry)} (known: {', '.join(registry)})")
    try:
        cls = getattr(importlib.import_module(module), qualname)
    except (Exception, SystemExit) as error:  # of any kind, from importing any code
        raise ConfigError(f"cannot load {kind} {name!r}: {error}") from error
    require(isinstance(cls, type) and issubclass(cls, base), f"{name!r} is not {_a(base.__name__)}")
    return cls


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "AEIO" else f"a {noun}"
