"""Multilayer perceptrons in as few operations as possible, with their backward and forward-mode passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from rlzoo.control.fast.recurrent import has_written_cell, unroll
from rlzoo.control.networks import MLP
from rlzoo.control.recurrent import RecurrentMLP
from rlzoo.core.seen import Seen
from rlzoo.optim.fast.tape import Tape, add_affine


class FastMLP(MLP):
    """An `MLP` whose backward pass is written out where a tape records it, and so is its forward-mode pass."""

    @cached_property
    def affine(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """(weight (O, I), bias (O,)) of each layer."""
        params = list(self.parameters())
        return list(zip(params[::2], params[1::2], strict=True))

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        tape = Tape.current()
        if tape is not None and self.activated and not x.requires_grad:
            layers = evaluate(self, x.reshape(-1, x.shape[-1]))
            return tape.record(
                layers[-1].view(*x.shape[:-1], self.outputs),
                lambda grad: pull_back(self, layers, grad.reshape(-1, self.outputs)),
            )
        if not torch.is_grad_enabled() and self.activated and all(_dual(p)[1] is not None for p in self.parameters()):
            return push_forward(self, x)
        return super().forward(x)


class FastRecurrentMLP(RecurrentMLP):
    """A `RecurrentMLP` whose backward pass through time is written out where a tape records it."""

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        recurrent, mlp = self.recurrent, self.mlp
        assert isinstance(mlp, FastMLP)
        tape = Tape.current()
        if tape is None or seen.obs.requires_grad or not has_written_cell(recurrent):
            return super().forward(seen)
        hidden, into_cell = unroll(recurrent, seen)
        layers = evaluate(mlp, hidden.reshape(-1, hidden.shape[-1]))

        def into_parameters(grad: Tensor) -> None:
            into_hidden = pull_back(mlp, layers, grad.reshape(-1, mlp.outputs), to_input=True)
            into_cell(into_hidden.view(hidden.shape))

        return tape.record(layers[-1].view(*hidden.shape[:-1], mlp.outputs), into_parameters)


@torch.no_grad()
def evaluate(net: FastMLP, x: Float[Tensor, "B I"]) -> list[Tensor]:
    """x and then the output of each layer (B, ·)."""
    layers = [x]
    for (weight, bias), activated in zip(net.affine, net.activated, strict=True):
        x = _layer(x, weight, bias, net.activation if activated else None)
        layers.append(x)
    return layers


def _layer(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None) -> Tensor:
    z = torch.addmm(bias, x, weight.t())
    if activation is None:
        return z
    return z.tanh_() if activation == "tanh" else z.relu_()


def push_forward(net: FastMLP, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
    """The output with its derivative, for parameters that are dual numbers: a fifth of the time of PyTorch's rules."""
    shape = x.shape[:-1]
    x, moving = _dual(x.reshape(-1, x.shape[-1]))
    for layer, activated in zip(net.layers, net.activated, strict=True):
        (weight, weight_moving), (bias, bias_moving) = _dual(layer.weight), _dual(layer.bias)
        following = torch.addmm(bias_moving, x, weight_moving.t())
        if moving is not None:
            following.addmm_(moving, weight.t())
        x, moving = _layer(x, weight, bias, net.activation if activated else None), following
        if activated:
            moving = _slope(net.activation)(moving, x)
    dual: Tensor = forward_ad.make_dual(x, moving)  # type: ignore[no-untyped-call]
    return dual.view(*shape, x.shape[-1])


def _dual(x: Any) -> tuple[Any, Any]:
    """A tensor and its derivative, which is None if it is no dual number."""
    return forward_ad.unpack_dual(x)  # type: ignore[no-untyped-call]


@torch.no_grad()
def pull_back(
    net: FastMLP, layers: list[Tensor], grad: Float[Tensor, "B O"], to_input: bool = False
) -> Float[Tensor, "B I"]:
    """Adds the gradients of the parameters, given the result of `evaluate` and the gradient of the last output.

    Returns the gradient for x with `to_input`, and else that for the first layer's output.
    """
    for i in reversed(range(len(net.affine))):
        (weight, bias), x = net.affine[i], layers[i]
        if net.activated[i]:
            grad = _slope(net.activation)(grad, layers[i + 1])
        add_affine(weight, bias, x, grad)
        if i or to_input:
            grad = grad @ weight
    return grad


def _slope(activation: str) -> Callable[[Tensor, Tensor], Tensor]:
    """(vector, the activation's output) ↦ its derivative times the vector."""
    return torch.ops.aten.tanh_backward if activation == "tanh" else _relu_backward


def _relu_backward(grad: Tensor, output: Tensor) -> Tensor:
    return grad * (output > 0)
