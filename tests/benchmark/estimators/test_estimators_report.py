"""`rlzoo benchmark estimators` and its report."""

import json

import pytest

from rlzoo.benchmark.estimators import natural, study, variants
from rlzoo.benchmark.estimators.judge import Estimate
from rlzoo.benchmark.estimators.report import to_markdown, write_report
from rlzoo.benchmark.estimators.study import Facts, Study
from rlzoo.cli import main

EXACT = Estimate(1.01, 0.02, 0.0, 0.4, 1.0, 0.3, 0.35, 1.0, 0.0, 1.0)
TURNED = Estimate(0.5, 0.02, 0.6, 0.0001, 0.9, 0.0001, 0.45)


def made(**changes):
    both = [(variants.BASELINES[0], EXACT), (variants.BASELINES[3], TURNED)]
    ratios = [(variant, EXACT) for variant in variants.STALE]
    given = {
        "batches": 100, "seed": 3, "check": EXACT, "facts": Facts(0.7, 0.4, 2.5, 0.8),
        "responses": 2343, "parameters": 976,
        "sections": dict.fromkeys(("kl", "baselines", "lengths", "whitening"), both),
        "stale": {0: ratios, 4: ratios}, "moved": {0: 0.0, 4: 0.02}, "kl": [("k2", 0.36, 0.29)],
        "natural": [(None, TURNED), (12, TURNED)],
    }  # fmt: skip
    return Study(**given | changes)


def test_the_report_has_the_numbers():
    page = to_markdown(made())
    setting = "estimator=monte-carlo, baseline=false"
    assert f"| none | 1.010 ± 0.020 | 1.0000 | 1.0000 | 0.0000 | 0.4 | 0.35 | unbiased | {setting} |" in page
    measured = "| 0.500 ± 0.020 | – | 0.900 | 0.600 | 0.0001 | 0.45 | biased | estimator=group-norm |"
    assert f"group mean and std (GRPO) {measured}" in page
    assert "Over 1\u202f000 other batches its mean along g is 1.0100 ± 0.0200, and p = 0.40" in page
    assert "| k2 | 0.3600 | −10.0 % | 0.2900 |" in page
    assert "rlzoo benchmark estimators --batches 100 --seed 3" in page


def test_equal_studies_give_equal_bytes(tmp_path):
    pages = [write_report(made(), tmp_path / name) for name in "ab"]
    names = ["estimates.json", "report.md", *(f"figures/{x}.svg" for x in ("kl", "baselines", "whitening", "stale"))]
    for name in names:
        first, second = ((page.parent / name).read_bytes() for page in pages)
        assert first == second
        assert b"biased" in first or name.endswith(".svg")


@pytest.mark.parametrize(
    ("estimate", "verdict"),
    [
        (EXACT, "unbiased"),
        (Estimate(0.5, 0.02, 0.5, 0.0001, 1.0, 0.3, 0.35, 0.5, 0.5, 1.0), "biased in length"),
        (Estimate(1.0, 0.02, 0.0, 0.4, 1.0, 0.3, 0.35, 1.0, 0.01, 0.9999), "biased"),
        (Estimate(1.0, 0.02, 0.0, 0.4, 1.0, 0.3, 0.35), "no bias found"),
        (Estimate(0.5, 0.02, 0.5, 0.0001, 1.0, 0.3, 0.35), "biased in length"),
        (TURNED, "biased"),
    ],
)
def test_verdicts(estimate, verdict):
    assert estimate.verdict == verdict


def test_the_command_writes_a_report(tmp_path, monkeypatch, capsys):
    for name in ("KL", "BASELINES", "LENGTHS", "WHITENING", "STALE"):
        monkeypatch.setattr(variants, name, getattr(variants, name)[:1])
    monkeypatch.setattr(study, "STALENESS", (0, 1))
    monkeypatch.setattr(natural, "RESPONSES", (12,))
    out = tmp_path / "results"
    assert main(["benchmark", "estimators", "--batches", "100", "--seed", "1", "--out", str(out), "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.md")
    record = json.loads((out / "estimates.json").read_text())
    found = record["sections"]["kl"]["k1, in the reward"]
    assert found["verdict"] == "unbiased"
    assert abs(found["scale"] - 1) < 4 * found["scale_error"]
    assert record["stale"]["1"]["kl"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "99"], "batches must be at least 100, got 99"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--jobs", "2"], "no option '--jobs'"),
    ],
)
def test_wrong_use_is_one_line(arguments, message, capsys):
    assert main(["benchmark", "estimators", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
