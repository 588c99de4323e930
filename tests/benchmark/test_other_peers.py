"""Tianshou and rejax as peers: their settings, short jobs, and evaluations that training does not notice."""

import functools
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from rlzoo.benchmark.job import Job, Outcome, load_peer, run_job
from rlzoo.benchmark.suite import load_suite
from rlzoo.core.system.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "benchmarks"

SHORT = {
    ("tianshou:PPO", "CartPole-v1"): {"total_steps": 600, "collection_step_num_env_steps": 400, "batch_size": 200},
    ("tianshou:PPO", "Pendulum-v1"): {"total_steps": 1600, "num_training_envs": 4, "collection_step_num_episodes": 4},
    ("tianshou:TRPO", "Pendulum-v1"): {"total_steps": 600, "collection_step_num_env_steps": 256},
    ("tianshou:NPG", "Pendulum-v1"): {"total_steps": 600, "collection_step_num_env_steps": 256},
    ("tianshou:Reinforce", "CartPole-v1"): {"total_steps": 600},
    ("rejax:PPO", "Pendulum-v1"): {"total_steps": 800, "num_envs": 5},
}
"""Of each, a few updates."""

PUBLISHED = {
    "tianshou:PPO": ["CartPole-v1", "Pendulum-v1"],
    "tianshou:TRPO": ["Pendulum-v1"],
    "tianshou:NPG": ["Pendulum-v1"],
    "tianshou:Reinforce": ["CartPole-v1"],
    "rejax:PPO": ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"],
}

peers = pytest.mark.parametrize("name", PUBLISHED)
short = pytest.mark.parametrize(("name", "env"), SHORT)


@pytest.fixture(autouse=True)
def process():
    """Gives back what a job or a peer changes in the process that is its own."""
    handler, numpy_state = signal.getsignal(signal.SIGINT), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        yield
    np.random.set_state(numpy_state)
    signal.signal(signal.SIGINT, handler)


def spec(name):
    library, algorithm = name.split(":")
    pytest.importorskip(library)
    return f"{FOLDER}/peers/with_{library}.py:{algorithm}"


@functools.cache
def peer(name):
    return load_peer(spec(name))


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """JAX compiles in haste, and what it has compiled once it finds again."""
    try:
        import jax
    except ImportError:
        yield
        return
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("jax")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_compilation_cache_dir", None)


def train(name, env, seed=10, watch=lambda step, evaluate: None):
    """Trains, tells `watch`, and returns the steps, the weights at each, and the last function that evaluates."""
    steps, found, last = [], [], None

    def note(step, evaluate):
        nonlocal last
        watch(step, evaluate)
        last = evaluate
        steps.append(step)
        found.append(weights(evaluate))

    peer(name).train(env, seed, peer(name).settings(env) | SHORT[name, env], note)
    return steps, found, last


trained = functools.cache(train)


def weights(evaluate):
    """Of the policy that a function evaluates, by name."""
    given = evaluate.args[0]
    if isinstance(given, torch.nn.Module):
        return {name: x.numpy().copy() for name, x in given.state_dict().items()}
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(evaluate.args[1].actor_ts.params)
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def hidden(params, x, activation):
    """What the hidden layers of a policy of rejax make of observations."""
    for layer in ("Dense_0", "Dense_1"):
        x = activation(x @ params["features"][layer]["kernel"] + params["features"][layer]["bias"])
    return x


def same(xs, ys):
    return xs.keys() == ys.keys() and all(np.array_equal(xs[name], ys[name]) for name in xs)


def returns(evaluate, deterministic=False):
    return evaluate(3, seed=3, deterministic=deterministic).returns.tolist()


@peers
def test_environment_without_settings_names_those_that_have_them(name):
    with pytest.raises(ConfigError, match=f"no environment 'Taxi-v3'.*for {', '.join(PUBLISHED[name])}$"):
        peer(name).settings("Taxi-v3")


def test_tianshou_settings_are_its_scripts():
    found = peer("tianshou:TRPO").settings("Pendulum-v1")
    assert found.pop("library").startswith("tianshou 2.")
    assert found == {
        "num_training_envs": 16, "collection_step_num_env_steps": 2048, "update_step_num_repetitions": 2,
        "batch_size": 99999, "hidden_sizes": [64, 64], "activation": "tanh", "shared": False, "init_gain": 1.0,
        "lr": 1e-3, "gamma": 0.95, "gae_lambda": 0.95, "return_scaling": True, "advantage_normalization": True,
        "optim_critic_iters": 5, "max_kl": 0.005, "backtrack_coeff": 0.8, "max_backtracks": 10,
    }  # fmt: skip
    ppo = peer("tianshou:PPO")
    assert [ppo.settings(env)["lr"] for env in ("CartPole-v1", "Pendulum-v1")] == [3e-4, 1e-3]
    assert [ppo.settings(env)["value_clip"] for env in ("CartPole-v1", "Pendulum-v1")] == [False, True]
    assert peer("tianshou:Reinforce").settings("CartPole-v1")["init_gain"] == pytest.approx(1.41421356)


