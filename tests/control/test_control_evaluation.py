"""Evaluation episodes on an environment whose returns are known."""

import contextlib

import gymnasium
import numpy as np
import pytest
import short_runs
import torch
from builders import evaluate_model, make_model, parameters
from gymnasium import spaces

from rlzoo.control.networks import Network
from rlzoo.runs.evaluate import load_task


class Countdown(gymnasium.Env):
    """Episodes of 1 to 6 steps, in turn starting from the copy's seed; each step pays the action taken, 0 or 1,
    and 10. It observes how many steps are left."""

    observation_space = spaces.Box(0, 10, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 7))
        return np.float32([self.left]), {}

    def step(self, action):
        self.left -= 1
        return np.float32([self.left]), 10.0 + int(action), self.left == 0, False, {}


@pytest.fixture(autouse=True)
def countdown():
    gymnasium.register("Countdown-v0", Countdown)
    yield
    del gymnasium.registry["Countdown-v0"]


def always(action):
    """A model that takes `action` with probability close to 1."""
    model = Network(hidden=(4,)).build(Countdown.observation_space, Countdown.action_space)
    list(model.policy.parameters())[-1].data[action] = 50
    return model


def evaluate(model=None, episodes=30, env="Countdown-v0", **settings):
    return evaluate_model(model or always(1), env, episodes, **{"seed": 3, **settings})


def test_returns_and_lengths_are_of_complete_episodes():
    evaluation = evaluate()
    assert len(evaluation.returns) == len(evaluation.lengths) == 30
    assert np.array_equal(evaluation.returns, 11 * evaluation.lengths)
    assert set(evaluation.lengths) == {1, 2, 3, 4, 5, 6}


def test_every_copy_plays_its_share_however_short_its_episodes():
    lengths = np.concatenate([evaluate(episodes=8, seed=seed).lengths for seed in range(100)])
    assert lengths.mean() == pytest.approx(3.5, abs=4 * lengths.std() / len(lengths) ** 0.5)


@pytest.mark.parametrize("episodes", [1, 7, 8, 9, 130])
@pytest.mark.parametrize("env", ["Countdown-v0", "CartPole-v1"])
def test_any_number_of_episodes_can_be_asked_for(env, episodes):
    model = always(1) if env == "Countdown-v0" else make_model(spaces.Discrete(2), dtype=torch.float32)
    assert len(evaluate(model, episodes, env).returns) == episodes


def test_deterministic_evaluation_takes_the_mode():
    model = always(1)
    list(model.policy.parameters())[-1].data[:] = torch.tensor([0.0, 0.5])
    modes, samples = (evaluate(model, deterministic=x) for x in (True, False))
    assert np.array_equal(modes.returns, 11 * modes.lengths)
    assert not np.array_equal(samples.returns, 11 * samples.lengths)


def test_evaluation_changes_neither_model_nor_global_random_state():
    model = make_model(spaces.Discrete(2), dtype=torch.float32, normalize_obs=True)
    weights, state = parameters(model), torch.get_rng_state()
    statistics = {name: x.clone() for name, x in model.state_dict().items()}
    evaluate(model, 5, "CartPole-v1")
    assert torch.equal(parameters(model), weights)
    assert all(torch.equal(x, statistics[name]) for name, x in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_env_kwargs_of_an_evaluation_go_before_those_of_the_run(tmp_path):
    settings = {"env": "Pendulum-v1", "env_kwargs": {"g": 9.0}, "preset": False, "num_envs": 2, "minibatch_size": 50}
    run = short_runs.quick_run(tmp_path, **settings)
    with contextlib.closing(load_task(run, env_kwargs={"g": 1.0})) as task:
        assert task.env.setting == 1.0
