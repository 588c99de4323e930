"""The report: numbers against hand computation, text that stays text, and the page in a browser."""

from __future__ import annotations

import base64
import copy
import html
import html.parser
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from markdown_it import MarkdownIt
from PIL import Image

from rlzoo.benchmark.job import Failure, Outcome
from rlzoo.benchmark.reports import figures, interactive, statistics, tables
from rlzoo.benchmark.reports.data import numbers
from rlzoo.benchmark.reports.report import draw, to_html, to_markdown, write_report
from rlzoo.benchmark.reports.study import Label, Study
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.suite import Environment
from rlzoo.core.system.errors import ConfigError
from rlzoo.runs.files import remove_report

RECORD = {
    "command": "rlzoo benchmark a --out 'b|c'",
    "machine": {"processor": "P", "cores": 2, "memory_gib": 24.0},
    "versions": {"rlzoo": "0.1.0", "torch": "2.8.0"},
    "git_commit": "abc123",
    "wall_seconds": 1.0,  # of earlier versions
}
NASTY = "a <b>&amp; | `c` *d* _e_ [f](g) $x$ ~~h~~"
SLOW, FAST = (0, 10, 20, 30), (0, 100, 200, 300)
"""Returns at steps 0, 100, 200 and 300."""


def outcome(
    label: str = "trpo", env: str = "E", seed: int = 0, returns: Sequence[Any] = SLOW, final: Any = None, **more: Any
) -> Outcome:
    """A run of 300 steps, 100 a second, whose final deterministic evaluation is better by 1."""
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


def section(text: str, title: str) -> str:
    """The Markdown of a section."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return found


def table(text: str, title: str, number: int = 0) -> list[list[str]]:
    """Head and rows of a section's table."""
    tables = re.findall(r"(?:^\|.*\n)+", section(text, title), re.MULTILINE)
    rows = [line.strip("| ").split(" | ") for line in tables[number].splitlines()]
    return [rows[0], *rows[2:]]


def bold(text: str) -> list[str]:
    """The algorithms whose final scores are bold."""
    return [row[1] for row in table(text, "Final scores")[1:] if row[2].startswith("**")]


def report(*folders: Results) -> str:
    return to_markdown(Study.of(folders))


def html_of(*folders: Results) -> str:
    study = Study.of(folders)
    return to_html(to_markdown(study), draw(study), study.title)


# Numbers


def test_final_scores() -> None:
    page = report(results([*runs("trpo", range(1, 9)), *runs("npg", [7.0] * 8)]))
    stochastic = tables.estimate(statistics.iqm_interval([range(1, 9)]), 2)
    deterministic = tables.estimate(statistics.iqm_interval([range(2, 10)]), 2)
    assert table(page, "Final scores") == [
        ["Environment", "Algorithm", "Stochastic", "Deterministic", "Seconds", "Steps per second", "Runs"],
        ["E", "trpo", stochastic, deterministic, "3.00", "100", "8 of 8"],
        ["E", "npg", "**7.00**", "8.00", "3.00", "100", "8 of 8"],
    ]
    # The middle half of 1 … 8 is 3 … 6.
    assert stochastic.startswith("4.50 [")
    assert deterministic.startswith("5.50 [")


@pytest.mark.parametrize(("n", "best"), [(1, []), (3, []), (4, ["npg"])])
def test_nothing_is_better_by_an_order_that_chance_gives(n: int, best: list[str]) -> None:
    # All of npg above all of trpo: 2 of C(2n, n) orders are as clear, which is 1, 1/10 and 1/35.
    page = report(results([*runs("trpo", range(n)), *runs("npg", range(10, 10 + n))]))
    assert bold(page) == best
    assert ("Too few runs to tell: trpo." in page) == (len(best) == 0)
    assert "No significant difference" not in page
    assert ("It is better than each of the others." in page) == (len(best) == 1)


def test_single_runs_in_many_environments_are_too_few() -> None:
    pairs = [runs("trpo", [i % 3], env=f"E{i}") + runs("npg", [1.5], env=f"E{i}") for i in range(6)]
    page = report(results([x for pair in pairs for x in pair]))
    assert "It is better than" not in page
    assert "Too few runs to tell" in page


@pytest.mark.parametrize(("n", "said"), [(1, "1.00 (too few runs)"), (3, "1.00 (too few runs)"), (4, "1.00")])
def test_every_table_has_the_same_rule_for_too_few_runs(n: int, said: str) -> None:
    finals = {"trpo": [-113.0 - i for i in range(n)], "npg": [-343.0 - i for i in range(n)]}
    folder = results([x for label in finals for x in runs(label, finals[label], returns=(-500, -400, -300, -200))],
                     {"E": -100.0}, counterparts={"npg": "trpo"})  # fmt: skip
    page = report(folder)
    assert table(page, "Overall")[1] == ["trpo", "–", said]
    assert table(page, "Pairs")[1][3] == said
    assert bold(page) == (["trpo"] if n == 4 else [])
    assert ("Too few runs to tell: npg." in page) == (n < 4)
    assert [row[2].endswith("(too few runs)") for row in table(page, "Final scores")[1:]] == [n == 1] * 2


