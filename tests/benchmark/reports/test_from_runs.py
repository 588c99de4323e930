"""Reports on runs: groups of seeds, runs side by side, runs that are not finished, and what is no run."""

import csv
import json
import shutil

import pytest
import short_runs
from result_folders import outcome, write

from rlzoo.benchmark.reports.from_runs import find_results
from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one setting, another setting, and another environment."""
    home = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        short_runs.quick_run(home / "seeds" / f"seed-{seed}", seed=seed)
    short_runs.quick_run(home / "other", seed=1, gamma=0.5)
    short_runs.quick_run(home / "pendulum", seed=1, env="Pendulum-v1")
    (home / "model").mkdir()
    (home / "model" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return home


def only(paths):
    warnings = []
    (results,) = find_results(paths, warnings.append)
    return results, warnings


def test_seeds_are_one_group_and_other_settings_another(runs):
    results, warnings = only([runs])
    assert warnings == []
    assert results.labels == ["ppo-clip, gamma=0.5", "ppo-clip", "ppo-clip, gamma=0.99"]
    assert list(results.environments) == ["CartPole-v1", "Pendulum-v1"]
    by_key = {outcome.key: outcome for outcome in results.outcomes}
    assert ("ppo-clip, gamma=0.99", "CartPole-v1", 2) in by_key
    assert ("ppo-clip", "Pendulum-v1", 1) in by_key
    run = Run(runs / "seeds" / "seed-2")
    outcome = by_key["ppo-clip, gamma=0.99", "CartPole-v1", 2]
    assert outcome.final_stochastic == run.evaluations()[-2]["mean_return"]
    assert outcome.final_deterministic == run.evaluations()[-1]["mean_return"]
    assert outcome.steps == sorted({e["step"] for e in run.evaluations()})
    assert outcome.seconds[-1] == run.metrics()[-1]["seconds"]


def test_command_writes_the_page(runs, tmp_path, capsys):
    assert main(["report", str(runs / "seeds"), str(runs / "pendulum"), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "report.html"), str(tmp_path / "report.md")]
    page = (tmp_path / "report.md").read_text()
    assert "3 of 3 runs finished." in page
    assert "| CartPole-v1 | ppo-clip |" in page
    assert "2 of 2 |" in page
    assert (tmp_path / "figures" / "overview.svg").read_text().count("Pendulum-v1") == 1


def test_run_that_goes_on_counts_as_far_as_it_is(runs, tmp_path):
    shutil.copytree(runs / "seeds", tmp_path / "seeds")
    run = Run(tmp_path / "seeds" / "seed-2")
    for name, last in (("metrics.jsonl", 300), ("evaluations.jsonl", 299)):
        lines = (run.path / name).read_text().splitlines(keepends=True)
        (run.path / name).write_text("".join(line for line in lines if json.loads(line)["step"] <= last))
    shutil.rmtree(run.checkpoints)
    assert main(["report", str(tmp_path / "seeds")]) == 0
    page = (tmp_path / "seeds" / "report.md").read_text()
    assert "1 of 2 runs finished" in page
    assert f"ppo-clip on CartPole-v1, seed 2: at step {run.last_metrics()['step']} of 600" in page
    assert "−∞" not in page
    text = (tmp_path / "seeds" / "scores.csv").read_text()
    scores = {row["seed"]: row for row in csv.DictReader(text.splitlines())}
    assert scores["2"]["deterministic"] == ""
    assert scores[""]["deterministic"] == scores["1"]["deterministic"] != ""
    (run.path / "evaluations.jsonl").unlink()
    results, _ = only([tmp_path / "seeds"])
    assert results.missing == [("ppo-clip", "CartPole-v1", 2)]


def test_deterministic_score_is_that_of_the_present_end(runs, tmp_path):
    shutil.copytree(runs / "other", tmp_path / "run")
    run = resume(tmp_path / "run", total_steps=900)
    first, last = (e["mean_return"] for e in run.evaluations() if e["final"] and e["deterministic"])
    results, _ = only([tmp_path / "run"])
    assert results.outcomes[0].final_deterministic == last != first


def test_repeated_run_is_left_out(runs, tmp_path):
    shutil.copytree(runs / "other", tmp_path / "again")
    results, warnings = only([runs / "other", runs / "other", tmp_path / "again"])
    assert len(results.outcomes) == 1
    assert warnings == [f"{tmp_path}/again is left out: it has the settings and the seed of {runs}/other"]


def test_of_two_repeats_the_one_that_finished_stays(runs, tmp_path):
    shutil.copytree(runs / "other", tmp_path / "killed")
    shutil.rmtree(tmp_path / "killed" / "checkpoints")
    shutil.copytree(runs / "other", tmp_path / "whole")
    results, warnings = only([tmp_path])
    assert results.unfinished == {}
    assert [x.final_deterministic for x in results.outcomes] == [
        only([runs / "other"])[0].outcomes[0].final_deterministic
    ]
    assert warnings == [f"{tmp_path}/killed is left out: it has the settings and the seed of {tmp_path}/whole"]


def test_unreadable_run_is_named_links_end_and_a_folder_counts_once(runs, tmp_path):
    shutil.copytree(runs / "other", tmp_path / "runs" / "whole")
    shutil.copytree(runs / "other", tmp_path / "runs" / "damaged")
    (tmp_path / "runs" / "damaged" / "config.json").write_text("{")
    (tmp_path / "runs" / "around").symlink_to(tmp_path)
    write(tmp_path / "suite", [outcome("trpo", "CartPole-v1", 0, 1.0, 2.0)], [0])
    warnings = []
    assert len(find_results([tmp_path, tmp_path / "suite", tmp_path / "runs" / "whole"], warnings.append)) == 2
    (line,) = warnings
    assert line.startswith(f"{tmp_path}/runs/damaged/config.json cannot be read: JSONDecodeError")


def test_path_without_runs_is_an_error(runs, tmp_path):
    for path in (tmp_path, runs / "model", tmp_path / "nothing"):
        with pytest.raises(RunError, match=f"{path} holds neither runs nor results of a suite"):
            find_results([path], print)


@pytest.mark.parametrize(
    ("name", "value"),
    [("total_steps", float("inf")), ("eval_interval", []), ("seed", "a"), ("eval_episodes", None)],
)
def test_setting_of_another_kind_is_named(name, value, runs, tmp_path):
    shutil.copytree(runs / "other", tmp_path / "run")
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(RunError, match=f"{name} must be an integer, got"):
        only([tmp_path / "run"])


def test_times_that_are_no_numbers_are_left_out(runs, tmp_path):
    shutil.copytree(runs / "other", tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) | {"seconds": [1]} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    results, _ = only([tmp_path / "run"])
    assert set(results.outcomes[0].seconds) == {0.0}


def test_runs_of_other_versions_are_apart(runs, tmp_path):
    shutil.copytree(runs / "seeds", tmp_path / "seeds")
    file = tmp_path / "seeds" / "seed-2" / "config.json"
    record = json.loads(file.read_text())
    now = record["versions"]["gymnasium"]
    del record["versions"]["mujoco" if "mujoco" in record["versions"] else "python"]  # unknown is not unequal
    file.write_text(json.dumps(record | {"versions": record["versions"] | {"gymnasium": "1.0.0"}}))
    first, second = find_results([tmp_path], print)
    assert (first.path.name, second.path.name) == (f"gymnasium {now}", "gymnasium 1.0.0")
    assert [x.key for x in (*first.outcomes, *second.outcomes)] == [("ppo-clip", "CartPole-v1", i) for i in (1, 2)]
    assert first.record["versions"]["gymnasium"] == now


def test_command_says_how_to_get_the_interactive_page(runs, tmp_path, capsys, monkeypatch):
    for available, lines in ((True, 0), (False, 1)):
        monkeypatch.setattr("rlzoo.benchmark.reports.interactive.is_available", lambda x=available: x)
        assert main(["report", str(runs / "other"), "--out", str(tmp_path)]) == 0
        assert capsys.readouterr().err.count("pip install 'rlzoo[report]'") == lines


def test_what_is_logged_makes_no_other_group(tmp_path):
    for seed, log_info in enumerate([(), ("speed",)]):
        short_runs.quick_run(tmp_path / str(seed), seed=seed, vectorized=False, log_info=log_info)
    results, _ = only([tmp_path])
    assert results.labels == ["ppo-clip"]
    assert len(results.outcomes) == 2
