"""Two processes with half the rows each are one process with all of them."""

import itertools
from functools import partial

import gymnasium
import numpy as np
import pytest
import short_language_runs
import short_runs
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlzoo.optim import adam
from rlzoo.runs.evaluate import load_model
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train

COMMON = {"preset": False, "eval_interval": 10**6, "checkpoint_interval": 10**6, "final_eval_episodes": 10}
CONTROL = {
    "env": "CartPole-v1",
    "total_steps": 10**5,
    "num_envs": 16,
    "num_steps": 16,
    "hidden": (16, 16),
    "normalize_obs": True,
    "normalize_reward": True,
    **COMMON,
}
PPO = {**CONTROL, "algorithm": "ppo-clip", "epochs": 3, "minibatch_size": 48}
# More iterations of conjugate gradient without damping would amplify the rounding of single precision.
TRPO = {**CONTROL, "algorithm": "trpo", "vf_epochs": 2, "vf_minibatch_size": "all", "cg_iters": 4, "cg_damping": 0.1}
WALKS = {"env": "RandomWalks", "total_steps": 10**5, "responses_per_batch": 16, "eval_episodes": 4, **COMMON}
WALKS_PPO = {**WALKS, "algorithm": "ppo-clip", "epochs": 2, "minibatch_responses": 5}
WALKS_TRPO = {**WALKS, "algorithm": "trpo", "vf_epochs": 2, "vf_minibatch_responses": 5, "cg_iters": 4}


TIMES = ("seconds", "steps_per_second")
VALUE = {"vf_epochs": 2, "vf_minibatch_size": 48}
OTHERS = {
    "reinforce": {**CONTROL, "algorithm": "reinforce", **VALUE},
    "npg": {**CONTROL, "algorithm": "npg", **VALUE, "cg_iters": 4, "cg_damping": 0.1, "fisher_fraction": 0.3},
    "trpo of few rows": {**TRPO, "fisher_fraction": 0.01},  # two: often both of one process
    "trpo by adam": {**TRPO, "epochs": 3, "minibatch_size": 48},
    "ppo-penalty": {**CONTROL, "algorithm": "ppo-penalty", "epochs": 3, "minibatch_size": 48},
    "gru": {
        **PPO,
        "env": "Pendulum-v1",
        "vectorized": False,
        "noise_correlation": 0.5,
        "network": "gru",
        "cell_size": 8,
    },
}


def after(iterations):
    """A callback that ends a run after so many iterations."""
    left = itertools.count(iterations - 1, -1)
    return lambda *_: next(left) == 0


def trained(path, count, settings, iterations=10):
    """A run in `path` by `count` processes."""

    def work():
        train(**settings, out=path, on_iteration=after(iterations))

    assert short_runs.in_processes(count, work) == [0] * count
    return Run(path)


def assert_same(one, two, iterations=10):
    """Metrics to 1e-5, evaluations, and the greedy policy."""
    records = one.metrics(), two.metrics()
    assert len(records[0]) == len(records[1]) == iterations
    for pair in zip(*records, strict=True):
        a, b = ({name: x for name, x in record.items() if x is not None and name not in TIMES} for record in pair)
        assert b == pytest.approx(a, rel=1e-5, abs=1e-5)
    for a, b in zip(one.evaluations()[-2:], two.evaluations()[-2:], strict=True):
        assert b["mean_return"] == pytest.approx(a["mean_return"], rel=1e-5, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [PPO, TRPO], ids=["ppo-clip", "trpo"])
def test_two_processes_are_one_on_cartpole(settings, tmp_path):
    one, two = (trained(tmp_path / str(count), count, settings) for count in (1, 2))
    assert_same(one, two)
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 2000, 4)).astype(np.float32))
    first, second = (load_model(run).distribution(obs).mode for run in (one, two))
    assert torch.equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_two_processes_are_one_for_other_algorithms_and_networks(settings, tmp_path):
    one, two = (trained(tmp_path / str(count), count, settings, 5) for count in (1, 2))
    assert_same(one, two, 5)


@pytest.mark.parametrize("algorithm", ["ppo-clip", "reinforce"])
def test_two_processes_are_one_in_a_vector_environment(algorithm, tmp_path):
    """It is evaluated in, too, which ends the episodes of the training in all processes."""
    settings = {**CONTROL, "algorithm": algorithm, "eval_interval": 256, "eval_episodes": 2}
    runs = []
    for count in (1, 2):
        env = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 16, autoreset_mode=AutoresetMode.NEXT_STEP)
        runs.append(trained(tmp_path / str(count), count, settings | {"env": env}, 5))
    assert len(runs[0].evaluations()) == len(runs[1].evaluations()) >= 6
    assert_same(*runs, 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["npg", "ppo-penalty"])
def test_two_processes_are_one_for_large_networks(name, tmp_path, monkeypatch):
    """Whose processes share out the moments and the fit of the value."""
    for limit in ("_SMALL", "_TINY"):
        monkeypatch.setattr(adam, limit, 0)
    one, two = (trained(tmp_path / str(count), count, OTHERS[name], 5) for count in (1, 2))
    assert_same(one, two, 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora-trpo", "turns-trpo"])
def test_two_processes_are_one_for_language_models(kind, tmp_path):
    """With a pretraining loss, and an adapter or conversations."""
    short_language_runs.save_data(tmp_path)
    algorithm, more = short_language_runs.KINDS[kind]
    few = {"fisher_fraction": 0.5} if algorithm == "trpo" else {}
    settings = short_language_runs.settings(tmp_path, algorithm, **more, **few)
    one, two = (trained(tmp_path / str(count), count, settings, 4) for count in (1, 2))
    assert_same(one, two, 4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [WALKS_PPO, WALKS_TRPO], ids=["ppo-clip", "trpo"])
def test_two_processes_are_one_on_random_walks(settings, tmp_path):
    one, two = (trained(tmp_path / str(count), count, settings, 4) for count in (1, 2))
    assert_same(one, two, 4)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"vectorized": False}], ids=["built-in", "gymnasium"])
def test_resumed_with_another_number_of_processes(more, tmp_path, monkeypatch):
    whole = trained(tmp_path / "whole", 1, PPO | more)
    path = tmp_path / "parts"
    monkeypatch.setattr(adam, "_SMALL", 100)  # each process has a share of the moments
    trained(path, 2, PPO | more, 3)
    assert short_runs.in_processes(1, lambda: resume_for(path, 3)) == [0]
    assert short_runs.in_processes(4, lambda: resume_for(path, 4)) == [0] * 4
    assert_same(whole, Run(path))


def resume_for(path, iterations):
    """Continues a run that its callback has ended."""
    steps = Run(path).read_config().total_steps
    resume(path, total_steps=steps + 1, on_iteration=after(iterations))


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1"])
def test_copies_of_gymnasium_are_shared_out(env, tmp_path):
    """With one action for each step they would be the same, whatever seeds the copies got."""
    settings = {**PPO, "env": env, "vectorized": False, "num_envs": 4}
    one, two = (trained(tmp_path / str(count), count, settings, 2) for count in (1, 2))
    for a, b in zip(one.metrics(), two.metrics(), strict=True):
        assert (b["step"], b["mean_return"]) == (a["step"], a["mean_return"])
        assert b["entropy"] == pytest.approx(a["entropy"], abs=1e-5)
