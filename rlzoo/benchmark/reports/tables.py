"""Tables of a report: each is a list of column names and a list of rows of text.

Numbers have commas between thousands, true minus signs, and few digits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from rlzoo.benchmark.reports.statistics import Interval, are_comparable, iqm, iqm_interval, is_better, median_interval
from rlzoo.benchmark.reports.study import Group, Study
from rlzoo.runs.logs.display import duration

Table = tuple[list[str], list[list[str]]]
NOTHING = "–"
_SIGNS = {"-": "−", "inf": "∞", "nan": "NaN"}


def number(x: float, spec: str = ".10g") -> str:
    """A number in a format of Python: '475', '−0.25', '100,000'."""
    text = f"{x:z,{spec}}"
    for sign, shown in _SIGNS.items():
        text = text.replace(sign, shown)
    return text


def fixed(x: float, digits: int) -> str:
    """A number with that many digits after the point: '−1,204.5'."""
    return number(x, f".{digits}f")


def significant(x: float) -> str:
    """A number with three significant digits, and every digit before the point."""
    return fixed(x, _digits(x, 6))


def _digits(x: float, most: int) -> int:
    """Digits after the point, at most so many, with which a number has three significant ones."""
    return min(most, max(0, 2 - math.floor(math.log10(abs(x))))) if math.isfinite(x) and x != 0 else 0


def estimate(interval: Interval, digits: int, enough: bool = True) -> str:
    """An estimate and its bounds: '490.2 [480.1, 493.0]'.

    Bounds that do not differ from it are left out: '500.0', or '500.0 (too few runs)' if there are not `enough`.
    """
    middle, low, high = (fixed(float(x), digits) for x in interval)
    if low == middle == high:
        return middle if enough else f"{middle} (too few runs)"
    return f"{middle} [{low}, {high}]"


def mean(scores: Any, digits: int) -> str:
    """The IQM of (runs,) scores, and its interval."""
    return estimate(iqm_interval([scores]), digits, are_comparable([scores], [scores]))


def mean_metric(values: Any) -> str:
    """The IQM of (runs,) values of a metric with three significant digits, and its interval if they differ."""
    interval = iqm_interval([values[np.isfinite(values)]])
    return estimate(interval, _digits(float(interval.estimate), 4))


def better(study: Study, ours: str, theirs: str, environments: Sequence[str]) -> str:
    """The probability of improvement of one algorithm on another, and its interval."""
    enough = study.are_comparable(ours, theirs, environments)
    return estimate(study.better(ours, theirs, environments), 2, enough)


def excerpt(text: Any, length: int = 300) -> str:
    """Text without line breaks and control characters, cut to `length`."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def improvement(study: Study) -> Table:
    """Probability of improvement of each algorithm on each other, over the environments of `study.overall`."""
    names, environments = study.overall
    cells = {}
    for ours, theirs in itertools.combinations(names, 2):
        p, enough = study.better(ours, theirs, environments), study.are_comparable(ours, theirs, environments)
        cells[ours, theirs] = estimate(p, 2, enough)
        cells[theirs, ours] = estimate(Interval(1 - p.estimate, 1 - p.high, 1 - p.low), 2, enough)
    rows = [[row, *(cells.get((row, x), NOTHING) for x in names)] for row in names]
    return ["Algorithm", *names], rows if len(names) > 1 else []


def score_cells(scores: Mapping[str, Any], digits: int, bold: bool = True) -> dict[str, str]:
    """IQMs of (runs,) scores by name. The best is bold, and so are those without a significant difference from it.

    Nothing is bold if one has too few runs to tell.
    """
    best = max(scores, key=lambda name: float(iqm([scores[name]])), default="")
    cells = {name: mean(x, digits) for name, x in scores.items()}
    bold = bold and all(are_comparable([scores[best]], [scores[name]]) for name in scores if name != best)
    for name, cell in cells.items():
        if bold and not is_better([scores[best]], [scores[name]]):
            middle, space, bounds = cell.partition(" ")
            cells[name] = Markup("**{}**{}{}").format(middle, space, bounds)
    return cells


