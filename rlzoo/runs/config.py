"""The configuration of a run: typed, flat by name, the same for the command line, presets and `config.json`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlzoo.algorithms import ALGORITHMS, Algorithm
from rlzoo.core.errors import ConfigError, no_such, require
from rlzoo.core.estimators import ESTIMATORS, Estimator
from rlzoo.core.fields import Count, NonNegativeInt, check_fields
from rlzoo.core.schedules import as_text
from rlzoo.core.task import Say, Setup, TaskSettings, silent
from rlzoo.runs.registry import task_class
from rlzoo.runs.settings import Setting, settings_of

ALIASES = {"ppo": "ppo-clip"}


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    env: str
    """Gymnasium id, `module:Id` of an environment that a module registers, a task's name, or `module:Class` of a task."""
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
        """Flat and JSON-able: every setting by its name, classes by theirs."""
        flat = {name: as_text(x.value) if callable(x.value) else x.value for name, x in self.table.items()}
        return {
            "env": flat.pop("env"),
            "algorithm": _name_of(self.algorithm, ALGORITHMS),
            "estimator": _name_of(self.algorithm.estimator, ESTIMATORS),
            **flat,
        }

    def setup(self, folder: Path | None = None, say: Say = silent) -> Setup:
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
            say=say,
        )


def make_config(algorithm: str | Algorithm, env: str, **settings: Any) -> Config:
    """A `Config` from flat settings: each goes to the part that has a field of that name.

    `algorithm` and the setting `estimator` are names, `module:Class`, or instances.

    Raises:
        ConfigError: no part has such a field (the nearest name is suggested), a value is out of range, or the parts do
            not go together.
        UnknownEnv: there is no such environment or task.
    """
    config = Config(env, **assemble(algorithm, env, settings))
    check(config)
    return config


def check(config: Config) -> None:
    """Checks whether the parts of a configuration go together.

    Raises:
        ConfigError: they do not; or two parts have a setting of the same name.
    """
    setup, algorithm = config.setup(), config.algorithm
    require(
        not (config.compile and algorithm.estimator.whole_episodes),
        f"compile cannot be used with {algorithm.name}: each buffer of whole episodes has another shape",
    )
    task_class(config.env).check(config.task, setup)


def assemble(algorithm: str | Algorithm, env: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Config` other than `env`, from those of `make_config`. Their combination is not checked."""
    settings = dict(settings)
    chosen: Algorithm = (
        _class_of(ALIASES.get(algorithm, algorithm), ALGORITHMS, Algorithm, "algorithm")()
        if isinstance(algorithm, str)
        else algorithm
    )
    require(isinstance(chosen, Algorithm), f"algorithm must be a name or an Algorithm, got {chosen!r}")
    task = settings.pop("task", None) or task_class(env).Settings()
    require(isinstance(task, TaskSettings), f"task must be TaskSettings, got {task!r}")
    names = {name: public for name, (public, _) in task.units.items()}
    if isinstance(algorithm, str) and not isinstance(settings.get("estimator"), Estimator):
        known = settings_of(chosen, units=task.units)
        settings = {name: x for name, x in task.defaults.items() if name in known} | settings
    if isinstance(settings.get("estimator"), str):
        settings["estimator"] = _class_of(settings["estimator"], ESTIMATORS, Estimator, "estimator")()
    chosen, task = _fill(chosen, settings, names), _fill(task, settings, names)
    rest = {x.name for x in dataclasses.fields(Config)} - {"env", "algorithm", "task"}
    unknown = set(settings) - rest
    if unknown:
        known = [*rest, "estimator", *settings_of(chosen, task, units=task.units)]
        raise ConfigError(no_such("setting", min(unknown), known))
    return {"algorithm": chosen, "task": task, **settings}


def _fill(part: Any, settings: dict[str, Any], names: Mapping[str, str]) -> Any:
    """`part`, changed by the settings that are fields of it or of parts in it; they are removed from `settings`."""
    changes: dict[str, Any] = {}
    for f in dataclasses.fields(part):
        inner, name = getattr(part, f.name), names.get(f.name, f.name)
        if dataclasses.is_dataclass(inner):
            given = settings.pop(f.name, inner)
            base: type = Estimator if isinstance(inner, Estimator) else type(inner)
            known = "a name or an Estimator" if base is Estimator else f"a {base.__name__}"
            require(isinstance(given, base), f"{f.name} must be {known}, got {given!r}")
            changes[f.name] = _fill(given, settings, names)
        elif name in settings:
            x = settings.pop(name)
            changes[f.name] = tuple(x) if isinstance(x, list) else x
    return _renaming(lambda: dataclasses.replace(part, **changes), names)


def _renaming(make: Any, names: Mapping[str, str]) -> Any:
    """`make()`, whose errors name settings as the user does."""
    try:
        return make()
    except ConfigError as error:
        field, _, rest = str(error).partition(" ")
        raise ConfigError(f"{names.get(field, field)} {rest}") from error


def _name_of(part: Any, registry: dict[str, Any]) -> str:
    for name, cls in registry.items():
        if type(part) is cls:
            return name
    return f"{type(part).__module__}:{type(part).__qualname__}"


def _class_of(name: str, registry: dict[str, Any], base: type, kind: str) -> Any:
    """The class of that name: a registered one, or `module:Class`."""
    if name in registry:
        return registry[name]
    module, _, qualname = name.partition(":")
    if not qualname:
        raise ConfigError(no_such(kind, name, registry))
    try:
        cls = getattr(importlib.import_module(module), qualname)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot load {kind} {name!r}: {error}") from error
    require(isinstance(cls, type) and issubclass(cls, base), f"{name!r} is no {kind}")
    return cls
