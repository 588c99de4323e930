"""The pretraining loss (ptx) that is added to the policy's objective (Ouyang et al. 2022, eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlzoo.core.models import ActorCritic, Term
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.shuffled import Shuffled


class PretrainingLoss:
    """−γ·E[log π] per token of texts, an auxiliary loss of a language model.

    Every objective gets the next texts. An update by natural gradient has one objective, PPO has one for each
    minibatch.

    Args:
        texts: tokens of each text, at least two.
        coef: γ.
        rows: texts for each objective; None for as many as the objective has rows.
        micro_batch: tokens of a micro-batch; None for any number.
        seed: of the order of texts.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        coef: float,
        rows: int | None,
        pad_token: int,
        micro_batch: int | None = None,
        seed: int | np.random.SeedSequence = 0,
    ) -> None:
        self.texts = [list(text) for text in texts]
        self.coef = coef
        self.rows = rows
        self.pad_token = pad_token
        self.micro_batch = micro_batch
        self._order = Shuffled(len(self.texts), np.random.default_rng(seed))

    def draw(self, rows: int) -> list[Term]:
        """The loss of the next texts, as one term for each micro-batch."""
        chosen = [self.texts[next(self._order)] for _ in range(self.rows or rows)]
        ids, attention = pad(chosen, self.pad_token, side="right")
        acts = torch.nn.functional.pad(attention[:, 1:], (0, 1))
        action = torch.nn.functional.pad(ids[:, 1:], (0, 1))
        obs, weight = Rows(ids, attention, acts).obs, self.coef / int(acts.sum())

        def term(cut: slice) -> Term:
            def loss(model: ActorCritic) -> Tensor:
                device = next(model.parameters()).device
                logp = model.distribution(obs[cut].to(device)).log_prob(action[cut].to(device))
                return -weight * logp.sum()

            return loss

        rows = len(chosen) if self.micro_batch is None else max(1, self.micro_batch // ids.shape[1])
        return [term(slice(i, i + rows)) for i in range(0, len(chosen), rows)]

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order.load_state_dict(state)
