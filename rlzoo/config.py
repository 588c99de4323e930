"""The configuration of a run: typed, flat by name, the same for the command line, presets and `config.json`."""

from __future__ import annotations

import dataclasses
import importlib
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlzoo.algorithms import ALGORITHMS, Algorithm
from rlzoo.errors import ConfigError, no_such, require
from rlzoo.estimators import ESTIMATORS, Estimator
from rlzoo.fields import Count, NonNegativeInt, Range, check_fields
from rlzoo.networks import Network
from rlzoo.presets import find_preset

ALIASES = {"ppo": "ppo-clip"}


@dataclass(frozen=True)
class Config:
    """Everything that a run depends on."""

    env: str
    """Gymnasium id, or `module:Id` for an environment that a module registers."""
    algorithm: Algorithm
    network: Network = Network()
    seed: NonNegativeInt = 0
    """Seed of everything random in the run."""
    total_steps: Count = 100_000
    """Environment steps to train for."""
    num_envs: Count = 8
    """Copies of the environment."""
    num_steps: Count = 128
    """Steps of each copy in a buffer. Ignored by algorithms that take whole episodes."""
    normalize_reward: bool = False
    """Train on rewards divided by the running standard deviation of their discounted sum."""
    noise_correlation: Annotated[float, Range(0, 1, below=True)] = 0.0
    """Correlation of successive action noises: 0 is independent, 0.9 explores in one direction for 10 steps."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorized: bool = True
    """Use the built-in NumPy version of the environment where there is one."""
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
        require(
            not (self.compile and self.whole_episodes),
            f"compile has no use for {self.algorithm.name}: buffers of whole episodes have a shape of their own each",
        )
        buffer = self.num_envs * self.num_steps
        for name in ("minibatch_size", "vf_minibatch_size"):
            size = getattr(self.algorithm, name, 0)
            require(
                self.whole_episodes or size <= buffer,
                f"{name} must be at most num_envs * num_steps = {buffer}, got {size}",
            )

    @property
    def whole_episodes(self) -> bool:
        """Whether buffers hold complete episodes."""
        return self.algorithm.estimator.whole_episodes

    def to_dict(self) -> dict[str, Any]:
        """Flat and JSON-able: every field by its name, classes by theirs."""
        flat: dict[str, Any] = {}
        for part in (self, self.algorithm, self.algorithm.estimator, self.network):
            assert dataclasses.is_dataclass(part)
            flat |= {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        flat["algorithm"] = _name_of(self.algorithm, ALGORITHMS)
        flat["estimator"] = _name_of(self.algorithm.estimator, ESTIMATORS)
        del flat["network"]
        return flat


def make_config(algorithm: str | Algorithm, env: str, **settings: Any) -> Config:
    """A `Config` from flat settings: each goes to the part that has a field of that name.

    `algorithm` and the setting `estimator` are names, `module:Class`, or instances.

    Raises:
        ConfigError: no part has such a field (the nearest name is suggested), or a value is out of range.
    """
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
    network = settings.pop("network", Network())
    require(isinstance(network, Network), f"network must be a Network, got {network!r}")
    network = _replace(network, settings)
    unknown = set(settings) - set(_fields(Config))
    if unknown:
        known = {*_fields(Config), *_fields(chosen), *_fields(chosen.estimator), *_fields(network)}
        raise ConfigError(no_such("setting", min(unknown), known))
    return Config(env, chosen, network, **settings)


def with_preset(algorithm: str, env: str, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`settings` on top of the preset for the pair, and what the preset gave; None if there is no preset.

    With an estimator of one's own, the preset's settings for its estimator are left out.
    """
    preset = find_preset(ALIASES.get(algorithm, algorithm), env)
    if preset is None:
        return settings, None
    if "estimator" in settings:
        known = make_config(algorithm, env, estimator=settings["estimator"]).to_dict()
        preset = {name: x for name, x in preset.items() if name in known}
    preset = {name: x for name, x in preset.items() if name not in settings}
    return preset | settings, preset


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
