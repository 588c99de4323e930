"""The report: numbers against hand computation, text that stays text, and the page in a browser."""

from __future__ import annotations

import html.parser
import inspect
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

from rlzoo.benchmark import figures, statistics, words
from rlzoo.benchmark.figures import Style
from rlzoo.benchmark.job import Failure, Outcome
from rlzoo.benchmark.page import Banner, Details, Page, Prose, Section, Table, to_html, to_markdown
from rlzoo.benchmark.report import learning_curves, make_page, write_report
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.statistics import Interval
from rlzoo.benchmark.study import Algorithm, Study
from rlzoo.benchmark.suite import Environment
from rlzoo.core.errors import ConfigError

RECORD = {
    "command": "rlzoo benchmark a --out 'b|c'",
    "machine": {"processor": "P", "cores": 2, "memory_gib": 24.0},
    "versions": {"rlzoo": "0.1.0", "torch": "2.8.0"},
    "git_commit": "abc123",
    "wall_seconds": 3725.0,
}
NASTY = "a <b>&amp; | `c` *d* _e_ [f](g) $x$ ~~h~~"
SLOW, FAST = (0, 10, 20, 30), (0, 100, 200, 300)
"""Returns at steps 0, 100, 200 and 300."""


def outcome(
    label: str = "trpo", env: str = "E", seed: int = 0, returns: Sequence[Any] = SLOW, final: Any = None, **more: Any
) -> Outcome:
    """A run of 300 steps, 100 a second, whose modes are better by 1."""
    final = returns[-1] if final is None else final
    fields: dict[str, Any] = {
        "settings": {"algorithm": label, "total_steps": 300},
        "steps": [0, 100, 200, 300],
        "deterministic": list(returns),
        "final_deterministic": final + 1,
        "seconds": [0.0, 1.0, 2.0, 3.0],
    }
    return Outcome(label, env, seed, stochastic=list(returns), final_stochastic=final, **fields | more)


def results(
    outcomes: Sequence[Outcome],
    thresholds: Mapping[str, float | None] | None = None,
    path: str = "folder",
    **more: Any,
) -> Results:
    """A folder with these runs and all labels, environments and seeds in them."""
    thresholds = thresholds or dict.fromkeys((x.env for x in outcomes), 25.0)
    fields: dict[str, Any] = {
        "labels": list(dict.fromkeys(x.label for x in outcomes)),
        "title": "A suite",
        "description": "What it is for.",
        "counterparts": {},
        "environments": {env: Environment(env, 300, 100, x) for env, x in thresholds.items()},
        "seeds": sorted({x.seed for x in outcomes}),
        "record": RECORD,
        "failures": [],
        "missing": [],
    }
    return Results(Path(path), outcomes=list(outcomes), eval_episodes=20, final_episodes=100, **fields | more)


def runs(label: str, finals: Sequence[Any], env: str = "E", **more: Any) -> list[Outcome]:
    """A run for each final score."""
    return [outcome(label, env, seed, final=final, **more) for seed, final in enumerate(finals)]


def table(page: Page, title: str, number: int = 0) -> list[list[str]]:
    """Rows of a section's table, as text; groups have a row of their own."""
    (section,) = [section for section in page.sections if section.title == title]
    found = [block for block in section.blocks if isinstance(block, Table)][number]
    lines = [list(found.head)]
    for group, rows in found.groups:
        lines += [[group]] * bool(group) + [[f"{cell.text} {cell.note}".strip() for cell in row] for row in rows]
    return lines


def strong(page: Page) -> list[str]:
    """The algorithms whose final scores are bold."""
    (section,) = [section for section in page.sections if section.title == "Final scores"]
    (found,) = section.blocks
    assert isinstance(found, Table)
    return [row[0].text for _, rows in found.groups for row in rows if row[1].strong]


def prose(page: Page) -> str:
    summary = page.sections[0]
    return "\n".join(block.text for block in summary.blocks if isinstance(block, (Prose, Banner)))


