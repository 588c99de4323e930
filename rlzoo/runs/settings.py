"""Settings by name: the fields of a configuration's parts, as one flat table."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_type_hints

from rlzoo.core.errors import ConfigError


class Setting(NamedTuple):
    """One field of one part."""

    name: str
    """As a user writes it."""
    field: str
    """As the part calls it."""
    part: str
    """Name of the part's class."""
    hint: Any
    value: Any
    help: str


def settings_of(*parts: Any, units: Mapping[str, tuple[str, str]] | None = None) -> dict[str, Setting]:
    """The fields of dataclass instances, and of the dataclasses in them, by name.

    Args:
        units: field → name and help text in a task's own units.

    Raises:
        ConfigError: two parts have a setting of the same name.
    """
    table: dict[str, Setting] = {}
    for part in parts:
        for setting in _fields(part, units or {}):
            other = table.get(setting.name)
            if other is not None:
                raise ConfigError(
                    f"setting {setting.name!r} is defined by both {other.part} and {setting.part}: rename one"
                )
            table[setting.name] = setting
    return table


def _fields(part: Any, units: Mapping[str, tuple[str, str]]) -> Iterator[Setting]:
    cls = type(part)
    hints, texts = get_type_hints(cls, include_extras=True), help_texts(cls)
    for f in dataclasses.fields(part):
        value = getattr(part, f.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, units)
        else:
            name, text = units.get(f.name, (f.name, texts.get(f.name, "")))
            yield Setting(name, f.name, cls.__name__, hints[f.name], value, text)


def help_texts(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, base classes included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        body = getattr(definition, "body", [])
        for statement, following in zip(body, body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    texts[statement.target.id] = " ".join(str(following.value.value).split())
    return texts
