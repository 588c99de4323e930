"""The settings that `rlzoo search` searches, with their choices and ranges, which lie inside those of their fields."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlzoo.core.system.errors import require
from rlzoo.core.system.schedules import linear_ends

SCHEDULED = {
    "anneal_lr": ("learning_rate", "vf_learning_rate"),
    "anneal_clip": ("clip_coef",),
    "anneal_kl": ("max_kl", "step_kl"),
}
"""Switches of a search, and the settings that they reduce linearly to 0."""


@dataclass(frozen=True)
class Between:
    """A range of numbers, drawn uniformly or, with `log`, uniformly in their logarithm."""

    low: float
    high: float
    log: bool = True


Space = tuple[Any, ...] | Between
"""Choices, or a range."""

_ROLLOUT: dict[str, Space] = {
    "gamma": (0.9, 0.95, 0.98, 0.99, 0.995),
    "num_envs": (4, 8, 16, 32),
    "noise_correlation": (0.0, 0.5, 0.7, 0.8, 0.9, 0.95),
}
_GAE: dict[str, Space] = {"gae_lambda": Between(0.8, 1.0, log=False), "num_steps": (16, 32, 64, 128, 256, 512)}
_CRITIC: dict[str, Space] = {
    "vf_learning_rate": Between(3e-4, 1e-2),
    "vf_epochs": (5, 10, 20),
    "vf_minibatch_size": (64, 128, 256),
}
_LANGUAGE: dict[str, Space] = {
    "beta": Between(0.005, 0.5),
    "responses_per_batch": (32, 64, 128, 256),
    "minibatch_responses": (8, 16, 32, 64),
    "vf_minibatch_responses": (8, 16, 32, 64),
}
_TRUST_REGION = {**_ROLLOUT, **_GAE, **_CRITIC, **_LANGUAGE, "anneal_kl": (False, True)}
_PPO = {
    **_ROLLOUT,
    **_GAE,
    **_LANGUAGE,
    "learning_rate": Between(2e-4, 5e-3),
    "anneal_lr": (False, True),
    "epochs": (4, 5, 8, 10, 20),
    "minibatch_size": (64, 128, 256),
}
SPACES: dict[str, dict[str, Space]] = {
    "reinforce": {**_ROLLOUT, **_CRITIC, **_LANGUAGE, "learning_rate": Between(1e-3, 3e-2), "anneal_lr": (False, True)},
    "npg": {**_TRUST_REGION, "step_kl": Between(0.005, 0.1)},
    "trpo": {**_TRUST_REGION, "max_kl": Between(0.005, 0.1)},
    "ppo-penalty": {**_PPO, "target_kl": Between(0.003, 0.05)},
    "ppo-clip": {**_PPO, "clip_coef": (0.1, 0.2, 0.3), "anneal_clip": (False, True)},
}
"""Spaces of each algorithm. Other algorithms have all of them. A schedule is a number and a switch: `max_kl` and
`anneal_kl` for "linear:MAX_KL:0"."""

BUFFER = (256, 4096)
"""Steps of a buffer, num_envs * num_steps, that are tried."""


def space_for(algorithm: str, values: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Space]:
    """The space of an algorithm, for the settings that a pair has.

    A range that does not hold the present value is moved to a fifth to five times that value. A setting whose present
    value is 0 or not among its choices is left as it is, and so are those in `fixed`.

    Args:
        values: every setting of the pair, with its present value.
    """
    everything = {name: x for space in SPACES.values() for name, x in space.items()}
    parameters = as_parameters(values)
    chosen: dict[str, Space] = {}
    for name, space in SPACES.get(algorithm, everything).items():
        names = {*SCHEDULED.get(name, (name,))}
        value = parameters.get(name, False if name in SCHEDULED else None)
        if names.isdisjoint(values) or names & fixed.keys():
            continue
        if holds(space, value):
            chosen[name] = space
        elif isinstance(space, Between) and isinstance(value, (int, float)) and value > 0:
            chosen[name] = Between(value / 5, value * 5)
    return chosen


def holds(space: Space, value: Any) -> bool:
    """Whether a value is one of the choices, or in the range."""
    if isinstance(space, tuple):
        return value in space
    return isinstance(value, (int, float)) and space.low <= value <= space.high


def as_settings(algorithm: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's parameters as settings."""
    settings = dict(parameters)
    for switch, names in SCHEDULED.items():
        if settings.pop(switch, False):
            for name in names:
                # REINFORCE alone also reduces the value's learning rate.
                if name in settings and (name != "vf_learning_rate" or algorithm == "reinforce"):
                    settings[name] = f"linear:{float(settings[name])!r}:0"
    return settings


def as_parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a trial's parameters: the inverse of `as_settings`."""
    parameters = dict(settings)
    for switch, names in SCHEDULED.items():
        for name in names:
            if str(parameters.get(name)).startswith("linear:"):
                start, end = linear_ends(parameters[name])
                parameters[name] = start
                parameters[switch] = end == 0
    return parameters


def check_buffer(settings: Mapping[str, Any], space: Mapping[str, Space]) -> None:
    """Raises `ConfigError` if a search of the buffer's size has chosen one that is not worth a try, and has others."""
    if {"num_envs", "num_steps"} <= settings.keys():
        choices: Any = (space.get(name, (settings[name],)) for name in ("num_envs", "num_steps"))
        sizes = [n * t for n, t in itertools.product(*choices) if BUFFER[0] <= n * t <= BUFFER[1]]
        steps = settings["num_envs"] * settings["num_steps"]
        require(not sizes or steps in sizes, f"a buffer of {steps} steps is not tried")
