"""The pretraining loss (ptx) that is added to the objective of the policy (Ouyang et al. 2022, eq. 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlzoo.core.models import ActorCritic, Term
from rlzoo.core.system import processes
from rlzoo.core.system.errors import require
from rlzoo.lm.finetune.data import read_texts
from rlzoo.lm.model.pretrained import encode
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.prompt import Shuffled


@dataclass(eq=False)
class PretrainingLoss:
    """−γ·E[log π] per token of texts, as an auxiliary loss of a language model.

    Each objective gets the next texts. A natural-gradient update has one objective, PPO has one for each minibatch.
    """

    texts: Sequence[Sequence[int]]
    """Token ids of each text, at least two."""
    coef: float
    """γ."""
    rows: int | None
    """Texts for each objective; None for as many as the objective has rows."""
    pad_token: int
    micro_batch_tokens: int | None = None
    """Tokens of a micro-batch; None for any number."""
    seed: int | np.random.SeedSequence = 0
    """Seed of the order of texts."""

    def __post_init__(self) -> None:
        self._order = Shuffled(len(self.texts), np.random.default_rng(self.seed))

    def draw(self, rows: int) -> list[Term]:
        """The loss on the next texts, one term for each micro-batch. Each process has its share of the texts."""
        chosen = [self.texts[next(self._order)] for _ in range(self.rows or rows)]
        batch = Tokens.of_texts(chosen, self.pad_token)
        action, weight = batch.action, self.coef / int(batch.acts.sum())

        def loss(cut: slice, model: ActorCritic) -> Tensor:
            device = next(model.parameters()).device
            tokens = batch.map(lambda x: x[cut].to(device))
            logp = model.distribution(tokens).log_prob(action[cut].to(device))
            return -weight * logp.sum()

        size = self.micro_batch_tokens
        rows = len(chosen) if size is None else max(1, size // action.shape[1])
        own = processes.share(len(chosen))
        return [partial(loss, slice(i, min(i + rows, own.stop))) for i in range(own.start, own.stop, rows)]

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order.load_state_dict(state)


def read_pieces(path: str, tokenizer: PreTrainedTokenizerBase, longest: int) -> list[list[int]]:
    """Token ids of the texts of a file, with the end of sequence, in pieces of at least two and at most `longest`."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    texts = [ids if end and ids[-1:] == end else ids + end for ids in encode(tokenizer, read_texts(path))]
    pieces = [text[i : i + longest] for text in texts for i in range(0, len(text) - 1, longest)]
    require(bool(pieces), f"ptx: {path} has no text of two tokens")
    return pieces
