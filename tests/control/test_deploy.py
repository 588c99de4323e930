"""Policies outside of training: what they take, what they give, and that they act as in evaluation."""

import copy
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from builders import SPACES, make_model
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from rlzoo.control.deploy import ControlPolicy
from rlzoo.control.fast import accelerate
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.networks import GRU, Network
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.distributions import Categorical
from rlzoo.core.models import ActorCritic, Policy
from rlzoo.core.system.errors import ConfigError
from rlzoo.core.task import Setup

OBSERVATIONS = {
    "box": spaces.Box(-1, 1, (4,)),
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "wide": spaces.Box(-1, 1, (3,), np.float64),
    "number": spaces.Box(-1, 1, ()),
    "discrete": spaces.Discrete(4, start=-1),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
    "dict": spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2, 2))}),
    "tuple": spaces.Tuple((spaces.Discrete(3, start=2), spaces.Dict({"x": spaces.MultiBinary(2)}))),
}
ACTIONS = {
    **SPACES,
    "start": spaces.Discrete(3, start=-1),
    "matrix": spaces.MultiDiscrete([[2, 3], [3, 2]]),
    "wide": spaces.Box(-1, 2, (2, 2), np.float64),
}


def make_policy(obs_space=OBSERVATIONS["box"], action_space=ACTIONS["discrete"], network=None, **kwargs):
    size = spaces.flatdim(obs_space)
    model = make_model(action_space, size, dtype=torch.float32, spread=1.0, **(network or {}))
    return ControlPolicy(model, obs_space, action_space, **kwargs)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_batch_is_each_observation_in_turn(space):
    policy = make_policy(space, ACTIONS["box"])
    batched = batch_space(space, 5)
    batched.seed(1)
    batch = batched.sample()
    rows = list(gymnasium.vector.utils.iterate(batched, batch))
    actions = policy(batch)
    assert actions.shape == (5, 2)
    assert len(np.unique(actions)) > 2, "actions depend on the observation"
    assert np.allclose(np.stack([policy(row) for row in rows]), actions, atol=1e-6)
    expected = np.stack([spaces.flatten(space, row) for row in rows]).astype(np.float32)
    assert policy.flatten(batch).dtype == np.float32
    assert np.array_equal(policy.flatten(batch), expected)
    assert np.array_equal(policy.flatten(rows[2]), expected[2:3])


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_action_is_what_the_environment_takes(space, deterministic):
    policy = make_policy(action_space=space, deterministic=deterministic)
    observations = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32) * 3
    actions = policy(observations)
    assert actions.dtype == space.dtype
    assert all(space.contains(action) for action in actions)
    assert all(space.contains(policy(x)) for x in observations)
    assert len(np.unique(actions, axis=0)) > 1


def test_discrete_action_counts_from_the_start():
    plain, shifted = make_policy(), make_policy(action_space=spaces.Discrete(3, start=10))
    observations = np.random.default_rng(0).normal(size=(20, 4))
    assert np.array_equal(plain(observations) + 10, shifted(observations))


def test_mask_counts_also_where_training_saw_none():
    policy = make_policy()
    best = policy(np.zeros(4, np.float32))
    legal = np.arange(3) != best
    assert policy(np.zeros(4, np.float32), legal) in np.flatnonzero(legal)
    with pytest.raises(ConfigError):
        policy(np.zeros(4, np.float32), "junk")


def test_normalises():
    policy = make_policy(action_space=ACTIONS["box"], network={"normalize_obs": True})
    statistics = policy.model.normalizer
    statistics.mean.fill_(3.0)
    statistics.var.fill_(4.0)
    policy.reset()
    plain = make_policy(action_space=ACTIONS["box"])
    assert np.allclose(policy(np.full(4, 5.0)), plain(np.full(4, 1.0)), atol=1e-6)


def test_samples_follow_the_seed_and_the_policy():
    observation = np.float32([0.1, -0.2, 0.3, 0.4])
    first, again, other = (make_policy(deterministic=False, seed=seed) for seed in (3, 3, 4))
    batch = np.tile(observation, (4000, 1))
    sampled = first(batch)
    assert np.array_equal(again(batch), sampled)
    assert not np.array_equal(other(batch), sampled)
    with torch.no_grad():
        expected = first.model.act(torch.from_numpy(batch[:1]))[0].logits.softmax(-1)[0].numpy()
    assert np.allclose(np.bincount(sampled, minlength=3) / 4000, expected, atol=0.03)


@pytest.mark.parametrize("fast", [True, False])
def test_deterministic_episode_is_that_of_evaluation(fast):
    env = gymnasium.make("CartPole-v1")
    task = ControlTask(Control(num_envs=1, network=Network(hidden=(8,)), vectorized=False), Setup("CartPole-v1"))
    with torch.no_grad():
        for p in task.model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    evaluation = task.evaluate(1, seed=7, deterministic=True)
    if fast:
        accelerate(task)
    policy = task.policy()
    obs, _ = env.reset(seed=int(np.random.SeedSequence(7).generate_state(2)[0]))
    policy.reset()
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
        total, over = total + float(reward), terminated or truncated
    assert total == evaluation.mean_return