def test_rejax_settings_are_its_configurations():
    found = peer("rejax:PPO").settings("Pendulum-v1")
    assert found.pop("library").startswith("rejax 0.1.")
    assert found == {
        "num_envs": 100, "num_steps": 100, "num_epochs": 10, "num_minibatches": 10, "learning_rate": 1e-3,
        "max_grad_norm": 10, "gamma": 0.995, "gae_lambda": 0.95, "clip_eps": 0.2, "ent_coef": 0.0, "vf_coef": 0.5,
        "activation": "swish", "hidden_layer_sizes": [64, 64], "normalize_observations": True,
        "normalize_rewards": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("suite", "labels", "envs"),
    [
        ("more-peers", ["tianshou-ppo", "tianshou-reinforce", "rejax-ppo"], ["CartPole-v1"]),
        ("more-peers-pendulum", ["tianshou-ppo", "tianshou-trpo", "tianshou-npg", "rejax-ppo"], ["Pendulum-v1"]),
        ("more-peers-rejax", ["rejax-ppo"], ["Acrobot-v1", "MountainCarContinuous-v0"]),
    ],
)
def test_suites(suite, labels, envs):
    pytest.importorskip("tianshou")
    pytest.importorskip("rejax")
    found = load_suite(FOLDER / "suites" / f"{suite}.yaml")
    assert (list(found.algorithms), list(found.environments)) == (labels, envs)
    assert {job.seed for job in found.jobs} == {10, 11, 12, 13, 14}
    counterparts = {"ppo": "ppo-clip", "trpo": "trpo", "npg": "npg", "reinforce": "reinforce"}
    assert all(entry.counterpart == counterparts[label.split("-")[1]] for label, entry in found.algorithms.items())


@short
def test_job(name, env):
    given = peer(name).settings(env) | SHORT[name, env]
    outcome = run_job(Job(name, env, 10, given, 100, 2, 2, spec(name)))
    assert isinstance(outcome, Outcome), outcome.details
    assert outcome.steps == trained(name, env)[0]
    assert outcome.steps[0] == 0
    assert outcome.steps[-2] < given["total_steps"] <= outcome.steps[-1]
    assert len(outcome.stochastic) == len(outcome.deterministic) == len(outcome.seconds) == len(outcome.steps) >= 3
    assert outcome.seconds[1] > outcome.seconds[0] == 0


@short
def test_evaluation_leaves_no_trace(name, env):
    def evaluate_twice(step, evaluate):
        returns(evaluate)
        returns(evaluate, deterministic=True)

    steps, disturbed, _ = train(name, env, watch=evaluate_twice)
    assert steps == trained(name, env)[0]
    assert all(same(x, y) for x, y in zip(disturbed, trained(name, env)[1], strict=True))


@short
def test_evaluations_are_of_samples_or_of_modes(name, env):
    evaluate = trained(name, env)[2]
    modes, samples = returns(evaluate, deterministic=True), returns(evaluate)
    assert modes == returns(evaluate, deterministic=True) != samples == returns(evaluate)


def test_rejax_sees_normalised_observations_and_clips_actions():
    act, state = trained("rejax:PPO", "Pendulum-v1")[2].args[:2]
    obs = np.float32([[1.0, 0.0, 0.5], [0.0, 1.0, -3.0], [-1.0, 0.0, 6.0]])
    params, statistics = state.actor_ts.params["params"], state.obs_rms_state
    x = (obs - np.asarray(statistics.mean)) / np.sqrt(np.asarray(statistics.var) + 1e-8)
    x = hidden(params, x, lambda x: x / (1 + np.exp(-x)))  # swish
    means = np.asarray(x @ params["action_mean"]["kernel"] + params["action_mean"]["bias"])
    assert np.asarray(act(state, obs, np.zeros((3, 1), np.float32))) == pytest.approx(means.clip(-2, 2), abs=1e-5)
    stds = np.exp(np.asarray(params["action_log_std"]))
    noise = np.float32([[0.5], [-9.0], [9.0]])
    assert np.asarray(act(state, obs, noise)) == pytest.approx((means + stds * noise).clip(-2, 2), abs=1e-5)
    assert np.asarray(act(state, obs, noise))[1:].tolist() == [[-2], [2]]
