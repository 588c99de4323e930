"""A run in a notebook: a figure of its curves, and a table of its evaluations."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from rlzoo.runs.configuration.objects import first_description
from rlzoo.runs.publish.markup import template

Records = Sequence[Mapping[str, Any]]


class Plot(Figure):
    """A figure that a notebook displays, whether or not `matplotlib.pyplot` was imported."""

    def png(self, dpi: int = 100) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=dpi)
        return file.getvalue()

    _repr_png_ = png


def plot(metrics: Records, evaluations: Records) -> Plot:
    """Training and evaluations against steps: the mean return, and of a language model also its KL to the reference.

    The return of a language model is its score.
    """
    kinds: dict[str, Records] = {
        "training": [{"mean_return": m.get("score"), **m} for m in metrics],
        "evaluation, sampled": [e for e in evaluations if not e["deterministic"]],
        "evaluation, deterministic": [e for e in evaluations if e["deterministic"]],
    }
    panels = {"mean return": "mean_return", "KL to the reference": "kl_reference"}
    lines = {label: {kind: points(kinds[kind], name) for kind in kinds} for label, name in panels.items()}
    if not any(lines["KL to the reference"].values()):
        del lines["KL to the reference"]
    figure = Plot(figsize=(5.5 * len(lines), 2.8), layout="constrained")
    for number, (label, curves) in enumerate(lines.items(), 1):
        axes = figure.add_subplot(1, len(lines), number, xlabel="steps", ylabel=label)
        for kind, line in curves.items():
            if line:
                axes.plot(*zip(*line, strict=True), ".-", label=kind)
                axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    return figure


def points(records: Records, name: str) -> list[tuple[int, float]]:
    """(step, value) of the records that have a number of that name."""
    return [(r["step"], r[name]) for r in records if isinstance(r.get(name), int | float)]


def page(config: Mapping[str, Any], path: str, metrics: Records, evaluations: Records) -> str:
    """HTML with the run's pair, how far it is, its last evaluations, and the figure."""
    png = base64.b64encode(plot(metrics, evaluations).png()).decode()
    return template("rlzoo.runs.publish", "notebook.html.jinja").render(
        config={name: first_description(x) or x for name, x in config.items()},
        path=path,
        step=max([0, *(r["step"] for r in (*metrics, *evaluations))]),
        evaluations=[e for e in evaluations if e["step"] == evaluations[-1]["step"]],
        image=Markup(f'<img alt="learning curves" src="data:image/png;base64,{png}">'),
    )
