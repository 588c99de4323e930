"""Sampling tokens with a key-value cache."""

from __future__ import annotations

import contextlib

import numpy as np
import torch

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
    """

    def __init__(
        self,
        model: LanguageModel,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        fast: bool = True,
    ) -> None:
        self._model = model
        self._generator = generator
        self._deterministic = deterministic
        self._fast = fast
        self._device = next(model.parameters()).device
        self._unread: list[Array] = []
        self._memory: Memory | None = None
        self._packed: contextlib.AbstractContextManager[None] | None = None

    @torch.no_grad()
    def __call__(self, obs: Array, forced: Bools, starts: Bools) -> Array:
        """`obs` (N, O), one column of `Rows`, to tokens (N,)."""
        self._unread.append(obs)
        if forced.all():
            return np.zeros(len(obs), np.int64)
        columns = torch.from_numpy(np.stack(self._unread, 1)).to(self._device)
        self._unread = []
        if self._packed is None:
            model, rows = self._model, len(obs)
            fast = self._fast
            self._packed = Packed(model.trunk, model.policy, rows=rows, precision=model.trunk.precision, fast=fast)
        with self._packed:
            policy, self._memory = self._model.act(columns, self._memory)
        token = policy.mode if self._deterministic else policy.sample(self._generator)
        return token.cpu().numpy()
