"""Command-line options from the fields of dataclasses, read by tyro. Wrong use gives an error of one line."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import itertools
import json
import re
import shutil
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional as Positional
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.schedules import Schedule
from rlzoo.core.system.screen import one_line
from rlzoo.runs.configuration.objects import describe_object, import_name
from rlzoo.runs.configuration.settings import Setting, unknown_name

T = TypeVar("T")

_MOST_SEEDS = 1000
"""Of a range."""

Repeated = tyro.conf.UseAppendAction[tuple[str, ...]]
"""An option that may be given several times, with one text each."""

Switch = tyro.conf.FlagCreatePairsOff[bool]
"""An option without a value, and without the opposite `--no-` option."""


class Seeds(tuple[int, ...]):
    """Different seeds: on the command line integers, and ranges FIRST-LAST."""


def parse(
    cls: type[T],
    arguments: Sequence[str],
    prog: str | None = None,
    description: str | None = None,
    partly: bool = False,
) -> T:
    """An instance of a dataclass with the values of its options.

    Args:
        prog, description: the command, and what it does, for the help page.
        partly: ignore other options and `--help`.

    Raises:
        ConfigError: the arguments are wrong. The message is one line.
        SystemExit: the arguments ask for help, which was printed.
    """
    box = io.StringIO()
    try:
        # A default of another kind than its field's, from a damaged file, is refused when the settings are checked.
        with contextlib.redirect_stderr(box), warnings.catch_warnings(action="ignore", category=UserWarning):
            options, left = tyro.cli(
                cls,
                prog=prog and one_line(prog),
                description=description,
                args=arguments,
                return_unknown_args=True,
                add_help=not partly,
                config=_STYLE,
                registry=_REGISTRY,
            )
    except SystemExit as done:
        if not done.code:
            raise
        raise ConfigError(_reason(done, box.getvalue())) from None
    if left and not partly:
        name = next((x.split("=")[0].replace("_", "-") for x in left if x.startswith("-")), None)
        parser: Any = tyro.extras.get_parser(cls, config=_STYLE, registry=_REGISTRY)
        options_of_help = re.findall(r"--[\w-]+", parser.format_help())
        raise ConfigError(unknown_name("option", name, options_of_help) if name else f"unexpected argument {left[0]!r}")
    return options


HELP_ALL = "--help-all"
_LAST = ("Evaluation and files", "Memory and speed")
"""Groups at the end of a help page."""


def parse_settings(
    command: type, settings: Mapping[str, Setting], arguments: Sequence[str], prog: str, description: str
) -> tuple[Any, dict[str, Any]]:
    """The options of a command, and the settings that the arguments name.

    The help page has a group for each group of settings. It leaves out the advanced ones, which `--help-all` shows too.
    Errors are those of `parse`.
    """
    everything = HELP_ALL in arguments or not {"-h", "--help"} & {*arguments}
    arguments = ["--help" if x == HELP_ALL else x for x in arguments]
    hidden = sum(setting.advanced for setting in settings.values())
    if not everything and hidden:
        description += f"\n{HELP_ALL} shows {hidden} more settings."
    width = shutil.get_terminal_size().columns
    wrapped = (textwrap.fill(line, width, subsequent_indent="  ") for line in description.splitlines())
    description = "\n".join(wrapped)
    groups: dict[str, list[Any]] = {"Run": [], **{setting.group: [] for setting in settings.values()}}
    for title in _LAST:
        groups[title] = groups.pop(title, [])
    for setting in settings.values():
        shown = everything or not setting.advanced
        field = dataclasses.field(default_factory=partial(getattr, setting, "value"))
        default = "(default: empty)" if setting.value == () else None
        hint: Any = Annotated[setting.hint, tyro.conf.arg(help=setting.help, help_behavior_hint=default)]
        groups[setting.group].append((setting.name, hint if shown else Annotated[hint, tyro.conf.Suppress], field))
    parts: list[Any] = []
    for number, (title, fields) in enumerate(groups.items()):
        if fields:
            part: Any = dataclasses.make_dataclass("Part", fields, namespace={"__doc__": ""})
            untitled = {x.part for x in settings.values() if x.group == title and not hasattr(x.part, "title")}
            about = "\n".join(_summary(x) for x in untitled)
            parts.append((f"part_{number}", Annotated[part, tyro.conf.arg(name=title, help=about)]))
    parts.insert(1 if groups["Run"] else 0, ("command", Annotated[command, tyro.conf.arg(name="Run", help="")]))
    options: Any = vars(parse(dataclasses.make_dataclass("Options", parts), arguments, prog, description))
    own = options.pop("command")
    values: dict[str, Any] = {name: x for part in options.values() for name, x in vars(part).items()}
    names = {name.removeprefix("no_") for name in option_names(arguments)}
    return own, {name: x for name, x in values.items() if name in names}


def option_names(arguments: Sequence[str]) -> list[str]:
    """The names of the options among the arguments, as those of fields."""
    return [x[2:].partition("=")[0].replace("-", "_") for x in arguments if x.startswith("--")]


def _summary(cls: type) -> str:
    """The first paragraph of a docstring, as one line. A dataclass without one has its signature there."""
    text = inspect.getdoc(cls) or ""
    return "" if text.startswith(f"{cls.__name__}(") else " ".join(text.split("\n\n")[0].split())


def _reason(cause: BaseException | None, box: str) -> str:
    """The message of a `ConfigError` among the causes; else the first paragraph of the box that tyro printed."""
    while cause is not None:
        if isinstance(cause, ConfigError):
            return str(cause)
        cause = cause.__context__
    rows = [row.strip("│ ") for row in re.sub(r"\x1b\[[\d;]*m", "", box).splitlines()[1:]]
    paragraphs = itertools.groupby(rows, lambda row: row.strip("─-╰╯") != "")  # between rules
    paragraph = next((" ".join(lines) for is_text, lines in paragraphs if is_text), "")
    text = " ".join(paragraph.replace("Error parsing", "").split())
    if listed := re.fullmatch(r"(--\S+): .*: \['\W?(\w+(?:, ?\w+)+)\W?'\]", text):
        values = " ".join(listed[2].replace(",", " ").split())
        return f"{listed[1]}: values are separated by spaces: {listed[1]} {values}"
    match = re.search(r"no type matching (\S+) could be instantiated from \[(.*)\]\.", text)
    if match is None:
        return text
    kinds = re.sub("[{}]", "", match[1]).replace(",", "|")
    return text.replace(match[0], f"expected {kinds}, got {match[2]}")


_STYLE = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.AvoidSubcommands,
    tyro.conf.PositionalMetavarFromFieldName,
    tyro.conf.SuppressFixed,
)
_REGISTRY = ConstructorRegistry()


def _integer(texts: list[str]) -> int:
    with contextlib.suppress(ValueError):
        return int(texts[0])
    with contextlib.suppress(ValueError):
        if float(texts[0]).is_integer():
            return int(float(texts[0]))
    raise ValueError(f"{texts[0]!r} is not an integer")


def _number(texts: list[str]) -> float:
    with contextlib.suppress(ValueError):
        return float(texts[0])
    raise ValueError(f"{texts[0]!r} is not a number")


def _schedule(texts: list[str]) -> float | str:
    """A number, or a text that the configuration checks."""
    with contextlib.suppress(ValueError):
        return float(texts[0])
    return texts[0]


def _seeds(texts: list[str]) -> Seeds:
    seeds: list[int] = []
    for text in texts:
        match = re.fullmatch(r"(\d{1,18})-(\d{1,18})", text)
        if match and int(match[1]) > int(match[2]):
            raise ValueError(f"{text!r} is an empty range of seeds")
        if match and int(match[2]) - int(match[1]) >= _MOST_SEEDS:
            raise ValueError(f"{text!r} are more than {_MOST_SEEDS:,} seeds")
        seeds += range(int(match[1]), int(match[2]) + 1) if match else [_integer([text])]
    if not seeds:
        raise ValueError("a seed is missing, such as 1, 1 2 3 or 1-5")
    twice = next((x for x in seeds if seeds.count(x) > 1), None)
    if twice is not None:
        raise ValueError(f"seed {twice} is given twice")
    return Seeds(seeds)


def _schedule_text(schedule: Any) -> str:
    return import_name(schedule) or describe_object(schedule) if callable(schedule) else one_line(schedule)


def _none(texts: list[str]) -> None:
    if texts[0].lower() != "none":
        raise ValueError(f"{texts[0]!r} is not none")


def _pairs(texts: list[str]) -> dict[str, Any]:
    """Values are JSON if they can be, else strings."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"{text!r} is not of the form key=value")
        pairs[key] = value
        with contextlib.suppress(ValueError):
            pairs[key] = json.loads(value)
    return pairs


