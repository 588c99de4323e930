"""Figures of a report, drawn by Matplotlib, as SVG text."""

from __future__ import annotations

import io
import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import Formatter

from rlzoo.benchmark.reports.statistics import Array, Interval
from rlzoo.benchmark.reports.study import Label
from rlzoo.core.system.screen import printable

Styles = Mapping[str, dict[str, Any]]
"""Keyword arguments of `Axes.plot`, by name of the algorithm."""

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
_COLOURS = {
    "reinforce": "#595959", "npg": "#E69F00", "trpo": "#009E73", "ppo-penalty": "#56B4E9", "ppo-clip": "#D55E00",
}  # fmt: skip
PALETTE = ("#0072B2", "#CC79A7", *_COLOURS.values())
LINES = ("solid", "dashed", "dashdot", "dotted", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)))
_LEVEL: dict[str, Any] = {"color": "#666666", "linewidth": 0.9, "linestyle": (0, (4, 3)), "zorder": 1}
_STYLE = {
    "font.size": 8.5,
    "text.parse_math": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "rlzoo",
}


def styles(algorithms: Iterable[Label]) -> dict[str, dict[str, Any]]:
    """Colour and line style of each algorithm, by name.

    Each label has its own colour. A peer has the colour of its counterpart and another line style, and so has the same
    label of a second folder.
    """
    algorithms = sorted(algorithms, key=lambda x: x.counterpart is not None)
    labels = {x.name: x.label for x in algorithms}
    families = {x.name: labels[x.counterpart or x.name] for x in algorithms}
    first = {label: (0, colour) for label, colour in _COLOURS.items() if label in families.values()}
    free = (x for line in itertools.count() for colour in PALETTE if (x := (line, colour)) not in first.values())
    first |= {label: next(free) for label in dict.fromkeys(families.values()) if label not in first}
    taken, begun, styles = {*first.values()}, set[str](), {}
    for name, family in families.items():
        line, colour = first[family]
        if family in begun:
            line = next(n for n in itertools.count(line + 1) if (n, colour) not in taken)
            taken.add((line, colour))
        begun.add(family)
        styles[name] = {"color": colour, "linestyle": LINES[line and 1 + (line - 1) % (len(LINES) - 1)]}
    return styles


def grid(panels: Sequence[Callable[[Axes], None]], height: float = 2.3) -> str:
    """SVG text of panels, each drawn by a function of its axes: four in a square, else up to three in a row.

    `height` of a row is in inches. The text depends on the panels alone, not on the time or the user's Matplotlib
    settings.
    """
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.style.context(_STYLE, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the text is drawn with the reader's fonts
        figure = Figure(figsize=(3.2 * columns, height * rows), layout="constrained")
        for draw, axes in itertools.zip_longest(panels, figure.subplots(rows, columns, squeeze=False).flat):
            if draw is None:
                axes.axis("off")
            else:
                draw(axes)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Creator": None, "Date": None})
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def curves(
    axes: Axes,
    series: Mapping[str, tuple[Array, Interval]],
    styles: Styles,
    *,
    title: str,
    level: float | None = None,
    formatter: Formatter | None = None,
    **labels: str,
) -> None:
    """Estimates and 95 % bands over x, by algorithm, and a dashed level; `labels` of the axes.

    A bound of −∞ is drawn at the frame; an estimate of −∞ is a gap.
    """
    low, high = _limits([part for _, interval in series.values() for part in interval], level)
    if level is not None:
        axes.axhline(level, **_LEVEL)
    for name, (x, (estimate, bottom, top)) in series.items():
        band = np.clip(bottom, low, high), np.clip(top, low, high)
        axes.fill_between(x, *band, color=styles[name]["color"], alpha=0.16, linewidth=0)
        axes.plot(x, estimate, linewidth=1.6, **styles[name])
    axes.set(title=_wrap(title), ylim=(low, high), **labels)
    axes.margins(x=0)
    axes.grid(visible=False, axis="x")
    axes.locator_params(nbins=5)
    if formatter is not None:
        axes.xaxis.set_major_formatter(formatter)


def intervals(
    axes: Axes,
    rows: Sequence[tuple[str, Interval, str]],
    *,
    title: str,
    xlabel: str,
    level: float,
    limits: tuple[float, float] | None = None,
) -> None:
    """Estimates and 95 % intervals, one row for each (label, interval, colour), and a dashed level."""
    low, high = limits or _limits([np.array(interval) for _, interval, _ in rows], level)
    axes.axvline(level, **_LEVEL)
    for y, (_, (estimate, left, right), colour) in enumerate(rows):
        axes.plot(
            np.clip([left, right], low, high), [y, y], color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt"
        )
        axes.plot(estimate, y, "o", color=colour, markersize=5)
    margin = 0.03 * (high - low)
    axes.set(title=_wrap(title, 20), xlabel=xlabel, xlim=(low - margin, high + margin), ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), [_wrap(label, 24) for label, _, _ in rows])
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=5)


def against(
    axes: Axes, series: Mapping[str, Sequence[tuple[Interval, Interval]]], styles: Styles, *, title: str, **labels: str
) -> None:
    """Points with the 95 % intervals of their x and y, joined by a line for each algorithm."""
    for name, points in series.items():
        (x, left, right), (y, bottom, top) = (np.transpose(side) for side in zip(*points, strict=True))
        with np.errstate(invalid="ignore"):  # of runs that diverged
            xerr, yerr = (np.nan_to_num(x, posinf=0) for x in ([x - left, right - x], [y - bottom, top - y]))
        style = {"marker": "o", "markersize": 3, "linewidth": 1.2, "elinewidth": 0.8, **styles[name]}
        axes.errorbar(x, y, xerr=xerr, yerr=yerr, **style)
    axes.set(title=_wrap(title), **labels)
    axes.locator_params(nbins=5)


def legend(axes: Axes, styles: Styles, level: str = "") -> None:
    """Line styles of the algorithms, and the name of the dashed level."""
    lines = {**styles, level: _LEVEL} if level else styles
    # Matplotlib leaves out labels that begin with an underscore.
    handles = [Line2D([], [], label=f"\u200b{printable(name)}", **style) for name, style in lines.items()]
    axes.legend(handles=handles, loc="center")
    axes.axis("off")


def _wrap(text: str, width: int = 32) -> str:
    return textwrap.fill(printable(text), width, break_on_hyphens=False)


def _limits(values: Sequence[Array], level: float | None) -> tuple[float, float]:
    """Range of all finite values, and 5 % more at either end."""
    numbers = np.concatenate([np.ravel(x) for x in values] + ([] if level is None else [np.array([level])]))
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin
