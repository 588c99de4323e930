"""Learning curves of each algorithm beside those of the others, from the committed results.

python benchmarks/studies/learning_curves.py    # results/classic and results/lm -> docs/assets/curves/*.svg
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import tyro
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from rlzoo.benchmark.reports import figures
from rlzoo.benchmark.reports.study import Study
from rlzoo.benchmark.results import Results

HERE = Path(__file__).parents[1]
CURVES = HERE.parent / "docs" / "assets" / "curves"


def main() -> None:
    CURVES.mkdir(parents=True, exist_ok=True)
    studies = [Study.of([Results.read(HERE / "results" / name)]) for name in ("classic", "lm")]
    styles = figures.styles(studies[0].algorithms.values())
    for algorithm in studies[0].algorithms:
        colour = styles[algorithm]["color"]
        panels = [
            partial(draw, study=x, env=env, algorithm=algorithm, colour=colour)
            for x in studies
            for env in x.environments
        ]
        (CURVES / f"{algorithm}.svg").write_text(figures.grid(panels), encoding="utf-8")


def draw(axes: Axes, study: Study, env: str, algorithm: str, colour: str) -> None:
    """The algorithm's curve and interval over those of the others."""
    groups = study.within(env)
    for name in [x for x in groups if x != algorithm] + [algorithm]:
        grid, (estimate, low, high) = groups[name].curve
        if name == algorithm:
            axes.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(grid, estimate, color=colour, linewidth=1.8)
        else:
            axes.plot(grid, estimate, color="#bbbbbb", linewidth=0.9)
    axes.set(title=env, xlabel="tokens" if env == "RandomWalks" else "steps", ylabel="return")
    axes.margins(x=0)
    axes.locator_params(nbins=5)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
