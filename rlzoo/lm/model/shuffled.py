"""A random order without end, in which every index comes once before any comes again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


class Shuffled(Iterator[int]):
    """0 … n − 1 in random order, shuffled anew after every pass."""

    def __init__(self, n: int, rng: np.random.Generator) -> None:
        self._n = n
        self._rng = rng
        self._left: list[int] = []

    def __next__(self) -> int:
        if not self._left:
            self._left = self._rng.permutation(self._n).tolist()
        return self._left.pop()

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "left": list(self._left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._left = list(state["left"])
        if not all(isinstance(i, int) and 0 <= i < self._n for i in self._left):
            raise ValueError(f"an order of numbers below {self._n} is needed")