def final_scores(study: Study) -> Table:
    """IQMs of final scores and of the task's own metrics; medians of training time.

    No score is bold if there is one algorithm, or if scores are drawn against a metric.
    """
    further = list(dict.fromkeys(key for group in study.groups.values() for key in group.further))
    rows = []
    for env in study.environments:
        within, digits = study.within(env), score_digits(study, env)
        bold = len(within) > 1 and not study.against
        scores = score_cells({name: group.final for name, group in within.items()}, digits, bold)
        for name, group in within.items():
            deterministic = group.final_deterministic[group.ended]
            rows.append([
                env,
                name,
                scores[name],
                mean(deterministic, digits) if len(deterministic) else NOTHING,
                *(mean_metric(group.metric(key)) if key in group.further else NOTHING for key in further),
                significant(float(np.median(group.seconds))),
                fixed(float(np.median(group.pace)), 0),
                f"{len(group.runs)} of {study.num_planned(name, env)}",
            ])  # fmt: skip
    head = ["Environment", "Algorithm", "Stochastic", "Deterministic", *further, "Seconds", "Steps per second", "Runs"]
    return head, rows


def at_equal(study: Study) -> Table:
    """IQMs of scores at equal values of the metric `against`, over the seeds that have it if most do."""
    levels = {env: study.at_equal(env) for env in study.environments}
    names = list(dict.fromkeys(name for x in levels.values() for scores in x.values() for name in scores))
    rows = []
    for env, by_level in levels.items():
        for level, scores in by_level.items():
            reached = {name: x[np.isfinite(x)] for name, x in scores.items() if 2 * np.isfinite(x).sum() > len(x)}
            cells = score_cells(reached, score_digits(study, env))
            rows.append([env, fixed(level, 2), *(cells.get(name, NOTHING) for name in names)])
    return ["Environment", str(study.against), *names], rows


def time_to_threshold(study: Study) -> Table:
    """Medians of steps and seconds up to the threshold, for the environments that have one."""
    rows = []
    for (name, env), group in study.groups.items():
        threshold = study.environments[env].threshold
        if threshold is None:
            continue
        runs, (steps, seconds) = len(group.runs), group.reaching(threshold)
        median, reached = median_interval(steps), np.isfinite(steps).sum()
        enough = are_comparable([steps], [steps])
        times = [estimate(median, 0, enough), significant(float(np.median(seconds)))] if reached else [NOTHING] * 2
        kept = (group.final >= threshold).sum()
        rows.append([env, name, number(threshold), *times, f"{reached} of {runs}", f"{kept} of {runs}"])
    return ["Environment", "Algorithm", "Threshold", "Steps", "Seconds", "Reached", "Kept"], rows


def pairs(study: Study) -> Table:
    """The pairs of `study.pairs`, in each environment that they share and over all of these."""
    rows = []
    for ours, theirs in study.pairs:
        environments = study.common_environments(ours, theirs)
        for env in environments:
            a, b, digits = study.groups[ours, env], study.groups[theirs, env], score_digits(study, env)
            x, y = float(np.median(b.pace)), float(np.median(a.pace))
            ratio = fixed(x / y, 2) if y > 0 and math.isfinite(x) and math.isfinite(y) else NOTHING
            scores = [mean(group.final, digits) for group in (a, b)]
            rows.append([ours, theirs, env, better(study, ours, theirs, [env]), *scores, ratio])
        if len(environments) > 1:
            rows.append([ours, theirs, "all", better(study, ours, theirs, environments), *[NOTHING] * 3])
    head = ["First", "Second", "Environment", "P(first is better)", "Score of first", "Score of second", "Time ratio"]
    return head, rows


UPDATES = {
    "kl_median": "KL, median", "kl_p95": "KL, 95th percentile", "kl_above": "Updates with KL above 0.01",
    "kl_above_bound": "Updates with KL above δ", "surrogate_fell": "Updates with lower surrogate",
    "return_fell": "Buffers with lower return", "ratio_outside": "Ratios outside 1 ± 0.2",
    "ratio_p95": "Largest ratio, 95th percentile", "backtracks": "Backtracks", "rejected": "Updates rejected",
}  # fmt: skip
"""Columns by the names of `Updates.summary`."""


def updates_columns(groups: Iterable[Group]) -> dict[str, str]:
    """Those of `UPDATES` that some of the groups have."""
    measured = {key for group in groups for key in group.updates}
    return {key: title for key, title in UPDATES.items() if key in measured}


def updates(study: Study) -> Table:
    """Medians over the runs of what their updates did, and of the seconds of training that 1,000 steps take."""
    rows, columns = [], updates_columns(study.groups.values())
    for (name, env), group in study.groups.items():
        if values := group.updates:
            cells = (significant(values[key]) if key in values else NOTHING for key in columns)
            rows.append([env, name, *cells, significant(1000 * float(np.median(1 / group.pace)))])
    return ["Environment", "Algorithm", *columns.values(), "Seconds per 1,000 steps"], rows


