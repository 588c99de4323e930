"""The report on result folders: one page of HTML that needs nothing beside it, and the same in Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlzoo.benchmark import figures, tables
from rlzoo.benchmark.figures import Row
from rlzoo.benchmark.page import (
    Banner,
    Block,
    Code,
    Legend,
    Page,
    Plot,
    Plots,
    Prose,
    Section,
    Table,
    to_html,
    to_markdown,
)
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.statistics import iqm_interval, performance_profile
from rlzoo.benchmark.study import Study
from rlzoo.benchmark.tables import Styles
from rlzoo.benchmark.words import between, bracket, count, enumeration, fixed, integer, one_line, plain, seeds
from rlzoo.runs.files import write_atomically

_STATISTICS = (
    "A run is one number: its mean undiscounted return over complete episodes at the end, on environments whose seeds "
    "training has not met. Runs are summed up by the interquartile mean (IQM), the mean of their middle half, which "
    "makes use of more of them than the median and is not moved by one that went astray. Brackets and bands are "
    "95\u202f% intervals: percentiles of 2000 stratified bootstrap resamples, which draw the runs of each environment "
    "anew from its own; for medians, two order statistics.",
    "The probability of improvement is the chance that a run of one algorithm, drawn blindly, ends above one of "
    "another, ties counting half; the performance profile is the share of runs above each score, as a mean over "
    "environments. A score that is not a number counts as worse than any other. An algorithm is told from another only "
    "if the interval of that probability lies above one half, and if the runs are not so few that even their clearest "
    "order would come by chance once in twenty times.",
)
_REFERENCE = (
    "The measures are those of R. Agarwal, M. Schwarzer, P. S. Castro, A. Courville and M. G. Bellemare, “Deep "
    "reinforcement learning at the edge of the statistical precipice”, NeurIPS 2021,"
)
_EVERY_RUN = "Final scores of every run, a column for each seed: with sampled actions, and in brackets with modes."


def write_report(results: Sequence[Results], out: Path) -> tuple[Path, Path]:
    """Writes `report.html`, `report.md` and the Markdown's images, `figures/*.svg`, into a folder; `overview.svg` among
    them is for other pages.

    Equal results give equal bytes.

    Returns:
        The paths of the HTML and of the Markdown.

    Raises:
        ConfigError: there are no results, or a folder is there twice.
        OSError: a file cannot be written.
    """
    study = Study.of(results)
    page = make_page(study)
    html, markdown = out / "report.html", out / "report.md"
    for plot in page.plots():
        write_atomically(out / plot.path, plot.svg.encode())
    if study.groups:
        styles = figures.styles(study.algorithms.values())
        svg = figures.overview(learning_curves(study), styles, "steps")
        write_atomically(out / "figures" / "overview.svg", svg.encode())
    write_atomically(html, to_html(page).encode())
    write_atomically(markdown, to_markdown(page).encode())
    return html, markdown


def make_page(study: Study) -> Page:
    """What the report says, section by section."""
    styles = figures.styles(study.algorithms.values())
    titles = dict.fromkeys(folder.title for folder in study.folders.values())
    sections = [
        Section("Summary", _summary(study)),
        Section("Learning curves", _learning_curves(study, styles)),
        Section("Overall", _overall(study, styles)),
        Section("Final scores", _filled(tables.final_scores(study, styles))),
        Section("Time to threshold", _filled(tables.time_to_threshold(study, styles))),
        Section("Wall-clock time", _filled(tables.wall_clock(study, styles))),
        Section("Against peers", _pairs(study, styles, study.peers, "peer")),
        Section("Folder against folder", _pairs(study, styles, study.namesakes, "folders")),
        Section("Every run", [Prose(_EVERY_RUN), *tables.every_run(study, styles)]),
        Section("Settings", tables.settings(study)),
        Section("How it was made", _making(study)),
    ]
    return Page(" · ".join(titles), [section for section in sections if section.blocks])


def _summary(study: Study) -> list[Block]:
    descriptions = "\n\n".join(dict.fromkeys(folder.description for folder in study.folders.values()))
    blocks: list[Block] = [Prose(" ".join(text.split())) for text in descriptions.split("\n\n") if text.strip()]
    blocks += _banner(study)
    for name, folder in study.folders.items():
        blocks.append(Prose(_extent(folder), f"Folder {name}: {folder.title}" if len(study.folders) > 1 else ""))
        if command := folder.record.get("command"):
            blocks.append(Code(one_line(command, length=2000)))
    return blocks + [Prose(text) for text in (_differences(study), _finding(study), _caution(study)) if text]


def _banner(study: Study) -> list[Block]:
    """What is not as it was asked for."""
    items: dict[str, list[str]] = {"failed": [], "missing": [], "diverged": []}
    for name, folder in study.folders.items():
        where = f" ({name})" if len(study.folders) > 1 else ""
        for x in folder.failures:
            items["failed"].append(f"{x.label} on {x.env}, seed {x.seed}{where} failed: {one_line(x.error)}")
        for label, env, seed in folder.missing:
            items["missing"].append(f"{label} on {env}, seed {seed}{where} is missing")
        for run in folder.outcomes:
            if not np.isfinite(np.array([run.final_stochastic, *run.stochastic], float)).all():
                items["diverged"].append(f"{run.label} on {run.env}, seed {run.seed}{where} diverged")
    said = [] if study.groups else ["No run has finished yet, so there is nothing to compare."]
    said += [f"{count(len(items['failed']), 'run')} failed."] if items["failed"] else []
    said += [f"{count(len(items['missing']), 'run')} missing."] if items["missing"] else []
    said += [f"{count(len(items['diverged']), 'run')} with scores that are not numbers."] if items["diverged"] else []
    return [Banner(" ".join(said), [item for kind in items.values() for item in kind])] if said else []


def _extent(folder: Results) -> str:
    """How many runs, seeds and steps."""
    environments = folder.environments.values()
    planned = len(folder.outcomes) + len(folder.failures) + len(folder.missing)
    whole = len(folder.outcomes) == planned
    finished = "all finished" if whole else f"of which {integer(len(folder.outcomes))} finished"
    return (
        f"{count(len(folder.labels), 'algorithm')} in {count(len(environments), 'environment')} with "
        f"{count(len(folder.seeds), 'seed')} ({seeds(folder.seeds)}): {count(planned, 'run')}, {finished}. "
        f"A run trains for {between([x.total_steps for x in environments])} steps. Every "
        f"{between([x.eval_interval for x in environments])} steps it plays {count(folder.eval_episodes, 'episode')} "
        f"with sampled actions and as many with the policy's modes, and at the end "
        f"{integer(folder.final_episodes)} of each."
    )


def _differences(study: Study) -> str:
    """Budgets that the folders do not share."""
    found = []

    def compare(what: str, values: dict[str, Any]) -> None:
        if len(set(values.values())) > 1:
            told = [f"{'none' if x is None else plain(x)} in {name}" for name, x in values.items()]
            found.append(f"{what} ({', '.join(told)})")

    for env in study.environments:
        there = {name: x.environments[env] for name, x in study.folders.items() if env in x.environments}
        for field in ("total_steps", "eval_interval", "threshold"):
            compare(f"{field} of {env}", {name: getattr(x, field) for name, x in there.items()})
    for field in ("eval_episodes", "final_episodes"):
        compare(field, {name: getattr(x, field) for name, x in study.folders.items()})
    return f"Mind that the folders differ in {'; '.join(found)}." if found else ""


def _finding(study: Study) -> str:
    """Which algorithm comes out first, and from which others the runs tell it."""
    names, environments = study.overall
    if len(study.environments) == 1:
        environments = list(study.environments)
        where, what, digits = f"In {environments[0]}", "final scores", tables.score_digits(study, environments[0])
        scores = {name: iqm_interval([group.final]) for name, group in study.within(environments[0]).items()}
    elif len(environments) > 1:
        where, what, digits = f"Over {len(environments)} environments", "normalised final scores", 2
        scores = {name: iqm_interval(study.normalised_final(name)) for name in names}
    else:
        return ""
    if len(scores) < 2:
        return ""
    best = max(scores, key=lambda name: scores[name].estimate)
    number = f"{fixed(scores[best].estimate, digits)} {bracket(scores[best], digits)}"
    alike = [name for name in scores if name != best and not study.beats(best, name, environments)]
    rest = f"do not tell it from {enumeration(alike)}" if alike else "tell it from each of the others"
    return f"{where}, {best} has the highest interquartile mean of {what}, {number}. These runs {rest}."


def _caution(study: Study) -> str:
    most = max((len(group.runs) for group in study.groups.values()), default=0)
    if not 0 < most <= 5:
        return ""
    if most == 1:
        return "There is one run of each, so intervals have no width: nothing here tells merit from luck."
    return f"With at most {most} runs of each, intervals are too narrow: take small differences for noise."


def _learning_curves(study: Study, styles: Styles) -> list[Block]:
    panels = learning_curves(study)
    plots = []
    for number, (env, (series, level)) in enumerate(panels.items(), 1):
        size = figures.LARGE if len(panels) == 1 else figures.SMALL
        svg = figures.curves(series, styles, title=env, xlabel="steps", ylabel="return", line=level, size=size)
        plots.append(Plot(f"curves-{number}", svg, f"Learning curves in {env}"))
    if not plots:
        return []
    caption = (
        "Interquartile mean over the runs of the mean return with sampled actions, and its 95\u202f% interval. "
        "Runs are interpolated linearly between their evaluations."
    )
    drawn = {name: styles[name] for name in study.algorithms if any(name == x for x, _ in study.groups)}
    line = "threshold" if any(x.threshold is not None for x in study.environments.values()) else ""
    return [Legend(drawn, line, Plot("legend", figures.legend(drawn, line), "Legend")), Plots(plots, caption)]


def learning_curves(study: Study) -> dict[str, tuple[figures.Series, float | None]]:
    """By environment: the algorithms' interquartile means over steps with their intervals, and the threshold."""
    found: dict[str, tuple[figures.Series, float | None]] = {}
    for env, environment in study.environments.items():
        within = study.within(env)
        series = {name: (x.grid, iqm_interval([x.curves(x.grid)])) for name, x in within.items()}
        if series:
            found[env] = series, environment.threshold
    return found


