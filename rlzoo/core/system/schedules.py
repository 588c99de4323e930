"""Schedules: hyperparameters that may change over a run.

A schedule is a number, `"linear:START:END"`, or a function of the progress p in [0, 1), given as a callable or as
`"module:function"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.functions import load_function

Schedule = float | str | Callable[[float], float]


def at(schedule: Schedule, progress: float) -> float:
    """The value of a schedule at `progress`, the share of the training steps already taken.

    `"linear:a:b"` is a·(1 − p) + b·p. Raises the errors of `linear_ends` and `load_function`.
    """
    if isinstance(schedule, str):
        if not schedule.startswith("linear:"):
            return float(load_function("schedule", schedule, "linear:START:END")(progress))
        start, end = linear_ends(schedule)
        return start * (1 - progress) + end * progress
    return float(schedule(progress)) if callable(schedule) else schedule


def linear_ends(text: str) -> tuple[float, float]:
    """START and END of `"linear:START:END"`.

    Raises:
        ConfigError: the text has another form, or an end is not a finite number.
    """
    kind, *ends = text.split(":")
    try:
        start, end = (float(x) for x in ends)
    except ValueError:
        start = math.nan
    if kind != "linear" or not (math.isfinite(start) and math.isfinite(end)):
        raise ConfigError(f"{text!r} is not of the form linear:START:END, such as linear:3e-4:0")
    return start, end
