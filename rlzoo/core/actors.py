"""Actors: they choose the actions during collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from rlzoo.core.distributions import Distribution
from rlzoo.core.env import Array, Bools
from rlzoo.core.models import ActorCritic


class Actor(Protocol):
    """`(obs (N, *obs), forced (N,)) -> action`.

    An actor keeps its own random state, and the model's memory from step to step. The environment ignores the actions
    of forced rows.
    """

    def __call__(self, obs: Array, forced: Bools) -> Array: ...


class ModelActor:
    """Acts with any model on any device.

    Args:
        choose: returns an action for each row of a distribution, such as `Distribution.sample`.
    """

    def __init__(self, model: ActorCritic, choose: Callable[[Distribution], Tensor]) -> None:
        self._model = model
        self._choose = choose
        self._device = next(model.parameters()).device
        self._memory: Any = None

    @torch.no_grad()
    def __call__(self, obs: Array, forced: Bools) -> Array:
        policy, self._memory = self._model.act(torch.from_numpy(obs).to(self._device), self._memory)
        return self._choose(policy).cpu().numpy()