def test_one_run_beside_five_has_no_interval() -> None:
    five = runs("trpo", [1.0, 2.0, 3.0, 4.0, 5.0])
    page = report(results([*five, *runs("npg", [2.5])], counterparts={"npg": "trpo"}))
    assert table(page, "Pairs")[1][3] == table(page, "Overall")[1][2] == "0.60 (too few runs)"
    assert table(page, "Overall")[2][1] == "0.40 (too few runs)"


def test_two_runs_of_one_side_are_too_few() -> None:
    """Complete separation of 12 from 2 has a p-value of 0.02, but two runs show no spread."""
    page = report(results([*runs("trpo", range(10, 22)), *runs("npg", [1.0, 2.0])]))
    assert "Some algorithms have only 2 seeds, with which bootstrap intervals are too narrow." in page
    assert table(page, "Overall")[1][2] == "1.00 (too few runs)"
    assert bold(page) == []


def test_the_best_with_lost_runs_is_named_with_their_number() -> None:
    finals = [*runs("trpo", [30.0, 31.0, 32.0, 33.0]), *runs("npg", [1.0, 2.0, 3.0])]
    page = report(results(finals, missing=[("trpo", "E", 9)]))
    finding = "trpo has the highest interquartile mean of normalised final scores, 1.26 [1.20, 1.32]"
    assert f"{finding} (4 of its 5 runs)." in page


def test_equal_scores_of_a_few_runs_are_no_certainty() -> None:
    page = report(results([*runs("trpo", [500.0] * 3), *runs("npg", [500.0] * 4)]))
    assert [row[2] for row in table(page, "Final scores")[1:]] == ["500.0 (too few runs)", "500.0"]


def sweep(label: str, points: Sequence[tuple[float, float]], seeds: Sequence[int] = range(4)) -> list[Outcome]:
    """Runs of one algorithm at (KL, score) points, under a label for each; the KL of a seed is higher by the seed."""
    return [
        outcome(
            f"{label}, {i}", seed=seed, final=score, further={"kl_reference": kl + seed}, settings={"algorithm": label}
        )
        for i, (kl, score) in enumerate(points)
        for seed in seeds
    ]


def test_scores_at_equal_values_of_a_metric() -> None:
    """The KL of trpo is 0 to 16, that of npg 8 to 24, and half of the seeds' offset is 1.5."""
    outcomes = [*sweep("trpo", [(16, 32), (0, 0)]), *sweep("npg", [(8, 0), (24, 16)])]
    study = Study.of([results(outcomes, against="kl_reference")])
    assert list(study.lines("E")) == ["trpo", "npg"]
    assert [np.median(points.metric) for points in study.lines("E")["trpo"]] == [1.5, 17.5]
    equal = study.at_equal("E")
    assert list(equal) == [11.5, 13.5, 15.5]  # quarters of 9.5 to 17.5
    assert equal[11.5]["trpo"].tolist() == [23.0, 21.0, 19.0, 17.0]  # twice the KL that is left without the seed
    assert equal[11.5]["npg"].tolist() == [3.5, 2.5, 1.5, 0.5]
    rows = table(to_markdown(study), "Score against kl_reference")
    assert rows[0] == ["Environment", "kl_reference", "trpo", "npg"]
    assert [row[1] for row in rows[1:]] == ["11.50", "13.50", "15.50"]
    assert rows[1][2].startswith("**20.00** [")
    assert rows[1][3].startswith("2.00 [")


def test_a_run_without_the_metric_is_left_out_of_the_scores_at_equal_values() -> None:
    outcomes = [*sweep("trpo", [(16, 32), (0, 0)]), *sweep("npg", [(8, 0), (24, 16)])]
    expected = Study.of([results(outcomes, against="kl_reference")]).at_equal("E")
    outcomes += [outcome("trpo, 0", seed=4, final=1.0, settings={"algorithm": "trpo"})]
    equal = Study.of([results(outcomes, against="kl_reference")]).at_equal("E")
    assert {level: x["trpo"].tolist() for level, x in equal.items()} == {
        level: x["trpo"].tolist() for level, x in expected.items()
    }


def test_folders_of_unequal_versions_are_drawn_apart_against_a_metric() -> None:
    versions = {**RECORD, "versions": {**RECORD["versions"], "torch": "2.9.0"}}
    a, b = sweep("trpo", [(16, 32), (0, 0)]), sweep("trpo", [(8, 0), (24, 16)])
    folders = results(a, path="x/A", against="kl_reference"), results(b, path="x/B", record=versions)
    assert list(Study.of(folders).lines("E")) == ["trpo (A)", "trpo (B)"]


