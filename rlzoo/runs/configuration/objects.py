"""Objects in a configuration, such as functions and classes, and what `config.json` holds in their place."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any


def import_name(x: Any) -> str | None:
    """`"module:name"` of a function or class at the top level of a module; None if it cannot be imported so.

    The module `__main__` does not count: another program has another one.
    """
    module, name = getattr(x, "__module__", None), getattr(x, "__qualname__", None)
    if not (callable(x) and isinstance(module, str) and isinstance(name, str)) or module == "__main__":
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is x else None


def as_json(x: Any, in_dict: bool = False) -> Any:
    """A setting's value as JSON: itself, `"module:name"`, or `{"object": "<short description>"}`.

    The items of lists are written in the same way. In a dict, a tuple is not a list but `{"tuple": [...]}`, and a
    function or class has no `"module:name"`: nothing would import it again.
    """
    if x is None or isinstance(x, (bool, int, float, str)):
        return x
    if isinstance(x, (list, tuple)):
        items = [as_json(item, in_dict) for item in x]
        return {"tuple": items} if in_dict and isinstance(x, tuple) else items
    if in_dict and callable(x):
        return {"object": describe_object(x)}
    if isinstance(x, Mapping) and any(callable(key) for key in x):  # scores with their weights, read as pairs
        return as_json(list(x.items()))
    if isinstance(x, Mapping) and all(isinstance(key, str) for key in x):
        return {key: as_json(item, in_dict=True) for key, item in x.items()}
    return import_name(x) or {"object": describe_object(x)}


def with_tuples(record: Any) -> Any:
    """A value of `config.json` with the tuples that its dicts hold."""
    if isinstance(record, dict) and record.keys() == {"tuple"} and isinstance(record["tuple"], list):
        return tuple(map(with_tuples, record["tuple"]))
    if isinstance(record, dict):
        return {key: with_tuples(item) for key, item in record.items()}
    return [with_tuples(item) for item in record] if isinstance(record, list) else record


def as_short_json(x: Any) -> Any:
    """`as_json`, but a list is described too, because the task saves it in a file of its own."""
    return {"object": f"a list of {len(x)}"} if isinstance(x, (list, tuple)) else as_json(x)


def describe_object(x: Any) -> str:
    """A short description of an object: "a function make_env of __main__"."""
    kind = "a class" if isinstance(x, type) else "a function" if hasattr(x, "__qualname__") else "an instance of"
    named = type(x) if kind == "an instance of" else x
    what = "a lambda" if named.__name__ == "<lambda>" else f"{kind} {named.__qualname__}"
    module = getattr(named, "__module__", None)
    return f"{what} of {module}" if module else what


def first_description(record: Any) -> str | None:
    """The description of the first object in a value of `config.json`; None if it holds no object."""
    if isinstance(record, dict) and set(record) == {"object"}:
        return str(record["object"])
    items = record.values() if isinstance(record, dict) else record if isinstance(record, list) else ()
    return next((text for text in map(first_description, items) if text is not None), None)


def names_code(record: Any) -> bool:
    """Whether a value of `config.json` names a function or class by its module, or holds one that does."""
    if isinstance(record, list):
        return any(map(names_code, record))
    return isinstance(record, str) and re.fullmatch(r"(.+\.py|[\w.]+):\w+(\(.*\))?", record) is not None


def may_name_code(record: Any) -> bool:
    """Whether a value of `config.json`, or a part of it, is a text that could name code."""
    if isinstance(record, dict):
        return any(map(may_name_code, (*record, *record.values())))
    if isinstance(record, list):
        return any(map(may_name_code, record))
    return isinstance(record, str) and ":" in record and re.fullmatch(r"linear:[-+.\de]+:[-+.\de]+", record) is None
