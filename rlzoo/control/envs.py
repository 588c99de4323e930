"""Making control environments: vectorised classic control, or any Gymnasium environment."""

from __future__ import annotations

import inspect
from typing import Any

from rlzoo.control.classic import BUILTIN
from rlzoo.control.gymnasium_env import GymnasiumEnv
from rlzoo.core.env import VectorEnv


def make(
    env_id: str,
    num_envs: int,
    seed: int,
    *,
    vectorized: bool = True,
    asynchronous: bool = False,
    **kwargs: Any,
) -> VectorEnv:
    """Makes `num_envs` copies of a Gymnasium environment.

    Args:
        env_id: a registered id, or `module:Name-v0` with a module that registers it.
        num_envs: copies to step together.
        seed: non-negative integer that determines all randomness of the copies.
        vectorized: use the built-in NumPy version where there is one that accepts these `kwargs`.
        asynchronous: run each copy of a Gymnasium environment in its own process.
        **kwargs: options of the environment, as for `gymnasium.make`.

    Raises:
        UnknownEnv: no such environment is registered.
        UnsupportedSpace: no policy can be built for its observations or actions.
        EnvError: the environment cannot be made, for example because an optional package is missing.
    """
    builtin = BUILTIN.get(env_id)
    if vectorized and builtin is not None and kwargs.keys() <= inspect.signature(builtin).parameters.keys():
        return builtin(num_envs, seed, **kwargs)
    return GymnasiumEnv(env_id, num_envs, seed, asynchronous=asynchronous, **kwargs)


def builtin_ids() -> tuple[str, ...]:
    """Ids of the environments with a vectorised NumPy version."""
    return tuple(BUILTIN)