def test_an_algorithm_with_one_label_is_drawn_over_its_training() -> None:
    """The last evaluation is replaced by the final one. A run without the others leaves the final ones alone."""
    course, final = {"kl_reference": [0.0, 4.0, 2.0, 9.0]}, {"kl_reference": 8.0, "ended": 0.5}
    more = outcome("npg", further=final, course=course)
    less = outcome("trpo", seed=1, further=final)
    study = Study.of([results([more, outcome("trpo", further=final, course=course), less], against="kl_reference")])
    lines = study.lines("E")
    assert [(*x.metric, *x.score) for x in lines["npg"]] == [(0, 0), (2, 20), (4, 10), (8, 30)]
    assert [(*x.metric, *x.score) for x in lines["trpo"]] == [(8, 8, 30, 30)]
    rows = table(to_markdown(study), "Final scores")
    assert [row[4:6] for row in rows] == [["kl_reference", "ended"], ["8.00", "0.500"], ["8.00", "0.500"]]


def test_responses_before_and_after_are_shown_as_text() -> None:
    def sample(response: str) -> dict[str, Any]:
        return {"prompt": NASTY, "response": response, "score": 0.25, "kl": 1.5, "length": 3, "ended": True}

    kinds = {kind: [sample(f"{kind} {NASTY}"), sample("another")] for kind in ("before", "after", "farthest")}
    page = report(results([outcome(samples=kinds), outcome(seed=1, samples={}), outcome("npg")]))
    rows = [list(map(html.unescape, row)) for row in table(page, "Responses")]
    assert rows[0] == ["Environment", "Algorithm", "", "Score", "KL, nats", "Prompt", "Response"]
    assert rows[1:] == [["E", "trpo", kind, "0.250", "1.50", NASTY, f"{kind} {NASTY}"] for kind in kinds]
    assert "Responses" not in report(results([outcome()]))


def test_what_the_updates_did() -> None:
    of_ppo = [{"kl_median": x, "kl_p95": 0.05, "kl_above": 0.25, "return_fell": 0.5} for x in (0.001, 0.004, 0.002)]
    of_ppo[0].pop("return_fell")
    of_trpo = {"kl_median": 0.01, "surrogate_fell": 0.0, "backtracks": 1.5, "rejected": 0.125}
    runs = [outcome("ppo-clip", seed=seed, updates=x) for seed, x in enumerate(of_ppo)]
    page = report(results([*runs, outcome("trpo", updates=of_trpo), outcome("sb3")]))
    head, *rows = table(page, "What the updates did")
    assert head == [  # those that some run has
        *("Environment", "Algorithm", "KL, median", "KL, 95th percentile", "Updates with KL above 0.01"),
        *("Updates with lower surrogate", "Buffers with lower return", "Backtracks", "Updates rejected"),
        "Seconds per 1,000 steps",
    ]
    assert rows == [
        ["E", "ppo-clip", "0.00200", "0.0500", "0.250", "–", "0.500", "–", "–", "10.0"],
        ["E", "trpo", "0.0100", "–", "–", "0", "–", "1.50", "0.125", "10.0"],
    ]
    assert "What the updates did" not in report(results([outcome("trpo")]))


def test_time_to_threshold() -> None:
    reached_late = outcome(seed=0, returns=(0, 10, 20, 30))  # at 300 steps, 3 s
    reached_soon = outcome(seed=1, returns=(0, 25, 0, 0))  # at 100 steps, and lost again
    never = outcome(seed=2, returns=(0, 0, 0, 24.9))
    diverged = outcome(seed=3, returns=(0, 0, 0, 0), final=float("nan"))
    nobody = outcome("npg", seed=0, returns=(0, 0, 0, 0))
    page = report(results([reached_late, reached_soon, never, diverged, nobody]))
    assert table(page, "Time to threshold") == [
        ["Environment", "Algorithm", "Threshold", "Steps", "Seconds", "Reached", "Kept"],
        ["E", "trpo", "25", "∞ [100, ∞]", "∞", "2 of 4", "1 of 4"],
        ["E", "npg", "25", "–", "–", "0 of 1", "0 of 1"],
    ]


def test_numbers_as_csv() -> None:
    """The IQM of two runs leaves none out. They take 4 and 2 seconds."""
    nan = float("nan")
    first = outcome(seed=1, returns=(0, 0, 0, 30), seconds=[0.0, 1.0, 2.0, 4.0], further={"score": 0.5})
    folder = results([first, outcome(seed=2, seconds=[0.0, 0.5, 1.0, 2.0], final=nan), outcome("npg", seed=1)])
    text = numbers(Study.of([folder]))
    scores = text["scores.csv"].splitlines()
    assert scores[0] == "environment,algorithm,seed,score,low,high,deterministic,steps,seconds,metric_score"
    assert scores[1] == "E,trpo,,-inf,-inf,30,-inf,300,3,0.5"
    assert scores[2:4] == ["E,trpo,1,30,,,31,300,4,0.5", "E,trpo,2,nan,,,nan,300,2,nan"]
    assert scores[4:] == ["E,npg,,30,,,31,300,3,", "E,npg,1,30,,,31,300,3,nan"]
    curves = text["curves.csv"].splitlines()
    assert curves[0] == "environment,algorithm,seed,steps,seconds,return,low,high"
    assert curves[1:5] == ["E,trpo,,0,0,0,,", "E,trpo,,100,0.75,5,0,10", "E,trpo,,200,1.5,10,0,20",
                           "E,trpo,,300,3,30,,"]  # fmt: skip
    assert curves[5:9] == ["E,trpo,1,0,0,0,,", "E,trpo,1,100,1,0,,", "E,trpo,1,200,2,0,,", "E,trpo,1,300,4,30,,"]
    assert len(curves) == 1 + 12 + 8


