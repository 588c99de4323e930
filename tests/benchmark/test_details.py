"""`benchmarks/studies/details.py`: differences of algorithms and of details, against numbers computed by hand."""

import sys
from pathlib import Path

import pytest
from result_folders import outcome, rows, write

from benchmarks.studies import details
from rlzoo.benchmark.reports.study import Study
from rlzoo.benchmark.results import Results

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "results" / "details"
FINALS = {"PPO": (100, 120, 140), "PPO-M": (60, 70, 80), "TRPO": (90, 90, 90), "no annealing": (120, 120, 150)}


def tables(folder):
    return details.to_markdown(Study.of([Results.read(folder, pytest.fail)]))


def runs(finals, env="Hopper-v5"):
    return [outcome(label, env, i, 0, y, ratio_outside=0.2) for label, of in finals.items() for i, y in enumerate(of)]


def test_differences_are_those_of_interquartile_means_beside_the_papers(tmp_path):
    text = tables(write(tmp_path / "x", runs(FINALS), range(3)))
    found = rows(text, 0)
    assert list(found) == ["PPO-M − TRPO", "PPO − PPO-M"]  # the pairs that both have runs
    # Nothing is trimmed from three runs. A resampled difference is between 100 − 80 and 140 − 60.
    env, in_paper, difference, probability = found["PPO − PPO-M"]
    assert (env, in_paper, probability) == ("Hopper-v5", "371", "1.00 (too few runs)")
    assert difference.startswith("50 [")
    low, high = map(int, difference[4:-1].split(", "))
    assert 20 <= low < 50 < high <= 80
    assert found["PPO-M − TRPO"][1] == "99"
    assert found["PPO-M − TRPO"][2].startswith("−20 [")


def test_single_details_are_compared_with_ppo(tmp_path):
    single = rows(tables(write(tmp_path / "x", runs(FINALS), range(3))), 1)
    assert list(single) == ["PPO − no annealing"]
    assert single["PPO − no annealing"][1] == "–"
    assert single["PPO − no annealing"][2].startswith("−10 [")
    assert single["PPO − no annealing"][3].startswith("0.33 [")  # of 9 pairs, 2 wins and 2 ties


def test_scores_and_what_the_updates_did(tmp_path):
    scores = rows(tables(write(tmp_path / "x", runs(FINALS), range(3))), 2)
    assert scores["TRPO"] == ["Hopper-v5", "2,043", "90", "0.00400", "0.200", "3"]
    assert scores["no annealing"][1] == "–"


def test_two_runs_have_no_intervals(tmp_path):
    text = tables(write(tmp_path / "x", runs({name: of[:2] for name, of in FINALS.items()}), range(2)))
    assert "[" not in text
    assert rows(text, 0)["PPO − PPO-M"][2:] == ["45", "1.00"]


def test_no_results_are_one_line(tmp_path, monkeypatch, capsys):
    folder = write(tmp_path / "x", [], [0], labels=["PPO"], envs=["Hopper-v5"])
    monkeypatch.setattr(sys, "argv", ["details.py", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        details.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == "details.py: error: no run has finished yet"


def test_the_committed_tables_are_those_of_the_committed_results():
    assert tables(COMMITTED) == COMMITTED.with_suffix(".md").read_text(encoding="utf-8")
