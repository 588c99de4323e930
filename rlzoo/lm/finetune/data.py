"""Reading and writing files of prompts, texts and preference pairs. Errors name the file and the line."""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlzoo.core.errors import ConfigError, require

T = TypeVar("T")

_PROMPT = ("prompt", "question")


class Pair(NamedTuple):
    """Two responses to a prompt, one of which was preferred."""

    prompt: str
    chosen: str
    rejected: str
    margin: float = 0.0
    """By how much the score of the chosen response should exceed the other's; at least 0."""


def read_prompts(path: Path | str) -> list[str]:
    """Prompts: the lines of a .txt file, or "prompt" (or "question") in each line of a .jsonl file.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    return _read(path, "prompt", lambda record: _text(record, *_PROMPT))


def read_texts(path: Path | str) -> list[str]:
    """Texts: the lines of a .txt file, or "text" in each line of a .jsonl file.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    return _read(path, "text", lambda record: _text(record, "text"))


def read_pairs(path: Path | str) -> list[Pair]:
    """Pairs from a .jsonl file: "prompt" (or "question"), "chosen", "rejected" and optionally "margin" in each line.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    require(Path(path).suffix == ".jsonl", f"{path}: pairs are read from a .jsonl file")
    return _read(path, "pair", _pair)


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


def _read(path: Path | str, kind: str, entry: Callable[[dict[str, Any]], T | str]) -> list[Any]:
    """`entry` of each line's JSON object, or the lines of a text file unchanged."""
    path = Path(path)
    require(path.suffix in (".txt", ".jsonl"), f"{path}: the name must end in .txt or .jsonl")
    entries: list[T | str] = []
    for number, line in _lines(path):
        try:
            require(bool(line.strip()), f"empty {kind}")
            entries.append(line if path.suffix == ".txt" else entry(_object(line)))
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None
    require(bool(entries), f"{path} is empty")
    return entries


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n"), 1):
        if not data:
            return
        try:
            yield number, line.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{path}, line {number}: not UTF-8") from None


def _object(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError('not a JSON object, such as {"name": "value"}')
    return record


def _pair(record: dict[str, Any]) -> Pair:
    margin = record.get("margin", 0.0)
    number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    require(number and margin >= 0 and math.isfinite(margin), '"margin" must be a number of at least 0')
    return Pair(_text(record, *_PROMPT), _text(record, "chosen"), _text(record, "rejected"), float(margin))


def _text(record: dict[str, Any], *names: str) -> str:
    """The first of the named fields that is present."""
    name = next((name for name in names if name in record), None)
    if name is None:
        wanted = " or ".join(f'"{name}"' for name in names)
        present = ", ".join(f'"{key}"' for key in record) or "nothing"
        raise ConfigError(f"no {wanted}; the line has {present}")
    text = record[name]
    require(isinstance(text, str), f'"{name}" must be a string')
    require(bool(text.strip()), f'"{name}" is empty')
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f'"{name}" is not Unicode: half of a surrogate pair') from None
    return text


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


def write_command(
    module: str, description: str, write: Callable[[Path, int], dict[str, int]], argv: Sequence[str] | None
) -> int:
    """The command `python -m MODULE FOLDER [--seed N]`, which calls `write(folder, seed)`. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("folder", type=Path, help="folder to write to; it is created if it does not exist")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default: 0)")
    arguments = parser.parse_args(argv)
    try:
        counts = write(arguments.folder, arguments.seed)
    except ConfigError as error:
        print(f"rlzoo: {error}", file=sys.stderr)
        return 2
    for name, lines in counts.items():
        print(f"{arguments.folder / name}: {lines} lines")
    return 0
