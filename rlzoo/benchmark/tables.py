"""The tables of a report. Each takes the study, and the styles that algorithms are drawn in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rlzoo.benchmark.figures import Style
from rlzoo.benchmark.page import Cell, Details, Mark, Table
from rlzoo.benchmark.statistics import Interval, iqm_interval, median_interval, retention
from rlzoo.benchmark.study import Group, Study
from rlzoo.benchmark.words import NOTHING, bracket, digits_for, duration, fixed, integer, one_line, plain, significant

Styles = Mapping[str, Style]


def improvement(study: Study, styles: Styles) -> Table:
    """Every algorithm against every other, over all environments of `study.overall`."""
    names, environments = study.overall
    found = {}
    for i, row in enumerate(names):
        for column in names[i + 1 :]:
            found[row, column] = p = study.better(row, column, environments)
            found[column, row] = Interval(1 - p.estimate, 1 - p.high, 1 - p.low)
    rows = [
        [
            _name(row, styles),
            *(Cell(NOTHING) if row == column else _probability(found[row, column]) for column in names),
        ]
        for row in names
    ]
    caption = "Probability that a run of the row's algorithm ends above one of the column's, over these environments."
    return Table(["", *names], [("", rows)], caption, layout="stacked")


def final_scores(study: Study, styles: Styles) -> Table:
    """IQMs of the final scores, and medians of what else a task says."""
    further = list(dict.fromkeys(key for group in study.groups.values() for key in group.further))
    groups = []
    for env, environment in study.environments.items():
        within, digits = study.within(env), score_digits(study, env)
        scores = {name: iqm_interval([group.final]) for name, group in within.items()}
        best = max(scores, key=lambda name: scores[name].estimate, default="")
        place = _scale([*scores.values(), environment.threshold])
        rows = []
        for name, group in within.items():
            strong = len(within) > 1 and not study.beats(best, name, [env])
            mark = place(scores[name], styles[name], environment.threshold)
            modes = iqm_interval([group.final_modes])
            seeds = study.folders[study.algorithms[name].folder].seeds
            rows.append([
                _name(name, styles),
                _score(scores[name], digits, strong=strong, mark=mark),
                _score(modes, digits),
                *(Cell(significant(group.further[key]) if key in group.further else NOTHING) for key in further),
                Cell(f"{len(group.runs)} of {len(seeds)}"),
            ])  # fmt: skip
        groups.append((_with_threshold(env, environment.threshold), rows))
    caption = (
        "Interquartile means of final scores and their 95\u202f% intervals, with sampled actions and with the policy's "
        "modes. Bold: the best with sampled actions, and all that these runs do not tell from it."
    ) + (" The columns after them are medians over the runs." if further else "")
    return Table(["Algorithm", "Sampled actions", "Modes", *further, "Runs"], groups, caption)


def time_to_threshold(study: Study, styles: Styles) -> Table:
    """Only environments that have a threshold."""
    groups = []
    solvable = {env: x.threshold for env, x in study.environments.items() if x.threshold is not None}
    for env, threshold in solvable.items():
        within = study.within(env)
        place = _scale([0, *(group.environment.total_steps for group in within.values())])
        rows = []
        for name, group in within.items():
            runs = len(group.runs)
            steps, seconds = group.reaching(threshold)
            median = median_interval(steps)
            rows.append([
                _name(name, styles),
                *(
                    [
                        Cell(integer(median.estimate), bracket(median, 0), mark=place(median, styles[name])),
                        Cell(significant(float(np.median(seconds)))),
                    ]
                    if np.isfinite(steps).any()
                    else [Cell(NOTHING)] * 2
                ),
                Cell(f"{np.isfinite(steps).sum()} of {runs}"),
                Cell(f"{round(retention(group.final, threshold) * runs)} of {runs}"),
            ])  # fmt: skip
        groups.append((_with_threshold(env, threshold), rows))
    caption = (
        "Steps and seconds of training until the first evaluation with sampled actions that reaches the threshold: "
        "medians over all runs, a run that never does being ∞. Kept: runs whose final score is not below the threshold."
    )
    return Table(["Algorithm", "Steps", "Seconds", "Reached", "Kept"], groups, caption)


def wall_clock(study: Study, styles: Styles) -> Table:
    """Seconds of training, and steps per second."""

    def cell(group: Group | None) -> Cell:
        if group is None:
            return Cell(NOTHING)
        seconds, pace = float(np.median(group.seconds)), float(np.median(group.pace))
        return Cell(f"{significant(seconds)} s", f"({integer(pace)}/s)")

    names = [name for name in study.algorithms if any(name == x for x, _ in study.groups)]
    rows = [
        [_name(name, styles), *(cell(study.groups.get((name, env))) for env in study.environments)] for name in names
    ]
    caption = (
        "Median seconds of training of a run, and in brackets steps per second. Evaluations are not counted; "
        "the other runs of the suite went on beside."
    )
    return Table(["Algorithm", *study.environments], [("", rows)], caption, layout="stacked")


def pairs(study: Study, against: Sequence[tuple[str, str]]) -> Table:
    """Two algorithms at a time, environment by environment."""
    groups = []
    for ours, theirs in against:
        environments = study.shared(ours, theirs)
        rows = []
        for env in environments:
            a, b, digits = study.groups[ours, env], study.groups[theirs, env], score_digits(study, env)
            ratio = _ratio(np.median(b.pace), np.median(a.pace))
            rows.append([
                Cell(env),
                _probability(study.better(ours, theirs, [env])),
                _score(iqm_interval([a.final]), digits),
                _score(iqm_interval([b.final]), digits),
                Cell(ratio),
            ])  # fmt: skip
        if len(environments) > 1:
            together = _probability(study.better(ours, theirs, environments))
            rows.append([Cell("all together"), together, *[Cell("")] * 3])
        groups.append((f"{ours} and {theirs}", rows))
    caption = (
        "Probability that a run of the first ends above one of the second; the final scores of both (IQM); and seconds "
        "of training a step, those of the first divided by those of the second: below 1, the first is quicker."
    )
    head = ["Environment", "First is better", "Score of the first", "Score of the second", "Time ratio"]
    return Table(head, groups, caption, group_head="Pair")


def _ratio(x: Any, y: Any) -> str:
    return fixed(float(x) / float(y), 2) if y > 0 and math.isfinite(x) and math.isfinite(y) else NOTHING


def every_run(study: Study, styles: Styles) -> list[Details]:
    """Final scores by algorithm and seed, an environment at a time."""
    tables = []
    for env in study.environments:
        folders = {name: folder for name, folder in study.folders.items() if env in folder.environments}
        seeds = sorted({seed for folder in folders.values() for seed in folder.seeds})
        rows = [
            [_name(name, styles), *(_run(study, name, env, seed) for seed in seeds)]
            for name, algorithm in study.algorithms.items()
            if algorithm.folder in folders
        ]
        table = Table(["Algorithm", *map(str, seeds)], [("", rows)], layout="stacked")
        tables.append(Details(env, [table]))
    return tables


def _run(study: Study, name: str, env: str, seed: int) -> Cell:
    algorithm, group = study.algorithms[name], study.groups.get((name, env))
    folder, digits = study.folders[algorithm.folder], score_digits(study, env)
    if group is not None and seed in (seeds := [run.seed for run in group.runs]):
        i = seeds.index(seed)
        return Cell(fixed(group.final[i], digits), f"({fixed(group.final_modes[i], digits)})")
    if any((x.label, x.env, x.seed) == (algorithm.label, env, seed) for x in folder.failures):
        return Cell("failed")
    return Cell("missing" if seed in folder.seeds else NOTHING)


def settings(study: Study) -> list[Details]:
    """All settings of an algorithm, an environment a column."""
    tables = []
    for name in study.algorithms:
        columns = {env: _flat(study.groups[name, env]) for env in study.environments if (name, env) in study.groups}
        keys = dict.fromkeys(key for column in columns.values() for key in column)
        rows = [[Cell(key), *(Cell(column.get(key, NOTHING)) for column in columns.values())] for key in keys]
        if rows:
            tables.append(Details(name, [Table(["Setting", *columns], [("", rows)], layout="text")]))
    return tables


def _flat(group: Group) -> dict[str, str]:
    """Settings by name, dotted where they are nested; several values if runs of different seeds differ in one."""
    found: dict[str, dict[str, None]] = {}

    def walk(settings: Mapping[str, Any], prefix: str) -> None:
        for key, value in settings.items():
            if isinstance(value, dict) and value:
                walk(value, f"{prefix}{key}.")
            elif prefix or key not in ("seed", "env"):
                found.setdefault(prefix + key, {})[one_line(value)] = None

    for run in group.runs:
        walk(run.settings, "")
    return {key: " / ".join(values) for key, values in found.items()}


def budgets(study: Study) -> Table:
    """What was asked of each environment, and the scale of its scores."""
    rows = []
    for env, x in study.environments.items():
        digits = score_digits(study, env)
        scale = [fixed(score, digits) for score in study.scales.get(env, ())] or [NOTHING, NOTHING]
        threshold = NOTHING if x.threshold is None else plain(x.threshold)
        rows.append([Cell(text) for text in (env, integer(x.total_steps), integer(x.eval_interval), threshold, *scale)])
    head = ["Environment", "Steps", "Evaluated every", "Threshold", "Normalised 0", "Normalised 1"]
    return Table(head, [("", rows)], "Budgets, and the returns that normalised scores are measured by.")


def records(study: Study) -> Table:
    """Commands, machines and versions, a folder a column."""
    columns = [_facts(folder.record) for folder in study.folders.values()]
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [[Cell(key), *(Cell(column.get(key, NOTHING)) for column in columns)] for key in keys]
    return Table(["", *study.folders], [("", rows)], "What made the results.", layout="text")


def _facts(record: Mapping[str, Any]) -> dict[str, str]:
    facts = {"command": record.get("command"), "commit": record.get("git_commit")}
    if seconds := record.get("wall_seconds"):
        facts["time in all"] = duration(seconds)
    facts |= {key.replace("memory_gib", "memory, GiB"): x for key, x in (record.get("machine") or {}).items()}
    facts |= record.get("versions") or {}
    return {key: one_line(value) for key, value in facts.items() if value is not None}


def score_digits(study: Study, env: str) -> int:
    """Digits after the point for the returns of an environment, by how far first, last and threshold lie apart."""
    runs = [run for group in study.within(env).values() for run in group.runs]
    scores = [x for run in runs for x in (run.stochastic[0], run.final_stochastic)]
    values = np.array([study.environments[env].threshold, *scores], float)
    values = values[np.isfinite(values)]
    return digits_for(float(np.ptp(values)) if values.size else 0.0)


def _name(name: str, styles: Styles) -> Cell:
    return Cell(name, style=styles[name])


def _with_threshold(env: str, threshold: float | None) -> str:
    return env if threshold is None else f"{env}, threshold {plain(threshold)}"


def _score(interval: Interval, digits: int, *, strong: bool = False, mark: Mark | None = None) -> Cell:
    return Cell(fixed(float(interval.estimate), digits), bracket(interval, digits), strong=strong, mark=mark)


def _probability(p: Interval) -> Cell:
    return Cell(fixed(float(p.estimate), 2), bracket(p, 2), tint=round(2 * float(p.estimate) - 1, 2))


def _scale(values: Iterable[Any]) -> Callable[..., Mark]:
    """Marks on the scale on which all finite numbers among the values have a place."""
    numbers = np.concatenate([[], *(np.ravel(x) for x in values if x is not None)])
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)

    def at(x: float) -> float:
        return round(float(np.clip(3 + 94 * (x - low) / ((high - low) or 1), 0, 100)), 2)

    def place(interval: Interval, style: Style, line: float | None = None) -> Mark:
        estimate = at(interval.estimate) if np.isfinite(interval.estimate) else None
        return Mark(at(interval.low), estimate, at(interval.high), None if line is None else at(line), style)

    return place
