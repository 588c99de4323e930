"""Classic control without velocities, for policies with memory: `CartPoleNoVel-v1` and others.

Observations keep their shape; the velocities in them are 0, as in the environments of RL Baselines3 Zoo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from rlzoo.control.envs.classic import BUILTIN, ClassicControl
from rlzoo.core.env import Array, VectorEnv

_VISIBLE = {
    "CartPole-v1": [1, 0, 1, 0],
    "Pendulum-v1": [1, 1, 0],
    "MountainCar-v0": [1, 0],
    "MountainCarContinuous-v0": [1, 0],
}
"""For each number of an observation, whether it is no velocity."""


def _constructor(env_id: str) -> Callable[[int, int], ClassicControl]:
    """Constructor `(num_envs, seed)` of the built-in environment, with the velocities set to 0."""
    make: Any = BUILTIN[env_id]
    hidden = ~np.array(_VISIBLE[env_id], bool)

    class NoVelocity(make.func):  # type: ignore[misc]
        def _observe(self, rows: Array) -> None:
            super()._observe(rows)
            rows[hidden] = 0

    return partial(NoVelocity, **make.keywords)


def _single(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """One copy by Gymnasium, without a time limit of its own."""
    env = gymnasium.make(env_id, max_episode_steps=-1, **kwargs)
    visible = np.array(_VISIBLE[env_id], bool)
    return gymnasium.wrappers.TransformObservation(
        env, lambda obs: np.where(visible, obs, np.float32(0)), env.observation_space
    )


def _register(env_id: str) -> str:
    """Makes the environment known to Gymnasium; returns its id."""
    name, version = env_id.split("-")
    hidden = f"{name}NoVel-{version}"
    if hidden not in gymnasium.registry:
        limit = gymnasium.spec(env_id).max_episode_steps
        gymnasium.register(hidden, entry_point=partial(_single, env_id), max_episode_steps=limit)
    return hidden


HIDDEN: Mapping[str, Callable[..., VectorEnv]] = {_register(env_id): _constructor(env_id) for env_id in _VISIBLE}
"""Constructors `(num_envs, seed)` by id."""