_PRIMITIVES: dict[Any, tuple[Any, Any, str, Callable[[list[str]], Any], Callable[[Any], list[str]]]] = {
    Seeds: (Seeds, "*", "INT|FIRST-LAST", _seeds, lambda x: [str(n) for n in x] or ["0"]),
    Schedule: (object, 1, "FLOAT|SCHEDULE", _schedule, lambda x: [_schedule_text(x)]),
    str: (str, 1, "STR", lambda texts: texts[0], lambda x: [one_line(x)]),
    int: (int, 1, "INT", _integer, lambda x: [str(x)]),
    float: ((int, float), 1, "FLOAT", _number, lambda x: [str(x)]),
    NoneType: (NoneType, 1, "none", _none, lambda x: ["none"]),
    dict: (dict, "*", "KEY=VALUE", _pairs, lambda x: [one_line(f"{k}={x[k]}") for k in x] or ["{}"]),
}
"""How to read and show values of a type: their class, number of texts, name in the help, reader and writer."""


@_REGISTRY.primitive_rule
def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    own = next((row for kind, row in _PRIMITIVES.items() if kind in (info.type, info.type_origin)), None)
    if own is None:
        return None
    cls, nargs, metavar, read, shown = own
    return PrimitiveConstructorSpec(nargs, metavar, read, lambda x: isinstance(x, cls), shown)
