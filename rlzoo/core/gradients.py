"""The gradient in all parameters as one vector, written part by part while autograd computes it.

Autograd makes a new tensor for each gradient, fills that of an embedding with zeros, and adds it to that of the head if
both share their weight. For a large vocabulary these tensors cost more than the products. An autograd function that
puts the gradient of its weight into a `Place` needs none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.core.models import unflatten


class FlatGradient:
    """The gradient (P,) of a sum of terms, in memory that is used again for the next sum."""

    def __init__(self, parameters: Sequence[nn.Parameter], like: Float[Tensor, "P"]) -> None:
        self._vector = torch.empty_like(like)
        self._places = dict(zip(parameters, unflatten(self._vector, parameters), strict=True))
        self._empty = set(parameters)

    def clear(self) -> None:
        """Begins another sum."""
        self._empty = set(self._places)

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Adds a term's gradient in each parameter."""
        parts = [g.reshape(-1) for g in gradients]
        if len(self._empty) == len(self._places):
            torch.cat(parts, out=self._vector)
            self._empty = set()
        else:
            self.vector.add_(torch.cat(parts))

    def add_from(self, term: Tensor) -> None:
        """Adds the gradient of a scalar term, by autograd."""
        global _filled
        hooks = [p.register_post_accumulate_grad_hook(self._move) for p in self._places]  # type: ignore[no-untyped-call]
        _filled = self
        try:
            torch.autograd.backward(term, inputs=list(self._places))
        finally:
            _filled = None
            for hook in hooks:
                hook.remove()

    @property
    def vector(self) -> Float[Tensor, "P"]:
        """The sum."""
        for p in self._empty:
            self._places[p].zero_()
        self._empty = set()
        return self._vector

    def place(self, p: Tensor) -> tuple[Tensor | None, bool]:
        """A parameter's part of the vector (None of other tensors), and whether it holds something already."""
        if not (isinstance(p, nn.Parameter) and p in self._places):
            return None, False
        begun = p not in self._empty
        self._empty.discard(p)
        return self._places[p], begun

    def _move(self, p: Tensor) -> None:
        if p.grad is not None:  # None if all of it is in its place already
            Place(p).put(p.grad)
            p.grad = None


_filled: FlatGradient | None = None
"""The gradient that a backward pass fills now."""


class Place:
    """Where an autograd function puts the gradient of a weight, in parts that do not overlap."""

    def __init__(self, weight: Tensor) -> None:
        differentiated_once()
        found, self._begun = (None, False) if _filled is None else _filled.place(weight)
        self._grad = torch.empty_like(weight) if found is None else found
        self._known = found is not None

    @property
    def result(self) -> Tensor | None:
        """What `backward` returns for the weight: None if the gradient is in its place already."""
        return None if self._known else self._grad

    def put(self, value: Tensor, part: slice | EllipsisType = ...) -> None:
        """Puts the gradient in a part of the weight there."""
        if self._begun:
            self._grad[part].add_(value)
        else:
            self._grad[part].copy_(value)

    def put_rows(self, row: Tensor, value: Tensor) -> None:
        """Puts the gradient in some rows there, each a sum over `value` where `row` names it. The others get 0."""
        row, value = row.reshape(-1), value.reshape(-1, value.shape[-1]).to(self._grad.dtype)
        if not self._known:  # not in place, which batched gradients (vmap) do not allow
            self._grad = torch.zeros_like(self._grad).index_add(0, row, value)
            return
        if not self._begun:
            self._grad.zero_()
        self._grad.index_add_(0, row, value)


def differentiated_once() -> None:
    """Called in a backward pass that has no derivative.

    Raises:
        RuntimeError: it was asked for one (`create_graph`).
    """
    if torch.is_grad_enabled():
        raise RuntimeError("this model can be differentiated once: for Fisher products use fisher_vector_product")
