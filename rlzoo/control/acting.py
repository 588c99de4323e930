"""Acting in control environments, and the noise of actions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rlzoo.control.spaces import is_gumbel
from rlzoo.core.actors import Actor, ModelActor
from rlzoo.core.distributions import Distribution
from rlzoo.core.env import Array, restore_array
from rlzoo.core.models import ActorCritic
from rlzoo.core.system import processes
from rlzoo.core.system.fields import UnitInterval

_BLOCK = 64
"""Steps of noise that are drawn at once."""

MakeActor = Callable[[ActorCritic, Iterator[Array]], Actor]
"""`(model, noise) -> actor` for the model as it is now; a new one is made after each update. `noise` is standard noise
(N, Z) for each step (see `ActionNoise`)."""


def make_actor(model: ActorCritic, noise: Iterator[Array]) -> Actor:
    """See `MakeActor`. Noise of zeros stands for the mode."""
    device = next(model.parameters()).device

    def choose(policy: Distribution) -> Tensor:
        z = next(noise)
        return policy.from_noise(torch.from_numpy(z).to(device)) if z.any() else policy.mode

    return ModelActor(model, choose)


def standard_noise(rng: np.random.Generator, gumbel: Array, shape: tuple[int, ...]) -> Array:
    """Noise of a shape (..., Z): Gumbel or normal by the last axis."""
    return _where(gumbel, lambda: rng.gumbel(size=shape), lambda: rng.standard_normal(shape)).astype(np.float32)


def _where(condition: Array, yes: Callable[[], Array], no: Callable[[], Array]) -> Array:
    """`np.where`, which computes only what it needs."""
    if condition.all():
        return yes()
    return np.where(condition, yes(), no()) if condition.any() else no()


class ActionNoise(Iterator[Array]):
    """Iterator over standard noise (N, Z) for N environments: Gumbel for categories, normal for Box actions.

    With `correlation` ρ > 0, successive values are correlated: z_t = ρ·z_{t−1} + √(1 − ρ²)·ε_t, mapped to a Gumbel by
    its quantile function where needed. Each value alone is still standard, and exploration continues in
    one direction for about 1/(1 − ρ) steps (coloured noise: Hollenstein et al. 2024). But where a state tells of past
    noise, the action in it is not exactly the policy's.
    """

    def __init__(
        self, space: gymnasium.Space[Any], num_envs: int, rng: np.random.Generator, correlation: UnitInterval = 0.0
    ) -> None:
        self.gumbel = is_gumbel(space)
        self.shape = num_envs, len(self.gumbel)
        self.rng = rng
        self.correlation = correlation
        self._z = rng.standard_normal(self.shape)
        self._draw()

    def __next__(self) -> Array:
        if self._used == _BLOCK:
            self._draw()
        self._used += 1
        return self._block[self._used - 1]

    def share(self) -> Iterator[Array]:
        """The same noise, of this process's environments alone."""
        own = processes.own_rows(self.shape[0])
        return (noise[own] for noise in self)

    def zeros(self) -> Iterator[Array]:
        """Noise of zeros, which gives the mode of every distribution."""
        return itertools.repeat(np.zeros(self.shape, np.float32))

    def _draw(self) -> None:
        """Draws the noise of the next steps in one block, which is faster."""
        self._start = {"rng": self.rng.bit_generator.state, "z": self._z}
        self._block, self._used = self._noise().astype(np.float32, copy=False), 0

    def _noise(self) -> Array:
        shape = _BLOCK, *self.shape
        if self.correlation == 0:
            return standard_noise(self.rng, self.gumbel, shape)
        z = self.rng.standard_normal(shape) * np.sqrt(1 - self.correlation**2)
        for t in range(_BLOCK):
            self._z = z[t] = z[t] + self.correlation * self._z
        return _where(self.gumbel, lambda: -np.log(-torch.special.log_ndtr(torch.from_numpy(z)).numpy()), lambda: z)

    def state_dict(self) -> dict[str, Any]:
        return {**self._start, "used": self._used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self._z = restore_array(state["z"], self._z)
        self._draw()
        self._used = int(state["used"])
        if not 0 <= self._used <= _BLOCK:
            raise ValueError(f"{self._used} of {_BLOCK} steps of noise are used")