def test_policy_is_a_copy_that_training_does_not_change():
    task = ControlTask(Control(num_envs=1, network=Network(hidden=(8,))), Setup("Pendulum-v1"))
    policy, observation = task.policy(), np.float32([1.0, 0.0, 0.5])
    before = policy(observation)
    with torch.no_grad():
        for p in task.model.parameters():
            p.add_(1.0)
    assert np.array_equal(policy(observation), before)
    assert not np.array_equal(task.policy()(observation), before)


def test_dropout_of_an_own_network_is_off_in_training_and_in_use():
    task = ControlTask(Control(num_envs=1, network=Network(hidden=(8,))), Setup("Pendulum-v1"))
    assert not any(module.training for module in task.model.modules())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_observation_space_is_the_environments_own(asynchronous):
    task = ControlTask(Control(num_envs=1, async_envs=asynchronous), Setup("Blackjack-v1"))
    try:
        policy = task.policy()
    finally:
        task.close()
    assert policy.observation_space == gymnasium.make("Blackjack-v1").observation_space
    assert policy((12, 3, 0)) in (0, 1)


class Counting(Policy):
    """Prefers action `number of observations since the reset`, which is its memory."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, features, memory=None):
        count = torch.zeros(len(features)) if memory is None else memory + 1
        return Categorical(torch.nn.functional.one_hot(count.long(), 5).float() + self.weight), count


def test_memory_is_carried_until_reset():
    policy = ControlPolicy(ActorCritic(Counting(), None), OBSERVATIONS["box"], spaces.Discrete(5))
    actions = [policy(np.zeros(4)) for _ in range(3)]
    policy.reset()
    assert [*actions, policy(np.zeros(4))] == [0, 1, 2, 0]
    policy.reset([True, True])
    assert [policy(np.zeros((2, 4))).tolist() for _ in range(2)] == [[0, 0], [1, 1]]
    with pytest.raises(ConfigError, match="reset: 3 rows given, and obs had 2"):
        policy.reset([True, False, True])


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (OBSERVATIONS["box"], np.zeros(5)),
        (OBSERVATIONS["box"], np.zeros((2, 5))),
        (OBSERVATIONS["box"], np.zeros((8, 1))),
        (OBSERVATIONS["box"], "left"),
        (OBSERVATIONS["box"], None),
        (OBSERVATIONS["image"], np.zeros((3, 2))),
        (OBSERVATIONS["dict"], {"place": 1}),
        (OBSERVATIONS["dict"], np.zeros(7)),
        (OBSERVATIONS["discrete"], 17),
        (OBSERVATIONS["tuple"], (2,)),
        (OBSERVATIONS["box"], np.zeros((1, 4, 1))),
        (OBSERVATIONS["box"], np.zeros(4, complex)),
        (OBSERVATIONS["image"], np.zeros((2, 3, 1))),
        (OBSERVATIONS["image"], [[[300], [0], [0]], [[0], [0], [0]]]),
        (OBSERVATIONS["image"], np.full((2, 3, 1), 256)),
        (OBSERVATIONS["multidiscrete"], [[1]]),
    ],
)
def test_another_observation_is_an_error_of_one_line(space, obs):
    with pytest.raises(ConfigError, match=r"^obs is neither an observation of .* nor a batch of them: .*$"):
        make_policy(space)(obs)


@pytest.mark.parametrize("bad", [np.nan, -np.inf, 1e300])
def test_a_number_that_is_not_finite_is_an_error_as_in_training(bad):
    with pytest.raises(ConfigError, match="obs has a number that is not finite in single precision"):
        make_policy()(np.array([0, bad, 0, 0]))


@pytest.mark.parametrize("network", [Network, GRU])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_draws_its_own_samples_and_begins_an_episode(network, duplicate):
    space = spaces.Discrete(3)
    model = network().build(OBSERVATIONS["box"], space, torch.Generator().manual_seed(0))
    policy = ControlPolicy(model, OBSERVATIONS["box"], space, deterministic=False, make_actor=make_numpy_actor)
    obs = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    policy(obs)
    twin = duplicate(policy)
    policy.reset()
    samples = policy(obs)
    assert np.array_equal(twin(obs), samples)
    assert not np.array_equal(policy(obs), samples)


def test_reset_takes_no_numbers_of_rows():
    policy = make_policy()
    policy(np.zeros((2, 4)))
    with pytest.raises(ConfigError, match=r"reset: rows must be True or False each, got \[0\]"):
        policy.reset([0])


def test_resets_of_parts_before_a_step_add_up():
    box = spaces.Box(-1, 1, (3,))
    policy = ControlPolicy(GRU(cell_size=4).build(box, box, torch.Generator().manual_seed(0)), box, box)
    obs = np.ones((2, 3), np.float32)
    first, later = policy(obs), policy(obs)
    policy.reset(np.array([True, False]))
    policy.reset(np.array([False, True]))
    np.testing.assert_array_equal(policy(obs), first)
    assert not np.array_equal(later, first)