def report(*folders: Results) -> Page:
    return make_page(Study.of(folders))


# Numbers


def test_final_scores() -> None:
    page = report(results([*runs("trpo", range(1, 9)), *runs("npg", [7.0] * 8)]))
    bounds = words.bracket(statistics.iqm_interval([range(1, 9)]), 2)
    bounds_of_modes = words.bracket(statistics.iqm_interval([range(2, 10)]), 2)
    assert table(page, "Final scores") == [
        ["Algorithm", "Sampled actions", "Modes", "Runs"],
        ["E, threshold 25"],
        # The middle half of 1 … 8 is 3 … 6.
        ["trpo", f"4.50 {bounds}", f"5.50 {bounds_of_modes}", "8 of 8"],
        ["npg", "7.00 [7.00, 7.00]", "8.00 [8.00, 8.00]", "8 of 8"],
    ]


def test_further_columns_are_medians() -> None:
    more = [outcome(seed=seed, further={"kl_reference": kl}) for seed, kl in enumerate((1.0, 2.5, 100.0))]
    page = report(results([*more, *runs("npg", [1, 2])]))
    rows = table(page, "Final scores")
    assert rows[0] == ["Algorithm", "Sampled actions", "Modes", "kl_reference", "Runs"]
    assert [row[3] for row in rows[2:]] == ["2.50", "–"]


@pytest.mark.parametrize(("n", "bold"), [(1, ["trpo", "npg"]), (3, ["trpo", "npg"]), (4, ["npg"])])
def test_nothing_is_better_by_an_order_that_chance_gives(n: int, bold: list[str]) -> None:
    # All of npg above all of trpo: 2 of C(2n, n) orders are as clear, which is 1, 1/10 and 1/35.
    page = report(results([*runs("trpo", range(n)), *runs("npg", range(10, 10 + n))]))
    assert strong(page) == bold
    assert ("do not tell it from trpo" in prose(page)) == (len(bold) == 2)


def test_overlapping_scores_are_both_bold() -> None:
    page = report(results([*runs("trpo", [1, 2, 3, 4, 5, 6]), *runs("npg", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5])]))
    assert strong(page) == ["trpo", "npg"]


def test_time_to_threshold() -> None:
    reached_late = outcome(seed=0, returns=(0, 10, 20, 30))  # at 300 steps, 3 s
    reached_soon = outcome(seed=1, returns=(0, 26, 0, 0))  # at 100 steps, and lost again
    never = outcome(seed=2, returns=(0, 0, 0, 24.9))
    nobody = outcome("npg", seed=0, returns=(0, 0, 0, 0))
    page = report(results([reached_late, reached_soon, never, nobody]))
    assert table(page, "Time to threshold") == [
        ["Algorithm", "Steps", "Seconds", "Reached", "Kept"],
        ["E, threshold 25"],
        ["trpo", "300 [100, ∞]", "3.00", "2 of 3", "1 of 3"],
        ["npg", "–", "–", "0 of 1", "0 of 1"],
    ]


def test_wall_clock() -> None:
    slow = [outcome(seed=seed, seconds=[0.0, 2.0, 4.0, seconds]) for seed, seconds in enumerate((6.0, 7.5, 100.0))]
    page = report(results([*slow, outcome("npg", "F")], {"E": None, "F": None}))
    assert table(page, "Wall-clock time") == [
        ["Algorithm", "E", "F"],
        ["trpo", "7.50 s (40/s)", "–"],
        ["npg", "–", "3.00 s (100/s)"],
    ]


