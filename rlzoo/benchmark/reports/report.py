"""The report on result folders: `report.md` with its figures, and `report.html`, one page that loads nothing."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter

from rlzoo.benchmark.reports import figures, interactive, tables
from rlzoo.benchmark.reports.data import numbers
from rlzoo.benchmark.reports.statistics import iqm_interval, is_better, performance_profile
from rlzoo.benchmark.reports.study import Label, Study
from rlzoo.benchmark.reports.tables import estimate, excerpt, number
from rlzoo.benchmark.results import Results
from rlzoo.runs.configuration.record import unequal_versions
from rlzoo.runs.files import remove, write_atomically
from rlzoo.runs.publish.markup import template


def write_report(results: Sequence[Results], out: Path) -> tuple[Path, Path]:
    """Writes `report.html`, `report.md`, the images of the latter, `figures/*.svg`, and their numbers, `*.csv`.

    Equal results give equal bytes. With the extra `report` the page has an interactive chart.

    Returns:
        The paths of the HTML and of the Markdown.

    Raises:
        ConfigError: no results are given, or a folder is given twice.
        OSError: a file cannot be written.
    """
    study = Study.of(results)
    images, markdown, data = draw(study), to_markdown(study), numbers(study)
    script = interactive.script(interactive.chart(study, data)) if images and interactive.is_available() else ""
    files = {"report.html": to_html(markdown, images, study.title, data, script), "report.md": markdown, **data}
    if (out / "figures").is_symlink():
        remove(out / "figures")
    for name, text in (files | {f"figures/{name}.svg": svg for name, svg in images.items()}).items():
        write_atomically(out / name, text.encode())
    return out / "report.html", out / "report.md"


def draw(study: Study) -> dict[str, str]:
    """SVG text of the figures by name: `overview`, `overall` and `pairs`, without those that have no data.

    Or `against` alone, if scores are drawn against a metric.
    """
    if study.against:
        return {"against": _against(study, study.against)}
    styles = figures.styles(study.algorithms.values())
    images = {}
    curves = [partial(_curves, study, env, styles) for env in study.environments if study.within(env)]
    if curves:
        level = "threshold" if any(x.threshold is not None for x in study.environments.values()) else ""
        images["overview"] = figures.grid([*curves, partial(figures.legend, styles=styles, level=level)])
    if study.overall[1]:
        images["overall"] = _overall(study, styles)
    if study.pairs:
        images["pairs"] = figures.grid([partial(_pair, study, *pair, styles) for pair in study.pairs])
    return images


def _curves(study: Study, env: str, styles: figures.Styles, axes: Axes) -> None:
    """The learning curves of an environment."""
    series = {name: group.curve for name, group in study.within(env).items()}
    title, level, steps = env.rpartition(":")[2], study.environments[env].threshold, EngFormatter(sep="")
    figures.curves(axes, series, styles, title=title, level=level, formatter=steps, xlabel="steps", ylabel="return")


def _pair(study: Study, ours: str, theirs: str, styles: figures.Styles, axes: Axes) -> None:
    """The probability of improvement of one algorithm on another, in each environment that they share and in all."""
    shared = study.common_environments(ours, theirs)
    subsets = [([env], env) for env in shared] + [(shared, "all")] * (len(shared) > 1)
    rows = [(label, study.better(ours, theirs, envs), styles[ours]["color"]) for envs, label in subsets]
    title = f"{ours} and {theirs}"
    figures.intervals(axes, rows, title=title, xlabel="P(first is better)", level=0.5, limits=(0, 1))


def _against(study: Study, metric: str) -> str:
    """Scores and a metric of the same evaluation, a panel for each environment that has some."""
    lines = {env: line for env in study.environments if (line := study.lines(env))}
    names = dict.fromkeys(name for groups in lines.values() for name in groups)
    styles = figures.styles(Label(name, name, "") for name in names)
    panels: list[Callable[[Axes], None]] = []
    for env, line in lines.items():
        series = {
            name: [(iqm_interval([x.metric[np.isfinite(x.metric)]]), iqm_interval([x.score])) for x in points]
            for name, points in line.items()
        }
        panels.append(partial(
            figures.against, series=series, styles=styles, title=env.rpartition(":")[2], xlabel=metric, ylabel="score",
        ))  # fmt: skip
    return figures.grid([*panels, partial(figures.legend, styles=styles)], height=3)


def _overall(study: Study, styles: figures.Styles) -> str:
    """Final scores, sample efficiency and performance profile, normalised and over all environments."""
    final = {name: study.normalised_final(name) for name in study.overall[0]}
    curves = {name: study.normalised_curves(name) for name in final}
    efficiency = {name: (shares, iqm_interval(samples)) for name, (shares, samples) in curves.items()}
    scores = np.concatenate([sample for samples in final.values() for sample in samples])
    scores = scores[np.isfinite(scores)]
    taus = np.linspace(min([0.0, *scores]), max([1.0, *scores]), 101)
    profiles = {name: (taus, performance_profile(samples, taus)) for name, samples in final.items()}
    rows = [(name, iqm_interval(samples), styles[name]["color"]) for name, samples in final.items()]
    panels = [
        partial(figures.intervals, rows=rows, title="Final score", xlabel="normalised score, IQM", level=1),
        partial(figures.curves, series=efficiency, styles=styles, title="Sample efficiency", level=1,
                xlabel="share of the budget", ylabel="normalised score, IQM", formatter=PercentFormatter(1)),
        partial(figures.curves, series=profiles, styles=styles, title="Performance profile",
                xlabel="normalised score τ", ylabel="share of runs above τ"),
    ]  # fmt: skip
    return figures.grid(panels, height=max(2.6, 0.9 + 0.25 * len(rows)))


def to_markdown(study: Study) -> str:
    """The report as Markdown for a git host or MkDocs, from the template `report.md.jinja`."""
    runs = [len(group.runs) for group in study.groups.values()] or [0]
    return template("rlzoo.benchmark", "templates/report.md.jinja").render(
        study=study,
        tables=tables,
        descriptions=dict.fromkeys(excerpt(folder.description, 2000) for folder in study.folders.values()),
        problems=_problems(study),
        versions=_list_values(unequal_versions({name: folder.record for name, folder in study.folders.items()})),
        differences=_differences(study),
        finding=_finding(study),
        fewest=min(runs),
        most=max(runs),
    )


def to_html(
    markdown: str, images: Mapping[str, str], title: str, data: Mapping[str, str] | None = None, script: str = ""
) -> str:
    """The Markdown of a report as one HTML page that contains its images, its data as links, and a script."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = parser.parse(markdown)
    for child in itertools.chain.from_iterable(token.children or [] for token in tokens):
        if child.type == "image":
            svg = images[Path(str(child.attrs["src"])).stem].encode()
            child.attrSet("src", f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}")
    return template("rlzoo.benchmark", "templates/report.html.jinja").render(
        title=title,
        body=Markup(parser.renderer.render(tokens, parser.options, {})),
        links={name: f"data:text/csv;charset=utf-8,{quote(text, safe=',')}" for name, text in (data or {}).items()},
        script=Markup(script),
    )


