"""Records of files, lists and datasets, each with its place for error messages."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rlzoo.core.errors import ConfigError, require
from rlzoo.core.files import check_regular, most_in_memory

T = TypeVar("T")

Messages = list[dict[str, str]]
"""A conversation: `[{"role": "user", "content": "Hello"}, ...]`."""
Source = Path | str | Iterable[Any]
"""A file (.txt, .jsonl, .parquet), the directory of a dataset, a list, or a `datasets.Dataset`."""

_FILES = (".txt", ".jsonl", ".parquet")
_LONGEST = 2**24
"""Bytes of the longest line."""


class Record(NamedTuple):
    """Named values, and where they come from."""

    place: str
    """Such as "pairs.jsonl, line 3"."""
    values: dict[str, Any]
    missing: tuple[str, ...] = ()
    """Columns of a table that have no value here."""


def read(source: Source, name: str, entry: Callable[[dict[str, Any]], T], text: str, messages: str) -> list[T]:
    """`entry` of each record of `read_records`. A `ConfigError` of `entry` gets the record's place in front."""
    return [at_place(record, entry) for record in read_records(source, name, text, messages)]


def at_place(record: Record, entry: Callable[[dict[str, Any]], T]) -> T:
    """`entry(record.values)`, with the record's place in front of a `ConfigError`."""
    try:
        return entry(record.values)
    except ConfigError as error:
        raise ConfigError(f"{record.place}: {error}") from None


def read_records(source: Source, name: str, text: str, messages: str) -> list[Record]:
    """The records of a file, of the directory of a dataset, of a list or of a `datasets.Dataset`.

    Args:
        name: what the records are, for messages: "prompts".
        text, messages: columns for entries that are no records, but texts (or lines of a .txt file) or message lists.

    Raises:
        ConfigError: names the file, the line and what is wrong with it.
    """
    if isinstance(source, (Path, str)):
        records, where = list(_of_path(Path(source), name, text)), str(source)
    else:
        records, where = list(_of_object(source, name, text, messages)), name
    require(bool(records), f"{where} is empty" if isinstance(source, (Path, str)) else f"{name}: there are none")
    return records


def _of_path(path: Path, name: str, text: str) -> Iterator[Record]:
    if path.is_dir() and path.suffix not in _FILES:
        return _rows(_directory(path), str(path))
    kinds = ", ".join(_FILES[:-1])
    require(path.suffix in _FILES, f"{path}: the name must end in {kinds} or {_FILES[-1]}")
    if path.suffix == ".parquet":
        return _rows(_parquet(path), str(path))
    return _of_lines(path, name.removesuffix("s"), text)


def _of_lines(path: Path, kind: str, text: str) -> Iterator[Record]:
    for number, line in _lines(path):
        place = f"{path}, line {number}"
        require(bool(line.strip()), f"{place}: empty {kind}")
        yield Record(place, {text: line} if path.suffix == ".txt" else at_place(Record(place, {"line": line}), _object))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    _check(path)
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(_LONGEST + 1)
            if not line:
                return
            require(len(line) <= _LONGEST, f"{path}, line {number}: longer than {_LONGEST:,} bytes")
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode()
            except UnicodeDecodeError:
                raise ConfigError(f"{path}, line {number}: not UTF-8") from None


def _check(path: Path) -> None:
    try:
        check_regular(path, most_in_memory())
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _object(values: dict[str, Any]) -> dict[str, Any]:
    try:
        record = json.loads(values["line"])
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError('not a JSON object, such as {"name": "value"}')
    return record


def _parquet(path: Path) -> Iterable[Mapping[str, Any]]:
    _check(path)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(f"{path}: Parquet files need a package: pip install pyarrow") from None
    try:
        return parquet.ParquetFile(path).read().to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is no Parquet file, or damaged: {_first_line(error)}") from None


def _directory(path: Path) -> Iterable[Mapping[str, Any]]:
    """The dataset in a directory: one that `save_to_disk` wrote, or files that `load_dataset` reads."""
    try:
        import datasets
    except ImportError:
        raise ConfigError(f"{path}: the directory of a dataset needs a package: pip install datasets") from None
    shown = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        for file in path.rglob("*"):
            if not file.is_dir():
                check_regular(file, most_in_memory())
        saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        found: Any = datasets.load_from_disk(str(path)) if saved else datasets.load_dataset(str(path))
    except Exception as error:  # damaged files make the library raise nearly any exception
        raise ConfigError(f"{path} holds no dataset: {_first_line(error)}") from None
    finally:
        if shown:
            datasets.enable_progress_bars()
    if isinstance(found, dict):
        known = ", ".join(found)
        require("train" in found or len(found) == 1, f"{path} holds the splits {known}: give the directory of one")
        found = found.get("train") or next(iter(found.values()))
    return found


def _of_object(source: Any, name: str, text: str, messages: str) -> Iterator[Record]:
    library = type(source).__module__.partition(".")[0]
    if library == "datasets" and isinstance(source, dict):
        splits = ", ".join(source)
        raise ConfigError(f"{name}: a {type(source).__name__} of {splits}: give one, such as dataset['train']")
    if library == "datasets":
        return _rows(source, name)
    if isinstance(source, (Mapping, bytes)) or not isinstance(source, Iterable):
        raise ConfigError(
            f"{name} must be a file, a list or a datasets.Dataset, such as {name}=[...], got {_kind(source)}"
        )
    return _entries(source, name, text, messages)


def _entries(source: Iterable[Any], name: str, text: str, messages: str) -> Iterator[Record]:
    for number, entry in enumerate(source, 1):
        place = f"{name}, entry {number}"
        if isinstance(entry, str):
            require(bool(entry.strip()), f"{place}: empty {name.removesuffix('s')}")
            yield Record(place, {text: entry})
        elif isinstance(entry, Mapping):
            yield Record(place, dict(entry))
        elif isinstance(entry, tuple) and hasattr(entry, "_asdict"):
            yield Record(place, entry._asdict())
        elif isinstance(entry, (list, tuple)):
            yield Record(place, {messages: list(entry)})
        else:
            example = '"Say hello", [{"role": "user", "content": "Hello"}]'
            raise ConfigError(f"{place}: must be a text, messages or a record, such as {example}; got {_kind(entry)}")


def _rows(rows: Iterable[Mapping[str, Any]], where: str) -> Iterator[Record]:
    """Rows of a table, in which None stands for a missing value."""
    for number, row in enumerate(rows, 1):
        missing = tuple(key for key, x in row.items() if x is None)
        yield Record(f"{where}, row {number}", {key: x for key, x in row.items() if x is not None}, missing)


def _kind(x: Any) -> str:
    return f"{type(x).__name__} {x!r}"[:60]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
