"""Acting in control environments: NumPy policies for speed, and action noise.

One step of a few environments is a handful of tiny matrix products. PyTorch's overhead for each operation is then
several times NumPy's, so MLP policies on the CPU act through NumPy, on the same memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from rlzoo.control.networks import MLP, MLPPolicy, categories
from rlzoo.core.actors import Actor, ModelActor
from rlzoo.core.env import Array, restored
from rlzoo.core.fields import UnitInterval
from rlzoo.core.models import ActorCritic, Normalizer


def make_actor(model: ActorCritic, noise: Iterator[Array], fast: bool = True) -> Actor:
    """An actor for the model as it is now. Make a new one after each update.

    Args:
        noise: standard noise (N, Z) for each step (see `ActionNoise`).
        fast: act through NumPy where the model allows it.
    """
    if fast and _is_plain(model):
        act = _numpy_policy(model, model.policy)
        return lambda obs, forced: act(obs, next(noise))
    device = next(model.parameters()).device
    return ModelActor(model, lambda policy: policy.from_noise(torch.from_numpy(next(noise)).to(device)))


def _is_plain(model: ActorCritic) -> bool:
    """Whether the model consists of the built-in MLPs, in single precision on the CPU."""
    parameter = next(model.policy.parameters())
    known = type(model) is ActorCritic and isinstance(model.policy, MLPPolicy) and isinstance(model.trunk, MLP | None)
    known = known and isinstance(model.policy.net, MLP)
    return known and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def _numpy_policy(model: ActorCritic, policy: Any) -> Callable[[Array, Array], Array]:
    normalize = _normalizer(model.normalizer)
    layers = [*_layers(model.trunk), *_layers(policy.net)]
    nvec = policy.nvec

    def outputs(x: Array) -> Array:
        if normalize is not None:
            x = normalize(x)
        for w, b, activation in layers:
            x = x @ w
            x += b
            if activation is not None:
                x = activation(x)
        return x

    if len(nvec) == 1:
        return lambda obs, noise: (outputs(obs) + noise).argmax(1)
    if nvec:
        cuts = np.cumsum(nvec)[:-1]
        return lambda obs, noise: np.stack([part.argmax(1) for part in np.split(outputs(obs) + noise, cuts, axis=1)], 1)
    centre, log_scale = policy.centre.numpy(), policy.log_scale.numpy()
    scale = np.exp(log_scale)
    if policy.log_std is not None:
        std = np.exp(log_scale + policy.log_std.detach().numpy())
        return lambda obs, noise: centre + scale * outputs(obs) + std * noise

    def state_dependent(obs: Array, noise: Array) -> Array:
        mean, log_std = np.split(outputs(obs), 2, axis=1)
        return centre + scale * (mean + np.exp(log_std) * noise)

    return state_dependent


def _layers(net: nn.Module | None) -> list[tuple[Array, Array, Callable[[Array], Array] | None]]:
    """(weight (I, O), bias (O,), activation) of each layer, as views of the parameters."""
    if net is None:
        return []
    assert isinstance(net, MLP)
    arrays = [p.detach().numpy() for p in net.parameters()]
    activations = [_ACTIVATIONS[net.activation] if activated else None for activated in net.activated]
    return [(w.T, b, activation) for w, b, activation in zip(arrays[::2], arrays[1::2], activations, strict=True)]


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def _normalizer(normalizer: Normalizer | None) -> Callable[[Array], Array] | None:
    if normalizer is None:
        return None
    mean, scale = normalizer.mean.numpy(), normalizer.scale.numpy()
    clip = np.float32(normalizer.clip)
    return lambda x: np.minimum(np.maximum((x - mean) * scale, -clip), clip)


class ActionNoise(Iterator[Array]):
    """Iterator over standard noise (N, Z) for N environments: Gumbel for categories, normal for Box actions.

    With `correlation` ρ > 0, successive values are correlated: z_t = ρ·z_{t−1} + √(1 − ρ²)·ε_t, mapped to a Gumbel by
    its quantile function where needed. Each action still has exactly the policy's distribution, but exploration
    continues in one direction for about 1/(1 − ρ) steps (coloured noise: Hollenstein et al. 2024).
    """

    def __init__(
        self,
        space: gymnasium.Space[Any],
        num_envs: int,
        rng: np.random.Generator,
        correlation: UnitInterval = 0.0,
    ) -> None:
        self.gumbel = not isinstance(space, spaces.Box)
        self.shape = num_envs, sum(categories(space)) or int(np.prod(space.shape or ()))
        self.rng = rng
        self.correlation = correlation
        self._z = rng.standard_normal(self.shape)
        self._draw()

    def __next__(self) -> Array:
        if self._used == _BLOCK:
            self._draw()
        self._used += 1
        return self._block[self._used - 1]

    def zeros(self) -> Iterator[Array]:
        """Noise of zeros, which gives the mode of every distribution."""
        return itertools.repeat(np.zeros(self.shape, np.float32))

    def _draw(self) -> None:
        """Draws the noise of the next steps in one block, which is faster."""
        self._start = {"rng": self.rng.bit_generator.state, "z": self._z}
        self._block, self._used = self._noise().astype(np.float32), 0

    def _noise(self) -> Array:
        shape = _BLOCK, *self.shape
        if self.correlation == 0:
            return self.rng.gumbel(size=shape) if self.gumbel else self.rng.standard_normal(shape)
        z = self.rng.standard_normal(shape) * np.sqrt(1 - self.correlation**2)
        for t in range(_BLOCK):
            self._z = z[t] = z[t] + self.correlation * self._z
        return -np.log(-torch.special.log_ndtr(torch.from_numpy(z)).numpy()) if self.gumbel else z

    def state_dict(self) -> dict[str, Any]:
        return {**self._start, "used": self._used}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self._z = restored(state["z"], self._z)
        self._draw()
        self._used = int(state["used"])
        if not 0 <= self._used <= _BLOCK:
            raise ValueError(f"{self._used} of {_BLOCK} steps of noise are used")


_BLOCK = 64
"""Steps of noise that are drawn at once."""
