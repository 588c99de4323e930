"""The report of the comparison: `report.md`, `figures/*.svg` and the numbers, `estimates.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rlzoo.benchmark import figures
from rlzoo.benchmark.estimators import natural
from rlzoo.benchmark.estimators.exact import BETA
from rlzoo.benchmark.estimators.judge import GROUP, GROUPS, Estimate
from rlzoo.benchmark.estimators.study import CHECK, LEARNING_RATE, MINIBATCH, Study
from rlzoo.benchmark.estimators.variants import Variant
from rlzoo.benchmark.formatting import NOTHING, fixed, number
from rlzoo.benchmark.statistics import Interval
from rlzoo.runs.files import write_atomically
from rlzoo.runs.publish.markup import template

_HEAD = ("along g", "enumerated", "cosine", "distance", "p", "noise", "is")
_FIGURES = ("kl", "baselines", "whitening")


def write_report(study: Study, out: Path) -> Path:
    """Writes `report.md`, its figures and `estimates.json` into a folder. Equal studies give equal bytes.

    Returns:
        The path of the report.

    Raises:
        OSError: a file cannot be written.
    """
    for name, svg in draw(study).items():
        write_atomically(out / "figures" / f"{name}.svg", svg.encode())
    write_atomically(out / "estimates.json", (json.dumps(_record(study), indent=1) + "\n").encode())
    page = out / "report.md"
    write_atomically(page, to_markdown(study).encode())
    return page


def to_markdown(study: Study) -> str:
    tables = {
        name: (
            ["estimator", *_HEAD, "setting"],
            [[variant.name, *_cells(estimate), variant.setting] for variant, estimate in found],
        )
        for name, found in study.sections.items()
    }
    tables["natural"] = (
        ["responses for F", "along x", *_HEAD[2:]],
        [[_fisher(responses), *_cells(estimate, enumerated=False)] for responses, estimate in study.natural],
    )
    tables["kl_values"] = (
        ["kl_t", "mean", "relative error of the mean", "standard deviation"],
        [[name, fixed(mean, 4), f"{fixed(100 * (mean / study.facts.kl - 1), 1)} %", fixed(std, 4)]
         for name, mean, std in study.kl],
    )  # fmt: skip
    names = [variant.name for variant, _ in study.stale[0]]
    tables["stale"] = (
        ["minibatches", "KL(π_old ‖ π)", *names],
        [[str(ahead), number(study.moved[ahead], ".2g"), *(_stale_cell(e) for _, e in found)]
         for ahead, found in study.stale.items()],
    )  # fmt: skip
    return template("rlzoo.benchmark.estimators", "report.md.jinja").render(
        study=study, more=CHECK * study.batches, tables=tables, fixed=fixed, number=number,
        beta=BETA, group=GROUP, minibatch=MINIBATCH,
        learning_rate=LEARNING_RATE, damping=natural.DAMPING, cg_iters=natural.CG_ITERS, rows=3 * GROUPS * GROUP,
    )  # fmt: skip


def _cells(estimate: Estimate, enumerated: bool = True) -> list[str]:
    known = estimate.exact_scale is not None
    exact = [fixed(estimate.exact_scale, 4) if estimate.exact_scale is not None else NOTHING] if enumerated else []
    cosine = estimate.exact_cosine if estimate.exact_cosine is not None else estimate.cosine
    bias = estimate.exact_bias if estimate.exact_bias is not None else estimate.bias
    return [
        f"{fixed(estimate.scale, 3)} ± {fixed(estimate.scale_error, 3)}",
        *exact,
        fixed(cosine, 4 if known else 3),
        fixed(bias, 4 if known else 3),
        number(estimate.bias_p, ".2g") if estimate.bias_p > 0.0001 else "0.0001",
        fixed(estimate.noise, 2),
        estimate.verdict,
    ]


def _stale_cell(estimate: Estimate) -> str:
    assert estimate.exact_scale is not None
    assert estimate.exact_cosine is not None
    return f"{fixed(estimate.exact_scale, 3)}; {fixed(estimate.exact_cosine, 4)}; {fixed(estimate.noise, 2)}"


def _fisher(responses: int | None) -> str:
    return "all there are (exact)" if responses is None else str(responses)


def draw(study: Study) -> dict[str, str]:
    """SVG text of the figures by name."""
    found = {}
    for name in _FIGURES:
        section = study.sections[name]
        found[name] = figures.grid(
            [
                partial(figures.intervals, rows=_rows(section, _scale), title="Length", level=1,
                        xlabel="mean along the gradient"),
                partial(figures.intervals, rows=_rows(section, _angle), title="Direction", level=0,
                        xlabel="degrees off the gradient"),
                partial(figures.intervals, rows=_rows(section, _noise), title="Noise", level=0,
                        xlabel="std of a batch / mean"),
            ],
            height=0.9 + 0.3 * len(section),
        )  # fmt: skip
    names = [variant.name for variant, _ in study.stale[0]]
    styles = {
        name: {"color": figures.PALETTE[i], "linestyle": figures.LINES[i % len(figures.LINES)]}
        for i, name in enumerate(names)
    }
    x = np.array(list(study.stale))

    def series(measure: Any, most: float = np.inf) -> dict[str, tuple[np.ndarray[Any, Any], Interval]]:
        columns = {}
        for i, name in enumerate(names):
            values = [measure(found[i][1]) for found in study.stale.values()]
            columns[name] = (x, Interval(*(np.minimum(np.array(part), most) for part in zip(*values, strict=True))))
        return columns

    found["stale"] = figures.grid(
        [
            partial(figures.curves, series=series(_scale), styles=styles, title="Length", level=1,
                    xlabel="minibatches ahead of the samples", ylabel="mean along the gradient"),
            partial(figures.curves, series=series(_angle), styles=styles, title="Direction", level=0,
                    xlabel="minibatches ahead of the samples", ylabel="degrees off the gradient"),
            partial(figures.curves, series=series(_noise, most=2.0), styles=styles, title="Noise, cut at 2",
                    xlabel="minibatches ahead of the samples", ylabel="std of a batch / mean"),
            partial(figures.legend, styles=styles),
        ],
    )  # fmt: skip
    return found


def _rows(section: Sequence[tuple[Variant, Estimate]], measure: Any) -> list[tuple[str, Interval, str]]:
    return [(variant.name, measure(x), figures.PALETTE[0]) for variant, x in section]


def _scale(x: Estimate) -> Interval:
    return Interval(x.scale, x.scale - 1.96 * x.scale_error, x.scale + 1.96 * x.scale_error)


def _angle(x: Estimate) -> Interval:
    cosine = x.cosine if x.exact_cosine is None else x.exact_cosine
    degrees = float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    return Interval(degrees, degrees, degrees)


def _noise(x: Estimate) -> Interval:
    return Interval(x.noise, x.noise, x.noise)


def _record(study: Study) -> dict[str, Any]:
    """The numbers of a study as JSON."""

    def named(found: Sequence[tuple[Variant, Estimate]]) -> dict[str, Any]:
        return {variant.name: dataclasses.asdict(x) | {"verdict": x.verdict} for variant, x in found}

    return {
        "batches": study.batches,
        "seed": study.seed,
        "check": dataclasses.asdict(study.check),
        "policy": dataclasses.asdict(study.facts),
        "sections": {name: named(found) for name, found in study.sections.items()},
        "kl": {name: {"mean": mean, "std": std} for name, mean, std in study.kl},
        "stale": {ahead: {"kl": study.moved[ahead], **named(found)} for ahead, found in study.stale.items()},
        "natural": {_fisher(n): dataclasses.asdict(x) | {"verdict": x.verdict} for n, x in study.natural},
    }
