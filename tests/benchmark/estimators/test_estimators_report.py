"""`python -m benchmarks.studies.estimators` and its report."""

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks.studies.estimators import natural, study, variants
from benchmarks.studies.estimators.__main__ import main
from benchmarks.studies.estimators.judge import Estimate
from benchmarks.studies.estimators.report import write_report

COMMITTED = Path(__file__).parents[3] / "benchmarks" / "results" / "estimators"
EXACT = Estimate(1.01, 0.02, 0.0, 0.4, 1.0, 0.3, 0.35, 1.0, 0.0, 1.0)


def test_the_committed_report_is_that_of_the_committed_numbers(tmp_path):
    record = json.loads((COMMITTED / "estimates.json").read_text())
    page = write_report(record, tmp_path)
    *lines, _, command = page.read_text().splitlines()
    *committed, _, _ = (COMMITTED / "report.md").read_text().splitlines()
    assert lines == committed
    assert command.startswith("Made by `python -m benchmarks.studies.estimators --batches 1000 --seed 0`")
    for path in (COMMITTED / "figures").iterdir():
        assert without_ids((tmp_path / "figures" / path.name).read_text()) == without_ids(path.read_text())


def without_ids(svg):
    """Matplotlib names clip paths by a hash of their coordinates, whose rounding is the processor's."""
    return re.sub(r"\bp[0-9a-f]{10}\b", "", svg)


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (EXACT, "unbiased"),
        (Estimate(0.5, 0.02, 0.5, 0.0001, 1.0, 0.3, 0.35, 0.5, 0.5, 1.0), "biased in length"),
        (Estimate(1.0, 0.02, 0.0, 0.4, 1.0, 0.3, 0.35, 1.0, 0.01, 0.9999), "biased"),
        (Estimate(1.0, 0.02, 0.0, 0.4, 1.0, 0.3, 0.35), "no bias found"),
        (Estimate(0.5, 0.02, 0.5, 0.0001, 1.0, 0.3, 0.35), "biased in length"),
        (Estimate(0.5, 0.02, 0.6, 0.0001, 0.9, 0.0001, 0.45), "biased"),
    ],
)
def test_verdicts(estimate, verdict):
    assert estimate.verdict == verdict


@pytest.mark.slow
def test_the_command_measures_and_writes_a_report(tmp_path, monkeypatch, capsys):
    for name in ("KL", "BASELINES", "LENGTHS", "WHITENING"):
        monkeypatch.setattr(variants, name, getattr(variants, name)[:1])
    monkeypatch.setattr(study, "STALENESS", (0, 1))
    monkeypatch.setattr(natural, "RESPONSES", (12,))
    out = tmp_path / "results"
    monkeypatch.setattr(sys, "argv", ["estimators", "--batches", "100", "--seed", "1", "--out", str(out)])
    main()
    assert capsys.readouterr().out.splitlines()[-1] == str(out / "report.md")
    record = json.loads((out / "estimates.json").read_text())
    estimate = record["sections"]["kl"]["k1, in the reward"]
    assert estimate["verdict"] == "unbiased"
    assert abs(estimate["scale"] - 1) < 4 * estimate["scale_error"]
    assert record["stale"]["1"]["kl"] > 0
