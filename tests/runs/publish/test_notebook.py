"""A run in a notebook."""

import json

import pytest

from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.run import Run
from tests.short_runs import quick_run


def written(run, **files):
    for name, records in files.items():
        (run.path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return run


def evaluation(step, mean, deterministic=False, **further):
    return {
        "step": step, "mean_return": mean, "std_return": 1.0, "episodes": 5, "deterministic": deterministic,
        "final": False, **further,
    }  # fmt: skip


def lines(axes):
    return {line.get_label(): [tuple(xy) for xy in line.get_xydata()] for line in axes.get_lines()}


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", make_config("ppo-clip", "CartPole-v1"))


def test_plot_shows_training_and_both_kinds_of_evaluation(run):
    metrics = [{"step": 5, "mean_return": None}, {"step": 10, "mean_return": 3.0}]
    evaluations = [evaluation(0, 1.0), evaluation(10, 2.0), evaluation(10, 4.0, deterministic=True)]
    (axes,) = written(run, metrics=metrics, evaluations=evaluations).plot().get_axes()
    assert lines(axes) == {
        "training": [(10, 3)],
        "evaluation, sampled": [(0, 1), (10, 2)],
        "evaluation, deterministic": [(10, 4)],
    }
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("steps", "mean return")


def test_plot_of_a_language_model_has_the_score_and_the_kl(run):
    written(run, metrics=[{"step": 8, "score": 0.5, "kl_reference": 0.2}], evaluations=[evaluation(8, 0.6)])
    score, kl = run.plot().get_axes()
    assert lines(score) == {"training": [(8, 0.5)], "evaluation, sampled": [(8, 0.6)]}
    assert lines(kl) == {"training": [(8, 0.2)]}
    assert kl.get_ylabel() == "KL to the reference"


def test_table_has_the_evaluations_of_the_last_step(run):
    written(run, evaluations=[evaluation(0, 1.25), evaluation(10, 2.5), evaluation(10, 4.75, deterministic=True)])
    html = run._repr_html_()
    assert "<td>sampled</td><td>10</td><td>2.5</td>" in html
    assert "<td>deterministic</td><td>10</td><td>4.75</td>" in html
    assert "1.25" not in html
    assert "10 of 100,000 steps" in html
    assert 'src="data:image/png;base64,' in html


def test_run_without_evaluations_is_shown(run):
    assert "No evaluation yet." in run._repr_html_()
    assert lines(run.plot().get_axes()[0]) == {}


def test_names_are_escaped(tmp_path):
    html = Run.create(tmp_path / "<b>x", make_config("ppo-clip", "CartPole-v1"))._repr_html_()
    assert "<b>x" not in html
    assert "&#60;b&#62;x" in html


def test_figure_of_a_real_run_is_a_picture(tmp_path):
    """As IPython asks for it, where `matplotlib.pyplot` was never imported."""
    run = quick_run(tmp_path / "run")
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert f"{run.steps()[-1]:,} of 600 steps" in run._repr_html_()
