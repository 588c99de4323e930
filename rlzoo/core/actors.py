"""Actors: they choose the actions during collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from rlzoo.core.distributions import Distribution
from rlzoo.core.env import Array, Bools, VectorEnv
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import require
from rlzoo.core.tensors import map_leaves


class Actor(Protocol):
    """`(obs (N, *obs), forced (N,), starts (N,)) -> action`. `obs` is what the environment returned.

    An actor keeps its own random state, and the model's memory from step to step. The environment ignores the actions
    of forced rows. `starts` tells in which rows an episode begins with this observation. An actor of recurrent networks
    has their memory before the next step as an attribute `memory`, an array (N, M), which may be set.

    An actor may have a method `rollout(env, obs, steps)`, which acts and steps as many times at once (see `rollout`).
    """

    def __call__(self, obs: Any, forced: Bools, starts: Bools) -> Array: ...


def rollout(env: VectorEnv, actor: Actor, obs: Any, steps: int) -> tuple[Array, ...] | None:
    """Acts and steps T = `steps` times at once; None if the actor cannot do so in this environment.

    Returns:
        The actions (T, N), observations (T + 1, N, *obs) from `obs` on, and the other parts that `env.step` returns,
        (T, N) each.
    """
    at_once = getattr(actor, "rollout", None)
    return None if at_once is None else at_once(env, obs, steps)


class ModelActor:
    """Acts with any model on any device. `choose` gives an action for each row, such as `Distribution.sample`."""

    def __init__(self, model: ActorCritic, choose: Callable[[Distribution], Tensor]) -> None:
        self._model = model
        self._choose = choose
        self._device = next(model.parameters()).device
        self._memory: Any = None

    @torch.no_grad()
    def __call__(self, obs: Any, forced: Bools, starts: Bools) -> Array:
        memory = self._memory
        if self._model.memory_size and memory is not None and starts.any():
            memory = memory.masked_fill(torch.from_numpy(starts).to(self._device).unsqueeze(1), 0)
        seen = map_leaves(lambda x: torch.as_tensor(x).to(self._device), obs)
        policy, self._memory = self._model.act(seen, memory)
        return self._choose(policy).cpu().numpy()

    @property
    def memory(self) -> Array | None:
        """(N, M) of recurrent networks; None before the first step, and for other models. Training sees no other."""
        if self._model.memory_size and self._memory is not None:
            return self._memory.cpu().numpy()
        fault = "the policy returns a memory, which training does not see: put its cell into a rlzoo.Recurrent"
        require(self._memory is None or self._model.context != 1, fault)
        return None

    @memory.setter
    def memory(self, memory: Array) -> None:
        self._memory = torch.from_numpy(memory).to(self._device)
