"""`benchmarks/studies/papers.py`: the paper's protocol and ours, against numbers computed by hand."""

import dataclasses
import sys
from pathlib import Path

import pytest
from result_folders import outcome, rows, write

from benchmarks.studies import papers
from rlzoo.benchmark.reports.statistics import probability_of_improvement
from rlzoo.benchmark.reports.study import Study
from rlzoo.benchmark.results import Results

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def report(folder):
    return papers.to_markdown(Study.of([Results.read(folder, pytest.fail)]))


FOUR = {"clip 0.2": 80, "adaptive 0.01": 60, "fixed 1": 40, "none": 20}


def test_scores_are_normalised_as_in_the_paper(tmp_path):
    # The random policy has −10 on A and 0 on B; the best of the paper's variants have 90 and 50.
    runs = [
        *(outcome("clip 0.2", "A", seed, 90, 190, start=-5) for seed in (0, 1, 2)),
        *(outcome("none", "A", seed, 40, 140, start=-15) for seed in (0, 1, 2)),
        *(outcome("trpo", "A", seed, 190, 0, start=-10) for seed in (0, 1, 2)),
        *(outcome("clip 0.2", "B", seed, last, 10 * last) for seed, last in enumerate((40, 50, 60))),
        *(outcome("none", "B", seed, -15, 0) for seed in (0, 1, 2)),
        *(outcome("trpo", "B", seed, 25, 0) for seed in (0, 1, 2)),
    ]
    text = report(write(tmp_path / "x", runs, range(3)))
    scores = rows(text, 0)
    assert scores["clip 0.2"][:2] == ["0.82", "1.00"]
    assert scores["none"][:2] == ["−0.39", "0.10"]  # (50/100 − 15/50) / 2
    assert scores["trpo"][:2] == ["–", "1.25"]  # (200/100 + 25/50) / 2
    # Final scores of none: 140 on A, where 190 is the best, and 0 on B. The middle half of the six has as many
    # of each.
    assert scores["none"][2] == "0.38"
    assert scores["none"][3:] == ["1.00", "6"]
    assert text.startswith(
        "18 of 18 runs have finished. Environments: A, B. Runs of each algorithm in each of them: 3.\n"
    )


def test_claims_are_found_not_found_and_undecided(tmp_path):
    finals = {"clip 0.2": (8, 9, 10, 11, 12), "adaptive 0.01": (3, 4, 5, 6, 7), "fixed 1": (13, 14, 15, 16, 17)}
    finals["none"] = (12, 14, 15, 16, 18)
    runs = [outcome(x, "A", seed, FOUR[x] + seed, y) for x, of in finals.items() for seed, y in enumerate(of)]
    found = rows(report(write(tmp_path / "x", runs, range(5))), 1)
    assert [x.partition(" (")[0] for _, x in found.values()] == ["found", "not found", "undecided", "not found"]
    assert [x for x, _ in found.values()] == ["found (1.00)"] * 4
    p = probability_of_improvement([finals["fixed 1"]], [finals["none"]])
    claim = "fixed > none: fixed 1 (0.71) above none (−0.39)"
    assert found[claim][1] == f"undecided ({p.estimate:.2f} [{p.low:.2f}, {p.high:.2f}])"
    assert list(found)[-1] == "clip 0.2 is the best of the 4 variants with runs"


def test_too_few_runs_give_neither_intervals_nor_verdicts(tmp_path):
    runs = [outcome(x, "A", seed, y + seed, y + 3 * seed) for x, y in FOUR.items() for seed in range(2)]
    text = report(write(tmp_path / "x", runs, range(2)))
    assert "too few for intervals" in text
    assert {x for pair in rows(text, 1).values() for x in pair} == {"too few runs (1.00)"}
    assert "[" not in text


def test_an_incomplete_suite_is_of_the_environments_that_all_share(tmp_path):
    runs = [outcome(x, "A", 0, y, y) for x, y in FOUR.items()] + [outcome("clip 0.2", "B", 0, 5, 5)]
    runs += [outcome("clip 0.2", "A", 1, 5, 5)]
    text = report(write(tmp_path / "x", runs, range(2), labels=[*FOUR, "npg"], envs=["A", "B"]))
    assert text.startswith(
        "6 of 20 runs have finished. Environments: A. Runs of each algorithm in each of them: 1 to 2. "
    )
    assert list(rows(text, 0)) == list(FOUR)


def test_what_the_updates_did_over_the_environments(tmp_path):
    values = {("A", 0): 0.1, ("A", 1): 0.3, ("B", 0): 0.6, ("B", 1): 0.8, ("C", 0): 0.9, ("C", 1): 0.9}
    runs = [outcome("npg", env, seed, 9, 9, kl_above=x) for (env, seed), x in values.items()]
    assert rows(report(write(tmp_path / "x", runs, range(2))), 1)["npg"] == ["0.00400", "0.700"]


def test_what_no_environment_of_the_table_measured_is_no_column(tmp_path):
    runs = [outcome(label, "A", 0, 9, 9) for label in ("npg", "trpo")] + [outcome("npg", "B", 0, 9, 9, kl_above=0.5)]
    text = report(write(tmp_path / "x", runs, [0]))
    assert "Environments: A." in text
    assert rows(text, 1)["npg"] == ["0.00400"]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([], "no run has finished yet"),
        ([("trpo", "A"), ("npg", "B")], "no environment has runs of all algorithms yet"),
        (None, "trpo on A lacks the last 100 episodes: the suite needs measure_updates: true"),
    ],
)
def test_results_without_a_comparison_are_one_line(runs, message, tmp_path, monkeypatch, capsys):
    outcomes = [outcome(label, env, 0, 1, 1) for label, env in runs or []]
    if runs is None:
        outcomes = [dataclasses.replace(outcome("trpo", "A", 0, 1, 1), updates={})]
    folder = write(tmp_path / "x", outcomes, [0], labels=["trpo", "npg"], envs=["A", "B"])
    monkeypatch.setattr(sys, "argv", ["papers.py", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        papers.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"papers.py: error: {message}"


def test_the_tables_are_written_to_a_file(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "x", [outcome("trpo", "A", 0, 1, 1)], [0])
    monkeypatch.setattr(sys, "argv", ["papers.py", str(folder), "--out", str(tmp_path / "tables.md")])
    papers.main()
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == capsys.readouterr().out == report(folder)


@pytest.mark.parametrize(
    ("folders", "file"),
    [(["ppo-paper"], "papers.md"), (["ppo-paper", "ppo-paper-variants"], "papers-variants.md")],
)
def test_the_committed_tables_are_those_of_the_committed_results(folders, file):
    text = papers.to_markdown(Study.of([Results.read(RESULTS / name, pytest.fail) for name in folders]))
    assert text == (RESULTS / file).read_text(encoding="utf-8")