def test_a_metric_has_the_same_mean_in_the_table_and_as_csv() -> None:
    """The middle half of five runs are three: (0 + 0 + 1)/3. The median is 0."""
    study = Study.of([results([outcome(seed=seed, further={"win": x}) for seed, x in enumerate([0, 0, 0, 1, 1])])])
    assert table(to_markdown(study), "Final scores")[1][4] == "0.333 [0.000, 1.000]"
    assert numbers(study)["scores.csv"].splitlines()[1].endswith(",0.3333333")


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
    page = to_markdown(study)
    # trpo is above in E and below in F.
    assert table(page, "Overall") == [
        ["Algorithm", "trpo", "npg"],
        ["trpo", "–", "0.50"],
        ["npg", "0.50", "–"],
    ]
    # The middle half of four 2.0 and four 0.5 is two of each.
    finding = "trpo has the highest interquartile mean of normalised final scores, 1.25."
    assert finding in page
    assert table(page, "Method")[1:] == [
        ["E", "300", "100", "25", "0.00", "25.00"],
        ["F", "300", "100", "–", "0.0", "200.0"],
    ]


def test_every_run_has_its_place() -> None:
    outcomes = [outcome(seed=0), outcome(seed=2), outcome("npg", seed=0)]
    folder = results(
        outcomes,
        seeds=[0, 1, 2],
        failures=[Failure("trpo", "E", 1, "ValueError: no")],
        missing=[("npg", "E", 1), ("npg", "E", 2)],
    )
    page = report(folder)
    assert table(page, "Runs and settings")[1:] == [["E", "trpo", "0: 30.00, 2: 30.00"], ["E", "npg", "0: 30.00"]]
    assert [line for line in page.splitlines() if line.startswith("> ")] == [
        "> **Runs failed: 1.** **Runs missing: 2.** A run that failed has no score and is in no statistic, also if its "
        "training diverged. ",
        "> - trpo on E, seed 1: failed: ValueError: no",
        "> - npg on E, seeds 1, 2: missing",
    ]
    assert "3 of 6 runs finished (2 algorithms × 1 environments × 3 seeds)" in page
    assert [row[-1] for row in table(page, "Final scores")[1:]] == ["2 of 3", "1 of 3"]


def test_environments_that_lack_the_same_seeds_share_a_line() -> None:
    missing = [("trpo", "E", 1), ("trpo", "F", 1), ("trpo", "G", 1), ("trpo", "G", 2), ("npg", "F", 1)]
    page = report(results([outcome(seed=0)], seeds=[0, 1, 2], missing=missing))
    assert [line for line in page.splitlines() if line.startswith("> ")] == [
        "> **Runs missing: 5.** ",
        "> - trpo on E, F, seed 1: missing",
        "> - trpo on G, seeds 1, 2: missing",
        "> - npg on F, seed 1: missing",
    ]


def test_settings_are_flat_and_show_where_seeds_and_algorithms_differ() -> None:
    first = outcome(settings={"seed": 0, "policy": {"hidden": [64, 64]}, "num_envs": 8, "gamma": 0.9})
    second = outcome(seed=1, settings={"seed": 1, "policy": {"hidden": [64, 64]}, "num_envs": 16, "gamma": 0.9})
    other = outcome("npg", settings={"policy": {"hidden": [32]}, "gamma": 0.9, "max_kl": 0.01})
    page = report(results([first, second, other]))
    assert table(page, "Runs and settings", 1) == [["Setting", "Value"], ["gamma", "0.9"], ["max_kl", "0.01"]]
    assert table(page, "Runs and settings", 2) == [
        ["Setting", "E"],
        ["policy.hidden", "[64, 64]"],
        ["num_envs", "8 / 16"],
    ]
    assert table(page, "Runs and settings", 3) == [["Setting", "E"], ["policy.hidden", "[32]"]]


# Peers and folders


def peers(**more: Any) -> Results:
    outcomes = [*runs("ppo-clip", [10, 11, 12, 13]), *runs("sb3-ppo", [1, 2, 3, 4], seconds=[0.0, 2.0, 4.0, 6.0])]
    return results(outcomes, counterparts={"sb3-ppo": "ppo-clip"}, **more)


