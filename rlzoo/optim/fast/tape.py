"""Gradients where the backward pass of a module is written out.

For small networks, autograd's overhead costs more than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

PullBack = Callable[[Tensor], Iterable[tuple[Tensor, Tensor]]]
"""From the gradient for a module's output to each parameter of the module and its gradient."""


class Tape:
    """Gradients of a loss for parameters.

    Inside `with Tape() as tape`, modules whose input needs no gradient may be evaluated outside of autograd. Their
    outputs are leaves of the graph, and `tape.gradients` continues from there. Everything else is left to autograd, so
    any model works.
    """

    current: Tape | None = None
    """The active tape."""

    def __init__(self) -> None:
        self._records: list[tuple[Tensor, PullBack]] = []

    def __enter__(self) -> Tape:
        Tape.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Tape.current = None

    @property
    def used(self) -> bool:
        """Whether a module was recorded."""
        return bool(self._records)

    def record(self, output: Tensor, pull_back: PullBack) -> Tensor:
        """Makes the output of a module a leaf, and returns it."""
        self._records.append((output.requires_grad_(), pull_back))
        return output

    def gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """∂loss/∂p of each parameter; zeros where the loss does not depend on it."""
        outputs = [output for output, _ in self._records]
        grads = torch.autograd.grad(loss, [*outputs, *parameters], allow_unused=True)
        by_id = {id(p): grad for p, grad in zip(parameters, grads[len(outputs) :], strict=True) if grad is not None}
        for (_, pull_back), into_output in zip(self._records, grads, strict=False):
            if into_output is None:
                continue
            for p, grad in pull_back(into_output):
                by_id[id(p)] = by_id[id(p)] + grad if id(p) in by_id else grad
        return [by_id[id(p)] if id(p) in by_id else torch.zeros_like(p) for p in parameters]
