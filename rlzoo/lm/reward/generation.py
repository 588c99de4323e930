"""Responses that are generated together, token by token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlzoo.core.env import Array, Bools
from rlzoo.core.system.errors import require
from rlzoo.core.system.progress import reach
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.turns import Conversation, Spoken, Turns, decode, encode_reply, turns_of


@dataclass(frozen=True)
class Generation:
    """What a response may be, and where it ends."""

    max_new_tokens: int = 32
    """Largest number of tokens in a response, replies included; reaching it ends the response."""
    max_prompt_tokens: int | None = None
    """Largest number of tokens in a prompt; None for what fits into the model's context."""
    stop: frozenset[int] | None = None
    """Ids that end a response, or a turn; None for the tokenizer's end of sequence."""
    turns: Turns | None = None
    """The other side of conversations; None for responses of one turn."""
    allowed: AllowedTokens | None = None
    """The tokens that may come next; None for all."""

    def __post_init__(self) -> None:
        require(self.max_new_tokens > 0, f"max_new_tokens must be at least 1, got {self.max_new_tokens}")


class Responses:
    """N responses from their prompts to their ends.

    Prompts are padded on the left. Each token of a prompt or a reply is a forced step. Responses that have ended are
    padded, and the padding is forced.

    Args:
        tokens: the prompts of all processes, as tokens; `prompts` are the prompts of this process's `own` rows.
        stop: ids that end a response, or a turn.
    """

    def __init__(
        self,
        prompts: Sequence[str],
        tokens: Sequence[Sequence[int]],
        own: slice,
        generation: Generation,
        stop: frozenset[int],
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.generation, self.stop, self.tokenizer = generation, stop, tokenizer
        self._pad, self._stops, self._first = int(tokenizer.pad_token_id), np.array(sorted(stop)), own.start
        ids, attention = pad(tokens, self._pad, side="left")
        self._ids, self._attention = ids[own].numpy(), attention[own].numpy()
        self.prompts, self._prompt_ids = list(prompts), tokens[own]
        self._spoken: list[Spoken] = [[] for _ in self.prompts]  # if anything asks for it
        self._keeps_spoken = generation.turns is not None or generation.allowed is not None
        self._replies: list[deque[int]] = [deque() for _ in self.prompts]
        self._listens = np.zeros(len(self.prompts), np.bool_)  # the next token is that of a reply
        self._lengths = np.zeros(len(self.prompts), np.int64)
        self._column = 0
        self.alive = np.ones(len(self.prompts), np.bool_)

    def observe(self) -> tuple[Tokens, Bools]:
        """The first column, and which rows are forced."""
        return self._column_of(self._ids[:, 0], self._attention[:, 0])

    def step(self, action: Array) -> tuple[Tokens, Array, Bools, Bools]:
        """Appends a token to each row: the action, the next token of the prompt or of a reply, or padding.

        Returns:
            The next column, the rewards of turns (N,), which responses ended (N,), and which rows are forced (N,).
        """
        self._column += 1
        rows = len(self.prompts)
        reward, ended = np.zeros(rows, np.float32), np.zeros(rows, np.bool_)
        if self._column < self._ids.shape[1]:
            column, forced = self._column_of(self._ids[:, self._column], self._attention[:, self._column])
            return column, reward, ended, forced
        alive = self.alive
        acted = alive & ~self._listens
        token = np.where(acted, action, self._pad)
        for i in np.flatnonzero(self._listens):
            token[i] = self._replies[i].popleft()
            self._listens[i] = bool(self._replies[i])
        for i in np.flatnonzero(alive) if self._keeps_spoken else ():
            self._spoken[i].append((bool(acted[i]), int(token[i])))
        self._lengths += alive
        tokens, left = int(self._lengths.sum()), self.generation.max_new_tokens - self._steps
        reach(tokens, tokens + int(np.count_nonzero(alive)) * left, "tokens")
        stopped = acted & np.isin(token, self._stops)
        ended = acted & (stopped | (self._lengths == self.generation.max_new_tokens))
        if self.generation.turns is not None and stopped.any():
            reward = self._converse(self.generation.turns, np.flatnonzero(stopped))
            ended &= ~self._listens
        self.alive = alive & ~ended
        column, forced = self._column_of(token, alive)
        return column, reward, ended, forced

    @property
    def _steps(self) -> int:
        """Number of steps since the end of the prompts; negative before it."""
        return self._column - self._ids.shape[1] + 1

    def _column_of(self, token: Array, attention: Bools) -> tuple[Tokens, Bools]:
        """The last column as observed, and which rows do not act next."""
        acts = self.alive & ~self._listens & (self._steps >= 0)
        allowed = self.generation.allowed
        if allowed is None:
            return Tokens(token, attention, acts), ~acts
        parts = zip(self._prompt_ids, self._spoken, acts, strict=True)
        rows = [[*prompt, *(token for _, token in spoken)] if act else None for prompt, spoken, act in parts]
        return Tokens(token, attention, acts, allowed(rows, self._steps)), ~acts

    def _converse(self, turns: Turns, rows: Array) -> Array:
        """Replies to the turns that these rows have ended, and returns the rewards (N,) of these turns."""
        reward = np.zeros(len(self.prompts), np.float32)
        spoken = [decode(self.tokenizer, turns_of(self._spoken[i]), self.stop) for i in rows]
        conversations = [Conversation(self.prompts[i], said) for i, said in zip(rows, spoken, strict=True)]
        answers = turns.answers(conversations, (self._first + rows).tolist())
        for i, conversation, answer in zip(rows, conversations, answers, strict=True):
            reward[i] = answer.reward
            if answer.text is None or len(conversation.turns) // 2 + 1 == turns.max_turns:
                continue
            reply = encode_reply(self.tokenizer, answer, f"reply {turns.name}, row {self._first + i}")
            if self._lengths[i] + len(reply) < self.generation.max_new_tokens:
                self._replies[i].extend(reply)
                self._listens[i] = True
        return reward


def end_ids(model: Any) -> list[int]:
    """Ids of the tokens that end a text by the generation configuration of a Hugging Face model."""
    own = model.generation_config.eos_token_id if model.can_generate() else None
    return own if isinstance(own, list) else [] if own is None else [own]


def stop_ids(
    tokenizer: PreTrainedTokenizerBase, stop_tokens: Sequence[str] = (), ends: Sequence[int] = ()
) -> frozenset[int]:
    """Ids of the tokens that end a response; by default the tokenizer's end of sequence and the model's own `ends`."""
    if not stop_tokens:
        ids = frozenset(x for x in (tokenizer.eos_token_id, *ends) if x is not None)
        require(bool(ids), "the tokenizer has no end-of-sequence token; set stop_tokens")
        return ids
    vocabulary = tokenizer.get_vocab()
    stops: set[int] = set()
    for text in stop_tokens:
        known = text in vocabulary
        tokens = [vocabulary[text]] if known else tokenizer.encode(text, add_special_tokens=False)
        require(len(tokens) == 1, f"stop_tokens: {text!r} is {len(tokens)} tokens to this tokenizer, not one")
        meant = str(tokenizer.decode(tokens))
        require(known or meant.strip() == text.strip(), f"stop_tokens: {text!r} is {meant!r} to this tokenizer")
        stops.add(int(tokens[0]))
    return frozenset(stops)
