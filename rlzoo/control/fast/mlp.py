"""Multilayer perceptrons in as few operations as possible, with their backward pass."""

from __future__ import annotations

from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.control.fast.recurrent import has_written_cell, unroll
from rlzoo.control.networks import MLP
from rlzoo.control.recurrent import RecurrentMLP
from rlzoo.core.seen import Seen
from rlzoo.optim.fast.tape import Tape


class FastMLP(MLP):
    """An `MLP` whose backward pass is written out where a tape records it."""

    @cached_property
    def affine(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """(weight (O, I), bias (O,)) of each layer."""
        params = list(self.parameters())
        return list(zip(params[::2], params[1::2], strict=True))

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        if Tape.current is not None and self.activated and not x.requires_grad:
            layers = evaluate(self, x.reshape(-1, x.shape[-1]))
            return Tape.current.record(
                layers[-1].view(*x.shape[:-1], self.outputs),
                lambda grad: pull_back(self, layers, grad.reshape(-1, self.outputs))[0],
            )
        for layer, activated in zip(self.layers, self.activated, strict=True):
            x = layer(x)
            if activated:  # tanh(x) = 2σ(2x) − 1: PyTorch's sigmoid is several times as fast as its tanh on a CPU
                x = 2 * torch.sigmoid(2 * x) - 1 if self.activation == "tanh" else x.relu()
        return x


class FastRecurrentMLP(RecurrentMLP):
    """A `RecurrentMLP` whose backward pass through time is written out where a tape records it."""

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        recurrent, mlp = self.recurrent, self.mlp
        assert isinstance(mlp, FastMLP)
        if Tape.current is None or seen.obs.requires_grad or not has_written_cell(recurrent):
            return super().forward(seen)
        hidden, into_cell = unroll(recurrent, seen)
        layers = evaluate(mlp, hidden.reshape(-1, hidden.shape[-1]))

        def into_parameters(grad: Tensor) -> list[tuple[Tensor, Tensor]]:
            grads, into_hidden = pull_back(mlp, layers, grad.reshape(-1, mlp.outputs), to_input=True)
            return [*grads, *into_cell(into_hidden.view(hidden.shape))]

        return Tape.current.record(layers[-1].view(*hidden.shape[:-1], mlp.outputs), into_parameters)


@torch.no_grad()
def evaluate(net: FastMLP, x: Float[Tensor, "B I"]) -> list[Tensor]:
    """x and then the output of each layer (B, ·)."""
    layers = [x]
    for (weight, bias), activated in zip(net.affine, net.activated, strict=True):
        if not activated:
            x = torch.addmm(bias, x, weight.t())
        elif net.activation == "tanh":  # 1 − 2σ(−2z)
            x = torch.rsub(torch.addmm(bias, x, weight.t(), beta=-2, alpha=-2).sigmoid_(), 1, alpha=2)
        else:
            x = torch.addmm(bias, x, weight.t()).relu_()
        layers.append(x)
    return layers


@torch.no_grad()
def pull_back(
    net: FastMLP, layers: list[Tensor], grad: Float[Tensor, "B O"], to_input: bool = False
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Each parameter and its gradient, given the result of `evaluate` and the gradient of the last output.

    With `to_input`, the gradient for x comes with them.
    """
    grads: list[tuple[Tensor, Tensor]] = []
    for i in reversed(range(len(net.affine))):
        (weight, bias), x = net.affine[i], layers[i]
        if net.activated[i]:
            slope = torch.ops.aten.tanh_backward if net.activation == "tanh" else _relu_backward
            grad = slope(grad, layers[i + 1])
        # Of two equal products, the one with the wider result is several times as fast.
        wide = weight.shape[0] <= weight.shape[1]
        grads += [(bias, grad.sum(0)), (weight, grad.t() @ x if wide else (x.t() @ grad).t())]
        if i or to_input:
            grad = grad @ weight
    return grads, grad


def _relu_backward(grad: Tensor, output: Tensor) -> Tensor:
    return grad * (output > 0)
