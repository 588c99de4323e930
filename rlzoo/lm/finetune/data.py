"""Prompts, texts and preference pairs from files, lists and datasets."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlzoo.core.system.errors import ConfigError, require
from rlzoo.lm.finetune.chat import (
    Row,
    check_messages,
    completion_row,
    conversation_row,
    prompt_text,
    reply_text,
    unicode,
)
from rlzoo.lm.finetune.records import Messages, Record, Source, at, read_records
from rlzoo.lm.reward.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Values = dict[str, Any]

_PROMPT = ("prompt", "question")


class Pair(NamedTuple):
    """Two responses to a prompt, one of which was preferred."""

    prompt: str
    chosen: str
    rejected: str
    margin: float = 0.0
    """By how much the score of the chosen response should exceed the other's; at least 0."""


class Example(NamedTuple):
    """Something to fine-tune on: a text, a conversation, or a prompt with its completion."""

    prompt: str | Messages | None
    """What comes before and is not trained on; None if there is nothing."""
    text: str | Messages
    place: str
    """Where it comes from, such as "texts.jsonl, line 3"."""

    @property
    def key(self) -> str:
        """Equal for equal examples."""
        return self.text if self.prompt is None and isinstance(self.text, str) else repr((self.prompt, self.text))

    def plain(self) -> str:
        """All its text, without markup."""
        parts = (self.prompt or "", self.text)
        return "".join(x if isinstance(x, str) else "\n".join(message["content"] for message in x) for x in parts)

    def row(self, tokenizer: PreTrainedTokenizerBase) -> Row:
        """Its tokens, of which only the assistant's turns or the completion train. A `ConfigError` names the place."""
        with at(self.place):
            if isinstance(self.text, list):
                before = self.prompt if isinstance(self.prompt, list) else []
                return conversation_row(before + self.text, tokenizer, len(before))
            return completion_row(str(self.prompt or ""), self.text, tokenizer)


def read_prompts(
    source: Source, tokenizer: PreTrainedTokenizerBase | None = None, name: str = "prompts"
) -> list[Prompt]:
    """Prompts: texts, or "prompt" (or "question") of each record, a text or messages for the chat template.

    The other columns of a record stay with its prompt. A column without a value in a table is None.

    Args:
        source: a file (.txt with one prompt in each line, .jsonl, .parquet), the directory of a dataset, a list or a
            `datasets.Dataset`.
        tokenizer: its chat template renders messages.
        name: of the prompts, for messages.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    records = read_records(source, name, "prompt", "prompt")
    prompts = [_prompt(record, tokenizer) for record in records]
    expected = prompts[0].columns.keys()
    for record, prompt in zip(records, prompts, strict=True):
        if prompt.columns.keys() != expected:
            columns, first = (", ".join(f'"{x}"' for x in names) or "none" for names in (prompt.columns, expected))
            fault = f"columns beside the prompt are {columns}, but those of the first one are {first}"
            raise ConfigError(f"{record.place}: {fault}")
    return prompts


def read_texts(source: Source, name: str = "texts") -> list[str]:
    """Texts: the lines of a .txt file, the entries of a list, or "text" of each record.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    return [x.read(lambda values: _text(values, "text")) for x in read_records(source, name, "text", "messages")]


def read_examples(source: Source, name: str = "texts") -> list[Example]:
    """Examples for SFT: "text", "messages", or "prompt" and "completion" (texts or messages) of each record.

    The lines of a .txt file and the entries of a list are texts; lists in a list are conversations.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    if isinstance(source, list) and all(isinstance(x, Example) for x in source) and source:
        return source
    return [Example(*x.read(_example), x.place) for x in read_records(source, name, "text", "messages")]


def read_pairs(source: Source, tokenizer: PreTrainedTokenizerBase | None = None, name: str = "pairs") -> list[Pair]:
    """Pairs: "prompt" (or "question"), "chosen", "rejected" and optionally "margin" of each record.

    The three are texts or messages. If "chosen" and "rejected" are whole conversations, there is no "prompt": it is
    the messages that both begin with.

    Args:
        tokenizer: its chat template renders messages.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    text_file = isinstance(source, (Path, str)) and Path(source).suffix == ".txt"
    require(not text_file, f"{source}: pairs are read from a .jsonl file, a .parquet file or a dataset")
    return [x.read(lambda values: _pair(values, tokenizer)) for x in read_records(source, name, "pair", "pair")]