def _overall(study: Study, styles: Styles) -> list[Block]:
    names, environments = study.overall
    if len(study.environments) < 2 or not study.groups:
        return []
    if len(environments) < 2:
        return [Prose("No algorithm has runs in two environments whose scores can be normalised.")]
    text = (
        f"Normalised scores of {enumeration(environments)} together: 0 is the mean return before training; 1 is the "
        "threshold, or where there is none the best final score (IQM) of an algorithm."
    )
    without = [env for env in study.environments if env not in environments]
    text += f" Without {enumeration(without)}, for want of runs or of a scale." if without else ""
    left_out = [name for name in study.algorithms if name not in names]
    text += f" Without {enumeration(left_out)}, for want of runs in some of them." if left_out else ""
    final = {name: study.normalised_final(name) for name in names}
    rows = [Row(name, iqm_interval(samples), styles[name]) for name, samples in final.items()]
    efficiency = {name: (study.shares, iqm_interval(study.normalised_curves(name))) for name in names}
    scores = np.concatenate([sample for samples in final.values() for sample in samples])
    scores = scores[np.isfinite(scores)]
    taus = np.linspace(min(0.0, *scores), max(1.0, *scores), 101)
    profiles = {name: (taus, performance_profile(samples, taus)) for name, samples in final.items()}
    ends = figures.intervals(rows, title="Final score", xlabel="normalised score, IQM", line=1)
    speed = figures.curves(
        efficiency, styles, title="Sample efficiency", xlabel="share of the budget", ylabel="normalised score, IQM",
        line=1, percent=True,
    )  # fmt: skip
    spread = figures.curves(
        profiles, styles, title="Performance profile", xlabel="normalised score τ", ylabel="share of runs above τ"
    )
    plots = [
        Plot("overall", ends, "Interquartile means of normalised final scores"),
        Plot("efficiency", speed, "Normalised score against the share of the budget"),
        Plot("profile", spread, "Share of runs above each normalised score"),
    ]
    caption = "Where runs end, how soon they get there, and how they spread. Bars and bands are 95\u202f% intervals."
    compared: list[Block] = [tables.improvement(study, styles)] if len(names) > 1 else []
    return [Prose(text), Plots(plots, caption), *compared]