def test_a_peer_of_another_folder() -> None:
    ours = results(runs("ppo-clip", [10, 11]), path="x/ours")
    theirs = results(runs("sb3-ppo", [1, 2]), path="x/theirs", counterparts={"sb3-ppo": "ppo-clip"})
    page = report(ours, theirs)
    assert table(page, "Pairs")[1][:2] == ["ppo-clip", "sb3-ppo"]
    assert len(table(page, "Pairs")) == 2


def test_two_folders_with_one_label() -> None:
    a = results(runs("trpo", [1, 2]), path="x/A")
    b = results(
        [*runs("trpo", [3, 4]), *runs("npg", [3, 4])],
        path="x/B",
        environments={"E": Environment("E", 600, 100, 25)},
        record={**RECORD, "machine": {"processor": "Q"}},
    )
    page = report(a, b)
    assert [row[:4] for row in table(page, "Pairs")[1:]] == [["trpo (A)", "trpo (B)", "E", "0.00 (too few runs)"]]
    assert [row[1] for row in table(page, "Final scores")[1:]] == ["trpo (A)", "trpo (B)", "npg"]
    assert "The folders differ in processor (P in A, Q in B); E.total_steps (300 in A, 600 in B)." in page
    assert "- A: 2 of 2 runs finished" in page
    assert "Unequal versions" not in page


def test_unequal_versions_are_shown_apart_with_a_warning() -> None:
    a = results(runs("trpo", [1, 2]), path="x/A")
    versions = {"rlzoo": "0.1.0", "torch": "2.9.0", "gymnasium": "1.3.0"}
    b = results(runs("npg", [3, 4]), path="x/B", record={**RECORD, "versions": versions})
    page = report(a, b)
    assert [row[1] for row in table(page, "Final scores")[1:]] == ["trpo (A)", "npg (B)"]
    assert "> **Unequal versions:** torch (2.8.0 in A, 2.9.0 in B). Their results are shown apart" in page


def test_curve_of_the_budget_ends_where_a_run_has_got_to() -> None:
    short: dict[str, Any] = {"steps": [0, 150], "seconds": [0.0, 1.0]}
    study = Study.of([results([outcome(), outcome(seed=1, returns=(0, 10), **short), outcome("npg", seed=1)])])
    assert [study.normalised_curves(name)[0][-1] for name in ("trpo", "npg")] == [0.5, 1.0]


def test_training_time_is_that_of_all_runs() -> None:
    _, rows = tables.records(
        Study.of([results([outcome(seed=1), outcome(seed=2, seconds=[0.0, 3600.0, 7200.0, 9000.0])])])
    )
    assert ["training time of all runs", "2:30:03"] in rows


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
    assert table(page, "Final scores")[1][2].startswith("2.00 [−∞, ")
    assert "Runs diverged: 1.** A run that diverged without an error counts as lower than any other.\n" in page
    assert "> - trpo on E, seed 4: diverged" in page
    assert "4: NaN" in page


@pytest.mark.parametrize("level", [0.0, -5.0])
def test_no_scale_without_room(level: float, tmp_path: Path) -> None:
    """The threshold is not above what an untrained policy gets."""
    folder = results([outcome(), outcome(env="F")], {"E": level, "F": 25.0})
    assert list(Study.of([folder]).scales) == ["F"]
    write_report([folder], tmp_path)


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
    styles = figures.styles(Label(label, label, "A") for label in labels)
    assert len({tuple(style.values()) for style in styles.values()}) == 12
    assert styles["trpo"] == {"color": "#009E73", "linestyle": "solid"}
    assert styles["ppo-clip"] == {"color": "#D55E00", "linestyle": "solid"}


def test_labels_of_two_folders_look_different() -> None:
    labels = [f"l{i}" for i in range(9)]
    both = [Label(f"{x} ({folder})", x, folder) for folder in "AB" for x in labels]
    styles = figures.styles(both)
    assert len({tuple(style.values()) for style in styles.values()}) == 18
    assert all(styles[f"{x} (A)"]["color"] == styles[f"{x} (B)"]["color"] for x in labels)


def test_a_peer_has_the_colour_of_its_counterpart() -> None:
    algorithms = [
        Label("sb3-ppo", "sb3-ppo", "A", "ppo-clip"),
        Label("ppo-clip", "ppo-clip", "A"),
        Label("other-ppo", "other-ppo", "A", "ppo-clip"),
    ]
    styles = figures.styles(algorithms)
    assert styles["ppo-clip"] == {"color": "#D55E00", "linestyle": "solid"}
    assert styles["sb3-ppo"] == {"color": "#D55E00", "linestyle": "dashed"}
    assert styles["other-ppo"] == {"color": "#D55E00", "linestyle": "dashdot"}


RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
COMMITTED = sorted(path.parent for path in RESULTS.glob("*/suite.json"))
QUICK = ("classic", "lm", "frontier")


