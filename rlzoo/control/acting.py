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
from torch import nn

from rlzoo.control.networks import MLP, MLPPolicy, MLPValue
from rlzoo.control.recurrent import RecurrentMLP
from rlzoo.control.spaces import is_gumbel
from rlzoo.core import processes
from rlzoo.core.actors import Actor, ModelActor
from rlzoo.core.distributions import IMPOSSIBLE
from rlzoo.core.env import Array, Bools, restored
from rlzoo.core.fields import UnitInterval
from rlzoo.core.models import ActorCritic, Normalizer
from rlzoo.core.recurrent import Cell, GRUCell, LSTMCell, Recurrent


def make_actor(model: ActorCritic, noise: Iterator[Array], fast: bool = True) -> Actor:
    """An actor for the model as it is now. Make a new one after each update.

    Args:
        noise: standard noise (N, Z) for each step (see `ActionNoise`).
        fast: act through NumPy where the model allows it.
    """
    if fast and _is_plain(model):
        act = _numpy_policy(model, model.policy)
        if model.memory_size:
            return RecurrentActor(model, act, noise)
        return lambda obs, forced, starts: act(obs, next(noise))
    device = next(model.parameters()).device
    return ModelActor(model, lambda policy: policy.from_noise(torch.from_numpy(next(noise)).to(device)))


def _is_plain(model: ActorCritic) -> bool:
    """Whether the model consists of the built-in networks, in single precision on the CPU."""
    parameter = next(model.policy.parameters())
    known = type(model) is ActorCritic and isinstance(model.policy, MLPPolicy) and isinstance(model.value, MLPValue)
    nets = [model.trunk, getattr(model.policy, "net", None), getattr(model.value, "net", None)]
    known = known and all(net is None or isinstance(net, MLP | RecurrentMLP) for net in nets)
    known = known and all(type(cell) in _CELLS for cell in model.modules() if isinstance(cell, Cell))
    return known and parameter.device.type == "cpu" and parameter.dtype == torch.float32


class RecurrentActor:
    """Acts with the built-in recurrent networks through NumPy.

    Args:
        act: `(features of the policy's MLP, noise) -> action`.
    """

    def __init__(self, model: ActorCritic, act: Callable[[Array, Array], Array], noise: Iterator[Array]) -> None:
        self.memory: Array | None = None
        self._act, self._noise = act, noise
        self._normalize = _normalizer(model.normalizer)
        self._legal, self._size = model.legal, model.memory_size
        self._networks = [x for x in model.modules() if isinstance(x, Recurrent)]  # the policy's is the first
        self._cells = [_CELLS[type(x.cell)](x.cell) for x in self._networks]

    def __call__(self, obs: Array, forced: Bools, starts: Bools) -> Array:
        x = obs[:, : obs.shape[1] - self._legal]
        if self._normalize is not None:
            x = self._normalize(x)
        before = np.zeros((len(x), self._size), np.float32) if self.memory is None else self.memory
        if starts.any():
            before = np.where(starts[:, None], np.float32(0), before)
        steps = [cell(x, before[:, net.owned]) for cell, net in zip(self._cells, self._networks, strict=True)]
        self.memory = np.concatenate([memory for _, memory in steps], 1)
        return self._act(np.concatenate([steps[0][0], obs[:, x.shape[1] :]], 1), next(self._noise))


def _gru(cell: Any) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`(x, memory) -> (output, memory)` of a `GRUCell`."""
    (into, into_bias), (across, across_bias) = _maps(cell)
    size = cell.outputs

    def step(x: Array, h: Array) -> tuple[Array, Array]:
        a, b = x @ into + into_bias, h @ across + across_bias
        gates = _sigmoid(a[:, : 2 * size] + b[:, : 2 * size])
        new = np.tanh(a[:, 2 * size :] + gates[:, :size] * b[:, 2 * size :])
        h = new + gates[:, size:] * (h - new)
        return h, h

    return step


def _lstm(cell: Any) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`(x, memory) -> (output, memory)` of an `LSTMCell`."""
    (into, into_bias), (across, across_bias) = _maps(cell)
    size = cell.outputs

    def step(x: Array, memory: Array) -> tuple[Array, Array]:
        gates = x @ into + into_bias + (memory[:, :size] @ across + across_bias)
        i, f, g, o = np.split(gates, 4, axis=1)
        c = _sigmoid(f) * memory[:, size:] + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        return h, np.concatenate([h, c], 1)

    return step


def _maps(cell: Any) -> list[tuple[Array, Array]]:
    """(weight (I, O), bias (O,)) of a cell's two linear maps, as views of the parameters."""
    return [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in (cell.into, cell.across)]


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


_CELLS: dict[type[Cell], Callable[[Any], Callable[[Array, Array], tuple[Array, Array]]]] = {
    GRUCell: _gru,
    LSTMCell: _lstm,
}


def _numpy_policy(model: ActorCritic, policy: Any) -> Callable[[Array, Array], Array]:
    """`(obs, noise) -> action`; of a recurrent policy, with the outputs of its memory instead of observations."""
    normalize = None if model.memory_size else _normalizer(model.normalizer)
    layers = [*_layers(model.trunk), *_layers(policy.net)]
    nvec, legal = policy.nvec, model.legal

    def outputs(obs: Array) -> Array:
        x = obs[:, :-legal] if legal else obs
        if normalize is not None:
            x = normalize(x)
        for w, b, activation in layers:
            x = x @ w
            x += b
            if activation is not None:
                x = activation(x)
        return np.where(obs[:, -legal:] > 0, x, np.float32(IMPOSSIBLE)) if legal else x

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
    net = net.mlp if isinstance(net, RecurrentMLP) else net
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
        own = processes.rows(self.shape[0])
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
        self._z = restored(state["z"], self._z)
        self._draw()
        self._used = int(state["used"])
        if not 0 <= self._used <= _BLOCK:
            raise ValueError(f"{self._used} of {_BLOCK} steps of noise are used")


_BLOCK = 64
"""Steps of noise that are drawn at once."""
