"""Stable-Baselines3 as a peer: its settings, short jobs, and evaluations that training does not notice."""

import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from rlzoo.benchmark.job import Job, Outcome, load_peer, run_job
from rlzoo.benchmark.suite import load_suite

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

FILE = Path(__file__).parents[2] / "benchmarks" / "peers" / "with_sb3.py"
PPO, TRPO, RECURRENT_PPO = (load_peer(f"{FILE}:{name}") for name in ("PPO", "TRPO", "RECURRENT_PPO"))
PEERS = {"PPO": PPO, "TRPO": TRPO}
ENVS = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]

SHORT = {
    ("PPO", "CartPole-v1"): {"total_steps": 600},
    ("PPO", "Pendulum-v1"): {
        "total_steps": 1200, "n_steps": 64, "n_epochs": 2, "sde_sample_freq": -1, "normalize": True,
    },
    ("TRPO", "CartPole-v1"): {"total_steps": 1500, "n_steps": 256},
    ("TRPO", "Pendulum-v1"): {"total_steps": 1500, "n_steps": 256, "normalize": True},
}  # fmt: skip
"""Of each, a few updates in a second; the two on Pendulum-v1 with gSDE and with running statistics."""


@pytest.fixture(autouse=True)
def process():
    """Gives back what a job or a peer changes in the process that is its own."""
    handler, numpy_state = signal.getsignal(signal.SIGINT), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    np.random.set_state(numpy_state)
    signal.signal(signal.SIGINT, handler)


def settings(name, env, **overrides):
    return PEERS[name].settings(env) | SHORT.get((name, env), {}) | overrides


def run(name, env, seed=10, episodes=2, eval_interval=256, **overrides):
    given = settings(name, env, **overrides)
    return run_job(Job(f"sb3-{name}", env, seed, given, eval_interval, episodes, episodes, f"{FILE}:{name}"))


def train(name, env, watch=lambda step, evaluate: None, seed=10, **overrides):
    """Trains, tells `watch`, and returns the model with the function that evaluates it."""
    seen = []

    def note(step, evaluate):
        seen.append(evaluate)
        watch(step, evaluate)

    PEERS[name].train(env, seed, settings(name, env, **overrides), note)
    return seen[-1].args[0], seen[-1]


def weights(model):
    return {name: x.clone() for name, x in model.policy.state_dict().items()}


def same(xs, ys):
    return xs.keys() == ys.keys() and all(torch.equal(xs[name], ys[name]) for name in xs)


def make_actor(model, evaluate, deterministic):
    return evaluate.func.__globals__["_actor"](model, deterministic)


def test_discrete_observations_are_evaluated_as_they_were_trained_on():
    peer = load_peer(f"{FILE}:DEFAULT_PPO")
    seen = []
    given = peer.settings("FrozenLake-v1") | {"total_steps": 256, "n_steps": 128}
    peer.train("FrozenLake-v1", 10, given, lambda step, evaluate: seen.append(evaluate))
    assert 0 <= seen[-1](5, seed=0).mean_return <= 1
    model, states = seen[-1].args[0], np.arange(16)
    model.policy.action_net.weight.data.normal_()  # so that states differ
    expected, _ = model.predict(states, deterministic=True)
    assert len(set(expected)) > 1
    actor = make_actor(model, seen[-1], deterministic=True)
    np.testing.assert_array_equal(actor(np.eye(16), np.zeros((16, 1)), np.zeros(16, bool)), expected)


def test_settings_are_the_zoos_and_the_libraries_defaults():
    assert PPO.settings("MountainCarContinuous-v0") == {
        "library": PPO.settings("CartPole-v1")["library"],
        "policy": "MlpPolicy", "normalize": True, "schedule": "constant", "log_std_init": -3.29, "ortho_init": False,
        "n_envs": 1, "n_steps": 8, "batch_size": 256, "n_epochs": 10, "gamma": 0.9999, "gae_lambda": 0.9,
        "learning_rate": 7.77e-5, "clip_range": 0.1, "normalize_advantage": True, "ent_coef": 0.00429, "vf_coef": 0.19,
        "max_grad_norm": 5.0, "use_sde": True, "sde_sample_freq": -1,
    }  # fmt: skip
    trpo = TRPO.settings("Pendulum-v1")
    assert (trpo["n_critic_updates"], trpo["gamma"], trpo["sde_sample_freq"]) == (15, 0.9, 4)
    assert (trpo["learning_rate"], trpo["target_kl"], trpo["cg_damping"]) == (1e-3, 0.01, 0.1)
    assert trpo["library"].startswith("sb3-contrib 2.")