def split(keys: Sequence[str], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Indices of the entries to train on, and of those to hold out. Entries with equal keys are on the same side.

    The share is one of the different keys, rounded, and at least one key if it is above 0.

    Raises:
        ConfigError: nothing is left to train on.
    """
    different = sorted(set(keys))
    count = max(1, round(share * len(different))) if share > 0 else 0
    fault = f"held_out {share:g} leaves nothing to train on: {len(different)} different entries; 0 holds out none"
    require(count < len(different), fault)
    out = set(random.Random(seed).sample(different, count))
    return [i for i, key in enumerate(keys) if key not in out], [i for i, key in enumerate(keys) if key in out]


def _prompt(record: Record, tokenizer: PreTrainedTokenizerBase | None) -> Prompt:
    def text(values: Values) -> str:
        content = _content(values, *_PROMPT)
        return content if isinstance(content, str) else prompt_text(content, _needed(tokenizer))

    own = next((name for name in _PROMPT if name in record.values), None)
    return Prompt(record.read(text), {name: x for name, x in record.row.items() if name not in (own, _PROMPT[0])})


def _example(values: Values) -> tuple[str | Messages | None, str | Messages]:
    """Prompt and text of an example."""
    if "text" in values:
        return None, _text(values, "text")
    if "messages" in values:
        messages = check_messages("messages", values["messages"])
        require(any(x["role"] == "assistant" for x in messages), "no assistant turn to train on")
        return None, messages
    if "completion" not in values:
        raise _missing(values, '"text", "messages" or "completion"')
    prompt, completion = _content(values, *_PROMPT), _content(values, "completion")
    _same_kind(prompt=prompt, completion=completion)
    return prompt, completion


def _pair(values: Values, tokenizer: PreTrainedTokenizerBase | None) -> Pair:
    margin = values.get("margin", 0.0)
    number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    require(number and margin >= 0 and math.isfinite(margin), '"margin" must be a number of at least 0')
    chosen: Any = _content(values, "chosen")
    rejected: Any = _content(values, "rejected")
    whole = isinstance(chosen, list) and not values.keys() & {*_PROMPT}
    prompt: Any = [] if whole else _content(values, *_PROMPT)
    _same_kind(prompt=prompt, chosen=chosen, rejected=rejected)
    if isinstance(chosen, str):
        return Pair(prompt, chosen, rejected, float(margin))
    if not prompt:
        shared = next((k for k, (c, r) in enumerate(zip(chosen, rejected, strict=False)) if c != r), len(chosen))
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
        require(bool(prompt and chosen and rejected), '"chosen" and "rejected" must begin alike, and then differ')
    tokenizer = _needed(tokenizer)
    chosen, rejected = (reply_text(prompt, reply, tokenizer) for reply in (chosen, rejected))
    return Pair(prompt_text(prompt, tokenizer), chosen, rejected, float(margin))


def _needed(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise ConfigError("messages need a tokenizer with a chat template")
    return tokenizer


def _same_kind(**values: Any) -> None:
    kinds = {name: "messages" if isinstance(x, list) else "a text" for name, x in values.items()}
    for name, kind in kinds.items():
        require(kind == kinds["prompt"], f'"prompt" is {kinds["prompt"]}, but "{name}" is {kind}')


def _content(values: Values, *names: str) -> str | Messages:
    """The first of the named values that is present: a text or messages."""
    name = next((name for name in names if name in values), names[0])
    messages = values.get(name)
    return check_messages(name, messages) if isinstance(messages, list) else _text(values, *names)


def _text(values: Values, *names: str) -> str:
    """The first of the named values that is present."""
    name = next((name for name in names if name in values), None)
    if name is None:
        raise _missing(values, " or ".join(f'"{name}"' for name in names))
    text = values[name]
    require(isinstance(text, str), f'"{name}" must be a string')
    require(bool(text.strip()), f'"{name}" is empty')
    unicode(f'"{name}"', text)
    return str(text)


def _missing(values: Values, names: str) -> ConfigError:
    present = ", ".join(f'"{key}"' for key in values) or "nothing"
    return ConfigError(f"no {names}; it has {present}")


def save_prompts(path: Path, prompts: Sequence[str]) -> None:
    """Writes the lines of `as_lines` to a .jsonl file, which is complete or absent."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.unlink(missing_ok=True)  # a link would lead elsewhere
    scratch.write_text("".join(as_lines(prompts)), encoding="utf-8")
    scratch.rename(path)


def as_lines(prompts: Sequence[str], name: str = "prompts") -> list[str]:
    """Prompts with their columns as lines of a .jsonl file.

    Raises:
        ConfigError: a column cannot be written as JSON, or would be read as something else.
    """
    lines = []
    for number, text in enumerate(prompts, 1):
        record = {"prompt": text, **getattr(text, "columns", {})}
        fault = f"{name}, entry {number} cannot be saved with the run"
        changed = next((column for column, x in record.items() if _changes(x)), None)
        remedy = "JSON has lists for tuples, and texts as keys"
        require(changed is None, f"{fault}: the column {changed!r} would be read as something else; {remedy}")
        try:
            lines.append(json.dumps(record) + "\n")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{fault}: {error}") from None
    return lines


def _changes(x: Any) -> bool:
    """Whether JSON takes a value, and gives another one back: of a tuple a list, of a number as a key a text."""
    if isinstance(x, dict):
        return not all(isinstance(key, str) for key in x) or any(map(_changes, x.values()))
    return isinstance(x, tuple) or (isinstance(x, list) and any(map(_changes, x)))
