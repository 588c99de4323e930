"""Text generation as an environment: a KL penalty for each token, and a score for each response."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlzoo.core.buffer import Buffer
from rlzoo.core.env import Array, Bools, Episode, Experience, VectorEnv
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.lm.model.language_model import LanguageModel, Reference
from rlzoo.lm.model.pretrained import encode, max_positions, with_padding
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.generation import Generation, Responses, stop_ids
from rlzoo.lm.reward.prompt import Prompt, Prompts, check_columns, columns_of
from rlzoo.lm.reward.scores import Score, call_scores, clashing_columns, missing_columns
from rlzoo.lm.reward.scoring import Scoring
from rlzoo.lm.reward.turns import decode, speech, turns_of


class LMEnv(VectorEnv):
    """N responses that are generated together. An episode starts with a prompt, an action is the next token.

    `step` returns the rewards of turns alone; `measure` and `score` add those of complete rows (see `Scoring`). A stop
    token or the token limit terminates an episode: the limit is part of the task.

    With turns, a stop token ends a turn, and the episode goes on if there is a reply that leaves room for a token of
    the next turn. The reward of a turn is that of its last token.

    An observation is one column of `Tokens`: the last token of each row. A `Collector` needs `whole_episodes=True` for
    it, and a new `TokenActor` for each buffer.

    Args:
        prompts: non-empty texts that fit into the model's context.
        scoring: how responses are rewarded, or a score alone.
        rows: N, the number of responses in a buffer, a multiple of the size of a group.
        reference: π_ref; by default a copy of the model.
        own: this process's rows, if others have the rest.

    Raises:
        ConfigError: a prompt is empty or too long, or lacks a column that the score takes; or no token can end a
            response.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[str] | Prompts,
        scoring: Score | Scoring,
        generation: Generation | None = None,
        *,
        rows: int = 8,
        reference: Reference | None = None,
        own: slice | None = None,
    ) -> None:
        self.model, self.tokenizer = model, with_padding(tokenizer, "given")
        self.scoring = scoring if isinstance(scoring, Scoring) else Scoring(scoring)
        self.generation = generation or Generation()
        self.reference = reference or Reference(model)
        self.stop = stop_ids(tokenizer) if self.generation.stop is None else self.generation.stop
        self.pad_token = int(tokenizer.pad_token_id)
        self._room = _room_for_prompts(model, self.generation)
        self._use(prompts if isinstance(prompts, Prompts) else Prompts(prompts), rows, own)

    def _use(self, prompts: Prompts, rows: int, own: slice | None) -> None:
        each = prompts.group_size
        require(min(rows, each) > 0, f"rows and group_size must be at least 1, got {rows} and {each}")
        require(rows % each == 0, f"rows must be a multiple of group_size = {each}, got {rows}")
        self.prompts, self.prompt_ids = prompts, self.encode(prompts.texts)
        self.divided, self._rows, self._own = own is not None, rows, own or slice(0, rows)
        self.num_envs = self._own.stop - self._own.start

    @property
    def max_prompt_tokens(self) -> int:
        """Length of the longest prompt."""
        return max(map(len, self.prompt_ids))

    def encode(self, prompts: Sequence[str], name: str = "prompts") -> list[list[int]]:
        """Token ids of each prompt.

        Raises:
            ConfigError: there are no prompts; one is empty or too long, or lacks a column that others have; they lack a
                column that the score takes, or one has a name that is taken.
        """
        require(len(prompts) > 0, f"{name}: there are none")
        check_columns(prompts, name)
        taken = self.generation.turns is not None and "turns" in columns_of(prompts)
        require(not taken, f"{name}: the column 'turns' has the name of that of conversations; give it another one")
        sample = self.with_turns(prompts[:1], [[]])
        for column in clashing_columns(self.scoring.score, sample):
            fault = f"the column {column!r} has the name of an argument of reward {self.scoring.name}"
            raise ConfigError(f"{name}: {fault} for prompts or responses; give it another one")
        for column in missing_columns(self.scoring.score, sample):
            have = ", ".join(columns_of(sample)) or "none"
            fault = f"reward {self.scoring.name} takes a column {column!r} of the {name}; they have {have}"
            remedy = "set reply" if column == "turns" else f"add it to the {name}"
            raise ConfigError(f"{fault}: {remedy}, or give the argument a default")
        encoded = encode(self.tokenizer, prompts)
        for number, (text, ids) in enumerate(zip(prompts, encoded, strict=True), 1):
            require(len(ids) > 0, f"{name}: prompt {number} ({text!r}) is empty")
            fault = f"{name}: prompt {number} ({text[:40]!r}) has {len(ids)} tokens; there is room for {self._room}"
            remedy = "shorten it, lower max_new_tokens, or raise max_prompt_tokens if it is set"
            require(self._room is None or len(ids) <= self._room, f"{fault}: {remedy}")
        return encoded

    def over(self, prompts: Sequence[str]) -> LMEnv:
        """A copy of the environment with one row for each of these prompts, in their order, and a β of its own."""
        env = copy.copy(self)
        env.scoring = copy.copy(self.scoring)
        env._use(Prompts(prompts, seed=None), len(prompts), None)
        return env

    def set_attr(self, name: str, value: Any) -> None:
        raise ConfigError(f"set_attr: a language task has no attribute {name}; beta_target changes beta with the KL")

    def reset(self) -> tuple[Tokens, Bools]:
        """Starts an episode with the next prompts. Every prompt is used once before any is used again."""
        self.groups = self.prompts.groups(self._rows)
        rows = [group.prompt for group in self.groups for _ in range(group.size)]
        self.asked = [copy.deepcopy(self.prompts.texts[i]) for i in rows[self._own]]  # a reply may change columns
        tokens = [self.prompt_ids[i] for i in rows]
        self.responses = Responses(self.asked, tokens, self._own, self.generation, self.stop, self.tokenizer)
        return self.responses.observe()

    def step(self, action: Array) -> tuple[Tokens, Array, Bools, Bools, Bools]:
        """Appends a token to each row: the action, the next token of the prompt or of a reply, or padding."""
        tokens, reward, terminated, forced = self.responses.step(action)
        return tokens, reward, terminated, np.zeros_like(terminated), forced

    def measure(self, rows: Buffer) -> tuple[Tensor, ...]:
        """`kl` (N, T), the scores (N,), and the scores of which these are the weighted sum, for this process's rows.

        The rows must be those since the last reset, whose prompts the scores get.
        """
        kl = self.scoring.kl(self.model, self.reference, rows)
        total, parts = call_scores(self.scoring.score, self.scoring.name, *self.texts(rows))
        return kl, *(x.to(kl.device) for x in (total, *parts.values()))

    def score(self, experience: Experience, *measured: Tensor) -> Experience:
        """Adds the rewards of complete rows (see `Scoring.reward`)."""
        buffer, returns = experience.buffer, measured[1]
        reward, metrics = self.scoring.reward(buffer.mask, self.ended(buffer), *measured)
        if self.generation.turns is not None:
            of_turns = torch.where(buffer.mask, buffer.reward, 0.0)
            reward, returns = reward + of_turns, returns + of_turns.sum(1)
            metrics["turns"] = float(np.mean([len(turns_of(row)) // 2 + 1 for row in speech(buffer)]))
            metrics["turn_reward"] = float(of_turns.sum(1).mean())
        lengths = buffer.mask.sum(1).tolist()
        episodes = [Episode(x, n) for x, n in zip(returns.tolist(), lengths, strict=True)]
        buffer = buffer.replace(reward=reward, group_size=self.prompts.group_size)
        return Experience(buffer, episodes, metrics)

    def ended(self, buffer: Buffer) -> Bool[Tensor, "N"]:
        """Whether each response ended with a stop token rather than at the limit."""
        stop = torch.tensor(sorted(self.stop), device=buffer.action.device)
        return (torch.isin(buffer.action, stop) & buffer.terminated).any(1)

    def texts(self, rows: Buffer) -> tuple[list[str], list[str]]:
        """The prompts of the last reset and the responses, as text, of this process's rows.

        A response has all turns, with the replies. The prompts of conversations have a further column `turns` (see
        `Conversation.turns`).
        """
        responses = [[token for _, token in row] for row in speech(rows)]
        turns = [] if self.generation.turns is None else self.turn_texts(rows)
        return self.with_turns(self.asked, turns), decode(self.tokenizer, responses, self.stop)

    def turn_texts(self, rows: Buffer) -> list[list[str]]:
        """The turns of each row (see `Conversation.turns`)."""
        return [decode(self.tokenizer, turns_of(row), self.stop) for row in speech(rows)]

    def with_turns(self, prompts: Sequence[str], turns: Sequence[list[str]]) -> list[str]:
        """The prompts, which have a further column `turns` if there is a reply."""
        if self.generation.turns is None:
            return list(prompts)
        rows = zip(prompts, turns, strict=True)
        return [Prompt(text, {**getattr(text, "columns", {}), "turns": said}) for text, said in rows]

    def state_dict(self) -> dict[str, Any]:
        """Everything that later rewards and prompts depend on, except the models."""
        assert self.prompts.order is not None
        return {**self.scoring.state_dict(), "order": self.prompts.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self.prompts.order is not None
        self.scoring.load_state_dict(state)
        self.prompts.order.load_state_dict(state["order"])


def _room_for_prompts(model: LanguageModel, generation: Generation) -> int | None:
    """Largest number of tokens in a prompt; None for any number."""
    critic = [] if model.value.trunk is None else [model.value.trunk.base]
    contexts = [max_positions(x) for x in (model.actor, *critic)]
    positions, new = min(filter(None, contexts), default=None), generation.max_new_tokens
    if positions is None:
        return generation.max_prompt_tokens
    fault = f"max_new_tokens must leave room for a prompt in the model's context of {positions}, got {new}"
    require(positions > new, fault)
    return min(positions - new, generation.max_prompt_tokens or positions)
