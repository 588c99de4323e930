"""Command-line options from the fields of dataclasses, by tyro; wrong use in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import NoneType
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional as Positional
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlzoo.core.errors import ConfigError, no_such
from rlzoo.core.schedules import Schedule, as_text

T = TypeVar("T")

Switch = tyro.conf.FlagCreatePairsOff[bool]
"""An option without a value, and without a `--no-` to take it back."""


def parse(
    cls: type[T],
    arguments: Sequence[str],
    prog: str | None = None,
    description: str | None = None,
    default: T | None = None,
    partly: bool = False,
) -> T:
    """An instance of a dataclass: `default`, or its own, changed by the arguments.

    With `partly`, there may be arguments that are not for it.

    Raises:
        ConfigError: the arguments make no sense; one line says why.
        SystemExit: they ask for help, which was printed.
    """
    fields: dict[str, Any] = {
        "default": tyro.MISSING_NONPROP if default is None else default,
        "config": _STYLE,
        "registry": _REGISTRY,
    }
    texts: dict[str, Any] = {"prog": prog, "description": description}
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            made, left = tyro.cli(cls, args=arguments, return_unknown_args=True, add_help=not partly, **texts, **fields)
    except SystemExit as done:
        if not done.code:
            raise
        raise ConfigError(_reason(done, box.getvalue())) from None
    if left and not partly:
        name = next((x.split("=")[0].replace("_", "-") for x in left if x.startswith("-")), None)
        parser: Any = tyro.extras.get_parser(cls, **fields)
        known = re.findall(r"--[\w-]+", parser.format_help())
        raise ConfigError(no_such("option", name, known) if name else f"unexpected argument {left[0]!r}")
    return made


def _reason(cause: BaseException | None, box: str) -> str:
    """What the check of a field said, else the first paragraph of the box that tyro draws."""
    while cause is not None:
        if isinstance(cause, ConfigError):
            return str(cause)
        cause = cause.__context__
    rows = [row.strip("│ ") for row in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()[1:]]
    below_title = itertools.dropwhile(_is_rule, rows)
    paragraph = " ".join(itertools.takewhile(lambda row: not _is_rule(row), below_title))
    return " ".join(paragraph.replace("Error parsing", "").split())


def _is_rule(row: str) -> bool:
    return not row.strip("─-")


def settings_options(settings: Iterable[tuple[str, Any, Any, str]]) -> Any:
    """An instance of a dataclass with a field for each setting: name, type, value and help text."""
    fields: list[tuple[str, Any, Any]] = []
    for name, hint, value, text in settings:
        default: Any = dataclasses.field(default_factory=partial(_same, value))
        fields.append((name, Annotated[hint, tyro.conf.arg(help=text)], default))
    return dataclasses.make_dataclass("Settings", fields, frozen=True)()


def _same(value: Any) -> Any:
    return value


_STYLE = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.AvoidSubcommands,
    tyro.conf.PositionalMetavarFromFieldName,
    tyro.conf.SuppressFixed,
)
_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Integers such as 1e6, `none`, and KEY=VALUE pairs."""
    if info.type == Schedule:
        return PrimitiveConstructorSpec(1, "FLOAT|SCHEDULE", _schedule, lambda x: True, lambda x: [_shown(x)])
    if info.type is int:
        return PrimitiveConstructorSpec(1, "INT", _integer, _is(int), lambda x: [str(x)])
    if info.type is NoneType:
        return PrimitiveConstructorSpec(1, "none", _none, _is(NoneType), lambda _: ["none"])
    if info.type_origin is dict:
        return PrimitiveConstructorSpec("*", "KEY=VALUE", _pairs, _is(dict), lambda x: [f"{k}={x[k]}" for k in x])
    return None


def _is(cls: type) -> Callable[[Any], bool]:
    return lambda x: isinstance(x, cls)


def _integer(texts: list[str]) -> int:
    try:
        return int(texts[0])
    except ValueError:
        x = float(texts[0])
    if not x.is_integer():
        raise ValueError(f"{texts[0]!r} is not an integer")
    return int(x)


def _schedule(texts: list[str]) -> float | str:
    """A number, or a text that the setting itself checks."""
    try:
        return float(texts[0])
    except ValueError:
        return texts[0]


def _shown(schedule: Any) -> str:
    return as_text(schedule) if callable(schedule) else str(schedule)


def _none(texts: list[str]) -> None:
    if texts[0].lower() != "none":
        raise ValueError(f"{texts[0]!r} is not none")


def _pairs(texts: list[str]) -> dict[str, Any]:
    """Values are JSON where they can be, else strings."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not of the form key=value")
        try:
            pairs[key] = json.loads(value)
        except ValueError:
            pairs[key] = value
    return pairs
