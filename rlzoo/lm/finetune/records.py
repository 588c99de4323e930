"""Records of files, lists and datasets, each with its place for error messages.

Lines of .txt and .jsonl files are read here, so that a message can name the line, and without the second or more that
the import of `datasets` takes. Directories are read by `datasets`.
"""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlzoo.core.system.cache import cache_directory
from rlzoo.core.system.errors import ConfigError, describe_error, require
from rlzoo.core.system.files import check_regular, most_in_memory
from rlzoo.core.system.functions import optional_module

T = TypeVar("T")

Messages = list[dict[str, str]]
"""A conversation: `[{"role": "user", "content": "Hello"}, ...]`."""
Source = Path | str | Iterable[Any]
"""A file (.txt, .jsonl, .parquet), the directory of a dataset, a list, or a `datasets.Dataset`."""

_LONGEST = 2**24
"""Bytes of the longest line."""


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
    """Puts the place in front of the message of a `ConfigError`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None


class Record(NamedTuple):
    """Named values, and where they come from."""

    place: str
    """Such as "pairs.jsonl, line 3"."""
    row: Mapping[str, Any]

    @property
    def values(self) -> dict[str, Any]:
        """The values that are not None, which stands for a missing one in a table."""
        return {name: x for name, x in self.row.items() if x is not None}

    def read(self, entry: Callable[[dict[str, Any]], T]) -> T:
        """`entry(values)`, with the place in front of a `ConfigError`."""
        with at(self.place):
            return entry(self.values)


def read_records(source: Source, name: str, text: str, messages: str) -> list[Record]:
    """The records of a source. A `ConfigError` names the file, the line and what is wrong with it.

    Args:
        name: what the records are, for messages: "prompts".
        text, messages: columns for entries that are no records, but texts (or lines of a .txt file) or message lists.
    """
    path = Path(source) if isinstance(source, (Path, str)) else None
    if path is None:
        records = list(_of_object(source, name, text, messages))
    elif os.path.isdir(path) or path.suffix == ".parquet":  # unlike Path.is_dir, it takes a name of any length
        rows = _directory(path) if os.path.isdir(path) else _parquet(path)
        records = [Record(f"{path}, row {number}", row) for number, row in enumerate(rows, 1)]
    else:
        require(path.suffix in (".txt", ".jsonl"), f"{path}: the name must end in .txt, .jsonl or .parquet")
        records = list(_of_lines(path, text))
    require(bool(records), f"{name}: there are none" if path is None else f"{path} is empty")
    return records


def _of_lines(path: Path, text: str) -> Iterator[Record]:
    _check(path)
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), b""), 1):
            place = f"{path}, line {number}"
            with at(place):
                require(len(line) <= _LONGEST, f"longer than {_LONGEST:,} bytes")
                require(bool(line.strip()), "the line is empty")
                try:
                    string = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
                    row = {text: string} if path.suffix == ".txt" else json.loads(string)
                except UnicodeDecodeError:
                    raise ConfigError("not UTF-8") from None
                except (ValueError, RecursionError) as error:
                    raise ConfigError(f"not JSON: {error}") from None
                require(isinstance(row, dict), 'not a JSON object, such as {"name": "value"}')
            yield Record(place, row)


def _check(path: Path) -> None:
    try:
        check_regular(path, most_in_memory())
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _parquet(path: Path) -> list[dict[str, Any]]:
    _check(path)
    parquet = optional_module("pyarrow.parquet", f"{path}: Parquet files need a package: pip install 'rlzoo[data]'")
    try:
        return parquet.ParquetFile(path).read().to_pylist()
    except Exception as error:  # of a damaged file
        raise ConfigError(f"{path} is no Parquet file, or damaged: {describe_error(error)}") from None


def _directory(path: Path) -> list[dict[str, Any]]:
    """The dataset in a directory: one that `save_to_disk` wrote, or files that `load_dataset` reads."""
    fault = f"{path}: the directory of a dataset needs a package: pip install 'rlzoo[data]'"
    datasets = optional_module("datasets", fault)
    bars = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        for file in (x for x in path.rglob("*") if not x.is_dir()):
            check_regular(file, most_in_memory())
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            data: Any = datasets.load_from_disk(str(path))
        else:  # streaming reads the files themselves, without a copy in the cache
            data = datasets.load_dataset(str(path), streaming=True, cache_dir=str(cache_directory() / "datasets"))
        if isinstance(data, dict):
            splits = ", ".join(data)
            require("train" in data or len(data) == 1, f"it has the splits {splits}: give the directory of one")
            data = data.get("train") or next(iter(data.values()))
        return list(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # damaged files make the library raise nearly any exception
        reason = textwrap.shorten(describe_error(error), 300, placeholder=" ...")  # it may list all endings of files
        raise ConfigError(f"{path} holds no dataset: {reason}") from None
    finally:
        if bars:
            datasets.enable_progress_bars()


def _of_object(source: Any, name: str, text: str, messages: str) -> Iterator[Record]:
    fault = f"{name} must be a file, a list or a datasets.Dataset (one split), such as {name}=[...]"
    several = isinstance(source, Iterable) and not isinstance(source, (Mapping, bytes))
    several = several and not hasattr(source, "itertuples")  # a pandas.DataFrame is an iterable of its columns' names
    require(several, f"{fault}, got {_kind(source)}")
    unit = "row" if type(source).__module__.partition(".")[0] == "datasets" else "entry"
    for number, entry in enumerate(source, 1):
        place = f"{name}, {unit} {number}"
        if isinstance(entry, Mapping):
            yield Record(place, entry)
        elif isinstance(entry, str):
            yield Record(place, {**getattr(entry, "columns", {}), text: entry})  # of a `Prompt`
        elif isinstance(entry, tuple) and hasattr(entry, "_asdict"):
            yield Record(place, entry._asdict())
        elif isinstance(entry, (list, tuple)):
            yield Record(place, {messages: list(entry)})
        else:
            example = '"Say hello", [{"role": "user", "content": "Hello"}]'
            raise ConfigError(f"{place}: must be a text, messages or a record, such as {example}; got {_kind(entry)}")


def _kind(x: Any) -> str:
    return " ".join(f"{type(x).__name__} {x!r}".split())[:60]
