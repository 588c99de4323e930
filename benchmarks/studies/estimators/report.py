"""The report: `report.md` and `figures/*.svg`, from the numbers of `estimates.json`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.estimators import natural, variants
from benchmarks.studies.estimators.judge import GROUP, GROUPS
from benchmarks.studies.estimators.study import CHECK, LEARNING_RATE, MINIBATCH
from benchmarks.studies.estimators.task import BETA
from rlzoo.benchmark.reports import figures
from rlzoo.benchmark.reports.statistics import Interval
from rlzoo.benchmark.reports.tables import NOTHING, fixed, number
from rlzoo.runs.publish.markup import template

Record = dict[str, Any]
_HEAD = ("along g", "enumerated", "cosine", "distance", "p", "noise", "is")
_SETTINGS = {
    x.name: x.setting for x in (*variants.KL, *variants.BASELINES, *variants.LENGTHS, *variants.WHITENING)
}  # fmt: skip


def write_report(record: Record, out: Path) -> Path:
    """Writes `report.md` and its figures into a folder, and returns the path of the page. Equal records give equal
    bytes."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    for name, svg in draw(record).items():
        (out / "figures" / f"{name}.svg").write_text(svg, encoding="utf-8")
    page = out / "report.md"
    page.write_text(to_markdown(record), encoding="utf-8")
    return page


def to_markdown(record: Record) -> str:
    kl = record["policy"]["kl"]
    tables = {
        name: (["estimator", *_HEAD, "setting"], [[x, *_cells(e), _SETTINGS[x]] for x, e in section.items()])
        for name, section in record["sections"].items()
    }
    tables["natural"] = (
        ["responses for F", "along x", *_HEAD[2:]],
        [[label, *_cells(e, enumerated=False)] for label, e in record["natural"].items()],
    )
    tables["kl_values"] = (
        ["kl_t", "mean", "relative error of the mean", "standard deviation"],
        [[name, fixed(x["mean"], 4), f"{fixed(100 * (x['mean'] / kl - 1), 1)} %", fixed(x["std"], 4)]
         for name, x in record["kl"].items()],
    )  # fmt: skip
    for name, section in record["enumerated"].items():
        rows = [[x, *(fixed(e[part], 4) for part in ("scale", "cosine", "distance"))] for x, e in section.items()]
        tables[name] = (["estimator", "along g, enumerated", "cosine", "distance"], rows)
    tables["kl_gradients"] = (
        ["kl in the loss", "distance to ∇KL(π ‖ π_ref)", "distance to ∇KL(π_ref ‖ π)"],
        [[name, fixed(x["forward"], 4), fixed(x["reverse"], 4)] for name, x in record["kl_gradients"].items()],
    )
    names = [x.name for x in variants.STALE]
    tables["stale"] = (
        ["minibatches", "KL(π_old ‖ π)", *names],
        [[ahead, number(x["kl"], ".2g"), *(_stale_cell(x[name]) for name in names)]
         for ahead, x in record["stale"].items()],
    )  # fmt: skip
    return template("benchmarks.studies.estimators", "report.md.jinja").render(
        study=record, more=CHECK * record["batches"], tables=tables, fixed=fixed, number=number,
        beta=BETA, group=GROUP, minibatch=MINIBATCH,
        learning_rate=LEARNING_RATE, damping=natural.DAMPING, cg_iters=natural.CG_ITERS, rows=3 * GROUPS * GROUP,
    )  # fmt: skip


def _cells(e: Record, enumerated: bool = True) -> list[str]:
    exact = e["exact_scale"] is not None
    cosine, bias = (e["exact_cosine"], e["exact_bias"]) if exact else (e["cosine"], e["bias"])
    return [
        f"{fixed(e['scale'], 3)} ± {fixed(e['scale_error'], 3)}",
        *([fixed(e["exact_scale"], 4) if exact else NOTHING] if enumerated else []),
        fixed(cosine, 4 if exact else 3),
        fixed(bias, 4 if exact else 3),
        number(e["bias_p"], ".2g") if e["bias_p"] > 0.0001 else "0.0001",
        fixed(e["noise"], 2),
        e["verdict"],
    ]


def _stale_cell(e: Record) -> str:
    return f"{fixed(e['exact_scale'], 3)}; {fixed(e['exact_cosine'], 4)}; {fixed(e['noise'], 2)}"


def draw(record: Record) -> dict[str, str]:
    """SVG text of the figures by name."""
    panels: list[tuple[str, Callable[[Record], Interval], float, str]] = [
        ("Length", _scale, 1, "mean along the gradient"),
        ("Direction", _angle, 0, "degrees off the gradient"),
        ("Noise", _noise, 0, "std of a batch / mean"),
    ]
    images = {}
    for name in ("kl", "baselines", "whitening"):
        section = record["sections"][name]
        images[name] = figures.grid(
            [
                partial(
                    figures.intervals, title=title, level=level, xlabel=label,
                    rows=[(x, value(e), figures.PALETTE[0]) for x, e in section.items()],
                )
                for title, value, level, label in panels
            ],
            height=0.9 + 0.3 * len(section),
        )  # fmt: skip
    styles = {
        x.name: {"color": figures.PALETTE[i], "linestyle": figures.LINES[i % len(figures.LINES)]}
        for i, x in enumerate(variants.STALE)
    }
    x = np.array([int(ahead) for ahead in record["stale"]])

    def curve(name: str, value: Callable[[Record], Interval], most: float) -> tuple[Any, Interval]:
        bounds = zip(*(value(section[name]) for section in record["stale"].values()), strict=True)
        return x, Interval(*(np.minimum(bound, most) for bound in bounds))

    images["stale"] = figures.grid([
        *(
            partial(
                figures.curves, styles=styles, title=f"{title}, cut at 2" if title == "Noise" else title,
                series={name: curve(name, value, 2 if title == "Noise" else np.inf) for name in styles},
                level=None if title == "Noise" else level, xlabel="minibatches ahead of the samples", ylabel=label,
            )
            for title, value, level, label in panels
        ),
        partial(figures.legend, styles=styles),
    ])  # fmt: skip
    return images


def _scale(e: Record) -> Interval:
    return Interval(e["scale"], e["scale"] - 1.96 * e["scale_error"], e["scale"] + 1.96 * e["scale_error"])


def _angle(e: Record) -> Interval:
    cosine = e["cosine"] if e["exact_cosine"] is None else e["exact_cosine"]
    degrees = float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    return Interval(degrees, degrees, degrees)


def _noise(e: Record) -> Interval:
    return Interval(e["noise"], e["noise"], e["noise"])
