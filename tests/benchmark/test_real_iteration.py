"""The table of `benchmarks/speed/real_iteration.py`, against numbers by hand."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speed"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import real_iteration

    yield real_iteration
    del sys.modules["real_iteration"]


def parts(script, seconds):
    return {**dict.fromkeys(script.PARTS, seconds), "tokens": 60.0, "peak_memory_gb": 2.0}


def test_the_table_has_medians_of_the_rounds_and_sums_of_the_parts(script):
    ours = [parts(script, x) | {f"floor of {name}": 2.0 for name in script.PARTS} for x in (9.0, 4.0, 5.0)]
    runs = {
        ("bfloat16", "rlzoo"): ours,
        ("bfloat16", "plain"): [parts(script, 10.0)] * 3,
        ("bfloat16", "generate"): [{"sampling": x} for x in (7.0, 7.5, 99.0)],
    }
    rows, paces = (x.splitlines() for x in script.table(runs).split("\n\n"))
    rows = rows[2:]
    assert len(rows) == len(script.PARTS) + 2
    assert rows[0] == "| bfloat16 | sampling | 5 | 2 | 2.50 | 10 | 2.00 |"
    assert rows[-2] == "| bfloat16 | all | 20 | 8 | 2.50 | 40 | 2.00 |"
    assert rows[-1] == "| bfloat16 | sampling beside `model.generate` | 5 | | | 7.5 | 1.50 |"
    assert paces[2:] == ["| bfloat16 | rlzoo | 60 | 3 | 2.0 |", "| bfloat16 | plain | 60 | 2 | 2.0 |"]


def test_a_contestant_that_failed_has_no_figures(script):
    ours = parts(script, 1.0) | {f"floor of {name}": 0.5 for name in script.PARTS}
    rows = script.table({("float32", "rlzoo"): [ours]}).split("\n\n")[0].splitlines()
    assert rows[-1] == "| float32 | all | 4 | 2 | 2.00 | – | – |"
