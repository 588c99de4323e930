"""Command-line options derived from dataclass fields: name, type, default and docstring of each."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import json
import re
import textwrap
from collections.abc import Collection, Sequence
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from rlzoo.errors import ConfigError, no_such


class Parser(argparse.ArgumentParser):
    """A parser that raises `ConfigError` and suggests the nearest option for one that it does not know."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments.

        Raises:
            ConfigError: they make no sense; one line says why.
        """
        namespace, unknown = self.parse_known_args(normalize(arguments))
        if unknown:
            name = next((x for x in unknown if x.startswith("-")), unknown[0])
            if name.startswith("-"):
                self.error(no_such("option", name.split("=")[0], self._option_string_actions))
            self.error(f"unexpected argument {name!r}")
        return namespace


def normalize(arguments: Sequence[str]) -> list[str]:
    """`--num_envs` as `--num-envs`, and a negative number joined to its option: `--stop-return=-1e2`."""
    result: list[str] = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            argument = name.replace("_", "-") + equals + value
        elif _NEGATIVE.fullmatch(argument) and result and result[-1].startswith("--") and "=" not in result[-1]:
            argument = f"{result.pop()}={argument}"
        result.append(argument)
    return result


_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|-inf")


def add_fields(
    parser: argparse.ArgumentParser,
    title: str,
    part: Any,
    leave_out: Collection[str] = (),
    description: str | None = None,
) -> list[str]:
    """Adds an option for each field of a dataclass instance, which gives the defaults; returns the fields' names.

    An option that is not given leaves nothing in the namespace. Fields of types that do not fit on a command
    line are left out.
    """
    hints = get_type_hints(type(part))
    docs = field_docs(type(part))
    group = parser.add_argument_group(title, description)
    added = []
    for field in dataclasses.fields(part):
        how = None if field.name in leave_out else _argument(hints[field.name])
        if how is not None:
            text = f"{docs.get(field.name, '').rstrip('.')} [{_shown(getattr(part, field.name))}]"
            group.add_argument(
                "--" + field.name.replace("_", "-"),
                dest=field.name,
                default=argparse.SUPPRESS,
                help=text.strip().replace("%", "%%"),
                **how,
            )
            added.append(field.name)
    return added


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, inherited ones included."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        except (OSError, TypeError, SyntaxError, ValueError):
            continue
        assert isinstance(body, ast.ClassDef)
        for field, doc in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(doc, ast.Expr):
                value = doc.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    docs[field.target.id] = " ".join(value.value.split())
    return docs


def _argument(hint: Any) -> dict[str, Any] | None:
    """How argparse takes a value of this type; None if it cannot."""
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if NoneType in get_args(hint) and len(kinds) == 1:
        inner = _argument(kinds[0])
        if inner is not None and "choices" in inner:
            inner["choices"] = (*inner["choices"], None)
        return inner and inner | {"type": _or_none(inner.get("type", str))}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint], "metavar": hint.__name__.upper()}
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if get_origin(hint) is tuple and kinds and kinds[0] in _SCALARS:
        return {"type": _SCALARS[kinds[0]], "nargs": "*", "metavar": kinds[0].__name__.upper()}
    if get_origin(hint) is dict:
        return {"nargs": "+", "metavar": "KEY=VALUE", "action": _Pairs}
    return None


def integer(text: str) -> int:
    """An integer; also `1e6` and `100_000`."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        x = float(text)
    except ValueError:
        x = 0.5
    if not x.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer")
    return int(x)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


_SCALARS: dict[Any, Any] = {int: integer, float: _number, str: str}


def _or_none(parse: Any) -> Any:
    return lambda text: None if text.lower() == "none" else parse(text)


class _Pairs(argparse.Action):
    """`key=value` arguments as a dict; values are JSON where they can be, else strings."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        pairs = dict(getattr(namespace, self.dest, {}))
        for pair in values:
            key, equals, text = pair.partition("=")
            if not equals:
                raise argparse.ArgumentError(self, f"{pair!r} is not of the form key=value")
            try:
                pairs[key] = json.loads(text)
            except ValueError:
                pairs[key] = text
        setattr(namespace, self.dest, pairs)


def _shown(default: Any) -> str:
    if isinstance(default, tuple):
        return "\N{NO-BREAK SPACE}".join(map(str, default))
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default is None else str(default)
