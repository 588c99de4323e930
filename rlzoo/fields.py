"""Field types that carry their range: `learning_rate: Positive = 3e-4`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from rlzoo.errors import ConfigError


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; `above` and `below` leave the ends out."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, x: object) -> bool:
        if not isinstance(x, (int, float)) or not math.isfinite(x):
            return False
        return (x > self.low if self.above else x >= self.low) and (x < self.high if self.below else x <= self.high)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:g}, {self.high:g}{')' if self.below else ']'}"


Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
UnitInterval = Annotated[float, Range(0, 1)]
OpenUnitInterval = Annotated[float, Range(0, 1, above=True, below=True)]
Count = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]


def check_fields(instance: Any) -> None:
    """Holds each annotated field of a dataclass to its range. None passes where the type allows it.

    Raises:
        ConfigError: names the field, its range and what it was.
    """
    for name, bounds in _ranges(type(instance)).items():
        x = getattr(instance, name)
        if x is not None and x not in bounds:
            raise ConfigError(f"{name} must be {bounds}, got {x}")


@cache
def _ranges(cls: type) -> dict[str, Range]:
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        annotations = [hints[field.name], *get_args(hints[field.name])]
        for bounds in (m for a in annotations for m in getattr(a, "__metadata__", ()) if isinstance(m, Range)):
            found[field.name] = bounds
    return found
