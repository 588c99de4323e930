"""Numbers and text as a report shows them: thin spaces between thousands, true minus signs, few digits."""

from __future__ import annotations

import math
from typing import Any

from rlzoo.benchmark.statistics import Interval

NOTHING = "–"
_SIGNS = {"-": "−", ",": "\u202f", "inf": "∞", "nan": "NaN"}


def number(x: float, spec: str = ".10g") -> str:
    """A number in a format of Python: '475', '−0.25', '100 000'."""
    text = f"{x:z,{spec}}"
    for sign, shown in _SIGNS.items():
        text = text.replace(sign, shown)
    return text


def fixed(x: float, digits: int) -> str:
    """A number with that many digits after the point: '−1 204.5'."""
    return number(x, f".{digits}f")


def significant(x: float) -> str:
    """A number with three significant digits, and every digit before the point."""
    if not math.isfinite(x) or x == 0:
        return fixed(x, 0)
    return fixed(x, min(6, max(0, 2 - math.floor(math.log10(abs(x))))))


def estimate(interval: Interval, digits: int) -> str:
    """An estimate and its bounds: '490.2 [480.1, 493.0]'."""
    middle, low, high = (fixed(float(x), digits) for x in interval)
    return f"{middle} [{low}, {high}]"


def one_line(text: Any, length: int = 300) -> str:
    """Text without line breaks and control characters, cut to `length`."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= length else line[: length - 1] + "…"
