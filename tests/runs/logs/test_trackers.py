"""Trackers: one run of the tracker for a run directory, also after a resume."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import short_runs

from rlzoo.core.system.errors import ConfigError, TrainingError
from rlzoo.runs.logs.sinks import MLflow, WandB
from rlzoo.runs.train import resume

SCALARS = ("episode/return", "train/policy_loss", "train/value_loss", "train/learning_rate", "eval/return")


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    run = short_runs.quick_run(tmp_path / "run", track="mlflow")
    resume(run, total_steps=900)
    number = json.loads((run.path / "tracker.json").read_text())["id"]
    client = mlflow.MlflowClient()
    (experiment,) = (x for x in client.search_experiments() if x.name == "rlzoo")
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_id, found.info.run_name, found.info.status) == (number, "run", "FINISHED")
    assert (found.data.params["seed"], found.data.params["env"]) == ("0", "CartPole-v1")
    assert {*SCALARS} <= found.data.metrics.keys()
    steps = [x.step for x in client.get_metric_history(number, "train/policy_loss")]
    assert steps == [x["step"] for x in run.metrics()]


@pytest.mark.parametrize("when", ["in training", "at the end"])
def test_tracker_that_was_lost_has_everything_after_a_resume(when, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    log_batch, client = mlflow.MlflowClient.log_batch, mlflow.MlflowClient()

    def lost(self, id, metrics):
        if when == "in training" or any("deterministic" in metric.key for metric in metrics):
            raise mlflow.MlflowException("no route to host")
        log_batch(self, id, metrics=metrics)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", lost)
    with pytest.raises(TrainingError):
        short_runs.quick_run(tmp_path / "run", track="mlflow")
    number = json.loads((tmp_path / "run" / "tracker.json").read_text())["id"]
    assert client.get_run(number).info.status == "FAILED"
    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", log_batch)
    run = resume(tmp_path / "run")
    last = run.evaluations()[-1]
    history = client.get_metric_history(number, "eval/return_deterministic")
    assert [(x.step, x.value) for x in history] == [(last["step"], pytest.approx(last["mean_return"]))]
    assert client.get_run(number).info.status == "FINISHED"


def test_tracker_that_is_lost_during_training(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    lost = mock.Mock(side_effect=mlflow.MlflowException("no route\nto host"))
    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", lost)
    with pytest.raises(TrainingError, match=r"^step \d+: track: MLflow: no route to host; "):
        short_runs.quick_run(tmp_path / "run", track="mlflow")


def test_names_in_the_environment(tmp_path, monkeypatch):
    mlflow, wandb = pytest.importorskip("mlflow"), mock.MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for name, x in {"TRACKING_URI": (tmp_path / "store").as_uri(), "EXPERIMENT_NAME": "mine"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", x)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    MLflow(tmp_path / "run", {}).close()
    assert mlflow.MlflowClient().get_experiment_by_name("mine") is not None
    WandB(tmp_path / "run", {})
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    WandB(tmp_path / "run", {})
    assert [call.kwargs["project"] for call in wandb.init.call_args_list] == ["rlzoo", "mine"]


PROGRAM = """
import sys
import rlzoo
settings = dict(total_steps=300, num_envs=4, num_steps=25, epochs=1, minibatch_size=100, final_eval_episodes=5)
if sys.argv[1] == "sync":
    import wandb
    with wandb.init(project="p", dir=sys.argv[2], sync_tensorboard=True):
        rlzoo.train("ppo", "CartPole-v1", out=sys.argv[2] + "/run", **settings)
else:
    run = rlzoo.train("ppo", "CartPole-v1", out=sys.argv[2] + "/run", track="wandb", **settings)
    rlzoo.resume(run, total_steps=600)
"""


def offline(kind, folder):
    """Runs the program; returns what the tracker has in its local files."""
    pytest.importorskip("wandb")
    variables = {**os.environ, "WANDB_MODE": "offline", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", PROGRAM, kind, str(folder)], check=True, env=variables, timeout=120)
    return {path: path.read_bytes() for path in Path(folder).rglob("run-*.wandb")}


@pytest.mark.slow
def test_wandb(tmp_path):
    files = offline("track", tmp_path)
    number = json.loads((tmp_path / "run" / "tracker.json").read_text())["id"]
    assert len(files) == 2  # one for each session, of the same run
    for path, data in files.items():
        assert path.stem == f"run-{number}"
        assert all(tag.encode() in data for tag in SCALARS)


@pytest.mark.slow
def test_wandb_sees_the_files_of_tensorboard(tmp_path):
    (data,) = offline("sync", tmp_path).values()
    assert all(tag.encode() in data for tag in SCALARS)


@pytest.mark.parametrize("error", [ConfigError("no server"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("others", [[], ["notes"], ["wandb"]], ids=["alone", "notes", "an older tracker"])
def test_tracker_that_cannot_start_leaves_no_run(error, others, tmp_path, monkeypatch):
    def start(tracker, folder, settings, id=None):
        (folder / "wandb").mkdir(exist_ok=True)
        (folder / "wandb" / "debug.log").touch()
        raise error

    path = tmp_path / "run"
    short_runs.quick_run(path)
    for name in others:
        (path / name).mkdir()
    monkeypatch.setattr(WandB, "check", lambda: None)
    monkeypatch.setattr(WandB, "__init__", start)
    with pytest.raises(type(error)):
        short_runs.quick_run(path, track="wandb", overwrite=True)
    assert [x.name for x in path.glob("*")] == others
    assert path.exists() == bool(others)


def test_tracker_that_cannot_be_used(tmp_path, monkeypatch):
    def run(track):
        with pytest.raises(ConfigError) as error:
            short_runs.quick_run(tmp_path / "run", track=track)
        assert not (tmp_path / "run").exists()
        return str(error.value)

    assert run("tensorflow") == "track must be wandb or mlflow, got 'tensorflow'"
    for name, package in (("wandb", "wandb"), ("mlflow", "mlflow-skinny")):
        monkeypatch.setitem(sys.modules, name, None)
        assert run(name) == f"track: {name} is not installed: pip install {package}"
    monkeypatch.undo()
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "api", type("Api", (), {"api_key": None}))
    assert run("wandb") == "track: nobody is logged in to Weights & Biases: run wandb login, or set WANDB_MODE=offline"
