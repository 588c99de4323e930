"""Field types that hold a range: `max_kl: Positive = 0.01`, `learning_rate: PositiveSchedule = 3e-4`."""

from __future__ import annotations

import dataclasses
import math
import numbers
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.schedules import Schedule, linear_ends


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; `above` and `below` exclude the ends."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, x: Any) -> bool:
        # Not fractions, nor integers of NumPy, which is not imported here: the command line sets its threads first.
        real = isinstance(x, int) or (isinstance(x, numbers.Real) and not isinstance(x, numbers.Rational))
        if not real or not -math.inf < x < math.inf:
            return False
        above = x > self.low if self.above else x >= self.low
        return bool(above and (x < self.high if self.below else x <= self.high))

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"


@dataclass(frozen=True)
class ScheduleRange(Range):
    """Range of a schedule's values. The END of a linear schedule may be an excluded bound, which is never reached."""


@dataclass(frozen=True)
class OrObject:
    """In a field's type: any object is valid too. Only Python code can pass one, and its user checks it."""


T = TypeVar("T")
ADVANCED = "advanced"
Advanced = Annotated[T, ADVANCED]
"""A setting that only `--help-all` shows: `backtrack_coef: Advanced[OpenUnitInterval] = 0.8`."""

Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
UnitInterval = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(0, 1, above=True)]
OpenUnitInterval = Annotated[float, Range(0, 1, above=True, below=True)]
Count = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
MinibatchSize = Count | Literal["all"]
PositiveSchedule = Annotated[Schedule, ScheduleRange(0, above=True)]
NonNegativeSchedule = Annotated[Schedule, ScheduleRange(0)]


_FINITE = "a finite number"
_BEYOND = 2**128
"""No integer is so large: seeds have up to 128 bits."""


def check_fields(instance: Any) -> None:
    """Checks each field of a dataclass against its type and range.

    Raises:
        ConfigError: names the field, what it accepts and what it got; or a subclass is not decorated as a dataclass.
    """
    cls: Any = type(instance)
    own = () if "__dataclass_fields__" in vars(cls) else vars(cls).get("__annotations__", {}).items()
    forgotten = next((name for name, hint in own if "ClassVar" not in str(hint)), None)
    if forgotten is not None:
        raise ConfigError(f"{cls.__name__} has a field {forgotten}, but is not decorated: @dataclass(frozen=True)")
    for name, hint in field_types(cls).items():
        x = getattr(instance, name)
        if isinstance(x, int) and abs(x) >= _BEYOND:
            raise ConfigError(f"{name} must be below {_BEYOND:g}, got an integer of {x.bit_length()} bits")
        fault = type_fault(x, hint)
        if fault is not None:
            raise ConfigError(f"{name} must be {fault}, got {x!r}")


class Checked:
    """Base class of dataclasses whose fields are checked (see `check_fields`)."""

    def __post_init__(self) -> None:
        check_fields(self)


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass, with their marks and ranges."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def type_fault(x: Any, hint: Any) -> str | None:
    """Describes what `x` must be; None if `x` is valid."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(args[1], ScheduleRange):
        return schedule_fault(x, args[1])
    if origin is Annotated and any(isinstance(m, OrObject) for m in args[1:]):
        return None
    if origin is Annotated:
        bounds = [m for m in args[1:] if isinstance(m, Range) and x not in m]
        fault = type_fault(x, args[0])
        return str(bounds[0]) if bounds and fault in (None, _FINITE) else fault
    if origin in (Union, UnionType):
        faults = [type_fault(x, kind) for kind in args]
        wanted = [fault for fault in faults if fault not in (None, "None")]
        return None if None in faults else " or ".join(map(str, wanted))
    if origin is Literal:
        return None if x in args else " or ".join(map(str, args))
    if origin is tuple and args[1:] == (...,):
        faults = [type_fault(item, args[0]) for item in (x if isinstance(x, tuple) else (None,))]
        each = next((f"a tuple, each {fault}" for fault in faults if fault), None)
        return each or (None if isinstance(x, tuple) else "a list")
    hint = origin or hint
    if hint is Any or not isinstance(hint, type):
        return None
    accepted = (int, float) if hint is float else hint
    if hint is float and isinstance(x, float) and not math.isfinite(x):
        return _FINITE
    if isinstance(x, accepted) and (hint is bool or not isinstance(x, bool)):
        return None
    return _NAMES.get(hint, f"a {hint.__name__}")


def schedule_fault(x: Any, bounds: ScheduleRange) -> str | None:
    """Describes the schedule that `x` must be; None if `x` is valid. Functions are checked at some points."""
    wanted = f"{bounds}, or a schedule such as linear:1e-3:0"
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        return None if x in bounds else wanted
    closed = Range(bounds.low, bounds.high)
    if isinstance(x, str) and x.startswith("linear:"):
        try:
            start, end = linear_ends(x)
        except ConfigError:
            return wanted
        return None if start in bounds and end in closed else f"{bounds} throughout"
    if isinstance(x, str):
        module, _, name = x.partition(":")
        return None if module and name else wanted
    if callable(x):
        try:
            values = [y.item() if getattr(y, "shape", None) == () else y for y in (x(k / 1024) for k in range(1024))]
        except (Exception, SystemExit) as error:
            return f"a function of the progress, which goes from 0 to 1 ({type(error).__name__}: {error})"
        return None if all(value in closed for value in values) else f"{bounds} throughout"
    return wanted


_NAMES: dict[type, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a string",
    NoneType: "None",
}
