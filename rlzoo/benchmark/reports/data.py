"""The numbers of a report as CSV, a line for each run and one without a seed for the interquartile mean of the runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rlzoo.benchmark.reports.statistics import Interval, are_comparable, iqm, iqm_interval
from rlzoo.benchmark.reports.study import Group, Study
from rlzoo.core.system.screen import one_line

_SCORES = ("environment", "algorithm", "seed", "score", "low", "high", "deterministic", "steps", "seconds")
CURVES = ("environment", "algorithm", "seed", "steps", "seconds", "return", "low", "high")
"""Columns of `curves.csv`. The bounds of an interval are empty for a run, and where there are too few runs."""
METRIC = "metric_"
"""Before the name of a metric of the task, which may be that of another column: `score`."""


def numbers(study: Study) -> dict[str, str]:
    """`scores.csv`, the final evaluations with the task's own metrics, and `curves.csv`, the stochastic evaluations.

    Their means over the runs are interquartile means with 95 % intervals, and medians of steps and seconds.
    """
    metrics = tuple(dict.fromkeys(key for group in study.groups.values() for key in group.further))
    return {
        "scores.csv": _csv([*_SCORES, *(METRIC + key for key in metrics)], _scores(study, metrics)),
        "curves.csv": _csv(CURVES, _curves(study)),
    }


def _scores(study: Study, metrics: Iterable[str]) -> Iterator[list[Any]]:
    for (name, env), group in study.groups.items():
        score, ended = iqm_interval([group.final]), group.ended
        deterministic = iqm([group.final_deterministic[ended]]) if ended.any() else None
        steps = np.array([run.steps[-1] for run in group.runs])
        further = (group.further.get(key) for key in metrics)
        medians = np.median(steps), np.median(group.seconds)
        yield [env, name, None, score.estimate, *_bounds(score, group), deterministic, *medians, *further]
        each = [x if has_ended else None for x, has_ended in zip(group.final_deterministic, ended, strict=True)]
        values: list[Any] = [group.final, each, steps, group.seconds, *(group.metric(key) for key in metrics)]
        for run, x, *others in zip(group.runs, *values, strict=True):
            yield [env, name, run.seed, x, None, None, *others]


def _curves(study: Study) -> Iterator[list[Any]]:
    for (name, env), group in study.groups.items():
        steps, returns = group.curve
        seconds = np.median([np.interp(steps, run.steps, run.seconds) for run in group.runs], axis=0)
        for *point, x, low, high in zip(steps, seconds, *returns, strict=True):
            yield [env, name, None, *point, x, *_bounds(Interval(x, low, high), group)]
        for run in group.runs:
            for values in zip(run.steps, run.seconds, run.stochastic, strict=True):
                yield [env, name, run.seed, *values, None, None]


def _bounds(interval: Interval, group: Group) -> tuple[float | None, float | None]:
    drawn = interval.low < interval.high or are_comparable([group.final], [group.final])
    return (interval.low, interval.high) if drawn else (None, None)


def _csv(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV, with seven digits of a number that is not whole; None is an empty cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(one_line, head))
    writer.writerows([_cell(x) for x in row] for row in rows)
    return file.getvalue()


def _cell(x: Any) -> str:
    if x is None:
        return ""
    if isinstance(x, str):
        return one_line(x)
    return f"{x:.0f}" if float(x).is_integer() else f"{x:.7g}"
