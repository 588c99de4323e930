"""The figures of a report, as SVG text: drawn on white, or to be set into a page whose colours they take."""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from rlzoo.benchmark.statistics import Interval
from rlzoo.benchmark.study import Algorithm

Array = np.ndarray[Any, Any]
Series = Mapping[str, tuple[Array, Interval]]
"""Places on the x axis (points,), and what there is, by algorithm."""

# Okabe and Ito's palette: told apart by the colour-blind, and by their lightness in grey.
_FIXED = {
    "reinforce": "#595959",
    "npg": "#E69F00",
    "trpo": "#009E73",
    "ppo-penalty": "#56B4E9",
    "ppo-clip": "#D55E00",
}
_OTHERS = ("#0072B2", "#CC79A7", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#595959")
_DASHES = {"solid": (), "dashed": (4, 2), "dotted": (1, 1.6), "dash-dot": (6, 2, 1, 2), "dots": (1, 1.2, 1, 3)}
"""Lengths of strokes and gaps, in widths of the line."""

_INK, _MUTED, _GRID, _PAPER = "#222222", "#666666", "#e6e6e6", "#ffffff"
_VARIABLES = {
    _INK: "ink", _MUTED: "muted", _GRID: "grid", _PAPER: "paper", "#595959": "grey",
}  # fmt: skip
_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.parse_math": False,
    "text.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _MUTED,
    "axes.facecolor": "none",
    "axes.labelcolor": _MUTED,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.unicode_minus": True,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 3,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.facecolor": _PAPER,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "rlzoo",
}
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
SMALL, LARGE = (3.5, 2.35), (4.9, 3.0)
"""Sizes in inches: one of several figures side by side, and one alone."""
_STEPS = [1, 2, 2.5, 5, 10]


@dataclass(frozen=True)
class Style:
    """How an algorithm is drawn, everywhere."""

    colour: str
    dash: str = "solid"

    @property
    def pattern(self) -> tuple[float, ...]:
        """Strokes and gaps, in widths of the line; none if it is solid."""
        return _DASHES[self.dash]

    @property
    def css(self) -> str:
        """The colour on a page."""
        return _on_page(self.colour)

    @property
    def linestyle(self) -> Any:
        return (0, self.pattern) if self.pattern else "solid"


@dataclass(frozen=True)
class Row:
    """A line of an interval plot."""

    label: str
    interval: Interval
    style: Style


def styles(algorithms: Iterable[Algorithm]) -> dict[str, Style]:
    """By name. The five have colours of their own; a peer has that of its counterpart, and strokes.

    A label that is in several folders keeps its colour, and has strokes from the second folder on.
    """
    algorithms = list(algorithms)
    labels = dict.fromkeys(x.label for x in algorithms if x.counterpart is None)
    fixed = {label: Style(_FIXED[label]) for label in labels if label in _FIXED}
    taken = {style.colour for style in fixed.values()}
    spare = [Style(colour) for colour in _OTHERS if colour not in taken]
    spare += [Style(colour, dash) for dash in ("dash-dot", "dotted") for colour in _OTHERS]
    others = [label for label in labels if label not in fixed]
    first = fixed | {label: spare[i % len(spare)] for i, label in enumerate(others)}
    found: dict[str, Style] = {}
    met, peers = Counter[str](), Counter[str]()
    for x in sorted(algorithms, key=lambda x: x.counterpart is not None):
        if x.counterpart is None:
            style = first[x.label]
            found[x.name] = Style(style.colour, ("dotted", "dots")[met[x.label] % 2 - 1]) if met[x.label] else style
            met[x.label] += 1
        else:
            dash = ("dashed", "dash-dot")[peers[x.counterpart] % 2]
            found[x.name] = Style(found[x.counterpart].colour, dash)
            peers[x.counterpart] += 1
    return {x.name: found[x.name] for x in algorithms}


def curves(
    series: Series,
    styles: Mapping[str, Style],
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    line: float | None = None,
    percent: bool = False,
    size: tuple[float, float] = SMALL,
) -> str:
    """A panel of estimates with their bands over x, by algorithm; `line` is a dashed level.

    A bound of −inf reaches down to the frame; an estimate of −inf is a gap.
    """
    with _figure(*size, title) as figure:
        axes = figure.add_subplot()
        _draw(axes, series, styles, line)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if percent:
            axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
        return _svg(figure)


