"""One response at a time, as an ordinary Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rlzoo.core.env import Array
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.scores import call_score

Obs = dict[str, Array]


class ResponseEnv(gymnasium.Env[Obs, int]):
    """One row of an `LMEnv`: `step` takes a token and gives its reward at once.

    Observations are `tokens` (C,), padded on the right, and their `attention_mask` (C,). The rewards are those that
    `LMEnv.score` gives whole buffers. Scores are not normalised by running statistics.

    Args:
        env: of one or more rows; only its prompts, rewards and models are used.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: LMEnv) -> None:
        self.env = env
        self._length = env.max_prompt_tokens + env.max_new_tokens
        self.observation_space: spaces.Dict = spaces.Dict(  # type: ignore[assignment]
            tokens=spaces.Box(0, env.vocabulary - 1, (self._length,), np.int64),
            attention_mask=spaces.Box(0, 1, (self._length,), np.int8),
        )
        self.action_space = spaces.Discrete(env.vocabulary)  # type: ignore[assignment]
        self._row: list[int] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """A random prompt."""
        super().reset(seed=seed)
        self._prompt = self.env.prompts[int(self.np_random.integers(len(self.env.prompts)))]
        self._one = self.env.over([self._prompt])
        self._one.reset()
        self._row = list(self._one.prompt_ids[0])
        for _ in self._row[1:]:
            self._one.step(np.zeros(1, np.int64))
        return self._observe(), {"prompt": self._prompt}

    @torch.no_grad()
    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Appends a token. `info` holds the token's `kl`, and at the end the `response` and its raw `score`."""
        if not self._row:
            raise gymnasium.error.ResetNeeded("call reset before step")
        _, _, terminated, _, _ = self._one.step(np.array([action]))
        kl = self._kl(int(action))
        reward, info = -self.env.beta * kl, dict[str, Any](kl=kl)
        self._row.append(int(action))
        if terminated[0]:
            (text,) = self.env.decode([self._row[len(self._one.prompt_ids[0]) :]])
            raw = call_score(self.env.score_function, self.env.score_name, [self._prompt], [text])
            score, _ = self.env.treatment(raw, torch.tensor([int(action) in self.env.stop]), self.env.moments)
            reward += float(score)
            info |= {"response": text, "score": float(raw)}
        observation = self._observe()
        if terminated[0]:
            self._row = []
        return observation, reward, bool(terminated[0]), False, info

    def _kl(self, action: int) -> float:
        """The KL of the next token, as `LMEnv.score` estimates it."""
        token = torch.tensor([self._row], device=next(self.env.model.parameters()).device)
        acts = torch.zeros_like(token).bool()
        acts[:, -1] = True
        obs, taken = Rows(token, torch.ones_like(acts), acts).obs, torch.full_like(token, action)
        logp = self.env.model.distribution(obs).log_prob(taken)
        return float(self.env.kl(obs, taken, logp)[0, -1])

    def _observe(self) -> Obs:
        tokens = np.full(self._length, self.env.pad_token, np.int64)
        tokens[: len(self._row)] = self._row
        return {"tokens": tokens, "attention_mask": (np.arange(self._length) < len(self._row)).astype(np.int8)}
