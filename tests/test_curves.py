"""The script that makes the learning curves: small runs, and figures of them."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import rlzoo

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("curves", ROOT / "benchmarks" / "curves.py")
curves = importlib.util.module_from_spec(spec)
spec.loader.exec_module(curves)

SETTINGS = {"total_steps": 600, "num_envs": 4, "num_steps": 50, "minibatch_size": 100, "epochs": 2}


@pytest.fixture
def brief(monkeypatch):
    monkeypatch.setattr(curves, "EPISODES", 2)
    monkeypatch.setattr(curves, "FINAL_EPISODES", 3)


def test_run_is_evaluated_from_start_to_end_and_trains_as_without_evaluations(brief, monkeypatch):
    trainers = []

    class Watched(rlzoo.Trainer):
        def __init__(self, *args):
            super().__init__(*args)
            trainers.append(self)

    monkeypatch.setattr(rlzoo, "Trainer", Watched)
    record = curves.train("ppo-clip", "CartPole-v1", 1, SETTINGS)
    assert record["steps"][0] == 0
    assert record["steps"][-1] >= 600
    assert len(record["steps"]) == len(record["mean_return"])
    assert json.loads(json.dumps(record)) == record

    plain = rlzoo.Trainer(rlzoo.make_config("ppo-clip", "CartPole-v1", seed=1, **SETTINGS))
    while not plain.done:
        plain.iterate()
    for name, value in trainers[0].model.state_dict().items():
        assert bool((plain.model.state_dict()[name] == value).all()), name


def record(algorithm, env, seed, returns):
    return {"algorithm": algorithm, "env": env, "seed": seed, "steps": [0, 100 + seed], "mean_return": returns}


def test_band_is_median_and_range_over_seeds():
    runs = [record("npg", "CartPole-v1", seed, [seed, 10.0 * seed]) for seed in (0, 1, 5)]
    grid, median, low, high = curves.band(runs)
    assert (grid[0], grid[-1]) == (0, 100)
    assert (median[0], low[0], high[0]) == (1, 0, 5)
    np.testing.assert_allclose((median[-1], low[-1]), (1 + 9 * 100 / 101, 0))


def test_records_are_written_in_order_and_read_back(tmp_path):
    runs = [record("trpo", "CartPole-v1", 1, [1.0, 2.0]), record("npg", "Pendulum-v1", 0, [1.0, 2.0])]
    curves.write(tmp_path / "curves.jsonl", runs)
    assert curves.read(tmp_path / "curves.jsonl") == runs[::-1]
    assert curves.read(tmp_path / "none.jsonl") == []


@pytest.mark.slow
def test_every_figure_is_drawn_even_where_runs_are_missing(tmp_path, capsys):
    results = tmp_path / "curves.jsonl"
    assert curves.main(["plot", "--results", str(results), "--assets", str(tmp_path)]) == 1
    curves.write(results, [record("trpo", "CartPole-v1", seed, [20.0, 400.0]) for seed in (0, 1)])
    assert curves.main(["plot", "--results", str(results), "--assets", str(tmp_path)]) == 0
    expected = {f"curves-{algorithm}.png" for algorithm in curves.ALGORITHMS} | {"overview.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == expected


def test_shortened_runs_stay_out_of_the_results(capsys):
    with pytest.raises(SystemExit):
        curves.main(["run", "--total-steps", "100"])
    assert "--out" in capsys.readouterr().err
