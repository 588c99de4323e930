"""Responses as a buffer: rows of prompt and response, of which the response's tokens are the actions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlzoo.core.buffer import Buffer
from rlzoo.lm.model.generate import generate
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.reward.env import LMEnv


def rollout(
    env: LMEnv, prompts: Sequence[Sequence[int]], generator: torch.Generator | None, deterministic: bool = False
) -> Buffer:
    """One response of the environment's model to each prompt, yet to be evaluated and settled."""
    device = next(env.model.parameters()).device
    ids, attention = (x.to(device) for x in pad(prompts, env.pad_token, side="left"))
    rows = generate(
        env.model, ids, attention, env.max_new_tokens, env.stop, env.pad_token, generator, deterministic
    )  # fmt: skip
    return buffer_of(rows)


def buffer_of(rows: Rows) -> Buffer:
    """Step t observes token t and all before it, and acts with token t + 1; a response's last token terminates."""
    mask = rows.acts[:, :-1]
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    return Buffer(
        obs=rows.obs,
        action=rows.token[:, 1:],
        reward=torch.zeros(mask.shape, device=mask.device),
        terminated=last,
        truncated=torch.zeros_like(mask),
        mask=mask,
    )
