"""Prompts with the columns of their records, and the order in which they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlzoo.core.system.errors import require


class Prompt(str):
    """The text of a prompt, with the other columns of its record, such as the right answer."""

    columns: Mapping[str, Any]

    def __new__(cls, text: str, columns: Mapping[str, Any] | None = None) -> Prompt:
        prompt = super().__new__(cls, text)
        prompt.columns = dict(columns or {})
        return prompt


def columns_of(prompts: Sequence[str]) -> dict[str, list[Any]]:
    """Each column in the order of the prompts. Plain texts have none."""
    rows = [getattr(prompt, "columns", {}) for prompt in prompts]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}


def check_columns(prompts: Sequence[str], name: str) -> None:
    """Raises `ConfigError` if a prompt lacks a column that another one has. `name` is that of the prompts."""
    rows = [getattr(prompt, "columns", {}) for prompt in prompts]
    every = dict.fromkeys(column for row in rows for column in row)
    for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True), 1):
        fault = f"{name}: prompt {number} ({prompt[:40]!r}) lacks a column that others have"
        for column in every:
            require(column in row, f"{fault}: {column!r}")


class Shuffled(Iterator[int]):
    """0 … n − 1 in random order without end, shuffled anew after every pass."""

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
            raise ValueError(f"there are {self._n} prompts or texts now, and there were more")


class Group(NamedTuple):
    """Responses that start from the same prompt."""

    prompt: int
    """Index of the prompt among all."""
    size: int


class Prompts:
    """Prompts and their order. Every prompt is used once before any is used again.

    Args:
        texts: a `Prompt` has columns for the score.
        seed: seed of the order; None for that of the texts, each once.
    """

    def __init__(
        self, texts: Sequence[str], group_size: int = 1, seed: int | np.random.SeedSequence | None = 0
    ) -> None:
        self.texts, self.group_size = list(texts), group_size
        self.order = None if seed is None else Shuffled(len(self.texts), np.random.default_rng(seed))

    def groups(self, rows: int) -> list[Group]:
        """The next groups, of `rows` responses in all."""
        order = iter(range(len(self.texts))) if self.order is None else self.order
        return [Group(next(order), self.group_size) for _ in range(rows // self.group_size)]
