"""Structures of tensors: the one base of `Buffer`, `Distribution`, and what a model sees of a step."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Any, Self

from torch import Tensor


class Tensors(abc.ABC):
    """An immutable structure of tensors. During collection its leaves may be NumPy arrays."""

    @abc.abstractmethod
    def map(self, fn: Callable[[Any], Any]) -> Self:
        """A copy with `fn` applied to every tensor that is present, always in the same order."""

    def tensors(self) -> list[Tensor]:
        """Every tensor, in the order of `map`."""
        leaves: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            leaves.append(x)
            return x

        self.map(keep)
        return leaves

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """A copy with other tensors, in the order of `tensors()`."""
        rest = iter(tensors)
        return self.map(lambda _: next(rest))


def map_leaves(fn: Callable[[Any], Any], x: Any) -> Any:
    """`fn` of an array or tensor, or a structure with `fn` of each of its leaves."""
    return x.map(fn) if isinstance(x, Tensors) else fn(x)


def zip_leaves(fn: Callable[[list[Any]], Any], xs: list[Any]) -> Any:
    """`fn` of a list of arrays or tensors. Of structures, a structure with `fn` of the list of each leaf."""
    first = xs[0]
    if not isinstance(first, Tensors):
        return fn(xs)
    leaves = zip(*(x.tensors() for x in xs), strict=True)
    return first.with_tensors([fn(list(leaf)) for leaf in leaves])
