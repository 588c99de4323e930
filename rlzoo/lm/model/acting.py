"""Sampling tokens with a key-value cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rlzoo.core.env import Array, Bools
from rlzoo.core.system.errors import NonFiniteError, require
from rlzoo.core.tensors import zip_leaves
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.tokens import Tokens


class TokenActor:
    """Chooses the next token of each row, for one episode of every row.

    Tokens are sampled from the model's own distribution, at its temperature and without any truncation. A column in
    which no row acts is stored and read together with the next column that acts, so a prompt takes one forward.

    Each column from the first that acts takes one uniform random number for each row of all processes. So a row gets
    the same numbers whatever the number of processes, and whether or not the other rows act.

    A row has ended when it observes padding after its prompt. Such rows leave the model's memory when they are many
    (see `LanguageModel.share_that_stays`).

    Args:
        model: its weights must not change while the actor is used.
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
        self._rows: Array
        self._column = self._drawn = 0

    @torch.no_grad()
    def __call__(self, obs: Tokens, forced: Bools, starts: Bools | None) -> Array:
        """One column of `Tokens` (N,) to tokens (N,). A row in which an episode starts again is an error.

        Raises:
            NonFiniteError: a token is sampled from logits that are not finite.
        """
        fault = "a TokenActor acts in one episode of each row: make a new one for the next"
        again = self._memory is not None and starts is not None and starts & obs.attention  # padding is no start
        require(not np.any(again), fault)
        self._unread.append(obs)
        if self._column or not forced.all():
            self._column += 1
        if forced.all():
            return np.zeros(len(forced), np.int64)
        tokens = zip_leaves(lambda columns: np.stack(columns, 1), self._unread)
        self._unread = []
        rows = self._reading(tokens)
        policy, self._memory = self._model.act(tokens.map(lambda x: torch.from_numpy(x[rows])), self._memory)
        action = np.zeros(len(forced), np.int64)
        if self._deterministic:
            action[rows] = policy.mode.cpu().numpy()
            return action
        if self._whole_rows is None:
            self._whole_rows = len(forced)
        self.draw_until(self._column)
        uniform = self._uniform[self._own][torch.from_numpy(rows).to(self._device, non_blocking=True)]
        action[rows] = policy.quantile(uniform).cpu().numpy()
        if action.max() >= policy.logits.shape[-1]:
            raise NonFiniteError("the model's logits are not finite: its weights have diverged")
        return action

    def _reading(self, tokens: Tokens) -> Array:
        """The rows that the model reads on. The others have ended, and leave its memory."""
        if self._memory is None:
            self._rows = np.arange(len(tokens.token))
            return self._rows
        reads = tokens.attention[self._rows].any(1)
        if reads.sum() <= self._model.share_that_stays * len(reads):
            self._memory = self._memory.rows(torch.from_numpy(np.flatnonzero(reads)))
            self._rows = self._rows[reads]
        return self._rows

    def draw_until(self, columns: int) -> None:
        """Draws the numbers of all columns up to `columns`, which are counted from the first that acts."""
        while self._drawn < columns:
            numbers = torch.empty(self._whole_rows or 0, dtype=torch.float64, device=self._device)
            self._uniform = numbers.uniform_(generator=self._generator)
            self._drawn += 1
