"""Sampling tokens with a key-value cache."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

from rlzoo.core import processes
from rlzoo.core.env import Array, Bools
from rlzoo.lm.model.language_model import LanguageModel, Memory
from rlzoo.lm.model.packed import Packed


class TokenActor:
    """Chooses the next token of each row, for one episode of every row.

    Tokens are sampled from the model's own distribution, at its temperature and without any truncation. A column in
    which no row acts is stored and read together with the next column that acts, so a prompt takes one forward.

    Args:
        model: its weights must not change while the actor is used.
        generator: source of randomness.
        deterministic: take the most probable token instead of a sample.
        fast: use packed weights where they are faster.
        whole_rows: number of rows in all processes, of which these are the share of this one; None if these are all.
            The same rows get the same random numbers for any number of processes.
        turns: whether rows may pause. Then the processes ask each other before each token whether any row acts.
    """

    def __init__(
        self,
        model: LanguageModel,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        fast: bool = True,
        whole_rows: int | None = None,
        turns: bool = False,
    ) -> None:
        self._model = model
        self._generator = generator
        self._deterministic = deterministic
        self._fast = fast
        self._whole_rows, self._turns, self._drawn = whole_rows, turns, 0
        self._device = next(model.parameters()).device
        self._unread: list[Array] = []
        self._memory: Memory | None = None
        self._packed: contextlib.AbstractContextManager[None] | None = None

    @torch.no_grad()
    def __call__(self, obs: Array, forced: Bools, starts: Bools) -> Array:
        """`obs` (N, O), one column of `Rows`, to tokens (N,)."""
        self._unread.append(obs)
        uniform = self._uniform(not forced.all())
        if forced.all():
            return np.zeros(len(obs), np.int64)
        columns = torch.from_numpy(np.stack(self._unread, 1))
        self._unread = []
        if self._packed is None:
            model, rows = self._model, len(obs)
            fast = self._fast
            self._packed = Packed(model.trunk, model.policy, rows=rows, precision=model.trunk.precision, fast=fast)
        with self._packed:
            policy, self._memory = self._model.act(columns, self._memory)
        if self._deterministic:
            return policy.mode.cpu().numpy()
        return (policy.sample(self._generator) if uniform is None else policy.quantile(uniform)).cpu().numpy()

    def _uniform(self, acts: bool) -> torch.Tensor | None:
        """Of several processes: this one's part (rows,) of the uniform numbers that are drawn for a column of all rows.

        They are drawn as long as rows of this process act; see `draw_until`.
        """
        if self._whole_rows is None or not (processes.total(acts) if self._turns else acts):
            return None
        return self._draw(self._whole_rows)[processes.rows(self._whole_rows)]

    def _draw(self, rows: int) -> torch.Tensor:
        self._drawn += 1
        uniform = torch.empty(rows, dtype=torch.float64, device=self._device)
        return uniform.uniform_(generator=self._generator)

    def draw_until(self, columns: int) -> None:
        """Of several processes: draws the numbers that others have drawn for longer rows, `columns` in all."""
        while self._whole_rows is not None and self._drawn < columns:
            self._draw(self._whole_rows)
