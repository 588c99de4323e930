"""Recurrent policies in control environments."""

import numpy as np
import pytest
import short_runs
import torch

import rlzoo
from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.envs import source as envs
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.networks import GRU
from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.system.errors import ConfigError
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train

GRU_RUN = {k: x for k, x in short_runs.GRU.items() if k not in ("algorithm", "epochs", "minibatch_size")}
QUICK = {**GRU_RUN, "num_steps": 40}
ALGORITHMS = [
    *(pytest.param(x, marks=pytest.mark.slow) for x in ("reinforce", "npg", "trpo", "ppo-penalty")),
    "ppo-clip",
]


def collect(network, make_actor, env_id="CartPoleNoVel-v1", steps=60, buffers=2):
    """The last of some buffers, and the model."""
    env = envs.make(env_id, 4, 0)
    model = network(cell_size=6, hidden=(5,)).build(
        env.observation_space, env.action_space, torch.Generator().manual_seed(1)
    )
    noise = ActionNoise(env.action_space, 4, np.random.default_rng(2))
    collector = Collector(env, steps)
    for _ in range(buffers):
        buffer = collector.collect(make_actor(model, noise)).buffer
    return buffer, model


@pytest.mark.parametrize("make_actor", [make_actor, make_numpy_actor])
def test_a_buffer_holds_the_memory_that_acting_had(make_actor):
    """Rows cut anywhere give the policy of the whole row, and episodes begin without memory."""
    buffer, model = collect(GRU, make_actor)
    assert bool((buffer.terminated | buffer.truncated).any())
    whole = evaluate(model, buffer)
    for context in (1, 10, 30):
        rows = whole.rows(context)
        again = model.distribution(rows.obs).log_prob(rows.action)
        torch.testing.assert_close(again, rows.logp, rtol=0, atol=1e-5)
    start = buffer.obs.start
    ended = (buffer.terminated | buffer.truncated).nonzero()
    assert all(start[i, t + 2] for i, t in ended.tolist() if t + 2 < start.shape[1])
    assert start.dtype == torch.bool
    assert buffer.obs.memory.shape == (4, 61, model.memory_size)
    assert buffer.obs.legal is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_and_resumes_exactly(algorithm, tmp_path):
    settings = {k: x for k, x in QUICK.items() if algorithm != "reinforce" or k != "num_steps"}
    whole = train(algorithm, out=tmp_path / "whole", **settings)
    path = tmp_path / "stopped"
    train(algorithm, out=path, on_iteration=lambda trainer, _: trainer.step > 400, **settings)
    resume(path, checkpoint=Run(path).steps()[-2])
    assert short_runs.outcome(Run(path)) == short_runs.outcome(whole)


def test_deployed_policy_remembers_until_it_is_reset(tmp_path):
    run = train("ppo-clip", out=tmp_path / "run", **QUICK)
    policy = rlzoo.load_policy(run, deterministic=False, seed=3)
    memory = lambda: policy._actor.memory.copy()  # noqa: E731
    obs = np.array([0.01, 0, 0.02, 0], np.float32)
    policy(obs)
    first = memory()
    policy(obs)
    assert not np.allclose(memory(), first)
    policy.reset()
    policy(obs)
    np.testing.assert_allclose(memory(), first, atol=1e-7)
    policy(np.stack([obs, obs]))
    policy(np.stack([obs, obs]))
    policy.reset([True, False])
    policy(np.stack([obs, obs]))
    np.testing.assert_allclose(memory()[0], first[0], atol=1e-7)
    assert not np.allclose(memory()[1], first[0])


HIDDEN = {"CartPole-v1": [1, 3], "Pendulum-v1": [2], "MountainCar-v0": [1], "MountainCarContinuous-v0": [1]}


@pytest.mark.parametrize("limit", [150, 250])
def test_time_limit_is_that_which_is_asked_for(limit):
    env = envs.make("PendulumNoVel-v1", 1, 0, max_episode_steps=limit)
    env.reset()
    cut = [bool(env.step(np.zeros((1, 1)))[3][0]) for _ in range(limit)]
    assert cut == [False] * (limit - 1) + [True]


@pytest.mark.parametrize("env_id", HIDDEN)
def test_only_velocities_are_hidden(env_id):
    name, version = env_id.split("-")
    ours, full = (envs.make(x, 3, 7) for x in (f"{name}NoVel-{version}", env_id))
    shown = [i for i in range(full.observation_space.shape[0]) if i not in HIDDEN[env_id]]
    full.action_space.seed(0)
    for step in range(300):
        action = np.stack([full.action_space.sample() for _ in range(3)])
        (obs, *mine), (whole, *theirs) = (env.step(action) if step else env.reset() for env in (ours, full))
        assert (obs[:, HIDDEN[env_id]] == 0).all()
        np.testing.assert_array_equal(obs[:, shown], whole[:, shown])
        for x, y in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(x, y)
    assert ours.observation_space == full.observation_space


def test_minibatches_smaller_than_a_row_are_refused():
    with pytest.raises(ConfigError, match="minibatch_size must be at least unroll = 32, the steps of a row, got 16"):
        rlzoo.make_config("ppo-clip", "CartPole-v1", network="gru", minibatch_size=16)
