"""REINFORCE: an unbiased gradient, complete episodes only."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from builders import make_buffer, make_model, parameters
from gymnasium import spaces

from rlzoo.algorithms import PPOClip, Reinforce
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate
from rlzoo.core.estimators import MonteCarlo, complete_episodes

# Two actions, two steps; the reward of each of the four trajectories
REWARDS = {(0, 0): (1.0, -2.0), (0, 1): (1.0, 3.0), (1, 0): (0.5, 0.0), (1, 1): (0.5, 7.0)}
FIRST, SECOND = torch.eye(3, dtype=torch.float64)[0], torch.eye(3, dtype=torch.float64)[1:]


def trajectory(model, actions):
    """The one row of a buffer that takes these two actions; the second state is the first action's."""
    yes = torch.ones(1, 2, dtype=torch.bool)
    obs = torch.stack([FIRST, SECOND[actions[0]], FIRST])[None]
    reward = torch.tensor([REWARDS[actions]], dtype=torch.float64)
    last = torch.tensor([[False, True]])
    return evaluate(model, Buffer(obs, torch.tensor([actions]), reward, last, ~yes, yes))


def flat_gradient(loss, parameters):
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])


@pytest.mark.parametrize("baseline", [False, True])
def test_expected_gradient_is_that_of_the_expected_return(baseline):
    model = make_model(spaces.Discrete(2), obs_size=3)
    algorithm = Reinforce(baseline=baseline, normalize_advantage=False, estimator=MonteCarlo(gamma=1.0))
    policy = model.policy_parameters()
    expected_return, expected_gradient = 0.0, 0.0
    for actions in itertools.product((0, 1), repeat=2):
        buffer = trajectory(model, actions)
        log_probability = model.distribution(buffer.obs[:, :-1]).log_prob(buffer.action).sum()
        expected_return = expected_return + log_probability.exp() * sum(REWARDS[actions])
        if not baseline:
            buffer = buffer.replace(value=torch.zeros_like(buffer.value))
        batch = algorithm.estimator(buffer).rows(1)
        gradient = -2 * flat_gradient(algorithm.loss(model, batch, 0.0), policy)  # the loss is a mean over two steps
        expected_gradient = expected_gradient + log_probability.detach().exp() * gradient
    torch.testing.assert_close(expected_gradient, flat_gradient(expected_return, policy), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("baseline", [False, True])
def test_loss_by_hand(baseline):
    model = make_model(spaces.Discrete(2), obs_size=3)
    buffer = trajectory(model, (0, 1))
    algorithm = Reinforce(estimator=MonteCarlo(gamma=0.5), normalize_advantage=False, ent_coef=0.1)
    if not baseline:
        buffer = buffer.replace(value=torch.zeros_like(buffer.value))
    value = buffer.value[0].tolist()
    policy = model.distribution(buffer.obs[:, :-1])
    logp, entropy = policy.log_prob(buffer.action)[0], policy.entropy()[0]
    weighted = logp[0] * (1.0 + 0.5 * 3.0 - value[0]) + logp[1] * (3.0 - value[1])
    expected = -weighted / 2 - 0.1 * (entropy[0] + entropy[1]) / 2
    torch.testing.assert_close(algorithm.loss(model, algorithm.estimator(buffer).rows(1), 0.1), expected)


def test_without_baseline_the_value_is_neither_used_nor_trained():
    start = make_model()
    buffer = make_buffer(start)
    models = []
    for value in (buffer.value, buffer.value + 100):
        model = make_model()
        algorithm = Reinforce(baseline=False)
        algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer.replace(value=value))
        models.append(model)
    assert torch.equal(*map(parameters, models))
    for new, old in zip(models[0].value_parameters(), start.value_parameters(), strict=True):
        assert torch.equal(new, old)


def test_unfinished_tail_does_not_train():
    buffer = make_buffer(make_model(), rows=6, steps=9)
    tail = buffer.mask & ~complete_episodes(buffer.terminated, buffer.truncated, buffer.mask)
    assert tail.any()
    results = []
    for reward in (buffer.reward, torch.where(tail, 50.0, buffer.reward)):
        model = make_model()
        algorithm = Reinforce()
        algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer.replace(reward=reward))
        results.append(parameters(model))
    assert torch.equal(*results)


def test_baseline_learns_the_return():
    """With seeds 0 to 5 of model and buffer it rises from at most -0.66 to at least 0.52."""
    model = make_model(hidden=(16,))
    buffer = make_buffer(model, whole_episodes=True)
    algorithm = Reinforce(estimator=MonteCarlo(gamma=0.9), vf_epochs=300, vf_learning_rate=0.02)
    state = algorithm.init(model, np.random.default_rng(0))
    before = algorithm.update(model, state, buffer)["explained_variance"]
    after = algorithm.update(model, state, evaluate(model, buffer))["explained_variance"]
    assert before < -0.5
    assert after > 0.3


def test_first_gradient_equals_that_of_ppo_clip_at_ratio_one():
    model = make_model()
    batch = MonteCarlo()(make_buffer(model)).rows(1)
    reinforce = Reinforce().loss(model, batch, 0.0)
    clip = PPOClip(vf_coef=0.0).loss(model, batch, 0.2, 0.0)
    torch.testing.assert_close(
        flat_gradient(reinforce, model.policy_parameters()),
        flat_gradient(clip, model.policy_parameters()),
        rtol=1e-10,
        atol=1e-14,
    )


def test_learning_rates_follow_their_schedules():
    buffer = make_buffer(make_model(), whole_episodes=True)
    moved = {}
    for progress in (0.0, 0.5):
        model = make_model()
        algorithm = Reinforce(learning_rate="linear:3e-3:0", vf_learning_rate="linear:3e-3:0", vf_epochs=1)
        state = algorithm.init(model, np.random.default_rng(0))
        state.progress = progress
        before = parameters(model)
        algorithm.update(model, state, buffer)
        moved[progress] = parameters(model) - before
    torch.testing.assert_close(moved[0.5], moved[0.0] / 2, rtol=1e-6, atol=1e-12)


def test_default_estimator_asks_for_whole_episodes():
    assert Reinforce().estimator.whole_episodes
    assert dataclasses.replace(Reinforce()).estimator == MonteCarlo(gamma=0.99)
