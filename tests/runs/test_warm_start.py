"""Runs that start from the weights of another run."""

import shutil
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.wrappers import RescaleAction

import rlzoo
from rlzoo.algorithms import PPOClip
from rlzoo.core.system.errors import ConfigError, RunError

SMALL = {"num_envs": 2, "num_steps": 16, "minibatch_size": 16, "epochs": 1, "preset": False, "eval_episodes": 1}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlzoo.runs.session.Session._finish", lambda session: None)


@pytest.fixture
def first():
    return rlzoo.train("ppo", "CartPole-v1", out="first", total_steps=64, normalize_reward=True, **SMALL)


def start(**settings):
    return rlzoo.train("ppo", "CartPole-v1", **{"out": "second", "total_steps": 64, "seed": 5, **SMALL, **settings})


def broken(trainer, iteration):
    raise RuntimeError("power cut")


@pytest.mark.parametrize("as_given", [str, lambda run: run.path, lambda run: run])
def test_run_starts_with_the_weights_of_the_last_checkpoint(first, as_given):
    given = as_given(first if as_given is not str else first.path)
    with pytest.raises(RuntimeError, match="power cut"):
        start(model=given, on_iteration=broken)
    weights, expected = rlzoo.Run("second").load(0).model, first.load().model
    assert all(torch.equal(x, expected[name]) for name, x in weights.items())
    assert weights.keys() == {name for name in expected if not name.startswith("reward_scale.")}
    assert rlzoo.Run("second").read_config().task.model == "first"


def test_the_scale_of_rewards_is_its_own(first):
    trainer = rlzoo.Trainer(rlzoo.make_config("ppo", "CartPole-v1", model="first", normalize_reward=True))
    assert first.load().model["reward_scale.count"] > 0
    assert trainer.model.reward_scale.count == 0
    assert trainer.model.reward_scale.var == 1


def test_killed_before_its_first_checkpoint_it_needs_the_other_run_no_more(first):
    whole = start(model="first", out="whole")
    with pytest.raises(RuntimeError, match="power cut"):
        start(model="first", on_iteration=broken)
    shutil.rmtree("first")
    resumed = rlzoo.resume("second")
    assert resumed.steps()[-1] == whole.steps()[-1]
    one, two = whole.load().model, resumed.load().model
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_killed_before_the_start_was_saved_it_is_read_again(first):
    whole = start(model="first", out="whole")
    with pytest.raises(RuntimeError, match="power cut"):
        start(model="first", on_iteration=broken)
    shutil.rmtree("second/checkpoints")
    resumed = rlzoo.resume("second")
    one, two = whole.load().model, resumed.load().model
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_it_differs_from_a_run_from_the_beginning(first):
    one, two = start(model="first").load().model, start(out="new").load().model
    assert not any(torch.equal(one[name], two[name]) for name in one if name.startswith("policy"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": (64,)}, r"policy\.net\S+ is \(64, 64\) there and \(2, 64\) here"),
        ({"hidden": (8, 8)}, r"is \(64, 4\) there and \(8, 4\) here"),
        ({"normalize_obs": True}, r"normalizer\S+ is missing there and \(\S*\) here; config='first' \(--con"),
        ({"activation": "relu"}, "activation is tanh there and relu here"),
    ],
)
def test_weights_that_do_not_fit(first, settings, message, tmp_path):
    with pytest.raises(ConfigError, match=rf"model: give the network and environment of first: .*{message}"):
        start(model="first", **settings)
    assert not (tmp_path / "second").exists()


def test_actions_of_another_range(tmp_path):
    small = {**SMALL, "total_steps": 64, "wrappers": []}
    rlzoo.train("ppo", "Pendulum-v1", out="first", **small)
    wider = {**small, "wrappers": [partial(RescaleAction, min_action=-1, max_action=np.float32(1))]}
    with pytest.raises(ConfigError, match=r"the action space is Box\(-2.* there and Box\(-1.* here"):
        rlzoo.train("ppo", "Pendulum-v1", out="second", model="first", **wider)
    assert not (tmp_path / "second").exists()


def test_run_that_is_none(tmp_path):
    with pytest.raises(RunError, match=r"nowhere holds no run \(no config.json\)"):
        start(model="nowhere")
    assert not (tmp_path / "second").exists()


def test_an_algorithm_is_initialised_with_these_weights(first, monkeypatch):
    seen, initialise = [], PPOClip.init

    def init(algorithm, model, rng):
        seen.append(deepcopy(model.state_dict()))
        return initialise(algorithm, model, rng)

    monkeypatch.setattr(PPOClip, "init", init)
    with pytest.raises(RuntimeError, match="power cut"):
        start(model="first", on_iteration=broken)
    shutil.rmtree("second/checkpoints")
    rlzoo.resume("second", on_iteration=lambda *_: True)
    expected = {name: x for name, x in first.load().model.items() if "reward_scale" not in name}
    assert len(seen) == 2
    assert all(torch.equal(x, model[name]) for model in seen for name, x in expected.items())


def test_a_trainer_starts_from_the_weights_too(first):
    trainer = rlzoo.Trainer(rlzoo.make_config("ppo", "CartPole-v1", model="first"))
    weights = trainer.model.state_dict()
    assert all(torch.equal(weights[name], x) for name, x in first.load().model.items() if "reward_scale" not in name)
