"""Sampling tokens with a key-value cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlzoo.core.env import Array, Bools
from rlzoo.core.tensors import zip_leaves
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.tokens import Tokens


class TokenActor:
    """Chooses the next token of each row, for one episode of every row.

    Tokens are sampled from the model's own distribution, at its temperature and without any truncation. A column in
    which no row acts is stored and read together with the next column that acts, so a prompt takes one forward.

    Each column from the first that acts takes one uniform random number for each row of all processes. So a row gets
    the same numbers whatever the number of processes, and whether or not the other rows act.

    Args:
        model: its weights must not change while the actor is used.
        generator: source of randomness.
        deterministic: take the most probable token instead of a sample.
        whole_rows: number of rows in all processes; None if these are all.
        own: this process's rows among them.
    """

    def __init__(
        self,
        model: LanguageModel,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        whole_rows: int | None = None,
        own: slice = slice(None),
    ) -> None:
        self._model = model
        self._generator = generator
        self._deterministic = deterministic
        self._whole_rows, self._own = whole_rows, own
        self._device = next(model.parameters()).device
        self._unread: list[Tokens] = []
        self._memory: Any = None
        self._column = self._drawn = 0

    @torch.no_grad()
    def __call__(self, obs: Tokens, forced: Bools, starts: Bools) -> Array:
        """One column of `Tokens` (N,) to tokens (N,)."""
        self._unread.append(obs)
        if self._column or not forced.all():
            self._column += 1
        if forced.all():
            return np.zeros(len(forced), np.int64)
        tokens = zip_leaves(lambda columns: torch.from_numpy(np.stack(columns, 1)), self._unread)
        self._unread = []
        policy, self._memory = self._model.act(tokens, self._memory)
        if self._deterministic:
            return policy.mode.cpu().numpy()
        if self._whole_rows is None:
            self._whole_rows = len(forced)
        self.draw_until(self._column)
        return policy.quantile(self._uniform[self._own]).cpu().numpy()

    def draw_until(self, columns: int) -> None:
        """Draws the numbers of all columns up to `columns`, which are counted from the first that acts."""
        while self._drawn < columns:
            numbers = torch.empty(self._whole_rows or 0, dtype=torch.float64, device=self._device)
            self._uniform = numbers.uniform_(generator=self._generator)
            self._drawn += 1
