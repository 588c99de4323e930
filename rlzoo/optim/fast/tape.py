"""Gradients where the backward pass of a module is written out.

For small networks, autograd's overhead costs more than the arithmetic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

PullBack = Callable[[Tensor], object]
"""Adds to the `grad` of each parameter of a module, given the gradient for the module's output."""


class _Thread(threading.local):
    tape: Tape | None = None


_thread = _Thread()


class Tape:
    """Gradients of a loss for parameters.

    Inside `with Tape() as tape`, modules whose input needs no gradient may be evaluated outside of autograd. Their
    outputs are leaves of the graph, and `tape.backward` continues from there. Everything else is left to autograd, so
    any model works.
    """

    def __init__(self) -> None:
        self.records: list[tuple[Tensor, PullBack]] = []
        """The output of each recorded module, and how to continue from it."""

    def __enter__(self) -> Tape:
        _thread.tape = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.tape = None

    @staticmethod
    def current() -> Tape | None:
        """The tape that this thread's operations are recorded on."""
        return _thread.tape if torch.is_grad_enabled() else None

    def record(self, output: Tensor, pull_back: PullBack) -> Tensor:
        """Makes the output of a module a leaf, and returns it."""
        self.records.append((output.requires_grad_(), pull_back))
        return output

    def backward(self, loss: Tensor, parameters: Sequence[Tensor]) -> None:
        """Adds ∂loss/∂p to `p.grad` of each parameter, which is a tensor."""
        outputs = [output for output, _ in self.records]
        torch.autograd.backward(loss, inputs=[*outputs, *parameters])
        for output, pull_back in self.records:
            if output.grad is not None:
                pull_back(output.grad)


def add_affine(weight: nn.Parameter, bias: nn.Parameter, x: Float[Tensor, "B I"], grad: Float[Tensor, "B O"]) -> None:
    """Adds the gradients of an affine layer x·Wᵀ + b, given that of its output, to those of the two that have one."""
    if weight.grad is not None:
        weight.grad.addmm_(grad.t(), x)
    if bias.grad is not None:
        bias.grad.add_(grad.sum(0))
