"""The backward pass of multilayer perceptrons, written out.

For small networks, autograd's overhead costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Tape:
    """Gradients of a loss for the parameters of `Layered` modules.

    Inside `with Tape() as tape`, each such module whose input needs no gradient is evaluated outside of autograd, and
    its output is a leaf of the graph. `tape.gradients` continues from those leaves. Everything else is left to
    autograd, so any model works.
    """

    current: Tape | None = None
    """The active tape."""

    def __init__(self) -> None:
        self._records: list[tuple[Layered, list[Tensor], Tensor]] = []

    def __enter__(self) -> Tape:
        Tape.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Tape.current = None

    @property
    def used(self) -> bool:
        """Whether a module was recorded."""
        return bool(self._records)

    def record(self, net: Layered, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        """The output of `net`, as a leaf."""
        layers = evaluate(net, x.reshape(-1, x.shape[-1]))
        output = layers[-1].view(*x.shape[:-1], net.outputs).requires_grad_()
        self._records.append((net, layers, output))
        return output

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """∂loss/∂p of each parameter; zeros where the loss does not depend on it."""
        outputs = [output for _, _, output in self._records]
        grads = torch.autograd.grad(loss, [*outputs, *parameters], allow_unused=True)
        found = {id(p): grad for p, grad in zip(parameters, grads[len(outputs) :], strict=True) if grad is not None}
        for (net, layers, _), into_output in zip(self._records, grads, strict=False):
            if into_output is None:
                continue
            for p, grad in pull_back(net, layers, into_output.reshape(-1, net.outputs)):
                found[id(p)] = found[id(p)] + grad if id(p) in found else grad
        return [found[id(p)] if id(p) in found else torch.zeros_like(p) for p in parameters]


@torch.no_grad()
def evaluate(net: Layered, x: Float[Tensor, "B I"]) -> list[Tensor]:
    """x and then the output of each layer (B, ·), in as few operations as possible."""
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
def pull_back(net: Layered, layers: list[Tensor], grad: Float[Tensor, "B O"]) -> list[tuple[Tensor, Tensor]]:
    """Each parameter and its gradient, given the result of `evaluate` and the gradient of the last output."""
    grads: list[tuple[Tensor, Tensor]] = []
    for i in reversed(range(len(net.affine))):
        (weight, bias), x = net.affine[i], layers[i]
        if net.activated[i]:
            slope = torch.ops.aten.tanh_backward if net.activation == "tanh" else _relu_backward
            grad = slope(grad, layers[i + 1])
        # Of two equal products, the one with the wider result is several times as fast.
        wide = weight.shape[0] <= weight.shape[1]
        grads += [(bias, grad.sum(0)), (weight, grad.t() @ x if wide else (x.t() @ grad).t())]
        if i:
            grad = grad @ weight
    return grads


def _relu_backward(grad: Tensor, output: Tensor) -> Tensor:
    return grad * (output > 0)
