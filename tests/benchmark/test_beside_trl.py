"""The table of rlzoo beside TRL, from runs of known pace."""

from pathlib import Path


def run(system, seed, seconds, score):
    key = {"task": "Sentiment", "precision": "bfloat16", "seed": seed, "steps": 2, "threads": 1}
    tokens = {"tokens": [100, 120], "scores": [0.0, score], "seconds": [7.0, 7.0 + seconds], "peak_memory_gb": 3.0}
    return {**key, "system": system, **tokens}


def test_ratios_are_those_of_rounds_and_leave_out_the_first_update(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks" / "speed")
    import beside_trl

    runs = [
        run(system, seed, *x)
        for seed, pair in enumerate([((1, 0.1), (3, 0.4)), ((2, 0.3), (4, 0.4))])
        for system, x in zip(("rlzoo", "TRL"), pair, strict=True)
    ]
    speeds, curves = beside_trl.report(runs).split("| task |")[1:]
    assert "| Sentiment | bfloat16 | 1 | 2 | 90.0 | 35.0 | 2.50 (2.00 – 3.00) | 3.00 / 3.00 |" in speeds
    assert "| Sentiment | bfloat16 | 1 | 1 | 100 / 100 | 7 / 7 | 0.00 / 0.00 |" in curves
    assert "| Sentiment | bfloat16 | 1 | 2 | 220 / 220 | 8 / 10 | 0.20 / 0.40 |" in curves