def overview(panels: Mapping[str, tuple[Series, float | None]], styles: Mapping[str, Style], xlabel: str) -> str:
    """Panels of curves by their titles, each with its level, and the legend in a place of its own after the last."""
    columns = min(3, len(panels) + 1)
    rows = -(-(len(panels) + 1) // columns)
    with _figure(3 * columns, 2.2 * rows) as figure:
        places = figure.subplots(rows, columns, squeeze=False).flat
        for (title, (series, line)), place in zip(panels.items(), places, strict=False):  # takes no place too many
            _draw(place, series, styles, line)
            place.set_title(title, loc="left", fontsize=9, fontweight="bold")
            place.set_xlabel(xlabel)
        left = list(places)
        for place in left:
            place.axis("off")
        left[0].legend(*_legend(styles, "threshold"), loc="center", fontsize=9, labelspacing=0.7, handlelength=2.6)
        return _svg(figure)


def _draw(axes: Axes, series: Series, styles: Mapping[str, Style], line: float | None) -> None:
    low, high = _limits([*(x for _, interval in series.values() for x in interval), [] if line is None else [line]])
    if line is not None:
        axes.axhline(line, color=_MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for name, (x, interval) in series.items():
        estimate, bottom, top = (np.asarray(part, float) for part in interval)
        style = styles[name]
        axes.fill_between(
            x, _within(bottom, low, high), _within(top, low, high), color=style.colour, alpha=0.16, linewidth=0
        )
        visible = np.where(np.isfinite(estimate), estimate, np.nan)
        axes.plot(x, visible, color=style.colour, linewidth=1.6, linestyle=style.linestyle)
    axes.set_ylim(low, high)
    axes.margins(x=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    if max((abs(x).max() for x, _ in series.values()), default=0) >= 1000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def intervals(
    rows: Sequence[Row],
    *,
    title: str,
    xlabel: str,
    line: float,
    limits: tuple[float, float] | None = None,
) -> str:
    """A dot and its interval in each row, from top to bottom; `line` is a dashed level."""
    names = [textwrap.fill(row.label, 22, break_on_hyphens=False) for row in rows]
    height = max(SMALL[1], 0.75 + sum(0.12 + 0.13 * (1 + name.count("\n")) for name in names))
    with _figure(SMALL[0], height, title) as figure:
        axes = figure.add_subplot()
        low, high = limits or _limits([*(row.interval for row in rows), [line]])
        axes.axvline(line, color=_MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        for y, row in enumerate(rows):
            ends = [_within(np.array(x), low, high) for x in row.interval[1:]]
            axes.plot(ends, [y, y], color=row.style.colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
            if np.isfinite(row.interval.estimate):
                face = row.style.colour if row.style.dash == "solid" else _PAPER
                axes.plot(
                    row.interval.estimate, y, "o", color=row.style.colour, markersize=5, markerfacecolor=face,
                    markeredgewidth=1.3,
                )  # fmt: skip
        margin = 0.03 * (high - low)
        axes.set(xlabel=xlabel, xlim=(low - margin, high + margin), ylim=(len(rows) - 0.4, -0.6))
        axes.set_yticks(range(len(rows)), names)
        axes.tick_params(axis="y", labelcolor=_INK)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        return _svg(figure)


def legend(styles: Mapping[str, Style], line: str) -> str:
    """The algorithms' colours and strokes, and the name of the dashed level."""
    handles, labels = _legend(styles, line)
    columns = min(len(labels), max(1, int(95 / (5 + max(map(len, labels))))))
    with _figure(2 * SMALL[0], 0.25 * -(-len(labels) // columns) + 0.1) as figure:
        axes = figure.add_subplot()
        axes.axis("off")
        axes.legend(handles, labels, loc="center left", ncols=columns, handlelength=2.6, borderpad=0, borderaxespad=0)
        return _svg(figure)


def _legend(styles: Mapping[str, Style], line: str) -> tuple[list[Line2D], list[str]]:
    handles = [Line2D([], [], color=s.colour, linewidth=2, linestyle=s.linestyle) for s in styles.values()]
    handles.append(Line2D([], [], color=_MUTED, linewidth=0.9, linestyle=(0, (4, 3))))
    return handles, ["\u200b" + name for name in (*styles, line)]  # Matplotlib leaves out names such as _x


def inline(svg: str, prefix: str) -> str:
    """The figure as an element of an HTML page: without a ground, in the page's colours, its ids told apart."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        for name, value in attributes.items():
            if name == "id":
                attributes[name] = f"{prefix}-{value}"
            elif name == "style":
                attributes[name] = re.sub("#[0-9a-f]{6}", lambda colour: _on_page(colour[0]), value)
            attributes[name] = re.sub(r"^#|(?<=^url\()#", f"#{prefix}-", attributes[name])
        element.attrib = attributes
    for definitions in root.findall("defs"):
        for style in definitions.findall("style"):  # it would be in force on the whole page
            definitions.remove(style)
    points = root.attrib.pop("width").removesuffix("pt")
    del root.attrib["height"]
    root.set("style", f"max-width: calc(1.25 * {points}pt)")
    return ElementTree.tostring(root, encoding="unicode")


def _on_page(colour: str) -> str:
    """The name that a page knows a colour by, or the colour itself."""
    return f"var(--{_VARIABLES[colour]})" if colour in _VARIABLES else colour


@contextlib.contextmanager
def _figure(width: float, height: float, title: str = "") -> Iterator[Figure]:
    """Of a size in inches, in the style of all figures."""
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # nor do a user's own settings count
        mpl.rcParams.update(_RC)
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the reader's fonts draw the text, not these
        figure = Figure(figsize=(width, height), layout="constrained")
        if title:
            figure.suptitle(textwrap.fill(title, 46), x=0.01, ha="left", fontsize=9, fontweight="bold")
        yield figure


def _svg(figure: Figure) -> str:
    """The same text for the same figure, whenever it is drawn."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    svg = file.getvalue().replace("'DejaVu Sans', sans-serif", _FONTS).replace("'DejaVu Sans'", _FONTS)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _limits(values: Iterable[Any]) -> tuple[float, float]:
    """A little more than the range of all finite values."""
    numbers = np.concatenate([np.ravel(np.asarray(x, float)) for x in values])
    numbers = numbers[np.isfinite(numbers)]
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    return low - margin, high + margin


def _within(x: Array, low: float, high: float) -> Array:
    """Infinite bounds as bounds of the frame."""
    return np.clip(np.nan_to_num(x, nan=low, posinf=high, neginf=low), low, high)
