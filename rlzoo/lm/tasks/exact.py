"""Expected scores without sampling, where the responses that score at all can be listed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlzoo.lm.model.language_model import LanguageModel, Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.tasks.random_walks import RandomWalks


@torch.no_grad()
def expected_optimality(
    model: LanguageModel, tokenizer: PreTrainedTokenizerBase, walks: RandomWalks, prompts: Sequence[str]
) -> Float[Tensor, "N"]:
    """E[optimality] of the policy from each start: Σ π(walk | start)·optimality(walk) over all walks to the goal.

    Every other response has optimality 0. One forward over a few thousand rows; no sampling noise.
    """
    solutions = walks.solutions()
    device = next(model.parameters()).device
    ids, attention = pad(tokenizer(solutions).input_ids, int(tokenizer.pad_token_id), side="right")
    acts = torch.nn.functional.pad(attention[:, 1:], (0, 1))
    obs = Rows(ids, attention, acts).obs.to(device)
    action = torch.nn.functional.pad(ids[:, 1:], (0, 1)).to(device)
    logp = model.distribution(obs).log_prob(action).double().sum(1).cpu()
    optimality = torch.tensor(walks.optimality([w[0] for w in solutions], [w[1:] for w in solutions]))
    start = torch.tensor([prompts.index(w[0]) for w in solutions])
    return torch.zeros(len(prompts), dtype=torch.float64).index_add(0, start, logp.exp() * optimality.double())
