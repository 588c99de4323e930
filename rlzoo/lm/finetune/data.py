"""Prompts, texts and preference pairs from files, lists and datasets; and files of generated data."""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rlzoo.core.errors import ConfigError, require
from rlzoo.core.screen import complain, show
from rlzoo.lm.finetune.chat import (
    Row,
    check_messages,
    completion_row,
    conversation_row,
    prompt_text,
    reply_text,
    unicode,
)
from rlzoo.lm.finetune.records import Messages, Record, Source, at_place, read, read_records
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
        """Its tokens, of which only the assistant's turns or the completion train.

        Raises:
            ConfigError: names the place and what is wrong.
        """

        def row(_: Values) -> Row:
            if isinstance(self.text, list):
                before = self.prompt if isinstance(self.prompt, list) else []
                return conversation_row(before + self.text, tokenizer, len(before))
            return completion_row(str(self.prompt or ""), self.text, tokenizer)

        return at_place(Record(self.place, {}), row)


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
    first = prompts[0].columns
    for record, prompt in zip(records, prompts, strict=True):
        has = ", ".join(f'"{key}"' for key in prompt.columns) or "none"
        expected = ", ".join(f'"{key}"' for key in first) or "none"
        fault = f"{record.place}: columns beside the prompt are {has}, but those of the first one are {expected}"
        require(prompt.columns.keys() == first.keys(), fault)
    return prompts


def read_texts(source: Source, name: str = "texts") -> list[str]:
    """Texts: the lines of a .txt file, the entries of a list, or "text" of each record.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    return read(source, name, lambda values: _text(values, "text"), "text", "messages")


def read_examples(source: Source, name: str = "texts") -> list[Example]:
    """Examples for SFT: "text", "messages", or "prompt" and "completion" (texts or messages) of each record.

    The lines of a .txt file and the entries of a list are texts; lists in a list are conversations.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    if isinstance(source, list) and all(isinstance(x, Example) for x in source) and source:
        return source

    def example(record: Record) -> Example:
        return at_place(record, lambda values: Example(*_example(values), record.place))

    return [example(record) for record in read_records(source, name, "text", "messages")]


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
    return read(source, name, lambda values: _pair(values, tokenizer), "pair", "pair")


def held_out(keys: Sequence[str], share: float, seed: int) -> list[bool]:
    """Which entries to hold out. Entries with equal keys are all held out or all kept.

    Args:
        share: share of the different keys to hold out, rounded; at least one key if above 0.

    Raises:
        ConfigError: nothing is left to train on.
    """
    different = sorted(set(keys))
    count = max(1, round(share * len(different))) if share > 0 else 0
    require(
        count < len(different),
        f"held_out {share:g} leaves nothing to train on: there are {len(different)} different entries",
    )
    out = set(random.Random(seed).sample(different, count))
    return [key in out for key in keys]


def _prompt(record: Record, tokenizer: PreTrainedTokenizerBase | None) -> Prompt:
    def text(values: Values) -> str:
        given = _content(values, *_PROMPT)
        return given if isinstance(given, str) else prompt_text(given, _needed(tokenizer))

    own = next((name for name in _PROMPT if name in record.values), None)
    columns = {name: x for name, x in record.values.items() if name != own} | dict.fromkeys(record.missing)
    return Prompt(at_place(record, text), columns)


def _example(values: Values) -> tuple[str | Messages | None, str | Messages]:
    """Prompt and text of an example."""
    if "text" in values:
        return None, _text(values, "text")
    if "messages" in values:
        messages = check_messages("messages", values["messages"])
        require(any(x["role"] == "assistant" for x in messages), "no assistant turn to train on")
        return None, messages
    if "completion" not in values:
        raise ConfigError(_missing(values, '"text", "messages" or "completion"'))
    prompt, completion = _content(values, *_PROMPT), _content(values, "completion")
    _same_kind(prompt=prompt, completion=completion)
    return prompt, completion