def test_scales_and_aggregates() -> None:
    """E has a threshold, F has none: its best IQM is 200. Both start from 0."""
    outcomes = [
        *runs("trpo", [50.0] * 4),
        *runs("npg", [25.0] * 4),
        *runs("trpo", [100.0] * 4, "F"),
        *runs("npg", [200.0] * 4, "F"),
    ]
    study = Study.of([results(outcomes, {"E": 25.0, "F": None})])
    assert study.scales == {"E": (0.0, 25.0), "F": (0.0, 200.0)}
    assert [x.tolist() for x in study.normalised_final("trpo")] == [[2.0] * 4, [0.5] * 4]
    page = make_page(study)
    # trpo is above in E and below in F.
    assert table(page, "Overall") == [
        ["", "trpo", "npg"],
        ["trpo", "–", "0.50 [0.50, 0.50]"],
        ["npg", "0.50 [0.50, 0.50]", "–"],
    ]
    # The middle half of four 2.0 and four 0.5 is two of each.
    assert "trpo has the highest interquartile mean of normalised final scores, 1.25 [1.25, 1.25]" in prose(page)
    assert table(page, "How it was made")[1:] == [
        ["E", "300", "100", "25", "0.00", "25.00"],
        ["F", "300", "100", "–", "0.0", "200.0"],
    ]


def test_untrained_scores_are_those_of_all_runs() -> None:
    outcomes = [outcome(seed=0, returns=(1, 0, 0, 50)), outcome("npg", seed=0, returns=(5, 0, 0, 50))]
    assert Study.of([results(outcomes)]).scales == {"E": (3.0, 25.0)}


def test_the_matrix_has_both_sides_of_a_comparison() -> None:
    outcomes = [*runs("trpo", [1, 2, 3, 4]), *runs("npg", [2, 3, 4, 5])]
    both = [*outcomes, *(Outcome(**{**vars(x), "env": "F"}) for x in outcomes)]
    (_, first, second) = table(report(results(both, {"E": 25.0, "F": None})), "Overall")
    # Of 16 pairs of runs, trpo is above in 3 and level in 3: (3 + 1.5) / 16.
    estimate, low, high = (float(x) for x in re.findall(r"[\d.]+", first[2]))
    assert estimate == 0.28
    assert second[1] == f"0.72 [{1 - high:.2f}, {1 - low:.2f}]"


def test_curves_are_interpolated_on_the_grid() -> None:
    run = outcome(steps=[0, 150, 310], returns=(0, 30, 62), deterministic=[0, 0, 0], seconds=[0, 1, 2])
    (group,) = Study.of([results([run])]).groups.values()
    assert group.grid.tolist() == [0, 100, 200, 300]
    np.testing.assert_allclose(group.curves(group.grid), [[0, 20, 40, 60]])


def test_an_interval_longer_than_the_budget_leaves_both_ends() -> None:
    folder = results([outcome()], environments={"E": Environment("E", 250, 400, None)})
    (group,) = Study.of([folder]).groups.values()
    assert group.grid.tolist() == [0, 250]


def test_every_run_has_its_place() -> None:
    outcomes = [outcome(seed=0), outcome(seed=2), outcome("npg", seed=0)]
    folder = results(
        outcomes,
        seeds=[0, 1, 2],
        failures=[Failure("trpo", "E", 1, "ValueError: no")],
        missing=[("npg", "E", 1), ("npg", "E", 2)],
    )
    page = report(folder)
    (section,) = [section for section in page.sections if section.title == "Every run"]
    (details,) = [block for block in section.blocks if isinstance(block, Details)]
    (found,) = details.blocks
    assert isinstance(found, Table)
    assert [[f"{cell.text} {cell.note}".strip() for cell in row] for row in found.groups[0][1]] == [
        ["trpo", "30.00 (31.00)", "failed", "30.00 (31.00)"],
        ["npg", "30.00 (31.00)", "missing", "missing"],
    ]
    (banner,) = [block for block in page.sections[0].blocks if isinstance(block, Banner)]
    assert banner.text == "1 run failed. 2 runs missing."
    assert banner.items == [
        "trpo on E, seed 1 failed: ValueError: no",
        "npg on E, seed 1 is missing",
        "npg on E, seed 2 is missing",
    ]
    assert "6 runs, of which 3 finished" in prose(page)
    assert [row[-1] for row in table(page, "Final scores")[2:]] == ["2 of 3", "1 of 3"]


