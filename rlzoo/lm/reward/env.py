"""Text generation as an environment: a KL penalty for each token, and a score for each response."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlzoo.core import processes
from rlzoo.core.buffer import Buffer
from rlzoo.core.env import Array, Bools, Episode, Experience, VectorEnv
from rlzoo.core.errors import ConfigError, require
from rlzoo.lm.model.language_model import LanguageModel, Reference
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.pretrained import encode, max_positions
from rlzoo.lm.model.shuffled import Shuffled
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.prompt import Prompt, columns_of
from rlzoo.lm.reward.scores import Score, WeightedSum, call_scores, missing_columns
from rlzoo.lm.reward.shaping import (
    KL_ESTIMATORS,
    FixedKL,
    KLController,
    Moments,
    ScoreTreatment,
    sequence_kl,
    shaped_reward,
)
from rlzoo.lm.reward.turns import Conversation, Talk, Turns, encode_reply, spoken


class LMEnv(VectorEnv):
    """N responses that are generated together. An episode starts with a prompt, an action is the next token.

    r_t = −β·kl_t + [t = last]·score (Ziegler et al. 2019, eq. 2), where kl_t comes from the log-probabilities of the
    policy and of the frozen reference. `step` returns reward 0; `score` adds the rewards of complete rows in one batch.
    A stop token or the token limit terminates an episode: the limit is part of the task.

    With `turns`, a stop token ends a turn, and the episode goes on if there is a reply that leaves room for a token of
    the next turn. The reward of a turn is that of its last token.

    An observation (N, O) is one column of `Rows`: the last token, whether it is a token rather than padding, whether
    the next token is an action, and the bits of the tokens that it may be if not all are allowed. Prompts are padded on
    the left. Each of their tokens and of a reply's is a forced step. Rows that have ended are forced until `reset`.

    Args:
        model: the policy.
        prompts: non-empty texts that fit into the model's context; a `Prompt` has columns for the score.
        score: `(prompts, responses, **columns) -> scores`, one number for each response.
        rows: N, the number of responses in a buffer.
        reference: π_ref; by default a copy of the model.
        max_new_tokens: limit of a response; replies count.
        stop_tokens: ids that end a response, or a turn; by default the tokenizer's end of sequence.
        responses_per_prompt: consecutive rows that share a prompt; N must be a multiple of it.
        kl_estimator: k1, k2, k3 or full (see `rlzoo.lm.reward.shaping`).
        control: the rule for β.
        treatment: normalisation and clipping of scores, starting from `moments`.
        turns: the other side of conversations; None for responses of one turn.
        allowed: the tokens that may come next; None for all.
        seed: seed of the order of prompts.

    Raises:
        ConfigError: a prompt is empty or too long, or lacks a column that the score takes; or no token can end a
            response.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str],
        score: Score,
        *,
        rows: int = 8,
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
        turns: Turns | None = None,
        allowed: AllowedTokens | None = None,
        seed: int | np.random.SeedSequence = 0,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.score_function, self.score_name = score, score_name
        self.divided, self._rows = processes.size() > 1, rows
        self._own = processes.rows(rows, "responses_per_batch")
        self.num_envs = self._own.stop - self._own.start
        self.reference = reference or Reference(model)
        self.max_new_tokens = max_new_tokens
        self.stop = stop_ids(tokenizer) if stop_tokens is None else frozenset(stop_tokens)
        self.pad_token = int(tokenizer.pad_token_id)
        self.responses_per_prompt = responses_per_prompt
        self.kl_estimator = KL_ESTIMATORS[kl_estimator]
        self.control = control or FixedKL()
        self.treatment = treatment or ScoreTreatment()
        self.turns, self.allowed = turns, allowed
        self.beta = self.control.beta
        self.moments = moments or Moments()
        self.vocabulary = len(model.policy.functional.weight)
        self._stops = np.isin(np.arange(self.vocabulary), sorted(self.stop))
        self._room = _room_for_prompts(model, max_new_tokens, max_prompt_tokens)
        self.prompts = list(prompts)
        self.prompt_ids = self.encode(self.prompts)
        self._order: Shuffled | None = Shuffled(len(self.prompts), np.random.default_rng(seed))

    @property
    def max_prompt_tokens(self) -> int:
        """Length of the longest prompt."""
        return max(map(len, self.prompt_ids))

    def encode(self, prompts: Sequence[str], name: str = "prompts") -> list[list[int]]:
        """Token ids of each prompt.

        Raises:
            ConfigError: there are no prompts; one is empty or too long; they lack a column that the score takes.
        """
        require(len(prompts) > 0, f"{name}: there are none")
        taken = self.turns is not None and "turns" in columns_of(prompts)
        require(not taken, f"{name}: the column 'turns' has the name of that of conversations; give it another one")
        sample = self._with_turns(prompts[:1], [[]])
        for column in missing_columns(self.score_function, sample):
            have = ", ".join(columns_of(sample)) or "none"
            raise ConfigError(f"reward {self.score_name} takes a column {column!r} of the {name}; they have {have}")
        encoded = encode(self.tokenizer, prompts)
        for number, (text, ids) in enumerate(zip(prompts, encoded, strict=True), 1):
            require(len(ids) > 0, f"{name}: prompt {number} ({text!r}) is empty")
            fault = f"{name}: prompt {number} ({text[:40]!r}) has {len(ids)} tokens; there is room for {self._room}"
            require(self._room is None or len(ids) <= self._room, fault)
        return encoded

    def over(self, prompts: Sequence[str]) -> LMEnv:
        """A copy of the environment with one row for each of these prompts, in their order."""
        env = copy.copy(self)
        env.prompts, env.prompt_ids = list(prompts), self.encode(prompts)
        env.num_envs, env.responses_per_prompt, env._order = len(prompts), 1, None
        env.divided, env._rows, env._own = False, len(prompts), slice(0, len(prompts))
        return env

    def reset(self) -> tuple[Array, Bools]:
        """Starts an episode with the next prompts. Every prompt is used once before any is used again."""
        if self._order is None:
            self.asked = list(range(self._rows))
        else:
            chosen = [next(self._order) for _ in range(self._rows // self.responses_per_prompt)]
            self.asked = [i for i in chosen for _ in range(self.responses_per_prompt)]
        ids, attention = pad([self.prompt_ids[i] for i in self.asked], self.pad_token, side="left")
        self._prompt, self._attention = ids[self._own].numpy(), attention[self._own].numpy()
        self._column = 0
        self._alive = np.ones(self.num_envs, np.bool_)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._talk = Talk([self.prompt_ids[i] for i in self.asked[self._own]])
        return self._observe(self._prompt[:, 0], self._attention[:, 0])

    def step(self, action: Array) -> tuple[Array, Array, Bools, Bools, Bools]:
        """Appends a token to each row: the action, the next token of the prompt or of a reply, or padding."""
        self._column += 1
        none = np.zeros(self.num_envs, np.bool_)
        reward = np.zeros(self.num_envs, np.float32)
        if self._column < self._prompt.shape[1]:
            obs, forced = self._observe(self._prompt[:, self._column], self._attention[:, self._column])
            return obs, reward, none, none, forced
        alive = self._alive
        acted = alive & ~self._talk.listens
        token = self._talk.hear(np.where(acted, action, self.pad_token), alive)
        self._lengths += alive
        stopped = acted & self._stops[token]
        ended = acted & (stopped | (self._lengths == self.max_new_tokens))
        if self.turns is not None and stopped.any():
            reward, replied = self._converse(self.turns, np.flatnonzero(stopped))
            ended &= ~replied
        self._alive = alive & ~ended
        obs, forced = self._observe(token, alive)
        return obs, reward, ended, none, forced

    def _observe(self, token: Array, attention: Bools) -> tuple[Array, Bools]:
        """The observation of the last column, and which rows do not act next."""
        acts = self._alive & ~self._talk.listens & (self._column >= self._prompt.shape[1] - 1)
        obs = np.stack([token, attention, acts], 1).astype(np.int64)
        if self.allowed is not None:
            rows = [row if act else None for row, act in zip(self._talk.rows, acts, strict=True)]
            obs = np.concatenate([obs, self.allowed(rows, self._column - self._prompt.shape[1] + 1)], 1)
        return obs, ~acts

    def _converse(self, turns: Turns, rows: Array) -> tuple[Array, Bools]:
        """The rewards (N,) of the turns that these rows have ended, and which rows (N,) got a reply."""
        reward, replied = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        prompts, first = self.asked[self._own], self._own.start
        asked = [Conversation(self.prompts[prompts[i]], self.decode(self._talk.turns(i))) for i in rows]
        answers = turns.answers(asked, (first + rows).tolist())
        for i, conversation, answer in zip(rows, asked, answers, strict=True):
            reward[i] = answer.reward
            if answer.text is None or len(conversation.turns) // 2 + 1 == turns.max_turns:
                continue
            reply = encode_reply(self.tokenizer, answer.text, f"reply {turns.name}, row {first + i}")
            if self._lengths[i] + len(reply) < self.max_new_tokens:
                self._talk.reply(i, reply)
                replied[i] = True
        return reward, replied

    @torch.no_grad()
    def score(self, experience: Experience) -> Experience:
        """Adds the rewards: one forward of the reference over all rows, and the score of every response. Each process
        computes those of its rows.

        Advances an adaptive β and the running moments of scores by one batch.
        """
        buffer = experience.buffer
        kl, raw, *several = buffer.divided(self._measured)
        names = self.score_function.parts if isinstance(self.score_function, WeightedSum) else ()
        parts = dict(zip(names, several, strict=True))
        ended = self.ended(buffer)
        score, self.moments = self.treatment(raw, ended, self.moments)
        total = sequence_kl(kl, buffer.mask)
        metrics = {
            "score": float(raw.mean()),
            "score_std": float(raw.std(correction=0)),
            **{f"score_{name}": float(part.mean()) for name, part in parts.items()},
            "kl_reference": float(total.mean()),
            "beta": self.beta,
            "ended": float(ended.float().mean()),
        }
        lengths = buffer.mask.sum(1).tolist()
        reward, returns = shaped_reward(kl, score.to(kl.dtype), self.beta, buffer.mask), raw
        if self.turns is not None:
            given = torch.where(buffer.mask, buffer.reward, 0.0)
            reward, returns = reward + given, raw + given.sum(1)
            metrics["turns"] = float(np.mean([len(turns) // 2 + 1 for turns in self.said(buffer)]))
            metrics["turn_reward"] = float(given.sum(1).mean())
        episodes = [Episode(x, n) for x, n in zip(returns.tolist(), lengths, strict=True)]
        self.beta = self.control.update(self.beta, float(total.mean()), len(total))
        return Experience(buffer.replace(reward=reward, group_size=self.responses_per_prompt), episodes, metrics)

    def _measured(self, rows: Buffer) -> tuple[Tensor, ...]:
        """`kl` (N, T), the scores (N,), and those that they are the weighted sum of."""
        kl = self.kl(rows.obs[:, : rows.mask.shape[1]], rows.action, rows.logp)
        total, parts = call_scores(self.score_function, self.score_name, *self.texts(rows))
        return kl, *(x.to(kl.device) for x in (total, *parts.values()))

    def kl(self, obs: Tensor, action: Tensor, logp: Tensor) -> Float[Tensor, "N T"]:
        """The estimate of KL(π ‖ π_ref) at each acting step."""
        reference = self.reference.distribution(obs)
        if self.kl_estimator is not None:
            return self.kl_estimator(logp, reference.log_prob(action))
        return self.model.distribution(obs).kl(reference)

    def ended(self, buffer: Buffer) -> Bool[Tensor, "N"]:
        """Whether each response ended with a stop token rather than at the limit."""
        stop = torch.tensor(sorted(self.stop), device=buffer.action.device)
        return (torch.isin(buffer.action, stop) & buffer.terminated).any(1)

    def texts(self, buffer: Buffer) -> tuple[list[str], list[str]]:
        """The prompts of the last reset and the responses, as text, of this process's rows alone.

        A response has all turns, with the replies.

        The prompts of conversations have a further column `turns` (see `Conversation.turns`).
        """
        prompts = [self.prompts[i] for i in self.asked[self._own]]
        responses = self.decode([[token for _, token in row] for row in spoken(buffer)])
        return self._with_turns(prompts, self.said(buffer)), responses

    def said(self, buffer: Buffer) -> list[list[str]]:
        """The turns of each row (see `Conversation.turns`)."""
        rows = [[[token for _, token in turn] for _, turn in groupby(row, itemgetter(0))] for row in spoken(buffer)]
        return [self.decode(turns) for turns in rows]

    def _with_turns(self, prompts: Sequence[str], turns: Sequence[list[str]]) -> list[str]:
        """The prompts, which have a further column `turns` if there is a reply."""
        if self.turns is None:
            return list(prompts)
        rows = zip(prompts, turns, strict=True)
        return [Prompt(text, {**getattr(text, "columns", {}), "turns": said}) for text, said in rows]

    def decode(self, responses: list[list[int]]) -> list[str]:
        """Responses as text, without the special token that ended them. Other special tokens are kept."""
        special = self.stop & set(self.tokenizer.all_special_ids)
        kept = [row[:-1] if row and row[-1] in special else row for row in responses]
        return self.tokenizer.batch_decode(kept, clean_up_tokenization_spaces=False)

    def state_dict(self) -> dict[str, Any]:
        """Everything that later rewards and prompts depend on, except the models."""
        assert self._order is not None
        moments = {"count": self.moments.count, "mean": self.moments.mean, "m2": self.moments.m2}
        return {"beta": self.beta, "moments": moments, "order": self._order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self._order is not None
        self.beta = float(state["beta"])
        count, mean, m2 = (float(state["moments"][name]) for name in ("count", "mean", "m2"))
        if not (math.isfinite(self.beta + mean + m2) and min(self.beta, count, m2) >= 0):
            raise ValueError(f"beta {self.beta} and moments {state['moments']} of scores cannot be")
        self.moments = Moments(int(count), mean, m2)
        self._order.load_state_dict(state["order"])


def stop_ids(tokenizer: PreTrainedTokenizerBase, stop_tokens: Sequence[str] = ()) -> frozenset[int]:
    """Ids of the tokens that end a response; by default the tokenizer's end of sequence.

    Raises:
        ConfigError: there is none, or a text is not a single token.
    """
    if not stop_tokens:
        found = tokenizer.eos_token_id
        require(found is not None, "the tokenizer has no end-of-sequence token; set stop_tokens")
        return frozenset([int(found)])
    vocabulary = tokenizer.get_vocab()
    ids = {text: tokenizer.encode(text, add_special_tokens=False) for text in stop_tokens}
    for text, tokens in ids.items():
        if text not in vocabulary and len(tokens) != 1:
            raise ConfigError(f"stop_tokens: {text!r} is {len(tokens)} tokens to this tokenizer, not one")
    return frozenset(int(vocabulary.get(text, tokens[0])) for text, tokens in ids.items())


def _room_for_prompts(model: LanguageModel, max_new_tokens: int, max_prompt_tokens: int | None) -> int | None:
    """Largest number of tokens in a prompt; None for any number."""
    positions = max_positions(model.actor)
    if positions is None:
        return max_prompt_tokens
    require(
        positions > max_new_tokens,
        f"max_new_tokens must leave room for a prompt in the model's context of {positions}, got {max_new_tokens}",
    )
    return min(positions - max_new_tokens, max_prompt_tokens or positions)
