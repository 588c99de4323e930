"""Gradients where the backward pass of a module is written out.

For small networks, autograd's overhead costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import unflatten
from rlzoo.optim.fisher import Jacobian
from rlzoo.optim.natural_gradient import FlatPolicy
from rlzoo.optim.vectors import Vector

PullBack = Callable[[Tensor], object]
"""Adds to the `grad` of each parameter of a module, given the gradient for the module's output."""
PushForward = Callable[[Mapping[int, Tensor]], Tensor]
"""The derivative of a module's output, given the derivatives of its parameters by their `id`."""


class Record(NamedTuple):
    """The output of a module, and how to continue from it."""

    output: Tensor
    pull_back: PullBack
    push_forward: PushForward | None


_current: ContextVar[Tape | None] = ContextVar("tape", default=None)
"""The tape that this thread's operations are recorded on."""


class Tape:
    """Gradients of a loss for parameters.

    Inside `with Tape() as tape`, modules whose input needs no gradient may be evaluated outside of autograd. Their
    outputs are leaves of the graph, and `tape.backward` continues from there. Everything else is left to autograd, so
    any model works.

    Args:
        both_ways: record only modules whose forward-mode pass is written out too.
    """

    def __init__(self, both_ways: bool = False) -> None:
        self.both_ways = both_ways
        self.records: list[Record] = []

    def __enter__(self) -> Tape:
        _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.set(None)

    @staticmethod
    def current() -> Tape | None:
        """The tape that this thread's operations are recorded on."""
        return _current.get() if torch.is_grad_enabled() else None

    def record(self, output: Tensor, pull_back: PullBack, push_forward: PushForward | None = None) -> Tensor:
        """Makes the output of a module a leaf, and returns it."""
        self.records.append(Record(output.requires_grad_(), pull_back, push_forward))
        return output

    def backward(self, loss: Tensor | Sequence[Tensor], parameters: Sequence[Tensor], **options: Any) -> None:
        """Adds ∂loss/∂p to `p.grad` of each parameter, which is a tensor. `options` are `torch.autograd.backward`'s."""
        outputs = [record.output for record in self.records]
        torch.autograd.backward(loss, inputs=[*outputs, *parameters], **options)
        for output, pull_back, _ in self.records:
            if output.grad is not None:
                pull_back(output.grad)
                output.grad = None


class TapeJacobian(Jacobian):
    """A `Jacobian` whose products with the modules that a tape records are written out."""

    def __init__(self, policy: FlatPolicy, theta: Vector, part: Buffer) -> None:
        with Tape(both_ways=True) as self.tape:
            super().__init__(policy, theta, part)
        zeros = [torch.zeros_like(y) for y in self.moving]
        reached = torch.autograd.grad(self.moving, self.leaves, zeros, retain_graph=True, allow_unused=True)
        self._others = [leaf for leaf, x in zip(self.leaves, reached, strict=True) if x is not None]
        self.inputs = [*(record.output for record in self.tape.records), *self._others]

    def directions(self, v: Vector) -> list[Tensor]:
        by_id = {id(leaf): piece for leaf, piece in zip(self.leaves, self.policy.unflatten(v), strict=True)}
        pushed = (record.push_forward for record in self.tape.records)
        return [*(push(by_id) for push in pushed if push is not None), *(by_id[id(leaf)] for leaf in self._others)]

    def pull(self, cotangents: list[Tensor], total: Vector, keep: bool) -> None:
        for leaf, piece in zip(self.leaves, unflatten(total, self.leaves), strict=True):
            leaf.grad = piece
        self.tape.backward(self.moving, self.leaves, grad_tensors=self.of_moving(cotangents), retain_graph=True)
        for leaf in self.leaves:
            leaf.grad = None


def add_affine(weight: Tensor, bias: Tensor, x: Float[Tensor, "B I"], grad: Float[Tensor, "B O"]) -> None:
    """Adds the gradients of an affine layer x·Wᵀ + b to the `grad` of W and b that have one, given its output's.

    A product with few columns is slow in MKL: of 1,024 rows, 4 inputs and 64 outputs, gradᵀ·x takes 78 us and xᵀ·grad,
    whose rows are long, 13 us on a core of an AMD EPYC.
    """
    if weight.grad is not None and x.shape[-1] < grad.shape[-1]:
        weight.grad.add_((x.t() @ grad).t())
    elif weight.grad is not None:
        weight.grad.addmm_(grad.t(), x)
    if bias.grad is not None:
        bias.grad.add_(grad.sum(0))
