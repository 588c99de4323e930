"""The configuration of a run: typed, flat by name, the same for the command line, presets and `config.json`."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlzoo.algorithms import ALGORITHMS, Algorithm
from rlzoo.control.task import Control
from rlzoo.core.errors import ConfigError, no_such, require
from rlzoo.core.estimators import ESTIMATORS, Estimator
from rlzoo.core.fields import Count, NonNegativeInt, check_fields
from rlzoo.lm import TASKS
from rlzoo.lm.tasks.settings import language_task
from rlzoo.control.networks import Network
from rlzoo.runs.presets import find_preset, find_recipe
from rlzoo.core.task import TaskSettings

ALIASES = {"ppo": "ppo-clip"}


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    env: str
    """Gymnasium id, `module:Id` for an environment that a module registers, or a language task."""
    algorithm: Algorithm
    task: TaskSettings = Control()
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    total_steps: Count = 100_000
    """Environment steps to train for; for a language task, tokens of responses."""
    num_envs: Count = 8
    """Copies of the environment; for a language task, responses in a buffer."""
    device: str = "cpu"
    """PyTorch device of the model."""
    compile: bool = False
    """Compile the training step ahead of time; kept in a cache for later runs."""
    eval_interval: Count | None = None
    """Steps between evaluations; a tenth of total_steps if not given."""
    eval_episodes: Count = 20
    """Episodes of each evaluation."""
    checkpoint_interval: Count | None = None
    """Steps between checkpoints; a tenth of total_steps if not given."""
    stop_return: float | None = None
    """Stop when an evaluation's mean return reaches this."""

    def __post_init__(self) -> None:
        check_fields(self)
        whole = self.algorithm.estimator.whole_episodes
        require(
            not (self.compile and whole),
            f"compile has no use for {self.algorithm.name}: buffers of whole episodes have a shape of their own each",
        )
        self.task.check(self)

    def to_dict(self) -> dict[str, Any]:
        """Flat and JSON-able: every field by its name, classes by theirs."""
        flat: dict[str, Any] = {}
        for part in _parts(self):
            flat |= {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        flat["algorithm"] = _name_of(self.algorithm, ALGORITHMS)
        flat["estimator"] = _name_of(self.algorithm.estimator, ESTIMATORS)
        return {name: x for name, x in flat.items() if not isinstance(x, (TaskSettings, Network))}


def make_config(algorithm: str | Algorithm, env: str, **settings: Any) -> Config:
    """A `Config` from flat settings: each goes to the part that has a field of that name.

    `algorithm` and the setting `estimator` are names, `module:Class`, or instances.

    Raises:
        ConfigError: no part has such a field (the nearest name is suggested), or a value is out of range.
    """
    return Config(env, **assemble(algorithm, env, settings))


def assemble(algorithm: str | Algorithm, env: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `Config` but `env`, from what `make_config` takes. How they go together is not checked yet."""
    settings = dict(settings)
    chosen: Algorithm = (
        _class_of(ALIASES.get(algorithm, algorithm), ALGORITHMS, Algorithm, "algorithm")()
        if isinstance(algorithm, str)
        else algorithm
    )
    require(isinstance(chosen, Algorithm), f"algorithm must be a name or an Algorithm, got {chosen!r}")
    estimator = settings.pop("estimator", chosen.estimator)
    if isinstance(estimator, str):
        estimator = _class_of(estimator, ESTIMATORS, Estimator, "estimator")()
    require(isinstance(estimator, Estimator), f"estimator must be a name or an Estimator, got {estimator!r}")
    chosen = _replace(chosen, settings, estimator=_replace(estimator, settings))
    task = settings.pop("task", language_task(env) or Control())
    require(isinstance(task, TaskSettings), f"task must be TaskSettings, got {task!r}")
    if isinstance(task, Control):
        network = settings.pop("network", task.network)
        require(isinstance(network, Network), f"network must be a Network, got {network!r}")
        task = dataclasses.replace(task, network=_replace(network, settings))
    task = _replace(task, settings)
    unknown = set(settings) - set(_fields(Config))
    if unknown:
        raise ConfigError(no_such("setting", min(unknown), _names(chosen, task)))
    return {"algorithm": chosen, "task": task, **settings}


def with_preset(
    algorithm: str, env: str, settings: dict[str, Any], of: str | None = None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`settings` on top of the preset for the pair, and what the preset gave; None if there is no preset.

    With an estimator of one's own, the preset's settings for its estimator are left out.

    Args:
        of: take the preset of this algorithm instead.
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
    """`settings` on top of a recipe for language tasks, and what the recipe gave.

    A recipe may name an estimator. With another of one's own, its settings for that one are left out.

    Raises:
        ConfigError: there is no such recipe, it has a setting that the algorithm has not, or `env` is no language task.
    """
    given = find_recipe(recipe)
    if env not in TASKS:
        raise ConfigError(f"preset {recipe!r} is for language tasks, {', '.join(TASKS)}; {env} is none")
    lacking = given.keys() - _known(algorithm, env, given)
    if lacking:
        name = algorithm if isinstance(algorithm, str) else algorithm.name
        raise ConfigError(f"preset {recipe!r} sets {min(lacking)}, which {name} on {env} does not have")
    given = _below(settings, given, algorithm, env)
    return given | settings, given


def _below(settings: dict[str, Any], defaults: dict[str, Any], algorithm: str | Algorithm, env: str) -> dict[str, Any]:
    """Those of the defaults that the settings leave a place for."""
    if "estimator" in settings:
        known = _known(algorithm, env, settings)
        defaults = {name: x for name, x in defaults.items() if name in known}
    return {name: x for name, x in defaults.items() if name not in settings}


def _known(algorithm: str | Algorithm, env: str, settings: dict[str, Any]) -> set[str]:
    """Names of the settings that there are, with the estimator that is among `settings`, if one is."""
    parts = assemble(algorithm, env, {name: x for name, x in settings.items() if name == "estimator"})
    return _names(parts["algorithm"], parts["task"])


def _names(algorithm: Algorithm, task: TaskSettings) -> set[str]:
    """Names of all settings."""
    return {
        *_fields(Config),
        *(name for whole in (algorithm, task) for part in _parts(whole) for name in _fields(part)),
    }


def _parts(part: Any) -> Iterator[Any]:
    """The configuration and the dataclasses in it, that settings go to by the names of their fields."""
    yield part
    for f in dataclasses.fields(part):
        x = getattr(part, f.name)
        if dataclasses.is_dataclass(x):
            yield from _parts(x)


def _fields(part: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(part)]


def _take(part: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are fields of `part`, removed from `settings`; JSON's lists become tuples."""
    taken = {name: settings.pop(name) for name in _fields(part) if name in settings}
    return {name: tuple(x) if isinstance(x, list) else x for name, x in taken.items()}


def _replace(part: Any, settings: dict[str, Any], **changes: Any) -> Any:
    return dataclasses.replace(part, **_take(part, settings), **changes)


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