@pytest.mark.parametrize(
    "folder",
    [pytest.param(x, id=x.name, marks=[] if x.name in QUICK else [pytest.mark.slow]) for x in COMMITTED],
)
def test_committed_reports_are_those_of_the_committed_results(folder: Path) -> None:
    study = Study.of([Results.read(folder, pytest.fail)])
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert to_markdown(study) == text
    assert {*re.findall(r"\(figures/(\w+)\.svg\)", text)} == {x.stem for x in (folder / "figures").iterdir()}


@pytest.mark.parametrize("ours", ["classic", "white-noise"])
def test_the_committed_comparison_is_that_of_its_two_folders(ours: str) -> None:
    study = Study.of([Results.read(RESULTS / name) for name in (ours, "peers")])
    assert to_markdown(study) == (RESULTS / f"{ours}-and-peers" / "report.md").read_text(encoding="utf-8")


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
    reader = Reader(html_of(nasty))
    assert not {"script", "b", "code", "s", "del"} & set(reader.tags)
    assert [value for tag, value in reader.references if tag == "a"] == ["https://arxiv.org/abs/2108.13264"]
    assert reader.text.count(NASTY) > 8
    assert f"failed: {NASTY} [31m<script>alert(1)</script>" in reader.text


def test_text_stays_text_in_markdown(nasty: Results) -> None:
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(report(nasty))
    inline = [token for token in tokens if token.type == "inline"]
    said = ["".join(child.content for child in token.children or [] if child.type != "html_inline") for token in inline]
    assert said.count(NASTY) > 4
    assert f"{NASTY} on E, seed 2: failed: {NASTY} [31m<script>alert(1)</script>" in said
    kinds = {child.type for token in inline for child in token.children or []}
    assert kinds <= {"text", "text_special", "softbreak", "image", "strong_open", "strong_close", "em_open", "em_close",
                     "link_open", "link_close"}  # fmt: skip
    links = [child.attrs["href"] for token in inline for child in token.children or [] if child.type == "link_open"]
    assert links == ["https://arxiv.org/abs/2108.13264"]
    rows = [token for token in tokens if token.type == "tr_open"]
    cells = [token for token in tokens if token.type in ("td_open", "th_open")]
    assert len(rows) > 20
    assert len(cells) > 60


def test_no_text_commands_a_terminal_or_breaks_a_picture(tmp_path: Path) -> None:
    name = "\x1b]0;title\x07\x9b2J \b\r \u202e \ud800 \0\n# [red] <script>alert(1)</script>"
    outcomes = [x for label in (name, "trpo") for x in runs(label, range(6), env=name, settings={name: name})]
    more = {"failures": [Failure(name, name, 8, name)], "missing": [(name, name, 9)], "description": name}
    folder = results(outcomes, title=name, record=RECORD | {"command": name}, **more)
    write_report([folder], tmp_path)
    shown = r"\x1b]0;title\x07\x9b2J \x08  \u202e \ud800 \x00 # [red] <script>alert(1)</script>"
    page = Reader((tmp_path / "report.html").read_text())
    assert page.tags.count("script") == interactive.is_available()
    assert page.text.count(shown) > 8
    pictures = list(tmp_path.glob("figures/*.svg"))
    assert len(pictures) == 2
    for path in (*pictures, tmp_path / "report.html", tmp_path / "report.md"):
        text = path.read_text()
        assert not [c for c in text if not c.isprintable() and c not in "\n\t\u200b"], path
    for path in pictures:
        words = "".join(ElementTree.parse(path).getroot().itertext())
        assert r"\x1b]0;title\x07\x9b2J" in words


@pytest.mark.parametrize(
    "text", ["# a", "- a", "+ a", "1. a", "12) a", "= a", "a\\*b", "[a]: b", "&lt;", "snake_case_"]
)
def test_a_paragraph_is_a_paragraph(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(report(results([outcome()], description=text)))
    assert [token.type for token in tokens[3:6]] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[4].children or []) == text


def test_no_text_is_an_attribute_of_mkdocs() -> None:
    text = report(results([outcome()], description='a {: onclick="alert(1)" }'))
    assert "a &#123;: onclick=" in text