def _pairs(study: Study, styles: Styles, against: Sequence[tuple[str, str]], kind: str) -> list[Block]:
    if not against:
        return []
    plots = []
    for number, (ours, theirs) in enumerate(against, 1):
        environments = study.shared(ours, theirs)
        rows = [Row(env, study.better(ours, theirs, [env]), styles[ours]) for env in environments]
        if len(environments) > 1:
            rows.append(Row("all together", study.better(ours, theirs, environments), styles[ours]))
        title = f"{ours} and {theirs}"
        svg = figures.intervals(
            rows, title=title, xlabel="probability that the first is better", line=0.5, limits=(0, 1)
        )
        plots.append(Plot(f"{kind}-{number}", svg, f"Probability that {ours} is better than {theirs}"))
    caption = "Probability that a run of the first ends above one of the second, and its 95\u202f% interval."
    blocks: list[Block] = [Plots(plots, caption), tables.pairs(study, against)]
    machines = [folder.record.get("machine") for folder in study.folders.values()]
    if any(machine != machines[0] for machine in machines):
        blocks.append(Prose("The folders come from different machines: times of one do not compare with another's."))
    return blocks


def _making(study: Study) -> list[Block]:
    reference = Prose(_REFERENCE, link="arXiv:2108.13264", url="https://arxiv.org/abs/2108.13264")
    return [*map(Prose, _STATISTICS), reference, tables.budgets(study), tables.records(study)]


def _filled(table: Table) -> list[Block]:
    """The table without groups that have no rows; nothing if none has."""
    groups = [(title, rows) for title, rows in table.groups if rows]
    return [dataclasses.replace(table, groups=groups)] if groups else []
