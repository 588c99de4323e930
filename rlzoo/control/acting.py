"""Acting: how a model and standard noise become actions, as cheaply as can be.

One step of a few environments is a handful of tiny matrix products, where PyTorch's overhead per operation
is several times NumPy's; MLP policies on the CPU therefore act through NumPy, on the very same memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from rlzoo.control.networks import MLP, MLPPolicy, categories
from rlzoo.core.fields import UnitInterval
from rlzoo.core.models import ActorCritic, Normalizer

Array = np.ndarray[Any, Any]


class Actor(Protocol):
    """`(obs (N, *obs), noise (N, Z)) -> action`; noise of zeros gives the mode."""

    def __call__(self, obs: Array, noise: Array) -> Array: ...


def make_actor(model: ActorCritic) -> Actor:
    """An actor for the model as it is now; make a new one after each update."""
    policy, trunk = model.policy, model.trunk
    if type(model) is not ActorCritic or not isinstance(policy, MLPPolicy) or not isinstance(trunk, MLP | None):
        return _TorchActor(model)
    parameter = next(policy.parameters())
    plain = parameter.device.type == "cpu" and parameter.dtype == torch.float32
    return _numpy_actor(model, policy) if plain else _TorchActor(model)


class _TorchActor:
    """Any model on any device, carrying its memory from step to step."""

    def __init__(self, model: ActorCritic) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._memory: Any = None

    @torch.no_grad()
    def __call__(self, obs: Array, noise: Array) -> Array:
        inputs = torch.from_numpy(obs).to(self._device)
        policy, self._memory = self._model.act(inputs, self._memory)
        return policy.from_noise(torch.from_numpy(noise).to(self._device)).cpu().numpy()


def _numpy_actor(model: ActorCritic, policy: MLPPolicy) -> Actor:
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
    mean, scale = normalizer.mean.numpy(), torch.rsqrt(normalizer.var + 1e-8).numpy()
    clip = np.float32(normalizer.clip)
    return lambda x: np.minimum(np.maximum((x - mean) * scale, -clip), clip)


class ActionNoise:
    """Standard noise for N copies of an environment: Gumbel for categories, normal for Box actions.

    With `correlation` ρ > 0 successive noises are correlated: z_t = ρ·z_{t−1} + √(1 − ρ²)·ε_t, mapped to a
    Gumbel through its quantiles where one is wanted. Each action still has exactly the policy's distribution,
    but exploration goes on in one direction for about 1/(1 − ρ) steps (coloured noise: Hollenstein et al.
    2024, AAAI, on PPO).
    """

    def __init__(
        self,
        space: gymnasium.Space[Any],
        num_envs: int,
        rng: np.random.Generator,
        correlation: UnitInterval = 0.0,
    ) -> None:
        self.gumbel = not isinstance(space, spaces.Box)
        self.size = sum(categories(space)) or int(np.prod(space.shape or ()))
        self.num_envs = num_envs
        self.rng = rng
        self.correlation = correlation
        self._z = rng.standard_normal((num_envs, self.size))

    def draw(self, steps: int) -> Array:
        """(steps, N, Z) float32, going on from the last draw."""
        shape = steps, self.num_envs, self.size
        if self.correlation == 0:
            draw = self.rng.gumbel if self.gumbel else self.rng.standard_normal
            return draw(size=shape).astype(np.float32)
        z = self.rng.standard_normal(shape) * np.sqrt(1 - self.correlation**2)
        for t in range(steps):
            self._z = z[t] = z[t] + self.correlation * self._z
        if self.gumbel:
            z = -np.log(-torch.special.log_ndtr(torch.from_numpy(z)).numpy())
        return z.astype(np.float32)

    def zeros(self, steps: int) -> Array:
        """Noise that makes every action the mode."""
        return np.zeros((steps, self.num_envs, self.size), np.float32)

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.bit_generator.state, "z": self._z}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self._z = state["z"].copy()