def test_nothing_is_written_or_deleted_through_a_link_to_figures(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/overall.svg").write_text("mine")
    for use in (remove_report, partial(write_report, [results(runs("npg", [1, 2]) + runs("trpo", [1, 2]))])):
        (tmp_path / "figures").symlink_to(tmp_path / "elsewhere")
        use(tmp_path)
        assert [path.read_text() for path in (tmp_path / "elsewhere").iterdir()] == ["mine"]
    assert list(tmp_path.glob("figures/*.svg"))


def test_a_page_loads_nothing(nasty: Results) -> None:
    study = Study.of([nasty, peers(path="x/peers")])
    images = draw(study)
    text = to_html(to_markdown(study), images, study.title)
    reader = Reader(text)
    shown = [base64.b64decode(value.removeprefix("data:image/svg+xml;base64,")).decode()
             for tag, value in reader.references if tag == "img"]  # fmt: skip
    assert sorted(shown) == sorted(images.values())
    assert [(tag, x) for tag, x in reader.references if tag != "img"] == [("a", "https://arxiv.org/abs/2108.13264")]
    for document in (text, *shown):
        assert not re.search(r"@import|url\((?!#)|<(script|link|iframe|object|image)\b", document)
        assert not re.search(r"""(href|src)=["'](?!#|data:|https://arxiv)""", document)


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
        "report.html", "report.md", "scores.csv", "curves.csv",
        "figures/overview.svg", "figures/overall.svg", "figures/pairs.svg",
    }  # fmt: skip


# The interactive chart


def drawn(chart: dict[str, Any], data: Mapping[str, str], mark: str = "line mark", **params: Any) -> list[str]:
    """The descriptions of the marks of a kind in the chart, drawn with these values of its parameters."""
    vl_convert = pytest.importorskip("vl_convert")
    chart = copy.deepcopy(chart)
    for panels in chart["vconcat"]:
        panels["data"]["values"] = data[panels["data"]["name"]]
    known = {x["name"]: x for x in chart["params"]}
    for name, value in params.items():
        known[name]["value"] = value
    svg = ElementTree.fromstring(vl_convert.vegalite_to_svg(chart, vl_version="6.4"))
    return [x.get("aria-label", "") for x in svg.iter() if x.get("aria-roledescription") == mark]


def test_choices_of_the_chart(nasty: Results) -> None:
    outcomes = [*runs("trpo", [1, 2, 3]), *runs("npg", [1, 2, 3]), *runs("npg", [1, 2], "F")]
    study = Study.of([results(outcomes)])
    chart, data = interactive.chart(study, numbers(study)), numbers(study)
    assert [x["name"] for x in chart["params"]] == [
        "time", "environment_0", "environment_1", "curves", "algorithm_0", "algorithm_1",
    ]  # fmt: skip
    assert len(drawn(chart, data)) == 3  # a line for each algorithm in each environment
    assert len(drawn(chart, data, curves="single runs")) == 8
    assert len(drawn(chart, data, environment_0=False)) == 1
    (left,) = drawn(chart, data, algorithm_1=False)
    assert "algorithm: trpo" in left
    assert left.startswith("time: 0; ")
    study = Study.of([nasty])
    assert len(drawn(interactive.chart(study, numbers(study)), numbers(study))) == 2
    lost = [*runs("trpo", [1, 2, 3, 4], returns=(0, 0, 0, 5)), outcome(seed=4, returns=(0, 0, 0, float("nan")))]
    study = Study.of([results([*lost, *runs("npg", [1])])])
    five, one = drawn(interactive.chart(study, numbers(study)), numbers(study), mark="point")[-2:]
    assert "interval: not finite" in five
    assert "interval: too few runs" in one


def test_the_chart_cannot_leave_its_script() -> None:
    pytest.importorskip("vl_convert")
    name = "</script><!--<script>alert(1)"
    study = Study.of([results(runs(name, [1, 2], env=name))])
    own = interactive.script(interactive.chart(study, numbers(study))).rpartition("const chart")[2]
    assert "<" not in own
    assert r"\u003c/script>" in own


def test_a_chart_against_a_metric() -> None:
    study = Study.of([results([*sweep("trpo", [(16, 32), (0, 0)])], against="kl_reference")])
    spec = interactive.chart(study, numbers(study))["vconcat"][1]["spec"]
    assert spec["encoding"]["x"]["field"] == "metric_kl_reference"
    assert len(drawn(interactive.chart(study, numbers(study)), numbers(study))) == 2


def test_without_the_extra_the_page_is_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interactive, "is_available", lambda: False)
    page, _ = write_report([peers()], tmp_path)
    reader = Reader(page.read_text())
    assert "script" not in reader.tags
    links = [value for tag, value in reader.references if value.startswith("data:text/csv")]
    texts = [unquote(value.partition(",")[2]) for value in links]
    assert texts == [(tmp_path / name).read_text() for name in ("scores.csv", "curves.csv")]


# Formatting


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (tables.fixed(-1204.46, 1), "−1,204.5"),
        (tables.fixed(-0.04, 1), "0.0"),
        (tables.fixed(float("-inf"), 1), "−∞"),
        (tables.fixed(float("nan"), 1), "NaN"),
        (tables.number(475.0), "475"),
        (tables.number(-0.25), "−0.25"),
        (tables.number(200_000), "200,000"),
        (tables.significant(0.012345), "0.0123"),
        (tables.significant(1234.5), "1,234"),
        (tables.significant(0.0), "0"),
        (tables.excerpt("a\n\tb\x1b c"), "a b c"),
        (tables.excerpt("abcdef", 4), "abc…"),
    ],
)
def test_numbers(said: str, text: str) -> None:
    assert said == text


