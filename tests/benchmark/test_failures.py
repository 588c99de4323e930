"""The figures of runs with one wrong setting."""

from dataclasses import replace

from benchmarks.studies.failures import FAILURES, drawn, measured, read


def test_a_figure_is_drawn_from_each_of_the_committed_curves():
    data = read()
    assert all(drawn(failure, data[name]) for name, failure in FAILURES.items())


def test_iterations_have_the_metrics_of_the_panels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failure, short = FAILURES["kl-runaway"], {"total_steps": 1000, "eval_episodes": 1, "final_eval_episodes": 1}
    curves = measured(replace(failure, settings={"short": {}}, shared=short, seeds=(0,)))
    assert curves["short"].keys() == {panel.metric for panel in failure.panels}