def _problems(study: Study) -> dict[str, list[tuple[str, int]]]:
    """Runs that failed, are missing or diverged: a line for each state of a label's seeds, and for how many runs."""
    seeds: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for name, folder in study.folders.items():
        where = f" ({name})" if len(study.folders) > 1 else ""
        totals = {run.key: run.settings.get("total_steps") for run in folder.outcomes}
        diverged = [run.key for run in folder.outcomes if not np.isfinite(np.array(run.final_stochastic, float))]
        found = [("failed", x.key, f"failed: {excerpt(x.error)}") for x in folder.failures]
        found += [("missing", key, "missing") for key in folder.missing]
        found += [("unfinished", key, f"at step {n:,} of {totals[key]:,}") for key, n in folder.unfinished.items()]
        found += [("diverged", key, "diverged") for key in diverged]
        for kind, (label, env, seed), state in found:
            seeds[kind, label, env, f"{where}: {state}"].append(seed)
    environments: dict[tuple[str, str, tuple[int, ...], str], list[str]] = defaultdict(list)
    for (kind, label, env, state), of_pair in seeds.items():
        environments[kind, label, tuple(of_pair), state].append(env)
    lines: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for (kind, label, same, state), envs in environments.items():
        named = f"seed{'s' * (len(same) > 1)} {', '.join(map(str, same))}"
        lines[kind].append((f"{label} on {', '.join(envs)}, {named}{state}", len(same) * len(envs)))
    return lines


def _differences(study: Study) -> list[str]:
    """Machines, budgets and evaluations that differ between the folders."""
    values: dict[str, dict[str, str]] = {}
    for name, folder in study.folders.items():
        facts: dict[str, Any] = {"processor": (folder.record.get("machine") or {}).get("processor")}
        facts |= {env: dataclasses.asdict(x) for env, x in folder.environments.items()}
        facts |= {"eval_episodes": folder.eval_episodes, "final_episodes": folder.final_episodes}
        for field, value in tables.flat(facts):
            values.setdefault(field, {})[name] = number(value) if isinstance(value, int | float) else excerpt(value)
    return _list_values({field: x for field, x in values.items() if len(set(x.values())) > 1})


def _list_values(values: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Values by folder: 'torch (2.8.0 in A, 2.9.0 in B)'."""
    return [f"{field} ({', '.join(f'{x} in {name}' for name, x in by.items())})" for field, by in values.items()]


def _finding(study: Study) -> dict[str, Any]:
    """The algorithm with the highest normalised score, and those without a significant difference, or too few runs."""
    names, environments = study.overall
    if len(names) < 2 or not environments:
        return {}
    scores = {name: iqm_interval(study.normalised_final(name)) for name in names}
    best = max(scores, key=lambda name: scores[name].estimate)
    finals = {name: study.finals(name, environments) for name in names}
    others = [name for name in names if name != best and not is_better(finals[best], finals[name])]
    alike = [name for name in others if study.are_comparable(best, name, environments)]
    unclear = [name for name in others if name not in alike]
    runs, planned = sum(map(len, finals[best])), sum(study.num_planned(best, env) for env in environments)
    of_runs = "" if runs == planned else f" ({runs} of its {planned} runs)"
    return {"best": best, "score": estimate(scores[best], 2) + of_runs, "alike": alike, "unclear": unclear}
