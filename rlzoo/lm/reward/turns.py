"""Conversations: what the environment says between the turns of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlzoo.core.buffer import Buffer
from rlzoo.core.system.errors import EnvError, describe_error, place
from rlzoo.core.system.functions import brief
from rlzoo.lm.model.tokens import is_special
from rlzoo.lm.reward.scores import as_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LARGEST = float(np.finfo(np.float32).max)
_LONGEST = 1_000_000
"""Characters of a reply. Tokenizers run out of memory with texts of many megabytes, which ends the process."""


class Conversation(NamedTuple):
    """A conversation whose last turn is the model's."""

    prompt: str
    turns: list[str]
    """The model's turns and the replies to them: the first, third, … and last are the model's. A turn has no special
    token at its end."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """The other columns of the prompt's record."""
        return getattr(self.prompt, "columns", {})


class Answer(NamedTuple):
    """The reply to a conversation's last turn, and the reward of that turn."""

    text: str | None
    """The next turn; None ends the conversation."""
    reward: float = 0.0
    """Reward of the turn that the model has just ended."""
    special_tokens: bool = False
    """Whether the names of special tokens in the text, such as the markup of a chat, are these tokens. Otherwise they
    are plain text, so that a tool that echoes text cannot end a turn."""


Reply = Callable[[list[Conversation]], Sequence[Any]]
"""A function of conversations that returns a text or None for each, or a pair of that and a reward (see `Answer`)."""


class Turns:
    """The other side of conversations.

    Args:
        reply: called with the conversations that have just ended a turn.
        name: of the function, for messages.
        max_turns: the model's turns after which a conversation ends; None for any number.
    """

    def __init__(self, reply: Reply, name: str = "reply", max_turns: int | None = None) -> None:
        self.reply, self.name, self.max_turns = reply, name, max_turns

    def answers(self, conversations: list[Conversation], rows: Sequence[int]) -> list[Answer]:
        """The answer to each conversation. Raises `EnvError` with the row of `rows` if the function fails."""
        try:
            answers = self.reply(conversations)
        except (Exception, SystemExit) as error:
            raise EnvError(f"{self._of(rows)}: {describe_error(error)}{place(error, self.reply)}") from error
        count = len(conversations)
        if isinstance(answers, (str, bytes)) or not isinstance(answers, Sequence) or len(answers) != count:
            result = f"{len(answers)}" if isinstance(answers, (list, tuple)) else brief(answers)
            fault = f"must return {count} texts or None, one for each conversation; got {result}"
            raise EnvError(f"{self._of(rows)}: {fault}")
        return [self._answer(x, row) for x, row in zip(answers, rows, strict=True)]

    def _answer(self, x: Any, row: int) -> Answer:
        if not isinstance(x, Answer):
            x = Answer(*x) if isinstance(x, tuple) and len(x) == 2 else Answer(x)
        answer: Answer = x
        if not (answer.text is None or isinstance(answer.text, str)):
            raise EnvError(f"{self._of([row])}: returned {brief(answer.text)}, which is neither a text nor None")
        reward = as_number(answer.reward)
        if reward is None or not abs(reward) <= _LARGEST:
            raise EnvError(f"{self._of([row])}: the reward {brief(answer.reward)} is not a finite 32-bit number")
        return answer._replace(reward=reward)

    def _of(self, rows: Sequence[int]) -> str:
        return f"reply {self.name}, row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:8]))}"


Spoken = list[tuple[bool, int]]
"""The tokens of a row after its prompt, each with whether the model said it."""


def turns_of(row: Spoken) -> list[list[int]]:
    """The tokens of each turn and of each reply."""
    return [[token for _, token in turn] for _, turn in groupby(row, itemgetter(0))]


def speech(buffer: Buffer) -> list[Spoken]:
    """The tokens of each row after its prompt."""
    following = buffer.obs.columns(1, buffer.mask.shape[1] + 1)
    masks, token, attention = (x.cpu() for x in (buffer.mask, following.token, following.attention))
    keep = attention & (masks.cumsum(1) > 0)
    rows = zip(masks, token, keep, strict=True)
    return [list(zip(mask[kept].tolist(), ids[kept].tolist(), strict=True)) for mask, ids, kept in rows]


def decode(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], stop: frozenset[int]) -> list[str]:
    """Responses as text, without the special token that ended them. Other special tokens are kept.

    A decoder that strips the space before a text, as SentencePiece's does, decodes them after another token.
    """
    special = {token for token in stop if is_special(tokenizer, token)}
    before = list(tokenizer("a", add_special_tokens=False)["input_ids"]) if _strips(tokenizer) else []
    kept = [[*before, *(row[:-1] if row and row[-1] in special else row)] for row in rows]
    start = len(tokenizer.decode(before, clean_up_tokenization_spaces=False)) if before else 0
    return [text[start:] for text in tokenizer.batch_decode(kept, clean_up_tokenization_spaces=False)]


_STRIPPING = (b'"Strip"', b'"Metaspace"', b'"WordPiece"')
"""Kinds of decoders that strip a space; that of WordPiece also joins to the word before."""


def _strips(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the decoder strips the space at the beginning of a text."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return decoder is not None and any(kind in decoder.__getstate__() for kind in _STRIPPING)


def encode_reply(tokenizer: PreTrainedTokenizerBase, answer: Answer, name: str) -> list[int]:
    """The tokens of a reply, without special tokens around it. Raises `EnvError` if there are none, or too many."""
    from rlzoo.lm.model.pretrained import encode_further  # imports transformers

    text = str(answer.text)
    if len(text) > _LONGEST:
        raise EnvError(f"{name}: {brief(text)} has {len(text):,} characters; at most {_LONGEST:,} are tokenised")
    try:
        tokens = encode_further(tokenizer, text, split_special_tokens=not answer.special_tokens)
    except Exception as error:  # tokenizers raise Exception itself
        raise EnvError(f"{name}: {brief(text)} cannot be tokenised: {describe_error(error)}") from error
    if not tokens:
        raise EnvError(f"{name}: {brief(text)} has no tokens; None ends a conversation")
    return tokens
