"""Runs and settings of format 2."""

import shutil
from pathlib import Path

import pytest

import rlzoo
from rlzoo.cli import main
from rlzoo.core.errors import RunError
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.upgrade import upgrade
from rlzoo.runs.run import Run

FIXTURE = Path(__file__).parents[2] / "released" / "format2"
"""ppo-clip on CartPole-v1 with seed 4, 600 steps, anneal_lr, anneal_clip and normalize_obs, written in format 2."""


@pytest.fixture
def run(tmp_path):
    return Run(shutil.copytree(FIXTURE, tmp_path / "run"))


def test_annealed_settings_are_linear_schedules(run):
    config = run.read_config()
    assert config.algorithm.learning_rate == "linear:0.0003:0"
    assert config.algorithm.clip_coef == "linear:0.2:0"
    assert (config.seed, config.task.num_envs, config.task.network.hidden) == (4, 4, (8,))
    assert config.task.network.normalize_obs
    assert config.fast


def test_evaluation_gives_the_returns_that_the_old_version_gave(run):
    assert rlzoo.evaluate(run, 6, seed=1).returns.tolist() == [13, 16, 28, 19, 17, 12]
    assert rlzoo.evaluate(run, 4, seed=1, deterministic=True).returns.tolist() == [87, 72, 82, 85]
    assert rlzoo.evaluate(run, 3, checkpoint="best").returns.tolist() == [15, 22, 25]


def test_play_gives_the_returns_that_the_old_version_gave(run, tmp_path):
    pytest.importorskip("imageio")
    pytest.importorskip("pygame")
    assert [episode.return_ for episode in rlzoo.play(run, 3, video=tmp_path / "x.gif")] == [11, 25, 38]


def test_resume_is_refused_in_one_line(run, capsys):
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"}
    message = f"{run.path} has an older format and cannot be resumed; continue its policy in a new run: "
    message += f"rlzoo train --config {run.path} --model {run.path} --out NEW"
    with pytest.raises(RunError) as error:
        rlzoo.resume(run, total_steps=900)
    assert str(error.value) == message
    assert main(["resume", str(run.path)]) == 2
    assert capsys.readouterr() == ("", f"rlzoo: {message}\n")
    assert files == {path: path.read_bytes() for path in files}


def test_it_can_be_replaced(run):
    rlzoo.train("reinforce", "CartPole-v1", out=run.path, overwrite=True, total_steps=1, hidden=(4,), eval_episodes=1)
    assert run.resumable
    assert run.read_config().algorithm.name == "reinforce"


# Settings


CONTROL = {"env": "CartPole-v1", "gamma": 0.9, "num_envs": 4}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"learning_rate": 0.1, "anneal_lr": False}, {"learning_rate": 0.1}),
        ({"learning_rate": 0.1, "anneal_lr": True}, {"learning_rate": "linear:0.1:0"}),
        ({"learning_rate": 1, "anneal_lr": True}, {"learning_rate": "linear:1.0:0"}),
        ({"clip_coef": 0.2, "anneal_clip": True}, {"clip_coef": "linear:0.2:0"}),
        ({"max_kl": 0.01, "anneal_kl": True}, {"max_kl": "linear:0.01:0"}),
        (
            {"algorithm": "reinforce", "learning_rate": 0.1, "vf_learning_rate": 0.01, "anneal_lr": True},
            {"algorithm": "reinforce", "learning_rate": "linear:0.1:0", "vf_learning_rate": "linear:0.01:0"},
        ),
        (
            {"algorithm": "trpo", "vf_learning_rate": 0.01, "anneal_lr": True},
            {"algorithm": "trpo", "vf_learning_rate": 0.01},
        ),
        ({"minibatch_size": 64}, {"minibatch_size": 64}),
    ],
)
def test_control_settings(old, new):
    assert upgrade({**CONTROL, **old}) == {**CONTROL, **new}


def test_language_settings():
    old = {
        "env": "RandomWalks",
        "max_new_tokens": 9,
        "num_envs": 32,
        "part_tokens": 100,
        "missing_end_penalty": 1.0,
        "minibatch_size": 90,
        "vf_minibatch_size": 4,
        "learning_rate": 1e-5,
        "anneal_lr": True,
    }
    new = upgrade(old)
    assert new == {
        "env": "RandomWalks",
        "max_new_tokens": 9,
        "responses_per_batch": 32,
        "micro_batch_tokens": 100,
        "missing_eos_penalty": 1.0,
        "minibatch_responses": 10,
        "vf_minibatch_responses": 1,
        "learning_rate": "linear:1e-05:0",
    }
    del new["env"], new["vf_minibatch_responses"]
    assert make_config("ppo-clip", "RandomWalks", **new).algorithm.minibatch_size == 10