def test_settings_are_flat_and_show_where_seeds_differ() -> None:
    first = outcome(settings={"seed": 0, "policy": {"hidden": [64, 64]}, "num_envs": 8})
    second = outcome(seed=1, settings={"seed": 1, "policy": {"hidden": [64, 64]}, "num_envs": 16})
    (section,) = [section for section in report(results([first, second])).sections if section.title == "Settings"]
    (details,) = section.blocks
    assert isinstance(details, Details)
    (found,) = details.blocks
    assert isinstance(found, Table)
    assert [[cell.text for cell in row] for row in found.groups[0][1]] == [
        ["policy.hidden", "[64, 64]"],
        ["num_envs", "8 / 16"],
    ]


def test_the_method_tells_the_resamples_that_are_drawn() -> None:
    default = inspect.signature(statistics.iqm_interval).parameters["resamples"].default
    assert f"{default} stratified bootstrap resamples" in to_markdown(report(results([outcome()])))


# Peers and folders


def peers(**more: Any) -> Results:
    outcomes = [*runs("ppo-clip", [10, 11, 12, 13]), *runs("sb3-ppo", [1, 2, 3, 4], seconds=[0.0, 2.0, 4.0, 6.0])]
    return results(outcomes, counterparts={"sb3-ppo": "ppo-clip"}, **more)


def test_peers() -> None:
    rows = table(report(peers()), "Against peers")
    assert rows[1] == ["ppo-clip and sb3-ppo"]
    # Half the seconds a step, and always above.
    environment, better, _, _, ratio = rows[2]
    assert (environment, better, ratio) == ("E", "1.00 [1.00, 1.00]", "0.50")


def test_a_peer_of_another_folder() -> None:
    ours = results(runs("ppo-clip", [10, 11]), path="x/ours")
    theirs = results(runs("sb3-ppo", [1, 2]), path="x/theirs", counterparts={"sb3-ppo": "ppo-clip"})
    page = report(ours, theirs)
    assert table(page, "Against peers")[1] == ["ppo-clip and sb3-ppo"]
    assert "Folder against folder" not in [section.title for section in page.sections]


def test_a_counterpart_that_is_nowhere() -> None:
    folder = results(runs("sb3-ppo", [1, 2]), counterparts={"sb3-ppo": "ppo-clip"})
    assert "Against peers" not in [section.title for section in report(folder).sections]


def test_two_folders_with_one_label() -> None:
    a = results(runs("trpo", [1, 2]), path="x/A")
    b = results(
        [*runs("trpo", [3, 4]), *runs("npg", [3, 4])],
        path="x/B",
        environments={"E": Environment("E", 600, 100, 25.0)},
        record={**RECORD, "machine": {"processor": "Q"}},
    )
    page = report(a, b)
    rows = table(page, "Folder against folder")
    assert rows[1:3] == [["trpo (A) and trpo (B)"], ["E", "0.00 [0.00, 0.00]", *rows[2][2:]]]
    assert [row[0] for row in table(page, "Final scores")[2:]] == ["trpo (A)", "trpo (B)", "npg"]
    assert "Mind that the folders differ in total_steps of E (300 in A, 600 in B)." in prose(page)
    leads = [block.lead for block in page.sections[0].blocks if isinstance(block, Prose)]
    assert "Folder A: A suite" in leads
    assert "different machines" in to_markdown(page)


def test_folders_of_one_name_are_told_apart_by_those_above() -> None:
    study = Study.of([results(runs("trpo", [1]), path="x/run"), results(runs("trpo", [1]), path="y/run")])
    assert list(study.folders) == ["x/run", "y/run"]
    assert list(study.algorithms) == ["trpo (x/run)", "trpo (y/run)"]


def test_aggregates_leave_out_what_is_not_whole() -> None:
    outcomes = [*runs("trpo", [1, 2]), *runs("trpo", [1, 2], "F"), *runs("npg", [1, 2])]
    study = Study.of([results(outcomes, {"E": 25.0, "F": 25.0})])
    assert study.overall == (["trpo"], ["E", "F"])
    text = to_markdown(make_page(study))
    assert "Without npg, for want of runs in some of them." in text


