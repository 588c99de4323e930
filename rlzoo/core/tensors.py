"""What is made of tensors: the one base of `Buffer` and `Distribution`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable
from typing import Self

from torch import Tensor


class Tensors(abc.ABC):
    """An immutable structure of tensors."""

    @abc.abstractmethod
    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """A copy with `fn` applied to every tensor, always in the same order."""

    def tensors(self) -> list[Tensor]:
        """Every tensor, in the order of `map`."""
        found: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            found.append(x)
            return x

        self.map(keep)
        return found

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """A copy with other tensors, in the order of `tensors()`."""
        rest = iter(tensors)
        return self.map(lambda _: next(rest))
