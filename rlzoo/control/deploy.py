"""Policies outside of training: raw observations in, actions for `env.step` out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from rlzoo.control.acting import MakeActor, make_actor, standard_noise
from rlzoo.control.export import export_model
from rlzoo.control.spaces import (
    box_units,
    check_observation,
    flat_mask,
    flat_observation,
    illegal_part,
    is_gumbel,
    mask_row,
    native_actions,
    observation_parts,
)
from rlzoo.core.env import Array, Bools
from rlzoo.core.models import ActorCritic
from rlzoo.core.seen import Seen
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.task import DeployedPolicy


class ControlPolicy(DeployedPolicy):
    """The policy of a control task, on the CPU.

        action = policy(obs)  # one observation, or a batch as a vector environment gives it

    Observations and actions are those of the environment: an array, a number, a dict or a tuple, by its spaces. They
    are flattened, normalised, clipped and shaped as in training. Threads need a copy each. A copy or a pickled policy
    begins a new episode.

    Args:
        model: it is copied.
        deterministic: take the most probable action instead of a sample.
        seed: seed of the samples.
        masks: the environment says which actions are legal.
        dtype: of the observations that the model sees.
    """

    def __init__(
        self,
        model: ActorCritic,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        deterministic: bool = True,
        seed: int = 0,
        masks: bool = False,
        make_actor: MakeActor = make_actor,
        dtype: Any = np.float32,
    ) -> None:
        self.model = copy.deepcopy(model).cpu().eval()
        self.observation_space = observation_space
        self.action_space = action_space
        self.deterministic = deterministic
        self._rng = np.random.default_rng(seed)
        self._masks = masks
        self._make_actor = make_actor
        self._dtype = dtype
        self._rows = 1
        self._starts = np.ones(1, np.bool_)
        self._actor = self._make_actor(self.model, self._noise())

    def __call__(self, obs: Any, action_mask: Any = None) -> Any:
        inputs = self.flatten(obs).astype(self._dtype, copy=False)
        if len(inputs) != self._rows:
            self._rows = len(inputs)
            self.reset()
        single = _is_single(self.observation_space, obs)
        seen = inputs if action_mask is None else Seen(inputs, self._legal(action_mask, single))
        none = np.zeros(self._rows, np.bool_)
        actions = native_actions(self.action_space, self._actor(seen, none, self._starts))
        self._starts = none
        if not single:
            return actions
        return next(iter(iterate(batch_space(self.action_space), actions)))

    def reset(self, rows: Any = True) -> None:
        begin = np.atleast_1d(rows)
        require(begin.dtype == np.bool_, f"reset: rows must be True or False each, got {rows!r}")
        if begin.all():
            self._actor = self._make_actor(self.model, self._noise())
            self._starts = np.ones(self._rows, np.bool_)
        else:
            require(len(begin) in (1, self._rows), f"reset: {len(begin)} rows given, and obs had {self._rows}")
            self._starts = begin | self._starts

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_actor": None}  # it draws from this policy's own generator

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.reset()

    def _legal(self, mask: Any, single: bool) -> Bools:
        """(N, K) whether each category is legal."""
        try:
            rows = 1 if single else _rows(mask)
            flat = [flat_mask(self.action_space, mask if single else mask_row(mask, i)) for i in range(rows)]
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise ConfigError(str(error)) from error
        require(len(flat) == self._rows, f"action_mask has {len(flat)} rows, and obs has {self._rows}")
        for i, row in enumerate(flat):
            require(illegal_part(self.action_space, row) is None, f"action_mask allows no action in row {i}")
        return np.stack(flat)

    def flatten(self, obs: Any) -> Array:
        space = self.observation_space
        try:
            rows = [obs] if _is_single(space, obs) else list(iterate(batch_space(space), obs))
            for row in rows:
                check_observation(space, row)
            with np.errstate(over="ignore"):
                flat = np.stack([flat_observation(space, row) for row in rows]).astype(np.float32)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            name = " ".join(str(space).split())
            raise ConfigError(f"obs is neither an observation of {name} nor a batch of them: {error!r}") from error
        require(bool(np.isfinite(flat).all()), f"obs has a number that is not finite in single precision: {obs}")
        return flat.reshape(len(rows), spaces.flatdim(space))

    def export(self, format: str, about: Mapping[str, str]) -> bytes:
        space: Any = spaces.flatten_space(self.observation_space)
        centre, half = box_units(space)  # Gymnasium cannot sample from bounds near the largest number
        inside = centre + half * np.random.default_rng(0).uniform(-1, 1, (100, len(half)))
        obs = torch.from_numpy(inside.clip(space.low, space.high).astype(self._dtype))
        require(not self._masks, "no export format takes masks of legal actions: use load_policy")
        return export_model(self.model, obs, self.action_space, format, about)

    def _noise(self) -> Iterator[Array]:
        """Standard noise for each call of the actor. Zeros give the most probable actions."""
        gumbel = is_gumbel(self.action_space)
        while True:
            shape = self._rows, len(gumbel)
            yield np.zeros(shape, np.float32) if self.deterministic else standard_noise(self._rng, gumbel, shape)


def _rows(masks: Any) -> int:
    """Rows of a batch of masks (see `mask_row`)."""
    while isinstance(masks, dict | tuple):
        masks = next((x for x in (masks.values() if isinstance(masks, dict) else masks) if x is not None), [])
    return len(masks)


def _is_single(space: gymnasium.Space[Any], obs: Any) -> bool:
    """Whether `obs` is one observation rather than a batch, told by the shape of its first part."""
    leaf, part, _ = next(observation_parts(space, obs))
    return np.shape(part) == (leaf.shape or ())
