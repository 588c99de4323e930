"""Acting of the built-in networks in the environments of classic control, many steps in one call of native code."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlzoo.control.envs.classic import Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum
from rlzoo.core.env import Array
from rlzoo.core.fast.library import build_library
from rlzoo.core.models import Normalizer

_ENVIRONMENTS = {Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum}
_WIDTH = 16
"""Outputs of a layer are padded to a multiple of it, whole vectors of the processor."""


def has_rollouts(env: Any) -> bool:
    """Whether an environment is of classic control, and there is a compiler."""
    return type(env) in _ENVIRONMENTS and _library() is not None


@functools.cache
def _library() -> ctypes.CDLL | None:
    return build_library(Path(__file__).with_suffix(".cpp"))


class NativePolicy:
    """A copy of an MLP policy for `rollout`.

    Args:
        layers: weight (I, O), bias (O,) and activation, as numbered in rollout.cpp.
        box: centre, scale and standard deviation of a Gaussian action, (1,) each; None for a category.
    """

    def __init__(
        self, layers: Sequence[tuple[Array, Array, int]], normalizer: Normalizer | None, box: Sequence[Array] | None
    ) -> None:
        self._arrays: list[Array] = []
        table = []
        rows = 2 * -(-layers[0][0].shape[0] // 2)
        for weight, bias, activation in layers:
            columns = -(-len(bias) // _WIDTH) * _WIDTH
            w, b = _padded(weight, rows, columns), _padded(bias, columns)
            self._arrays += w, b
            table.append((w.ctypes.data, b.ctypes.data, rows, columns, activation))
            rows = columns
        centre, scale, std = box or (None, None, None)
        self._struct = _struct(
            layers=np.array(table, np.int64),
            num_layers=len(table),
            outputs=len(layers[-1][1]),
            mean=None if normalizer is None else normalizer.mean.numpy(),
            scale=None if normalizer is None else normalizer.scale.numpy(),
            clip=0.0 if normalizer is None else float(normalizer.clip),
            centre=centre,
            range=scale,
            std=std,
        )

    def rollout(self, env: Any, obs: Array, noise: Iterator[Array], steps: int) -> tuple[Array, ...]:
        """Acts and steps in an environment that `has_rollouts` (see `rlzoo.core.actors.rollout`)."""
        shape, box = (steps, env.num_envs), env.action_space.shape
        seen = np.empty((steps + 1, *obs.shape), np.float32)
        seen[0] = obs
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
            noise=np.concatenate(list(itertools.islice(noise, steps))),
            obs=seen,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            forced=forced,
        )
        run = getattr(_library(), f"rollout_{type(env).__name__}")
        run(ctypes.byref(self._struct), ctypes.byref(arguments))
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
