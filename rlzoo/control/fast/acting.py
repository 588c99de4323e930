"""Acting of the built-in networks through NumPy.

One step of a few environments is a handful of tiny matrix products. PyTorch's overhead for each operation is then
several times NumPy's, so the built-in networks on the CPU act through NumPy, on the same memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from rlzoo.control.acting import make_actor
from rlzoo.control.fast.rollout import NativePolicy, has_rollouts
from rlzoo.control.networks import MLP, MLPPolicy, MLPValue, RecurrentMLP
from rlzoo.core.actors import Actor
from rlzoo.core.distributions import IMPOSSIBLE
from rlzoo.core.env import Array, Bools, VectorEnv
from rlzoo.core.models import ActorCritic, Normalizer
from rlzoo.core.recurrent import Cell, GRUCell, LSTMCell, Recurrent
from rlzoo.core.seen import Seen

_without_warnings: Any = (
    np.errstate(divide="ignore", over="ignore", invalid="ignore") if sys.platform == "darwin" else lambda act: act
)
"""On macOS NumPy's library for products warns of numbers that are right (NumPy's issue 28687)."""


def make_numpy_actor(model: ActorCritic, noise: Iterator[Array]) -> Actor:
    """An actor through NumPy if the model consists of the built-in networks, else `make_actor`."""
    if not _is_plain(model):
        return make_actor(model, noise)
    act = _without_warnings(_numpy_policy(model))
    return RecurrentActor(model, act, noise) if model.memory_size else MLPActor(model, act, noise)


def _is_plain(model: ActorCritic) -> bool:
    """Whether the model consists of the built-in networks, unchanged, in single precision on the CPU."""
    parameter = next(model.policy.parameters())
    plain = type(model) is ActorCritic and isinstance(model.policy, MLPPolicy) and isinstance(model.value, MLPValue)
    nets = [model.trunk, getattr(model.policy, "net", None), getattr(model.value, "net", None)]
    plain = plain and all(net is None or isinstance(net, MLP | RecurrentMLP) for net in nets)
    return plain and is_built_in(model) and parameter.device.type == "cpu" and parameter.dtype == torch.float32


def is_built_in(net: nn.Module) -> bool:
    """Whether a network has modules of this package and of PyTorch alone, without hooks, also on its gradients."""
    return not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in net.parameters()) and all(
        type(module).__module__.startswith(("rlzoo.", "torch.nn.modules."))
        and not (module._forward_hooks or module._forward_pre_hooks)
        and not (module._backward_hooks or module._backward_pre_hooks)
        for module in net.modules()
    )


class MLPActor:
    """Acts with the built-in MLPs through NumPy, and with many steps at once in native code.

    Args:
        act: `(obs, noise) -> action`.
    """

    def __init__(self, model: ActorCritic, act: Callable[[Any, Array], Array], noise: Iterator[Array]) -> None:
        self._model, self._act, self._noise = model, act, noise

    def __call__(self, obs: Any, forced: Bools, starts: Bools) -> Array:
        return self._act(obs, next(self._noise))

    @cached_property
    def _native(self) -> NativePolicy | None:
        """None if an action is more than classic control has: one category or one Gaussian number."""
        model, policy, numbers = self._model, cast(Any, self._model.policy), [None, *_ACTIVATIONS.values()]
        layers = [(w, b, numbers.index(f)) for w, b, f in (*_layers(model.trunk), *_layers(policy.net))]
        if policy.nvec:
            return NativePolicy(layers, model.normalizer, None)
        if policy.log_std is None:
            return None
        log_std = policy.log_scale + policy.log_std.detach()
        return NativePolicy(
            layers, model.normalizer, [policy.centre.numpy(), *(np.exp(x.numpy()) for x in (policy.log_scale, log_std))]
        )

    def rollout(self, env: VectorEnv, obs: Any, steps: int) -> tuple[Array, ...] | None:
        if not has_rollouts(env) or self._native is None:
            return None
        return self._native.rollout(env, obs, self._noise, steps)


class RecurrentActor:
    """Acts with the built-in recurrent networks through NumPy.

    Args:
        act: `(features of the policy's MLP, noise) -> action`; the features are in a `Seen` if actions may be illegal.
    """

    def __init__(self, model: ActorCritic, act: Callable[[Any, Array], Array], noise: Iterator[Array]) -> None:
        self.memory: Array | None = None
        self._act, self._noise = act, noise
        self._normalize = _normalizer(model.normalizer)
        self._size = model.memory_size
        self._networks = [x for x in model.modules() if isinstance(x, Recurrent)]  # the policy's is the first
        self._cells = [_without_warnings(_CELLS[type(x.cell)](x.cell)) for x in self._networks]

    def __call__(self, obs: Any, forced: Bools, starts: Bools) -> Array:
        seen = Seen.of(obs)
        x = seen.obs if self._normalize is None else self._normalize(seen.obs)
        before = np.zeros((len(x), self._size), np.float32) if self.memory is None else self.memory
        if starts.any():
            before = np.where(starts[:, None], np.float32(0), before)
        steps = [cell(x, before[:, net.owned]) for cell, net in zip(self._cells, self._networks, strict=True)]
        self.memory = np.concatenate([memory for _, memory in steps], 1)
        return self._act(Seen(steps[0][0], seen.legal), next(self._noise))


def _gru(cell: Any) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`(x, memory) -> (output, memory)` of a `GRUCell`."""
    (into, into_bias), (across, across_bias) = _maps(cell.into, cell.across)
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
    (into, into_bias), (across, across_bias) = _maps(cell.into, cell.across)
    size = cell.outputs

    def step(x: Array, memory: Array) -> tuple[Array, Array]:
        gates = x @ into + into_bias + (memory[:, :size] @ across + across_bias)
        i, f, g, o = np.split(gates, 4, axis=1)
        c = _sigmoid(f) * memory[:, size:] + _sigmoid(i) * np.tanh(g)
        h = _sigmoid(o) * np.tanh(c)
        return h, np.concatenate([h, c], 1)

    return step