def test_no_folder_and_the_same_folder_twice() -> None:
    with pytest.raises(ConfigError, match="at least one folder"):
        Study.of([])
    with pytest.raises(ConfigError, match="given twice"):
        Study.of([peers(), peers()])


# What can go wrong


def test_a_run_that_diverged_counts_as_worst() -> None:
    nan = float("nan")
    diverged = outcome(seed=4, returns=(0, 5, None, nan), final=nan, final_deterministic=None)
    page = report(results([*runs("trpo", [1, 2, 3, 4]), diverged]))
    # Of −∞, 1, 2, 3, 4 the middle three are 1, 2 and 3.
    assert table(page, "Final scores")[2][1].startswith("2.00 [−∞, ")
    assert "1 run with scores that are not numbers." in prose(page)
    text = to_markdown(page)
    assert "NaN (NaN)" in text


def test_an_environment_in_which_all_runs_diverged(tmp_path: Path) -> None:
    nan = float("nan")
    folder = results([outcome(returns=(nan,) * 4, final=nan), outcome(env="F")], {"E": None, "F": 25.0})
    write_report([folder], tmp_path)
    assert "−∞" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("level", [0.0, -5.0])
def test_no_scale_without_room(level: float, tmp_path: Path) -> None:
    """The threshold is not above what an untrained policy gets."""
    folder = results([outcome(), outcome(env="F")], {"E": level, "F": 25.0})
    assert list(Study.of([folder]).scales) == ["F"]
    write_report([folder], tmp_path)


