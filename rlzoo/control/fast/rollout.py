"""Acting of the built-in networks in the environments of classic control, many steps in one call of native code."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlzoo.control.acting import MakeActor
from rlzoo.control.envs.classic import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from rlzoo.control.fast.acting import ACTIVATIONS, is_plain, layers_of, make_numpy_actor
from rlzoo.core.actors import Actor
from rlzoo.core.env import Array, Bools, VectorEnv
from rlzoo.core.models import ActorCritic
from rlzoo.optim.fast.compilation import build_library

_ENVIRONMENTS = {Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum}
_ACTIVATIONS = [None, *ACTIVATIONS.values()]
"""In the order of the enumeration in rollout.cpp."""
_WIDTH = 16
"""Outputs of a layer are padded to a multiple of it, whole vectors of the processor."""


def rollout_actors(env: VectorEnv) -> MakeActor:
    """`make_numpy_actor`, whose actors have a `rollout` if `env` is of classic control and there is a compiler."""
    library = build_library(Path(__file__).with_suffix(".cpp")) if type(env) in _ENVIRONMENTS else None
    return make_numpy_actor if library is None else partial(_make_actor, library)


def _make_actor(library: ctypes.CDLL, model: ActorCritic, noise: Iterator[Array]) -> Actor:
    policy: Any = model.policy
    # An action of classic control is one category or one Gaussian number.
    known = is_plain(model) and not model.memory_size and (policy.nvec or policy.log_std is not None)
    return RolloutActor(library, model, noise) if known else make_numpy_actor(model, noise)


class RolloutActor:
    """An actor with a `rollout` in native code (see `Actor`), for the model as it is now."""

    def __init__(self, library: ctypes.CDLL, model: ActorCritic, noise: Iterator[Array]) -> None:
        self._library, self._model, self._noise = library, model, noise
        policy: Any = model.policy
        layers = [*layers_of(model.trunk), *layers_of(policy.net)]
        self._arrays: list[tuple[Array, Array]] = []
        rows = 2 * -(-layers[0][0].shape[0] // 2)
        for w, b, _ in layers:
            columns = -(-len(b) // _WIDTH) * _WIDTH
            self._arrays.append((_padded(w, rows, columns), _padded(b, columns)))
            rows = columns
        table = [
            (w.ctypes.data, b.ctypes.data, *w.shape, _ACTIVATIONS.index(activation))
            for (w, b), (*_, activation) in zip(self._arrays, layers, strict=True)
        ]
        units: list[Array | None] = [None, None, None]
        if not policy.nvec:
            log_scale = policy.log_scale.numpy()
            units = [policy.centre.numpy(), np.exp(log_scale), np.exp(log_scale + policy.log_std.detach().numpy())]
        normalizer = model.normalizer
        self._policy = _struct(
            layers=np.array(table, np.int64),
            num_layers=len(table),
            outputs=len(layers[-1][1]),
            mean=None if normalizer is None else normalizer.mean.numpy(),
            scale=None if normalizer is None else normalizer.scale.numpy(),
            clip=0.0 if normalizer is None else float(normalizer.clip),
            **dict(zip(("centre", "range", "std"), units, strict=True)),
        )

    @functools.cached_property
    def _actor(self) -> Actor:
        return make_numpy_actor(self._model, self._noise)

    def __call__(self, obs: Any, forced: Bools, starts: Bools) -> Array:
        return self._actor(obs, forced, starts)

    def rollout(self, env: Any, obs: Array, steps: int) -> tuple[Array, ...] | None:
        if type(env) not in _ENVIRONMENTS:
            return None
        noise = np.concatenate(list(itertools.islice(self._noise, steps)))
        seen = np.empty((steps + 1, *obs.shape), np.float32)
        seen[0] = obs
        shape = steps, env.num_envs
        box = env.action_space.shape
        action = np.empty((*shape, *box), np.float32 if box else np.int64)
        reward = np.empty(shape, np.float32)
        terminated, truncated, forced = (np.empty(shape, np.bool_) for _ in range(3))
        env._forced = env._forced.copy()  # what `env.step` returned does not change
        bits = env._rng.bit_generator.ctypes
        arguments = _struct(
            steps=steps,
            num_envs=env.num_envs,
            limit=int(env._limit),
            setting=float(env.setting),
            next_double=ctypes.cast(bits.next_double, ctypes.c_void_p).value,
            random_state=bits.state_address,
            state=env._state,
            elapsed=env._elapsed,
            ended=env._forced,
            noise=noise,
            obs=seen,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            forced=forced,
        )
        getattr(self._library, f"rollout_{type(env).__name__}")(ctypes.byref(self._policy), ctypes.byref(arguments))
        return action, seen, reward, terminated, truncated, forced


def _padded(x: Array, *shape: int) -> Array:
    """A copy that continues with zeros."""
    out = np.zeros(shape, np.float32)
    out[tuple(map(slice, x.shape))] = x
    return out


def _struct(**values: Any) -> ctypes.Structure:
    """A C structure of pointers, 64-bit integers and doubles, in this order. It keeps the arrays alive."""
    kinds = {float: ctypes.c_double, int: ctypes.c_int64}
    fields = tuple((name, kinds.get(type(x), ctypes.c_void_p)) for name, x in values.items())
    struct = _struct_type(fields)(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in values.values()))
    struct.values = values
    return struct


@functools.cache
def _struct_type(fields: tuple[tuple[str, Any], ...]) -> type[Any]:
    return type("Struct", (ctypes.Structure,), {"_fields_": fields})
