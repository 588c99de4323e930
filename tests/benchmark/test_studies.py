"""Scripts of studies: their help, and the figures of runs with one wrong setting."""

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies.failures import FAILURES, drawn, measured, read

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    "name", ["speed/fisher_products", "studies/learning_curves", "studies/language_defaults", "studies/failures"]
)
def test_help_runs_nothing(name, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    assert f"python benchmarks/{name}.py" in capsys.readouterr().out


@pytest.mark.slow
def test_a_figure_is_drawn_from_each_of_the_committed_curves():
    data = read()
    assert all(drawn(failure, data[name]) for name, failure in FAILURES.items())


def test_iterations_have_the_metrics_of_the_panels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failure, short = FAILURES["kl-runaway"], {"total_steps": 1000, "eval_episodes": 1, "final_eval_episodes": 1}
    curves = measured(replace(failure, settings={"short": {}}, shared=short, seeds=(0,)))
    assert curves["short"].keys() == {panel.metric for panel in failure.panels}