def _pair(values: Values, tokenizer: PreTrainedTokenizerBase | None) -> Pair:
    margin = values.get("margin", 0.0)
    number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    require(number and margin >= 0 and math.isfinite(margin), '"margin" must be a number of at least 0')
    conversations = all(isinstance(values.get(name), list) for name in ("chosen", "rejected"))
    prompt: Any = [] if conversations and not values.keys() & {*_PROMPT} else _content(values, *_PROMPT)
    chosen: Any = _content(values, "chosen")
    rejected: Any = _content(values, "rejected")
    _same_kind(prompt=prompt, chosen=chosen, rejected=rejected)
    if isinstance(chosen, str):
        return Pair(prompt, chosen, rejected, float(margin))
    if not prompt:
        shared = next((k for k, (c, r) in enumerate(zip(chosen, rejected, strict=False)) if c != r), len(chosen))
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
        require(bool(prompt and chosen and rejected), '"chosen" and "rejected" must begin alike, and then differ')
    known = _needed(tokenizer)
    replies = [reply_text(prompt, reply, known) for reply in (chosen, rejected)]
    return Pair(prompt_text(prompt, known), replies[0], replies[1], float(margin))


def _needed(tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    if tokenizer is None:
        raise ConfigError("messages need a tokenizer with a chat template")
    return tokenizer


def _same_kind(**values: Any) -> None:
    kinds = {name: "messages" if isinstance(x, list) else "a text" for name, x in values.items()}
    first, *others = kinds
    for name in others:
        require(kinds[name] == kinds[first], f'"{first}" is {kinds[first]}, but "{name}" is {kinds[name]}')


def _content(values: Values, *names: str) -> str | Messages:
    """The first of the named values that is present: a text or messages."""
    name = next((name for name in names if name in values), names[0])
    return check_messages(name, values[name]) if isinstance(values.get(name), list) else _text(values, *names)


def _text(values: Values, *names: str) -> str:
    """The first of the named values that is present."""
    name = next((name for name in names if name in values), None)
    if name is None:
        raise ConfigError(_missing(values, " or ".join(f'"{name}"' for name in names)))
    text = values[name]
    require(isinstance(text, str), f'"{name}" must be a string')
    require(bool(text.strip()), f'"{name}" is empty')
    unicode(f'"{name}"', text)
    return str(text)


def _missing(values: Values, wanted: str) -> str:
    present = ", ".join(f'"{key}"' for key in values) or "nothing"
    return f"no {wanted}; it has {present}"


def write_lines(folder: Path | str, files: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Writes new files in UTF-8, and returns the number of lines of each.

    Raises:
        ConfigError: one of the files exists, or the folder cannot be written.
    """
    folder = Path(folder)
    for name in files:
        require(not (folder / name).exists(), f"{folder / name} exists: give another folder, or remove the file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in files.items():
            (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}; give a folder that can be written") from error
    return {name: len(lines) for name, lines in files.items()}


def save_prompts(path: Path, prompts: Sequence[str]) -> None:
    """Writes prompts with their columns as a .jsonl file, which is complete or absent.

    Raises:
        ConfigError: a column cannot be written as JSON.
    """
    records = [{"prompt": text, **getattr(text, "columns", {})} for text in prompts]
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text("".join(f"{_json(number, x)}\n" for number, x in enumerate(records, 1)), encoding="utf-8")
    scratch.rename(path)


def _json(number: int, record: Values) -> str:
    try:
        return json.dumps(record)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"prompts, entry {number} cannot be saved with the run: {error}") from None


def write_command(
    module: str, description: str, write: Callable[[Path, int], dict[str, int]], argv: Sequence[str] | None
) -> int:
    """The command `python -m MODULE FOLDER [--seed N]`, which calls `write(folder, seed)`. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("folder", type=Path, help="folder to write to; it is created if it does not exist")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default: 0)")
    arguments = parser.parse_args(argv)
    return report_files(arguments.folder, lambda: write(arguments.folder, arguments.seed))


def report_files(folder: Path, write: Callable[[], dict[str, int]]) -> int:
    """Writes files, whose lines `write` counts by name, and prints them. Returns the exit code of a command."""
    try:
        counts = write()
    except ConfigError as error:
        complain(str(error))
        return 2
    for name, lines in counts.items():
        show(f"{folder / name}: {lines} lines")
    return 0