def test_one_run_of_one_algorithm(tmp_path: Path) -> None:
    page, _ = write_report([results([outcome()], {"E": None})], tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "1 algorithm in 1 environment with 1 seed (0): 1 run, all finished." in text
    assert "nothing here tells merit from luck" in text
    assert 'id="overall"' not in text
    assert 'id="time-to-threshold"' not in text


def test_no_run_has_finished(tmp_path: Path) -> None:
    failures = [Failure("trpo", "E", 0, "ValueError: no")]
    folder = results([], {"E": 25.0}, labels=["trpo"], seeds=[0, 1], failures=failures, missing=[("trpo", "E", 1)])
    page, markdown = write_report([folder], tmp_path)
    for path in (page, markdown):
        text = path.read_text(encoding="utf-8")
        assert "No run has finished yet" in text
        assert "ValueError: no" in text


def test_twelve_labels_look_different() -> None:
    labels = [f"TRPO without part {i}" for i in range(9)] + ["trpo", "ppo-clip", "npg"]
    styles = figures.styles(Algorithm(label, label, "A") for label in labels)
    assert len(set(styles.values())) == 12
    assert styles["trpo"] == Style("#009E73")
    assert styles["ppo-clip"] == Style("#D55E00")


def test_a_peer_has_the_colour_of_its_counterpart() -> None:
    algorithms = [
        Algorithm("sb3-ppo", "sb3-ppo", "A", "ppo-clip"),
        Algorithm("ppo-clip", "ppo-clip", "A"),
        Algorithm("other-ppo", "other-ppo", "A", "ppo-clip"),
    ]
    styles = figures.styles(algorithms)
    assert styles["sb3-ppo"] == Style("#D55E00", "dashed")
    assert styles["other-ppo"] == Style("#D55E00", "dash-dot")
    assert list(styles) == ["sb3-ppo", "ppo-clip", "other-ppo"]


# Text and files


class Reader(html.parser.HTMLParser):
    """Ids, references and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "data", "action", "poster", "srcset") or "url(" in (value or ""):
                self.references.append((tag, value or ""))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def nasty() -> Results:
    outcomes = [*runs(NASTY, [1, 2]), *runs("_PPO_", [1, 2])]
    return results(outcomes, title=NASTY, description=NASTY, seeds=[0, 1, 2], missing=[("_PPO_", "E", 2)],
                   failures=[Failure(NASTY, "E", 2, NASTY + "\n\x1b[31m<script>alert(1)</script>")])  # fmt: skip


def test_text_stays_text_in_html(nasty: Results) -> None:
    reader = Reader(to_html(report(nasty)))
    assert "script" not in reader.tags
    assert "b" not in reader.tags
    assert reader.text.count(NASTY) > 8
    assert f"failed: {NASTY} [31m<script>alert(1)</script>" in reader.text


def test_text_stays_text_in_markdown(nasty: Results) -> None:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(to_markdown(report(nasty)))
    inline = [token for token in tokens if token.type == "inline"]
    said = ["".join(child.content for child in token.children or [] if child.type != "html_inline") for token in inline]
    assert said.count(NASTY) > 4
    assert f"{NASTY} on E, seed 2 failed: {NASTY} [31m<script>alert(1)</script>" in said
    kinds = {child.type for token in inline for child in token.children or []}
    assert kinds <= {"text", "text_special", "softbreak", "image", "strong_open", "strong_close", "em_open", "em_close",
                     "link_open", "link_close"}  # fmt: skip
    links = [child.attrs["href"] for token in inline for child in token.children or [] if child.type == "link_open"]
    assert links == ["https://arxiv.org/abs/2108.13264"]
    rows = [token for token in tokens if token.type == "tr_open"]
    cells = [token for token in tokens if token.type in ("td_open", "th_open")]
    assert len(rows) > 20
    assert len(cells) > 60


@pytest.mark.parametrize(
    "text", ["# a", "- a", "+ a", "1. a", "12) a", "= a", "a\\*b", "[a]: b", "&lt;", "snake_case_"]
)
def test_a_paragraph_is_a_paragraph(text: str) -> None:
    page = Page("t", [Section("s", [Prose(text)])])
    tokens = MarkdownIt("commonmark").parse(to_markdown(page))
    assert [token.type for token in tokens[-3:]] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[-2].children or []) == text


def test_a_page_loads_nothing(nasty: Results) -> None:
    text = to_html(report(nasty, peers(path="x/peers")))
    reader = Reader(text)
    outside = [(tag, value) for tag, value in reader.references if not re.match(r"#|url\(#", value)]
    style = [value for tag, value in reader.references if "url(" in value]
    assert outside == [("a", "https://arxiv.org/abs/2108.13264")]
    assert not [value for value in style if re.search(r"url\((?!#)", value)]
    assert not re.search(r"@import|url\((?!#)", text)
    assert not {"script", "link", "iframe", "object", "img"} & set(reader.tags)


def test_ids_are_unique_and_references_lead_to_them() -> None:
    reader = Reader(to_html(report(peers(), results(runs("ppo-clip", [1, 2]), path="other"))))
    assert len(reader.ids) == len(set(reader.ids))
    local = {re.sub(r"^url\(#|^#|\)$", "", value) for _, value in reader.references if "#" in value}
    assert local <= set(reader.ids)
    assert len(local) > 10


def test_equal_results_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(name: str) -> dict[str, bytes]:
        write_report([peers()], tmp_path / name)
        return {
            str(x.relative_to(tmp_path / name)): x.read_bytes() for x in (tmp_path / name).rglob("*") if x.is_file()
        }

    first = write("first")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    with mpl.rc_context({"font.size": 20, "lines.linewidth": 9, "svg.hashsalt": None}):
        second = write("second")
        assert mpl.rcParams["font.size"] == 20
    assert first == second
    assert set(first) == {
        "report.html", "report.md",
        "figures/overview.svg", "figures/legend.svg", "figures/curves-1.svg", "figures/peer-1.svg",
    }  # fmt: skip


def test_the_images_of_the_markdown_are_there(tmp_path: Path) -> None:
    _, markdown = write_report([peers(), results(runs("ppo-clip", [1, 2], "F"), path="other")], tmp_path)
    named = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", markdown.read_text(encoding="utf-8"))
    written = {str(x.relative_to(tmp_path)) for x in (tmp_path / "figures").iterdir()}
    assert {*named} == written - {"figures/overview.svg"}  # which is for other pages


def test_the_overview_has_a_panel_for_each_environment_and_the_legend() -> None:
    study = Study.of([peers()])
    styles = figures.styles(study.algorithms.values())
    svg = figures.overview(learning_curves(study), styles, "steps")
    for text in (*study.environments, *study.algorithms, "threshold"):
        assert text in svg


# Figures


def test_curves_show_what_they_are_given() -> None:
    x = np.array([0.0, 1.0, 2.0])
    band = Interval(np.array([0.0, 1.0, -np.inf]), np.array([-np.inf, 0.0, -np.inf]), np.array([1.0, 2.0, 3.0]))
    svg = figures.curves({NASTY: (x, band)}, {NASTY: Style("#0072B2", "dashed")}, title=NASTY, xlabel="x", ylabel="y")
    assert "a &lt;b&gt;&amp;amp; | `c` *d* _e_ [f](g)" in svg
    assert "stroke: #0072b2" in svg
    assert "stroke-dasharray" in svg
    assert "nan" not in svg.lower()
    assert "inf" not in svg.lower()


def test_glyphs_that_matplotlib_lacks_do_not_matter() -> None:
    svg = figures.legend({"策略 🦜": Style("#0072B2"), "_hidden": Style("#CC79A7")}, "")
    assert "策略 🦜" in svg
    assert "_hidden" in svg


def test_intervals_without_a_finite_end() -> None:
    rows = [figures.Row("a", Interval(-np.inf, -np.inf, 1.0), Style("#0072B2"))]
    svg = figures.intervals(rows, title="t", xlabel="x", line=0.0)
    assert "nan" not in svg.lower()


# Words


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (words.fixed(-1204.46, 1), "−1\u202f204.5"),
        (words.fixed(-0.04, 1), "0.0"),
        (words.fixed(float("-inf"), 1), "−∞"),
        (words.fixed(float("nan"), 1), "NaN"),
        (words.plain(475.0), "475"),
        (words.plain(-0.25), "−0.25"),
        (words.plain(200_000), "200\u202f000"),
        (words.significant(0.012345), "0.0123"),
        (words.significant(1234.5), "1\u202f234"),
        (words.significant(0.0), "0"),
        (words.between([50_000, 200_000]), "50\u202f000 to 200\u202f000"),
        (words.between([5, 5]), "5"),
        (words.enumeration(["a"]), "a"),
        (words.enumeration(["a", "b", "c"]), "a, b and c"),
        (words.seeds([12, 10, 11]), "10 to 12"),
        (words.seeds([1, 2, 5]), "1, 2 and 5"),
        (words.count(0, "run"), "no runs"),
        (words.duration(8.24), "8.24 s"),
        (words.duration(3725.0), "1 h 2 min"),
        (words.duration(1490.2), "24 min 50 s"),
        (words.one_line("a\n\tb\x1b c"), "a b c"),
        (words.one_line("abcdef", 4), "abc…"),
    ],
)
def test_words(said: str, text: str) -> None:
    assert said == text


# In a browser


@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium, chromium-browser or google-chrome on PATH")
    page, _ = write_report([peers()], tmp_path)
    image = tmp_path / "page.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--blink-settings=preferredColorScheme=1"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={image}", f"--window-size={width},1500"]
    subprocess.run([*command, page.as_uri()], check=True, capture_output=True, timeout=60)
    pixels = np.asarray(Image.open(image).convert("RGB")).astype(int)
    assert pixels.shape[1] == width
    ink = (pixels.sum(2) < 3 * 90).mean()
    vermilion = np.abs(pixels - (0xD5, 0x5E, 0x00)).max(2) < 24
    grey = np.abs(pixels - 0x66).max(2) < 24
    assert 0.002 < ink < 0.2
    assert vermilion.sum() > 500  # curves and legend of PPO and its peer
    assert grey.sum() > 500  # axes and captions, in the page's own colours
    assert (pixels == 255).all(2).mean() > 0.6