@pytest.mark.parametrize("env", ["HalfCheetah-v5", "Hopper-v5", "Swimmer-v5"])
def test_peers_of_locomotion_have_the_networks_and_normalisation_of_the_zoo(env):
    pytest.importorskip("mujoco")
    hidden, activation = ([64, 64], torch.nn.Tanh) if env == "Swimmer-v5" else ([256, 256], torch.nn.ReLU)
    ppo, trpo = PPO.model(env, 10, PPO.settings(env)), TRPO.model(env, 10, TRPO.settings(env))
    for network in (ppo.policy.mlp_extractor.policy_net, ppo.policy.mlp_extractor.value_net):
        assert [layer.out_features for layer in network if hasattr(layer, "out_features")] == hidden
        assert isinstance(network[1], activation)
    assert ppo.policy.log_std.tolist() == [0.0 if env == "Swimmer-v5" else -2.0] * len(ppo.policy.log_std)
    assert (trpo.n_steps, trpo.n_envs, trpo.cg_max_steps, trpo.n_critic_updates) == (1024, 2, 25, 20)
    assert trpo.target_kl == (0.04 if env == "HalfCheetah-v5" else 0.01)
    assert ppo.gamma == {"HalfCheetah-v5": 0.98, "Hopper-v5": 0.999, "Swimmer-v5": 0.9999}[env]
    assert trpo.gamma == (0.9999 if env == "Swimmer-v5" else 0.99)
    for model in (ppo, trpo):
        assert model.get_vec_normalize_env().norm_reward
        model.get_env().close()


def test_suite_has_every_job():
    suite = load_suite(FILE.parents[1] / "suites" / "peers.yaml")
    assert len({job.key for job in suite.jobs}) == 2 * 5 * 5
    thresholds = [environment.threshold for environment in suite.environments.values()]
    assert thresholds == [475, -100, -110, 90, -200]
    assert [job.settings["total_steps"] for job in suite.jobs[::2][:5]] == [100_000, 100_000, 200_000, 100_000, 100_000]
    assert [entry.counterpart for entry in suite.algorithms.values()] == ["ppo-clip", "trpo"]


def test_job_of_ppo_ends_after_the_rollout_that_fills_the_budget():
    outcome = run("PPO", "CartPole-v1")
    assert isinstance(outcome, Outcome), outcome
    assert outcome.steps == [0, 256, 512, 768]
    assert len(outcome.stochastic) == len(outcome.deterministic) == len(outcome.seconds) == 4
    assert all(1 <= x <= 500 for x in outcome.stochastic + outcome.deterministic)


@pytest.mark.slow
def test_seed_decides_the_outcome():
    first, again, other = (
        dataclasses.replace(run("PPO", "Pendulum-v1", seed, 1, total_steps=512), seconds=[], seed=0)
        for seed in (10, 10, 11)
    )
    assert first == again
    assert first != other


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env"), SHORT)
def test_evaluation_leaves_no_trace(name, env):
    def evaluate_twice(step, evaluate):
        if step in (0, 256, 512):
            evaluate(1, seed=step)
            evaluate(1, seed=step, deterministic=True)

    model, _ = train(name, env, evaluate_twice)
    undisturbed, _ = train(name, env)
    assert same(weights(model), weights(undisturbed))


def test_linear_schedules_run_over_the_budget():
    rates, ranges = [], []

    def note(step, evaluate):
        model = evaluate.args[0]
        rates.append(model.policy.optimizer.param_groups[0]["lr"])
        ranges.append(model.clip_range(model._current_progress_remaining))

    train("PPO", "CartPole-v1", note, total_steps=1024)
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0])
    assert ranges == pytest.approx([0.2, 0.15, 0.1, 0.05, 0])


def test_policy_sees_normalised_observations():
    model, evaluate = train("TRPO", "MountainCarContinuous-v0", total_steps=512, n_steps=256)
    statistics = model.get_vec_normalize_env().obs_rms
    obs = np.float32([[-0.5, 0.0], [-0.4, 0.03], [-0.9, -0.02]])
    actions = make_actor(model, evaluate, True)(obs, np.zeros((3, 1)), np.ones(3, bool))
    normalised = (obs - statistics.mean) / np.sqrt(statistics.var + 1e-8)
    assert abs(normalised).max() < 10
    assert actions == pytest.approx(model.predict(np.float32(normalised), deterministic=True)[0], abs=1e-6)
    assert abs(actions - model.predict(obs, deterministic=True)[0]).max() > 1e-3
    assert model.get_vec_normalize_env().obs_rms.count == statistics.count == pytest.approx(512 + 2, abs=0.01)


def test_recurrent_peer_is_evaluated_with_its_memory():
    seen = []
    given = {**RECURRENT_PPO.settings("CartPoleNoVel-v1"), "total_steps": 512, "n_epochs": 1}
    assert json.loads(json.dumps(given)) == given
    RECURRENT_PPO.train("CartPoleNoVel-v1", 3, given, lambda step, evaluate: seen.append((step, evaluate)))
    assert [step for step, _ in seen] == [0, 256, 512]
    model = seen[-1][1].args[0]
    assert model.policy.lstm_actor.hidden_size == model.policy.lstm_critic.hidden_size == 64
    act = make_actor(model, seen[-1][1], True)
    obs, noise = np.zeros((2, 4), np.float32), np.zeros((2, 2))
    begin, goes_on = np.ones(2, bool), np.zeros(2, bool)
    act(obs, noise, begin)
    memory = act.__closure__
    states = lambda: next(c.cell_contents for c in memory if isinstance(c.cell_contents, tuple))  # noqa: E731
    first = states()[0].copy()
    act(obs, noise, goes_on)
    assert not np.allclose(states()[0], first)
    act(obs, noise, begin)
    np.testing.assert_allclose(states()[0], first, atol=1e-6)
    np.testing.assert_array_equal(seen[-1][1](3, seed=5).returns, seen[-1][1](3, seed=5).returns)
