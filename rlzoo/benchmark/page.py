"""A report as blocks of plain text, tables and figures, and the same blocks as HTML and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Literal

import jinja2
from markupsafe import Markup

from rlzoo.benchmark.figures import Style, inline


@dataclass(frozen=True)
class Prose:
    """A paragraph, with a bold word before it and a link at its end if it has them."""

    text: str
    lead: str = ""
    link: str = ""
    url: str = ""


@dataclass(frozen=True)
class Banner:
    """What a reader must not miss, and what it is in detail."""

    text: str
    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """A line for a shell."""

    text: str


@dataclass(frozen=True)
class Plot:
    """A figure; `name` is that of its file."""

    name: str
    svg: str
    title: str

    @property
    def path(self) -> str:
        return f"figures/{self.name}.svg"


@dataclass(frozen=True)
class Plots:
    """Figures side by side where there is room."""

    plots: Sequence[Plot]
    caption: str


@dataclass(frozen=True)
class Legend:
    """Algorithms and how they are drawn; `line` names the dashed level, if there is one."""

    styles: dict[str, Style]
    line: str
    plot: Plot
    """For pages that cannot draw it themselves."""


@dataclass(frozen=True)
class Mark:
    """An interval drawn beside its number, in hundredths of the width."""

    low: float
    estimate: float | None
    high: float
    line: float | None
    style: Style


@dataclass(frozen=True)
class Cell:
    """A number or a name, and in quieter type what belongs to it."""

    text: str
    note: str = ""
    strong: bool = False
    tint: float | None = None
    """From −1 to 1: how far the ground is coloured against or for."""
    mark: Mark | None = None
    style: Style | None = None
    """Drawn before the name of an algorithm."""


@dataclass(frozen=True)
class Table:
    """Rows in groups; the first cell of a row names it."""

    head: Sequence[str]
    groups: Sequence[tuple[str, Sequence[Sequence[Cell]]]]
    """Title of a group (empty if there is but one) and its rows."""
    caption: str = ""
    group_head: str = "Environment"
    layout: Literal["numbers", "stacked", "text"] = "numbers"
    """Stacked, notes stand below the numbers and columns are narrow; text is flush left and may take several lines."""

    def noted(self, column: int) -> bool:
        """Whether a cell of the column has a note."""
        return any(row[column].note for _, rows in self.groups for row in rows)


@dataclass(frozen=True)
class Details:
    """Blocks to be unfolded."""

    summary: str
    blocks: Sequence[Block]


Block = Prose | Banner | Code | Plots | Legend | Table | Details


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Page:
    title: str
    sections: Sequence[Section] = field(default_factory=list)

    def plots(self) -> Iterator[Plot]:
        """All figures, each once."""
        for section in self.sections:
            for block in section.blocks:
                if isinstance(block, Legend):
                    yield block.plot
                if isinstance(block, Plots):
                    yield from block.plots


def to_html(page: Page) -> str:
    """One document that loads nothing."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["inline"] = lambda plot: Markup(inline(plot.svg, plot.name))
    environment.tests["kind"] = lambda block, name: type(block).__name__ == name
    template = resources.files("rlzoo.benchmark").joinpath("report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(page=page).lstrip()


def to_markdown(page: Page) -> str:
    """For GitHub and for MkDocs; figures are files beside it."""
    parts = [f"# {_escaped(page.title)}"]
    for section in page.sections:
        parts.append(f"## {section.title}")
        parts += [_markdown(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Prose(text, lead, link, url):
            words = [
                f"**{_escaped(lead)}.**" if lead else "",
                _escaped(text),
                f"[{_escaped(link)}]({url})." if link else "",
            ]
            return " ".join(filter(None, words))
        case Banner(text, items):
            return "\n".join([f"> **{_escaped(text)}**", ">", *(f"> - {_escaped(item)}" for item in items)])
        case Code(text):
            return f"    {text}"
        case Plots(plots, caption):
            return "\n".join(map(_image, plots)) + f"\n\n*{_escaped(caption)}*"
        case Legend(plot=plot):
            return _image(plot)
        case Table():
            return _markdown_table(block)
        case Details(summary, blocks):
            inner = "\n\n".join(map(_markdown, blocks))
            return f'<details markdown="1">\n<summary>{_escaped(summary)}</summary>\n\n{inner}\n\n</details>'


def _markdown_table(table: Table) -> str:
    grouped = any(title for title, _ in table.groups)
    aligned = "---" if table.layout == "text" else "--:"
    head = [*([table.group_head] if grouped else []), *table.head]
    lines = [[_escaped(name) for name in head], ["---"] * (1 + grouped) + [aligned] * (len(table.head) - 1)]
    for title, rows in table.groups:
        lines += [[*([_escaped(title)] if grouped else []), *map(_markdown_cell, row)] for row in rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return text + (f"\n\n*{_escaped(table.caption)}*" if table.caption else "")


def _markdown_cell(cell: Cell) -> str:
    text = f"**{_escaped(cell.text)}**" if cell.strong else _escaped(cell.text)
    return f"{text} {_escaped(cell.note)}".strip()


def _image(plot: Plot) -> str:
    return f"![{_escaped(plot.title)}]({plot.path})"


_MARKUP = r"[&<>\\`*|~$]|(?<!\w)_|_(?!\w)|\](?=[(\[:])|^[#+=-]|^\d(?=\d*[.)] )"
"""What Markdown could take for more than text: brackets only before a target, some signs only where a line begins."""


def _escaped(text: str) -> str:
    """Text that Markdown, and HTML in it, leave as it is."""
    return re.sub(_MARKUP, lambda match: f"&#{ord(match[0])};", text)