# In a browser


def browse(page: Path, *options: str) -> str:
    """What Chromium prints about a page that it shows without a network."""
    names = "chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(names)} on PATH")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--blink-settings=preferredColorScheme=1"]
    command += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=20000", *options]
    return subprocess.run([*command, page.as_uri()], check=True, capture_output=True, text=True, timeout=240).stdout


@pytest.mark.slow
def test_the_controls_in_a_browser(tmp_path: Path) -> None:
    """A click on each kind of control, and the pointer over a curve, change the page."""
    pytest.importorskip("vl_convert")
    page, _ = write_report([results([*runs("trpo", [1, 2, 3]), *runs("npg", [1, 2], "F")])], tmp_path)
    act = """<script>
      const wait = () => new Promise((done) => setTimeout(done, 1000)), said = [];
      const lines = () => document.querySelectorAll("[aria-roledescription='line mark']").length;
      const click = (text) => [...document.querySelectorAll(".vega-bind label")]
        .flatMap((x) => [...x.querySelectorAll("input")].map((y) => [x, y]))
        .find(([x, y]) => y.value === text || x.textContent === text)[1].click();
      addEventListener("load", async () => {
        await wait(); said.push(lines(), document.images.length);
        click("single runs"); await wait(); said.push(lines());
        click("F"); await wait(); said.push(lines());
        click("trpo"); await wait(); said.push(lines());
        click("trpo"); click("seconds"); await wait();
        said.push(document.querySelector("[aria-roledescription='line mark']").getAttribute("aria-label"));
        const symbol = document.querySelector("[aria-roledescription='point'], [aria-roledescription='circle']");
        const { x, y } = symbol.getBoundingClientRect();
        symbol.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: x + 2, clientY: y + 2 }));
        await wait(); said.push(document.querySelector("#vg-tooltip-element")?.textContent);
        document.title = JSON.stringify(said);
      });</script>"""
    page.write_text(page.read_text().replace("<script>", act + "<script>", 1))
    title = re.search(r"<title>(.*?)</title>", browse(page, "--dump-dom"), re.DOTALL)
    assert title is not None
    first, images, single, without_f, without_trpo, line, tooltip = json.loads(html.unescape(title[1]))
    assert (first, images, single, without_f, without_trpo) == (2, 1, 5, 3, 0)
    assert line.startswith("time: 0; ")
    assert "algorithm" in tooltip


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    page, _ = write_report([peers()], tmp_path)
    image = tmp_path / "page.png"
    browse(page, f"--screenshot={image}", f"--window-size={width},1500")
    pixels = np.asarray(Image.open(image).convert("RGB")).astype(int)
    assert pixels.shape[1] == width
    ink = (pixels.sum(2) < 3 * 90).mean()
    vermilion = np.abs(pixels - (0xD5, 0x5E, 0x00)).max(2) < 24
    grey = np.abs(pixels - 0x66).max(2) < 24
    assert 0.002 < ink < 0.2
    assert vermilion.sum() > 300  # curves and legend of PPO and its peer
    assert grey.sum() > 500  # axes and captions, in the page's own colours
    assert (pixels == 255).all(2).mean() > 0.6


def test_an_algorithm_that_lacks_an_environment_is_in_no_aggregate() -> None:
    outcomes = [*runs("trpo", [50.0] * 4), *runs("npg", [25.0] * 4), *runs("trpo", [100.0] * 4, "F")]
    study = Study.of([results(outcomes, {"E": 25.0, "F": None})])
    assert study.overall == (["trpo"], ["E", "F"])


def test_a_curve_without_a_start_gives_no_untrained_score():
    assert Study.of([results([outcome(returns=(5, 10, 20, 30), steps=[50, 100, 200, 300])])]).scales == {}


def test_curves_end_where_the_shortest_run_does():
    over = outcome(seed=0, steps=[0, 100, 200, 306])
    short = outcome(seed=1, returns=(0, 10, 20), steps=[0, 100, 200], seconds=[0.0, 1.0, 2.0])
    for outcomes, end in (([over], 300), ([over, short], 200)):
        assert Study.of([results(outcomes)]).groups["trpo", "E"].grid.tolist() == list(range(0, end + 1, 100))


def test_curves_start_where_all_runs_have_been_evaluated():
    late = outcome(seed=1, returns=(10, 20, 30), steps=[130, 200, 300], seconds=[1.0, 2.0, 3.0])
    assert Study.of([results([outcome(), late])]).groups["trpo", "E"].grid.tolist() == [100, 200, 300]


def test_a_group_has_the_grid_of_its_own_folder():
    finer = {"E": Environment("E", 300, 50, 25.0)}
    first, second = results([outcome()]), results([outcome("npg")], path="finer", environments=finer)
    grid = Study.of([first, second]).groups["npg", "E"].grid
    assert grid.tolist() == list(range(0, 301, 50))
