"""Classic control without velocities, for policies with memory: `CartPoleNoVel-v1` and others.

Observations keep their shape; the velocities in them are 0, as in the environments of RL Baselines3 Zoo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from rlzoo.control.envs.classic import BUILTIN
from rlzoo.core.env import Array, Bools, VectorEnv

_VISIBLE = {
    "CartPole-v1": [1, 0, 1, 0],
    "Pendulum-v1": [1, 1, 0],
    "MountainCar-v0": [1, 0],
    "MountainCarContinuous-v0": [1, 0],
}
"""For each number of an observation, whether it is no velocity."""


class NoVelocity(VectorEnv):
    """A vectorised environment whose observations have the velocities set to 0.

    Args:
        make: `(num_envs, seed) -> environment`.
        visible: (D,) 1 for each number of an observation that is kept.
    """

    def __init__(self, make: Callable[..., Any], visible: list[int], num_envs: int, seed: int) -> None:
        self._env = make(num_envs, seed)
        self._visible = np.array(visible, bool)
        self.num_envs = num_envs
        self.observation_space = self._env.observation_space
        self.action_space = self._env.action_space

    def reset(self) -> tuple[Array, Bools]:
        obs, forced = self._env.reset()
        return np.where(self._visible, obs, np.float32(0)), forced

    def step(self, action: Array) -> tuple[Array, Array, Bools, Bools, Bools]:
        obs, *rest = self._env.step(action)
        return (np.where(self._visible, obs, np.float32(0)), *rest)

    def reseed(self, seed: int) -> bool:
        return bool(self._env.reseed(seed))

    def state_dict(self) -> dict[str, Any] | None:
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._env.load_state_dict(state)


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


HIDDEN: Mapping[str, Callable[..., VectorEnv]] = {
    _register(env_id): partial(NoVelocity, BUILTIN[env_id], visible) for env_id, visible in _VISIBLE.items()
}
"""Constructors `(num_envs, seed)` by id."""
