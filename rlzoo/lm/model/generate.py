"""Sampling responses: token by token with a cache, until every row has ended."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rlzoo.core.distributions import Categorical
from rlzoo.lm.model.language_model import LanguageModel, Rows
from rlzoo.lm.model.packed import packed


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Int[Tensor, "N P"],
    attention: Bool[Tensor, "N P"],
    max_new_tokens: int,
    stop: Collection[int],
    pad: int,
    generator: torch.Generator | None = None,
    deterministic: bool = False,
) -> Rows:
    """Responses to prompts that are padded on the left, as rows of prompt and response.

    Tokens are drawn from the model's own distribution, at its temperature and with nothing cut off. A response
    ends with a token of `stop` or after `max_new_tokens`; what follows in its row is padding.

    Returns:
        Rows (N, P + R), R being the longest response; `acts` is true where the next token was drawn.
    """

    def draw(policy: Categorical) -> Tensor:
        return policy.mode if deterministic else policy.sample(generator)

    with packed(model.trunk, model.policy, rows=len(prompt), precision=model.trunk.precision):
        return _generate(model, Rows(prompt, attention, torch.zeros_like(attention)), max_new_tokens, stop, pad, draw)


def _generate(
    model: LanguageModel,
    prompt: Rows,
    max_new_tokens: int,
    stop: Collection[int],
    pad: int,
    draw: Callable[[Categorical], Tensor],
) -> Rows:
    tokens, attends = [prompt.token], [prompt.attention]
    acts = [prompt.acts[:, 1:]]
    alive = torch.ones(len(prompt.token), dtype=torch.bool, device=prompt.token.device)
    ends = torch.tensor(sorted(stop), device=prompt.token.device)
    seen, memory = prompt.obs, None
    while True:
        policy, memory = model.act(seen, memory)
        drawn = torch.where(alive, draw(policy), pad)
        tokens.append(drawn.unsqueeze(1))
        attends.append(alive.unsqueeze(1))
        acts.append(alive.unsqueeze(1))
        attended, alive = alive, alive & ~torch.isin(drawn, ends)
        if len(tokens) > max_new_tokens or not bool(alive.any()):
            break
        seen = Rows(*(x.unsqueeze(1) for x in (drawn, attended, alive))).obs
    acts.append(torch.zeros_like(acts[-1]))
    return Rows(torch.cat(tokens, 1), torch.cat(attends, 1), torch.cat(acts, 1))