def responses(study: Study) -> Table:
    """Of each algorithm's first run: the response to the first prompt before and after, and the farthest response."""
    rows = []
    for (name, env), group in study.groups.items():
        samples = group.runs[0].samples
        for kind in ("before", "after", "farthest") if samples else ():
            x = samples[kind][0]
            prompt, response = excerpt(x["prompt"], 2000), excerpt(x["response"])
            prompt = prompt if len(prompt) <= 90 else f"…{prompt[-90:]}"  # a chat template puts the question last
            rows.append([env, name, kind, significant(x["score"]), significant(x["kl"]), prompt, response])
    return ["Environment", "Algorithm", "", "Score", "KL, nats", "Prompt", "Response"], rows


def every_run(study: Study) -> Table:
    """Final stochastic scores of all runs."""
    rows = []
    for (name, env), group in study.groups.items():
        digits = score_digits(study, env)
        scores = [f"{run.seed}: {fixed(x, digits)}" for run, x in zip(group.runs, group.final, strict=True)]
        rows.append([env, name, ", ".join(scores)])
    return ["Environment", "Algorithm", "Final score by seed"], rows


_ELSEWHERE = ("eval_interval", "eval_episodes", "final_eval_episodes", "checkpoint_interval")
"""Settings of a run that a suite replaces. Other tables of the report have them."""


def settings(study: Study) -> tuple[Table, dict[str, Table]]:
    """Settings that are the same in all runs that have them; and the others, a table for each algorithm."""
    columns: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    values: dict[str, set[str]] = {}
    for pair, group in study.groups.items():
        column = columns.setdefault(pair, {})
        for key, value in itertools.chain.from_iterable(flat(run.settings) for run in group.runs):
            if key in _ELSEWHERE or (key == "stop_return" and value is None):
                continue
            column.setdefault(key, {})[excerpt(value)] = None
            values.setdefault(key, set()).add(excerpt(value))
    common = [[key, *x] for key, x in values.items() if len(x) == 1]
    tables = {}
    for name in study.algorithms:
        mine = {env: columns[name, env] for env in study.environments if (name, env) in columns}
        keys = dict.fromkeys(key for column in mine.values() for key in column if len(values[key]) > 1)
        rows = [[key, *(" / ".join(x.get(key, [NOTHING])) for x in mine.values())] for key in keys]
        tables[name] = ["Setting", *mine], rows
    return (["Setting", "Value"], common), tables


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of settings, with dots in the names of nested ones."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        elif prefix or key not in ("seed", "env"):
            yield prefix + key, value


def environments(study: Study) -> Table:
    """Budgets, thresholds, and the returns that are normalised to 0 and 1."""
    rows = []
    for env, x in study.environments.items():
        scale = [fixed(score, score_digits(study, env)) for score in study.scales.get(env, ())] or [NOTHING] * 2
        threshold = NOTHING if x.threshold is None else number(x.threshold)
        rows.append([env, number(x.total_steps), number(x.eval_interval), threshold, *scale])
    return ["Environment", "Steps", "Evaluation interval", "Threshold", "Normalised 0", "Normalised 1"], rows


def records(study: Study) -> Table:
    """Suites, commands, machines and versions, with a column for each folder."""
    columns = []
    for folder in study.folders.values():
        record, seconds = folder.record, sum(run.seconds[-1] for run in folder.outcomes)
        facts = {
            "suite": folder.title,
            "seeds": ", ".join(map(str, folder.seeds)),
            "episodes of an evaluation": folder.eval_episodes,
            "episodes of the final evaluation": folder.final_episodes,
            "command": record.get("command"),
            "commit": record.get("git_commit"),
            "training time of all runs": duration(seconds) if seconds else None,
        }
        columns.append(facts | (record.get("machine") or {}) | (record.get("versions") or {}))
    keys = dict.fromkeys(key for column in columns for key, value in column.items() if value is not None)
    return ["Folder", *study.folders], [[key, *(excerpt(x.get(key, NOTHING), 2000) for x in columns)] for key in keys]


def score_digits(study: Study, env: str) -> int:
    """Digits after the point for the returns of an environment: 1 for a range of 500, 3 for one of 2."""
    runs = [run for group in study.within(env).values() for run in group.runs]
    scores = [x for run in runs for x in (run.stochastic[0], run.final_stochastic)]
    values = np.array([study.environments[env].threshold, *scores], float)
    values = values[np.isfinite(values)]
    span = float(np.ptp(values)) if values.size else 0.0
    return min(4, max(0, 3 - math.floor(math.log10(span)))) if span > 0 else 1
