"""One response at a time, as an ordinary Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate
from rlzoo.core.env import Array, Experience
from rlzoo.core.system.errors import require
from rlzoo.core.tensors import zip_leaves
from rlzoo.lm.reward.env import LMEnv

Obs = dict[str, Array]


class ResponseEnv(gymnasium.Env[Obs, int]):
    """A row of an `LMEnv` by itself: `step` takes a token and returns its reward at once.

    Observations are `tokens` (C,), padded on the right, and their `attention_mask` (C,). The rewards are those of
    `LMEnv.score`, but running moments of scores and an adaptive β are not updated.

    If not all tokens are allowed, `info["action_mask"]` (V,) says which are.

    Args:
        env: its prompts, rewards and models are used; it is not stepped.

    Raises:
        ConfigError: its episodes are conversations.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, env: LMEnv) -> None:
        generation = env.generation
        require(generation.turns is None, "ResponseEnv gives one response to a prompt: leave out turns")
        self.env = env
        vocabulary = len(env.model.policy.functional.weight)
        self._length = env.max_prompt_tokens + generation.max_new_tokens
        self.observation_space: spaces.Dict = spaces.Dict(  # type: ignore[assignment]
            tokens=spaces.Box(0, vocabulary - 1, (self._length,), np.int64),
            attention_mask=spaces.Box(0, 1, (self._length,), np.int8),
        )
        self.action_space = spaces.Discrete(vocabulary)  # type: ignore[assignment]
        self._done = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Starts an episode with a random prompt."""
        super().reset(seed=seed)
        self._row = self.env.over([self.env.prompts.texts[int(self.np_random.integers(len(self.env.prompts.texts)))]])
        column, forced = self._row.reset()
        self._columns, self._actions, self._done = [column], [0], False
        while forced[0]:
            forced = self._append(0)[1]
        return self._observe(), {"prompt": self._row.asked[0], **self._mask()}

    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Appends a token. `info` has the token's `kl`, and at the end the `response` and its raw `score`."""
        if self._done:
            raise gymnasium.error.ResetNeeded("call reset before step")
        self._done = self._append(int(action))[0]
        row, buffer = self._row, self._buffer()
        if self._done:
            kl, raw, *parts = row.measure(buffer)
            scored, _, _ = row.score(Experience(buffer, [], {}), kl, raw, *parts)
            info = {"kl": float(kl[0, -1]), "response": row.texts(buffer)[1][0], "score": float(raw)}
            return self._observe(), float(scored.reward[0, -1]), True, False, info
        kl = row.scoring.kl(row.model, row.reference, buffer)[0, -1]
        return self._observe(), -row.scoring.beta * float(kl), False, False, {"kl": float(kl), **self._mask()}

    def _append(self, action: int) -> tuple[bool, Array]:
        """Steps the row. Whether the episode has ended, and whether the next step is forced."""
        column, _, terminated, _, forced = self._row.step(np.array([action]))
        self._columns.append(column)
        self._actions.append(action)
        return bool(terminated[0]), forced

    @torch.no_grad()
    def _buffer(self) -> Buffer:
        """The row so far, with log-probabilities and values."""
        tokens = zip_leaves(lambda columns: torch.from_numpy(np.stack(columns, 1)), self._columns)
        mask, action = tokens.acts[:, :-1], torch.tensor([self._actions[1:]])
        end, none = torch.zeros_like(mask), torch.zeros_like(mask)
        end[:, -1] = self._done
        buffer = Buffer(tokens, action, torch.zeros(mask.shape), end, none, mask)
        device = next(self.env.model.parameters()).device
        return evaluate(self.env.model, buffer.map(lambda x: x.to(device)))

    def _mask(self) -> dict[str, Array]:
        """The tokens that may come next, as Gymnasium's `action_mask`; nothing if all may."""
        allowed = self._columns[-1].allowed
        return {} if allowed is None else {"action_mask": allowed[0].astype(np.int8)}

    def _observe(self) -> Obs:
        seen = [column.token[0] for column in self._columns]
        tokens = np.full(self._length, self.env.pad_token, np.int64)
        tokens[: len(seen)] = seen
        return {"tokens": tokens, "attention_mask": (np.arange(self._length) < len(seen)).astype(np.int8)}
