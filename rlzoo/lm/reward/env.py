"""Token generation as an environment: rewards shaped by the KL to a reference, and a score at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlzoo.algorithms import Metrics
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import Episode
from rlzoo.core.errors import ConfigError, require
from rlzoo.lm.model.language_model import LanguageModel, Reference, Rows
from rlzoo.lm.model.pretrained import encode, max_positions
from rlzoo.lm.reward.scores import Score, call_score
from rlzoo.lm.reward.shaping import (
    KL_ESTIMATORS,
    FixedKL,
    KLController,
    Moments,
    ScoreTreatment,
    sequence_kl,
    shaped_reward,
)
from rlzoo.lm.reward.shuffled import Shuffled

Obs = dict[str, np.ndarray[Any, Any]]


class LMEnv(gymnasium.Env[Obs, int]):
    """A prompt is where an episode begins, the next token is the action, a response is an episode.

    r_t = −β·kl_t + [t = last]·score (Ziegler et al. 2019, eq. 2), kl_t from the log-probabilities of the policy and
    of the frozen reference. An episode is terminated by a stop token or by the limit, which is part of the task.

    Training prices whole buffers at once (`settle`); `reset` and `step` give the same rewards token by token.
    Observations are `tokens` (C,), padded on the right, and their `attention_mask` (C,).

    Args:
        model: the policy whose KL to the reference is priced.
        prompts: each a non-empty text within the model's context.
        score: `(prompts, responses) -> one number each`.
        reference: π_ref; by default the model as it is now.
        stop_tokens: ids that end a response; by default the tokenizer's end of sequence.
        responses_per_prompt: rows of a buffer that share a prompt.
        kl_estimator: k1, k2, k3 or full (see `rlzoo.lm.reward.shaping`).
        control: the rule for β.
        treatment: what becomes of raw scores; `moments` are those it starts from.
        seed: of the order of the prompts.

    Raises:
        ConfigError: a prompt is empty or too long, or nothing can end a response.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        score: Score,
        *,
        score_name: str = "score",
        reference: Reference | None = None,
        max_new_tokens: int = 32,
        max_prompt_tokens: int | None = None,
        stop_tokens: Collection[int] | None = None,
        responses_per_prompt: int = 1,
        kl_estimator: str = "k1",
        control: KLController | None = None,
        treatment: ScoreTreatment | None = None,
        moments: Moments | None = None,
        seed: int | np.random.SeedSequence = 0,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.score, self.score_name = score, score_name
        self.reference = reference or Reference(model)
        self.max_new_tokens = max_new_tokens
        self.stop = stop_ids(tokenizer) if stop_tokens is None else frozenset(stop_tokens)
        self.pad_token = int(tokenizer.pad_token_id)
        self.responses_per_prompt = responses_per_prompt
        self.kl_of_logp = KL_ESTIMATORS[kl_estimator]
        self.control = control or FixedKL()
        self.treatment = treatment or ScoreTreatment()
        self.prompts = list(prompts)
        self._room = _room_for_prompts(model, max_new_tokens, max_prompt_tokens)
        self._text_of: dict[tuple[int, ...], str] = {}
        self.prompt_ids = self.encode(self.prompts)
        self.beta = self.control.beta
        self.moments = moments or Moments()
        self.metrics: Metrics = {}
        self.episodes: list[Episode] = []
        self._order = Shuffled(len(self.prompts), np.random.default_rng(seed))
        self._asked: list[int] = []
        self._row: list[int] = []
        self.max_prompt_tokens = max(map(len, self.prompt_ids))
        vocabulary = len(model.policy.now.weight)
        self._length = self.max_prompt_tokens + max_new_tokens
        self.observation_space: spaces.Dict = spaces.Dict(  # type: ignore[assignment]
            tokens=spaces.Box(0, vocabulary - 1, (self._length,), np.int64),
            attention_mask=spaces.Box(0, 1, (self._length,), np.int8),
        )
        self.action_space = spaces.Discrete(vocabulary)  # type: ignore[assignment]

    def encode(self, prompts: Sequence[str], name: str = "prompts") -> list[list[int]]:
        """Tokens of each prompt, as the tokenizer begins a text.

        Raises:
            ConfigError: there is none, one is empty, or one is too long.
        """
        require(len(prompts) > 0, f"{name}: there are none")
        encoded = encode(self.tokenizer, prompts)
        for number, (text, ids) in enumerate(zip(prompts, encoded, strict=True), 1):
            require(len(ids) > 0, f"{name}: prompt {number} ({text!r}) is empty")
            fault = f"{name}: prompt {number} ({text[:40]!r}) has {len(ids)} tokens; there is room for {self._room}"
            require(self._room is None or len(ids) <= self._room, fault)
            self._text_of[tuple(ids)] = text
        return encoded

    def next_prompts(self, rows: int) -> list[list[int]]:
        """Prompts for as many rows, each `responses_per_prompt` times; every prompt comes once before any again."""
        chosen = [next(self._order) for _ in range(rows // self.responses_per_prompt)]
        self._asked = [i for i in chosen for _ in range(self.responses_per_prompt)]
        return [self.prompt_ids[i] for i in self._asked]

    @torch.no_grad()
    def settle(self, buffer: Buffer) -> Buffer:
        """`buffer` with rewards: one forward of the reference over all rows, and the score of every response.

        An adaptive β and running statistics of scores move on by one batch.
        """
        obs = buffer.obs[:, : buffer.mask.shape[1]]
        kl = self._kl(obs, buffer.action, buffer.logp)
        prompts, responses = self.texts(buffer)
        raw = call_score(self.score, self.score_name, prompts, responses).to(kl.device)
        ended = self.ended(buffer)
        score, self.moments = self.treatment(raw, ended, self.moments)
        total = sequence_kl(kl, buffer.mask)
        self.metrics = {
            "score": float(raw.mean()),
            "score_std": float(raw.std(correction=0)),
            "kl_reference": float(total.mean()),
            "beta": self.beta,
            "ended": float(ended.float().mean()),
        }
        lengths = buffer.mask.sum(1).tolist()
        self.episodes = [Episode(x, n) for x, n in zip(raw.tolist(), lengths, strict=True)]
        reward = shaped_reward(kl, score.to(kl.dtype), self.beta, buffer.mask)
        self.beta = self.control.update(self.beta, float(total.mean()), len(total))
        return buffer.replace(reward=reward, group_size=self.responses_per_prompt)

    def _kl(self, obs: Tensor, action: Tensor, logp: Tensor) -> Float[Tensor, "N T"]:
        reference = self.reference.distribution(obs)
        if self.kl_of_logp is not None:
            return self.kl_of_logp(logp, reference.log_prob(action))
        return self.model.distribution(obs).kl(reference)

    def ended(self, buffer: Buffer) -> Bool[Tensor, "N"]:
        """Whether each response ended with a stop token, rather than at the limit."""
        stop = torch.tensor(sorted(self.stop), device=buffer.action.device)
        return (torch.isin(buffer.action, stop) & buffer.terminated).any(1)

    def texts(self, buffer: Buffer) -> tuple[list[str], list[str]]:
        """Prompts as they were given, and responses as text (see `decode`)."""
        seen = Rows.of(buffer.obs)
        prompted = seen.attention & (seen.acts.int().cumsum(1) - seen.acts.int() == 0)
        prompts = [row[keep].tolist() for row, keep in zip(seen.token, prompted, strict=True)]
        responses = [row[keep].tolist() for row, keep in zip(buffer.action, buffer.mask, strict=True)]
        if prompts == [self.prompt_ids[i] for i in self._asked]:  # texts that differ may have the same tokens
            return [self.prompts[i] for i in self._asked], self.decode(responses)
        return [self._text_of[tuple(ids)] for ids in prompts], self.decode(responses)

    def decode(self, responses: list[list[int]]) -> list[str]:
        """As text, without the special token that ended a response; special tokens elsewhere stay visible."""
        special = self.stop & set(self.tokenizer.all_special_ids)
        kept = [row[:-1] if row and row[-1] in special else row for row in responses]
        return self.tokenizer.batch_decode(kept, clean_up_tokenization_spaces=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """The next prompt; with a seed, the first of an order that the seed decides."""
        super().reset(seed=seed)
        if seed is not None:
            self._order = Shuffled(len(self.prompts), np.random.default_rng(seed))
        prompt = next(self._order)
        self._row, self._prompt = list(self.prompt_ids[prompt]), prompt
        return self._observe(), {"prompt": self.prompts[prompt]}

    @torch.no_grad()
    def step(self, action: int) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Adds a token. `info` holds the token's `kl`, and at the end the `response` and its raw `score`."""
        if not self._row:
            raise gymnasium.error.ResetNeeded("call reset before step")
        device = next(self.model.parameters()).device
        token = torch.tensor([self._row], device=device)
        acts = torch.zeros_like(token).bool()
        acts[:, -1] = True
        obs = Rows(token, torch.ones_like(acts), acts).obs
        actions = torch.full_like(token, int(action))
        kl = float(self._kl(obs, actions, self.model.distribution(obs).log_prob(actions))[0, -1])
        reward, info = -self.beta * kl, dict[str, Any](kl=kl)
        self._row.append(int(action))
        response = self._row[len(self.prompt_ids[self._prompt]) :]
        ended = int(action) in self.stop
        terminated = ended or len(response) == self.max_new_tokens
        if terminated:
            (text,) = self.decode([response])
            raw = call_score(self.score, self.score_name, [self.prompts[self._prompt]], [text])
            score, self.moments = self.treatment(raw, torch.tensor([ended]), self.moments)
            reward += float(score)
            info |= {"response": text, "score": float(raw)}
        observation = self._observe()
        if terminated:
            self._row = []
        return observation, reward, terminated, False, info

    def _observe(self) -> Obs:
        tokens = np.full(self._length, self.pad_token, np.int64)
        tokens[: len(self._row)] = self._row
        return {"tokens": tokens, "attention_mask": (np.arange(self._length) < len(self._row)).astype(np.int8)}

    def state_dict(self) -> dict[str, Any]:
        """All that later rewards and prompts depend on but the models."""
        moments = {"count": self.moments.count, "mean": self.moments.mean, "m2": self.moments.m2}
        return {"beta": self.beta, "moments": moments, "order": self._order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.beta = float(state["beta"])
        self.moments = Moments(**state["moments"])
        self._order.load_state_dict(state["order"])


def stop_ids(tokenizer: PreTrainedTokenizerBase, stop_tokens: Sequence[str] = ()) -> frozenset[int]:
    """Ids of the tokens that end a response; by default the tokenizer's end of sequence.

    Raises:
        ConfigError: there are none, or one is not a single token.
    """
    if not stop_tokens:
        found = tokenizer.eos_token_id
        require(found is not None, "the tokenizer has no end-of-sequence token: name what ends a response, stop_tokens")
        return frozenset([int(found)])
    vocabulary = tokenizer.get_vocab()
    ids = {text: tokenizer.encode(text, add_special_tokens=False) for text in stop_tokens}
    for text, tokens in ids.items():
        if text not in vocabulary and len(tokens) != 1:
            raise ConfigError(f"stop_tokens: {text!r} is {len(tokens)} tokens to this tokenizer, not one")
    return frozenset(int(vocabulary.get(text, tokens[0])) for text, tokens in ids.items())


def _room_for_prompts(model: LanguageModel, max_new_tokens: int, max_prompt_tokens: int | None) -> int | None:
    """Tokens that a prompt may have; None for any number."""
    positions = max_positions(model.actor)
    if positions is None:
        return max_prompt_tokens
    require(
        positions > max_new_tokens,
        f"max_new_tokens must leave room for a prompt in the model's context of {positions}, got {max_new_tokens}",
    )
    return min(positions - max_new_tokens, max_prompt_tokens or positions)
