"""The parts of the package that meet another library, each in a short run.

Slow, because other tests hold the same in detail: `.ci/run` also runs these with the oldest versions that
`pyproject.toml` allows.
"""

import contextlib
import importlib
import json
import pkgutil
from pathlib import Path

import pytest
import short_runs
import tiny
from gymnasium.spaces.utils import flatten

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.runs.files import lock

pytestmark = pytest.mark.slow

NEEDS_ANOTHER_PACKAGE = ("rlzoo.benchmark.peers", "rlzoo.__main__")


def test_every_module_can_be_imported():
    names = [x.name for x in pkgutil.walk_packages(rlzoo.__path__, "rlzoo.") if x.name not in NEEDS_ANOTHER_PACKAGE]
    names = [name for name in names if not name.startswith(NEEDS_ANOTHER_PACKAGE)]
    assert len([importlib.import_module(name) for name in names]) > 100


@pytest.mark.parametrize("algorithm", ["reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"])
def test_algorithm_trains_and_resumes(algorithm, tmp_path):
    settings = {"env": "Pendulum-v1", "total_steps": 400, "eval_episodes": 1, "final_eval_episodes": 1, "num_envs": 2}
    run = rlzoo.train(algorithm, out=tmp_path, hidden=(4,), **settings)
    rlzoo.resume(run, total_steps=run.steps()[-1] + 200)
    assert run.finished
    assert rlzoo.evaluate(run, 1).lengths.tolist() == [200]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return short_runs.quick_run(tmp_path_factory.mktemp("versions") / "run")


def test_report_of_runs(run, tmp_path, capsys):
    assert main(["report", str(run.path), "--out", str(tmp_path)]) == 0
    assert "Learning curves" in (tmp_path / "report.md").read_text()
    assert len(list((tmp_path / "figures").glob("*.svg"))) >= 1


@pytest.mark.parametrize("format", ["c", "onnx"])
def test_export(run, format, tmp_path):
    if format == "onnx":
        pytest.importorskip("onnxruntime")
    assert rlzoo.export(run, format, tmp_path / "policy").stat().st_size > 100


def test_policy_and_model_card(run, tmp_path):
    rlzoo.push(run, tmp_path / "card")
    policy = rlzoo.load_policy(tmp_path / "card")
    assert policy(flatten(policy.observation_space, policy.observation_space.sample())) in (0, 1)
    assert (tmp_path / "card/curve.png").exists()


def test_video(run, tmp_path):
    pytest.importorskip("imageio")
    pytest.importorskip("pygame")
    rlzoo.play(run, 1, video=tmp_path / "x.gif")
    assert (tmp_path / "x.gif").stat().st_size > 1000


def test_suite_and_its_report(tmp_path, capsys):
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "title: t\ndescription: d\nseeds: [0]\neval_episodes: 1\nfinal_episodes: 1\nalgorithms: [trpo]\n"
        "environments:\n  CartPole-v1: {total_steps: 200, eval_interval: 200}\n"
    )
    assert main(["benchmark", str(suite), "--out", str(tmp_path / "results"), "--jobs", "1"]) == 0
    assert main(["report", str(tmp_path / "results")]) == 0


@pytest.mark.parametrize("arguments", [["--help"], ["train", "trpo", "CartPole-v1", "--help"], ["list"]])
def test_help(arguments, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().out


def test_search(tmp_path, capsys):
    pytest.importorskip("optuna")
    command = ["search", "trpo", "CartPole-v1", "--out", str(tmp_path), "--trials", "1", "--total-steps", "200"]
    command += ["--seeds", "0", "--validation-seeds", "1", "--jobs", "1", "--quiet", "--set", "eval_episodes=1"]
    assert main(command) == 0
    assert (tmp_path / "preset.toml").exists()


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_tracker(tracker, tmp_path, monkeypatch):
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    short_runs.quick_run(tmp_path / "run", total_steps=100, track=tracker)
    assert json.loads((tmp_path / "run/tracker.json").read_text())["tracker"] == tracker


# Language models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny.save_lm(tmp_path_factory.mktemp("model") / "model")


def score(prompts, responses):
    return [response.count("a") for response in responses]


@pytest.mark.parametrize("algorithm", ["ppo-clip", "trpo"])
@pytest.mark.parametrize("lora", [None, 2])
def test_language_model_trains_resumes_and_plays(algorithm, lora, model, tmp_path):
    if lora:
        pytest.importorskip("peft")
    settings = {
        "responses_per_batch": 4,
        "responses_per_prompt": 2,
        "max_new_tokens": 4,
        "lora_rank": lora,
        "micro_batch_tokens": 64,
    }
    settings |= {"prompts": ["Say a.", "Say b."], "reward": score, "model": str(model), "eval_episodes": 2}
    run = rlzoo.train(algorithm, "Prompts", out=tmp_path, total_steps=16, final_eval_episodes=2, **settings)
    rlzoo.resume(run, total_steps=48, reward=score)
    assert len(rlzoo.play(run, 2, reward=score)) == 2


def test_fine_tuning_and_a_reward_model(model, tmp_path):
    metrics = rlzoo.sft(["one two", "three four"] * 4, model, tmp_path / "sft", epochs=1)
    assert metrics["loss"] > 0
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4
    rlzoo.train_reward_model(pairs, tmp_path / "sft", tmp_path / "reward", epochs=1, held_out=0.0)
    assert (tmp_path / "reward/model.safetensors").exists()


def test_data_of_another_library(tmp_path, model):
    datasets = pytest.importorskip("datasets")
    texts = datasets.Dataset.from_dict({"text": ["one two", "three"] * 3})
    texts.to_parquet(str(tmp_path / "texts.parquet"))
    assert rlzoo.sft(str(tmp_path / "texts.parquet"), model, tmp_path / "sft", epochs=1)["loss"] > 0


def test_file_of_a_lock_that_is_deleted_after_another_process_opened_it_is_not_locked(tmp_path, monkeypatch):
    fcntl, file = pytest.importorskip("fcntl"), tmp_path / "lock"
    flock = fcntl.flock

    def flock_late(fd, operation):
        file.unlink(missing_ok=True)
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock_late)
    with pytest.raises(RunError, match="is in use by another process"), lock(tmp_path, file):
        pass


def test_end_of_a_lock_leaves_the_file_that_another_process_has_locked_since(tmp_path, monkeypatch):
    """filelock before 3.29.7 deletes the file too, which by then may be that of the next lock."""
    file, unlink = tmp_path / ".lock", Path.unlink
    with contextlib.ExitStack() as other:

        def unlink_and_lock(path, **options):
            unlink(path, **options)
            monkeypatch.undo()
            other.enter_context(lock(tmp_path, file))

        with lock(tmp_path, file):
            monkeypatch.setattr(Path, "unlink", unlink_and_lock)
        with pytest.raises(RunError, match="is in use by another process"), lock(tmp_path, file):
            pass
