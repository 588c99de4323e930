"""Multilayer perceptrons in as few operations as possible, with their backward and forward-mode passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from rlzoo.control.fast.recurrent import unroll
from rlzoo.control.networks import MLP, RecurrentMLP
from rlzoo.core.seen import Seen
from rlzoo.optim.fast.tape import Tape, add_affine

Affine = list[tuple[Any, Any]]
"""(weight (O, I), bias (O,)) of each layer, or their derivatives."""

_GRAIN = 2**15
"""Numbers up to which PyTorch's elementwise operations take one thread."""


class FastMLP(MLP):
    """An `MLP` with NumPy's tanh, whose backward and forward-mode passes are written out where a tape records it."""

    @property
    def affine(self) -> Affine:
        """The parameters of each layer. A functional call may have replaced them by tensors for its time."""
        return [(layer._parameters["weight"], layer._parameters["bias"]) for layer in self.layers]

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        tape = Tape.current()
        if not self.activated or x.requires_grad or (tape is None and not _is_plain(x)):
            return super().forward(x)
        affine = self.affine
        layers = evaluate(self, affine, x.reshape(-1, x.shape[-1]))
        output = layers[-1].view(*x.shape[:-1], self.outputs)
        if tape is None:
            return output

        def push(directions: Mapping[int, Tensor]) -> Tensor:
            moving = [(_direction(weight, directions), _direction(bias, directions)) for weight, bias in affine]
            return push_forward(self, affine, layers, moving).view(*x.shape[:-1], self.outputs)

        def pull(grad: Tensor) -> None:
            pull_back(self, affine, layers, grad.reshape(-1, self.outputs))

        return tape.record(output, pull, push)


class FastRecurrentMLP(RecurrentMLP):
    """A `RecurrentMLP` whose backward pass through time is written out where a tape records it."""

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        recurrent, mlp = self.recurrent, self.mlp
        assert isinstance(mlp, FastMLP)
        tape = Tape.current()
        if tape is None or tape.both_ways or seen.obs.requires_grad:
            return super().forward(seen)
        affine = mlp.affine
        hidden, into_cell = unroll(recurrent, seen)
        layers = evaluate(mlp, affine, hidden.reshape(-1, hidden.shape[-1]))

        def into_parameters(grad: Tensor) -> None:
            into_hidden = pull_back(mlp, affine, layers, grad.reshape(-1, mlp.outputs), to_input=True)
            into_cell(into_hidden.view(hidden.shape))

        return tape.record(layers[-1].view(*hidden.shape[:-1], mlp.outputs), into_parameters)


@torch.no_grad()
def evaluate(net: FastMLP, affine: Affine, x: Float[Tensor, "B I"]) -> list[Tensor]:
    """x and then the output of each layer (B, ·)."""
    layers = [x]
    for (weight, bias), activated in zip(affine, net.activated, strict=True):
        x = torch.addmm(bias, x, weight.t())
        if activated:
            x = _tanh_(x) if net.activation == "tanh" else x.relu_()
        layers.append(x)
    return layers


@torch.no_grad()
def push_forward(net: FastMLP, affine: Affine, layers: list[Tensor], moving: Affine) -> Float[Tensor, "B O"]:
    """The derivative of the output, given the result of `evaluate` and the derivatives of the parameters."""
    x = None
    for i, ((weight, _), (moving_weight, moving_bias)) in enumerate(zip(affine, moving, strict=True)):
        following = torch.addmm(moving_bias, layers[i], moving_weight.t())
        if x is not None:
            following.addmm_(x, weight.t())
        x = _slope(net, following, layers[i + 1]) if net.activated[i] else following
    assert x is not None
    return x


@torch.no_grad()
def pull_back(
    net: FastMLP, affine: Affine, layers: list[Tensor], grad: Float[Tensor, "B O"], to_input: bool = False
) -> Float[Tensor, "B I"]:
    """Adds the gradients of the parameters, given the result of `evaluate` and the gradient of the last output.

    Returns the gradient for x with `to_input`, and else that for the first layer's output.
    """
    for i in reversed(range(len(affine))):
        (weight, bias), x = affine[i], layers[i]
        if net.activated[i]:
            grad = _slope(net, grad, layers[i + 1])
        add_affine(weight, bias, x, grad)
        if i or to_input:
            grad = grad @ weight
    return grad


def _is_plain(x: Tensor) -> bool:
    """Whether tensors are values alone: without derivatives, and nothing records what is done with them."""
    derived = torch.is_grad_enabled() or forward_ad._current_level >= 0
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    recorded = torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None
    return type(x) is Tensor and not (derived or transformed or recorded)


def _tanh_(x: Tensor) -> Tensor:
    """tanh in place. NumPy's takes an eighth of the time of PyTorch's on a core of an AMD EPYC."""
    several = torch.get_num_threads() > 1 and x.numel() > _GRAIN
    if several or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return x.tanh_()
    values = x.numpy()
    np.tanh(values, out=values)
    return x


def _direction(p: Tensor, directions: Mapping[int, Tensor]) -> Tensor:
    return directions[id(p)] if id(p) in directions else torch.zeros_like(p)  # of a frozen one


def _slope(net: MLP, vector: Tensor, output: Tensor) -> Tensor:
    """The derivative of the activation where it has this output, times the vector."""
    return torch.ops.aten.tanh_backward(vector, output) if net.activation == "tanh" else vector * (output > 0)