def _maps(*layers: Any) -> list[tuple[Array, Array]]:
    """(weight (I, O), bias (O,)) of linear layers, as views of the parameters."""
    return [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in layers]


def _sigmoid(x: Array) -> Array:
    return 0.5 * np.tanh(0.5 * x) + 0.5


_CELLS: dict[type[Cell], Callable[[Any], Callable[[Array, Array], tuple[Array, Array]]]] = {
    GRUCell: _gru,
    LSTMCell: _lstm,
}


def _numpy_policy(model: ActorCritic) -> Callable[[Any, Array], Array]:
    """`(obs, noise) -> action`; of a recurrent policy, with the outputs of its memory instead of observations."""
    policy: Any = model.policy
    normalize = None if model.memory_size else _normalizer(model.normalizer)
    layers = [*_layers(model.trunk), *_layers(policy.net)]
    nvec = policy.nvec

    def outputs(obs: Any) -> Array:
        x, legal = (obs.obs, obs.legal) if isinstance(obs, Seen) else (obs, None)
        if normalize is not None:
            x = normalize(x)
        for w, b, activation in layers:
            x = x @ w
            x += b
            if activation is not None:
                x = activation(x)
        return x if legal is None else np.where(legal, x, np.float32(IMPOSSIBLE))

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

    def state_dependent(obs: Any, noise: Array) -> Array:
        mean, log_std = np.split(outputs(obs), 2, axis=1)
        return centre + scale * (mean + np.exp(log_std) * noise)

    return state_dependent


def _layers(net: nn.Module | None) -> list[tuple[Array, Array, Callable[[Array], Array] | None]]:
    """(weight (I, O), bias (O,), activation) of each layer, as views of the parameters."""
    if net is None:
        return []
    net = net.mlp if isinstance(net, RecurrentMLP) else net
    assert isinstance(net, MLP)
    activations = [_ACTIVATIONS[net.activation] if activated else None for activated in net.activated]
    return [(w, b, activation) for (w, b), activation in zip(_maps(*net.layers), activations, strict=True)]


# In the order of rollout.cpp, after no activation.
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


def _normalizer(normalizer: Normalizer | None) -> Callable[[Array], Array] | None:
    if normalizer is None:
        return None
    mean, scale = normalizer.mean.numpy(), normalizer.scale.numpy()
    clip = np.float32(normalizer.clip)
    return lambda x: np.minimum(np.maximum((x - mean) * scale, -clip), clip)
