"""Structures of tensors: the one base of `Buffer`, `Distribution`, and what a model sees of a step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor

ABSENT = torch.empty(0)
"""A tensor that a structure does not have, or not yet."""


class Tensors:
    """An immutable structure of tensors. During collection its leaves may be NumPy arrays. Subclasses are dataclasses.

    A field is a tensor or None, a structure, a tuple of these, or a number that belongs to them.
    """

    def map(self, fn: Callable[[Any], Any]) -> Self:
        """A copy with `fn` applied to every tensor that is present, in the order of the fields."""
        cls: Any = type(self)
        return cls(**{name: map_leaves(fn, getattr(self, name)) for name in _fields(cls)})

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(cast(Any, self), **changes)

    def tensors(self) -> list[Tensor]:
        """Every tensor, in the order of `map`."""
        return leaves(self)

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """A copy with other tensors, in the order of `tensors()`."""
        rest = iter(tensors)
        return self.map(lambda _: next(rest))


@functools.cache
def _fields(cls: Any) -> list[str]:
    """Names of the fields, in their order."""
    return [field.name for field in dataclasses.fields(cls) if field.init]


def map_leaves(fn: Callable[[Any], Any], x: Any) -> Any:
    """`fn` of an array or tensor, or a structure with `fn` of each of its leaves. Other values stay."""
    if isinstance(x, Tensors):
        return x.map(fn)
    if isinstance(x, tuple):
        return tuple(map_leaves(fn, part) for part in x)
    return x if x is None or x is ABSENT or isinstance(x, int | float) else fn(x)


def leaves(x: Any) -> list[Any]:
    """The arrays and tensors in a structure, in the order of `map_leaves`."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_leaves(keep, x)
    return found


def zip_leaves(fn: Callable[[list[Any]], Any], xs: list[Any]) -> Any:
    """`fn` of a list of arrays or tensors. Of structures, a structure with `fn` of the list of each leaf."""
    first = xs[0]
    if not isinstance(first, Tensors):
        return fn(xs)
    leaves = zip(*(x.tensors() for x in xs), strict=True)
    return first.with_tensors([fn(list(leaf)) for leaf in leaves])


def discounted_sum(x: Float[Tensor, "N T"], carry: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
    """y_t = x_t + carry_t · y_{t+1}, y_T = 0. In NumPy, whose overhead for each column is a tenth of PyTorch's."""
    if x.device.type != "cpu":
        return discounted_sum(x.cpu(), carry.cpu()).to(x.device)
    columns = x.t().clone(memory_format=torch.contiguous_format).numpy()
    factors = carry.t().to(x.dtype).contiguous().numpy()
    for t in range(len(columns) - 2, -1, -1):
        columns[t] += factors[t] * columns[t + 1]
    return torch.from_numpy(columns).t().contiguous()
