"""Multilayer perceptrons in as few operations as possible, with their backward pass."""

from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Layered(Protocol):
    """A stack of linear layers; `activated` tells which are followed by the activation."""

    activated: list[bool]
    outputs: int

    @property
    def affine(self) -> list[tuple[nn.Parameter, nn.Parameter]]: ...

    @property
    def activation(self) -> str: ...


@torch.no_grad()
def evaluate(net: Layered, x: Float[Tensor, "B I"]) -> list[Tensor]:
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
    net: Layered, layers: list[Tensor], grad: Float[Tensor, "B O"], to_input: bool = False
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
