"""How a report writes numbers and lists: thin spaces between thousands, true minus signs, few digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rlzoo.benchmark.statistics import Interval

_THIN = "\u202f"
NOTHING = "–"


def fixed(x: float, digits: int) -> str:
    """With so many digits after the point: '−1 204.5'."""
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    text = f"{x:,.{digits}f}".replace(",", _THIN).replace("-", "−")
    return text.removeprefix("−") if not text.strip(f"−0.{_THIN}") else text


def integer(x: float) -> str:
    return fixed(x, 0)


def plain(x: float) -> str:
    """With the digits that it has: '475', '−0.25'."""
    return fixed(x, max(0, -int(Decimal(str(x)).normalize().as_tuple().exponent)))


def significant(x: float) -> str:
    """To three significant digits, and every digit before the point."""
    if not math.isfinite(x) or x == 0:
        return fixed(x, 0)
    return fixed(x, min(6, max(0, 2 - math.floor(math.log10(abs(x))))))


def bracket(interval: Interval, digits: int) -> str:
    """'[480.1, 493.0]'."""
    return f"[{fixed(float(interval.low), digits)}, {fixed(float(interval.high), digits)}]"


def digits_for(span: float) -> int:
    """Digits after the point for numbers within `span` of each other: 1 for a span of 500, 3 for one of 2."""
    return min(4, max(0, 3 - math.floor(math.log10(span)))) if math.isfinite(span) and span > 0 else 1


def between(numbers: Sequence[float]) -> str:
    """'50 000', or '50 000 to 500 000'."""
    low, high = integer(min(numbers)), integer(max(numbers))
    return low if low == high else f"{low} to {high}"


def count(n: int, what: str) -> str:
    """'no runs', '1 run', '12 runs'."""
    return f"{integer(n) if n else 'no'} {what}{'' if n == 1 else 's'}"


def enumeration(names: Sequence[str]) -> str:
    """'a, b and c'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def seeds(numbers: Sequence[int]) -> str:
    """'10 to 19', or '1, 2 and 5'."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"{ordered[0]} to {ordered[-1]}"
    return enumeration([str(number) for number in ordered])


def duration(seconds: float) -> str:
    """'1 h 12 min', '24 min 50 s', '8.2 s'."""
    if seconds < 60:
        return f"{significant(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def one_line(text: Any, length: int = 300) -> str:
    """Without line breaks and control characters, shortened."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= length else line[: length - 1] + "…"
