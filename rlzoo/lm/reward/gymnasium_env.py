"""One response at a time, as an ordinary Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rlzoo.core.env import Array
from rlzoo.core.errors import require
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.scores import call_score

Obs = dict[str, Array]


class ResponseEnv(gymnasium.Env[Obs, int]):
    """One response at a time: `step` takes a token and returns its reward at once.

    Observations are `tokens` (C,), padded on the right, and their `attention_mask` (C,). The rewards are those that
    `LMEnv.score` computes for whole buffers, but running moments of scores are not updated.

    If not all tokens are allowed, `info["action_mask"]` (V,) says which are.

    Args:
        env: its prompts, rewards and models are used; it is not stepped.

    Raises:
        ConfigError: its episodes are conversations.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: LMEnv) -> None:
        require(env.turns is None, "ResponseEnv gives one response to a prompt: leave out turns")
        self.env = env
        self._length = env.max_prompt_tokens + env.max_new_tokens
        self.observation_space: spaces.Dict = spaces.Dict(  # type: ignore[assignment]
            tokens=spaces.Box(0, env.vocabulary - 1, (self._length,), np.int64),
            attention_mask=spaces.Box(0, 1, (self._length,), np.int8),
        )
        self.action_space = spaces.Discrete(env.vocabulary)  # type: ignore[assignment]
        self._done = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Starts an episode with a random prompt."""
        super().reset(seed=seed)
        i = int(self.np_random.integers(len(self.env.prompts)))
        self._prompt, self._tokens = self.env.prompts[i], list(self.env.prompt_ids[i])
        self._response: list[int] = []
        self._done = False
        return self._observe(), {"prompt": self._prompt, **self._mask()}

    @torch.no_grad()
    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Appends a token. `info` has the token's `kl`, and at the end the `response` and its raw `score`."""
        if self._done:
            raise gymnasium.error.ResetNeeded("call reset before step")
        env, action = self.env, int(action)
        kl = self._kl(action)
        reward, info = -env.beta * kl, dict[str, Any](kl=kl)
        self._tokens.append(action)
        self._response.append(action)
        stopped = action in env.stop
        self._done = stopped or len(self._response) == env.max_new_tokens
        if self._done:
            (text,) = env.decode([self._response])
            raw = call_score(env.score_function, env.score_name, [self._prompt], [text])
            score, _ = env.treatment(raw, torch.tensor([stopped]), env.moments)
            reward += float(score)
            info |= {"response": text, "score": float(raw)}
        else:
            info |= self._mask()
        return self._observe(), reward, self._done, False, info

    def _kl(self, action: int) -> float:
        """The KL of the next token, as `LMEnv.score` estimates it."""
        token = torch.tensor([self._tokens], device=next(self.env.model.parameters()).device)
        acts = torch.zeros_like(token).bool()
        acts[:, -1] = True
        obs, taken = Rows(token, torch.ones_like(acts), acts).obs, torch.full_like(token, action)
        if self.env.allowed is not None:
            obs = self.env.allowed.observed(obs)
        logp = self.env.model.distribution(obs).log_prob(taken)
        return float(self.env.kl(obs, taken, logp)[0, -1])

    def _mask(self) -> dict[str, Array]:
        """The tokens that may come next, as Gymnasium's `action_mask`; nothing if all may."""
        allowed = self.env.allowed
        if allowed is None:
            return {}
        return {"action_mask": allowed.mask([self._tokens], len(self._response))[0].astype(np.int8)}

    def _observe(self) -> Obs:
        tokens = np.full(self._length, self.env.pad_token, np.int64)
        tokens[: len(self._tokens)] = self._tokens
        return {"tokens": tokens, "attention_mask": (np.arange(self._length) < len(self._tokens)).astype(np.int8)}
