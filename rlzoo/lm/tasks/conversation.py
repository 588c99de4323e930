"""Talking to a language model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlzoo.core.env import env_name
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.task import Task
from rlzoo.lm.finetune.chat import prompt_text
from rlzoo.lm.finetune.records import Messages
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.language_model import LanguageModel, Memory
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.generation import end_ids
from rlzoo.lm.reward.turns import decode
from rlzoo.lm.tasks.language import LanguageTask


@dataclass(eq=False)
class Speaker:
    """A language model that answers messages, and remembers the conversation by its tokenizer's chat template.

    Without a template, each message is a text of its own, which the model continues.
    """

    model: LanguageModel
    """Answers are sampled from it, at its temperature and without any truncation."""
    tokenizer: PreTrainedTokenizerBase
    stop: frozenset[int]
    """Ids that end an answer."""
    max_new_tokens: int
    """Largest number of tokens in an answer."""
    greedy: bool = False
    """Take the most probable token instead of a sample."""
    seed: int = 0
    allowed: AllowedTokens | None = None
    """Which tokens may come next; None for all."""

    def __post_init__(self) -> None:
        self.chats = self.tokenizer.chat_template is not None
        self._context = pretrained.max_positions(self.model.actor)
        self._generator = torch.Generator().manual_seed(self.seed % 2**64)
        self.new()

    @classmethod
    def load(cls, name: Path | str, temperature: float, *args: Any, allowed: str | None = None) -> Speaker:
        """A speaker from a directory or from the Hub. What its generation configuration stops at ends an answer.

        Args:
            allowed: name of the function of the tokens that may come next, `module:function`; None for all tokens.
        """
        tokenizer, actor = pretrained.load_tokenizer(name), pretrained.load_causal_lm(name)
        pretrained.check_vocabulary(actor, len(tokenizer), str(name))
        stop = frozenset(x for x in (tokenizer.eos_token_id, *end_ids(actor)) if x is not None)
        speaker = cls(LanguageModel(actor, temperature=temperature), tokenizer, stop, *args)
        speaker.allowed = None if allowed is None else AllowedTokens.of(allowed, speaker.model)
        return speaker

    @classmethod
    def of(cls, task: Task, temperature: float, *args: Any) -> Speaker:
        """A speaker with the model of a language task."""
        if not isinstance(task, LanguageTask):
            raise ConfigError(f"chat is for language models; {env_name(task.setup.env)} has none")
        task.model.policy.temperature = temperature
        speaker = cls(task.model, task.tokenizer, task.env.stop, *args)
        speaker.allowed = task.env.generation.allowed
        return speaker

    def new(self) -> None:
        """Begins a new conversation."""
        self.messages: Messages = []
        self._read: list[int] = []
        self._memory: Memory | None = None

    def answer(self, text: str) -> Iterator[str]:
        """The pieces of the answer to a message, as they are sampled.

        Raises `ConfigError` if the message has no tokens, the context is full, or the template refuses the messages;
        `EnvError` if the function of the allowed tokens fails.
        """
        message = {"role": "user", "content": text}
        messages = [*self.messages, message] if self.chats else [message]
        prompt = prompt_text(messages, self.tokenizer) if self.chats else text
        (ids,) = pretrained.encode(self.tokenizer, [prompt])
        require(len(ids) > 0, f"{text!r} has no tokens to this model")
        grown = self.chats and self.messages
        what, remedy = ("conversation", "begin a new one with /new") if grown else ("message", "write a shorter one")
        full = f"the {what} fills the model's context of {self._context} tokens: {remedy}"
        require(self._context is None or len(ids) < self._context, full)
        said: list[int] = []
        shown = ""
        try:
            for token in self._tokens(ids):
                said.append(token)
                (whole,) = decode(self.tokenizer, [said], self.stop)
                if not whole.endswith("\ufffd"):  # not in the middle of a character
                    piece, shown = whole[len(shown) :], whole
                    yield piece
        finally:
            self.messages = [*messages, {"role": "assistant", "content": shown}]

    def _tokens(self, ids: list[int]) -> Iterator[int]:
        """The tokens of an answer. What the model has read already is not read again."""
        known = len(self._read)
        known, memory = (known, self._memory) if known < len(ids) and ids[:known] == self._read else (0, None)
        self._read, self._memory = [], None  # an interrupted forward pass leaves no cache to use
        unread, end = ids[known:], len(ids) + self.max_new_tokens
        for step in range(min(end, self._context or end) - len(ids)):
            token = torch.tensor([unread])
            seen = torch.ones_like(token, dtype=torch.bool)
            allowed = None if self.allowed is None else torch.from_numpy(self.allowed([ids], step)).unsqueeze(1)
            with torch.no_grad():
                policy, memory = self.model.act(Tokens(token, seen, seen, allowed), memory)
            (following,) = (policy.mode if self.greedy else policy.sample(self._generator)).tolist()
            self._read, self._memory = [*ids], memory
            yield following
            if following in self.stop:
                return
            ids, unread = [*ids, following], [following]
