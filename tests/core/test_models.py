"""`ActorCritic` and the normalisers that belong to it."""

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model
from gymnasium.spaces import Box, Discrete
from torch import nn

from rlzoo.control.networks import GRU
from rlzoo.core.models import ActorCritic, Normalizer, RewardScale, flatten_parameters, unflatten
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer

BOXES = Box(-1, 1, (4,)), Discrete(2)


@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_policy_and_value_parameters_share_nothing_and_leave_nothing_out(space, shared_trunk):
    model = make_model(SPACES[space], shared_trunk=shared_trunk)
    policy = {id(p) for p in model.policy_parameters()}
    value = {id(p) for p in model.value_parameters()}
    assert not policy & value
    assert policy | value == {id(p) for p in model.parameters()}


def test_a_layer_of_policy_and_value_is_the_policys():
    model = make_model()
    model.value.body = model.policy.net
    assert not {*model.policy_parameters()} & {*model.value_parameters()}
    model.trunk = model.policy.net
    policy = model.policy_parameters()
    assert len(policy) == len({*policy})


def test_modules_of_a_subclass_belong_to_the_policy():
    model = make_model()
    model.encoder, model.auxiliary = nn.Linear(4, 4), nn.Linear(4, 1)
    policy = {*model.policy_parameters()}
    assert policy.issuperset([*model.encoder.parameters(), *model.auxiliary.parameters()])
    assert policy.isdisjoint(model.value_parameters())
    assert len(policy) + len(model.value_parameters()) == len([*model.parameters()])


def test_a_recurrent_model_sees_32_steps_if_it_does_not_say_how_many():
    class Own(ActorCritic):
        context = 8

    plain, recurrent = make_model(), GRU(hidden=(4,)).build(*BOXES, torch.Generator())
    assert ActorCritic(plain.policy, plain.value).context == 1
    assert ActorCritic(recurrent.policy, recurrent.value, recurrent.trunk).context == 32
    assert Own(recurrent.policy, recurrent.value, recurrent.trunk).context == 8


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_forward_is_distribution_and_value(shared_trunk):
    model = make_model(shared_trunk=shared_trunk, normalize_obs=True)
    obs = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    policy, value = model(obs)
    assert value.shape == (2, 3)
    assert torch.equal(policy.logits, model.distribution(obs).logits)
    torch.testing.assert_close(policy.logits[:, 1], model.act(obs[:, 1])[0].logits)
    assert torch.equal(value, model.value(model.features(obs)))


def test_normalizer_equals_numpy_over_all_unmasked_observations():
    rng = np.random.default_rng(0)
    normalizer, seen = Normalizer((3,)), []
    for rows, steps, scale in ((2, 5, 1), (1, 1, 50), (4, 3, 7)):
        obs = (rng.normal(size=(rows, steps, 3)) * scale + [0, 100, -5]).astype(np.float32)
        mask = rng.random((rows, steps)) < 0.7
        mask[0, 0] = True
        normalizer.update(torch.from_numpy(obs), torch.from_numpy(mask))
        seen.append(obs[mask])
    every = np.concatenate(seen).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, every.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.var, every.var(0), rtol=1e-5)
    assert float(normalizer.count) == len(every)

    x = torch.tensor([[1.0, 90.0, 0.0]])
    expected = (x.numpy() - every.mean(0)) / every.std(0)
    np.testing.assert_allclose(normalizer(x), expected, rtol=1e-4)


def test_normalizer_clips_at_ten():
    assert Normalizer((1,))(torch.tensor([[1e6], [-1e6]])).tolist() == [[10], [-10]]


def test_normalizer_of_one_observation_or_none_stays_finite():
    normalizer = Normalizer((2,))
    obs, mask = torch.ones(1, 2, 2), torch.zeros(1, 2, dtype=torch.bool)
    normalizer.update(obs, mask)
    assert normalizer.count == 0
    mask[0, 0] = True
    normalizer.update(obs, mask)
    assert normalizer.var.tolist() == [0, 0]
    assert normalizer(obs + 1).isfinite().all()


def running_std(buffers, gamma):
    """Standard deviation of R_t = γ·R_{t−1} + r_t over the unmasked steps, one episode at a time."""
    sums, total = [], [0.0] * buffers[0].num_rows
    for buffer in buffers:
        for i, t in np.ndindex(*buffer.mask.shape):
            if buffer.mask[i, t]:
                total[i] = gamma * total[i] + float(buffer.reward[i, t])
                sums.append(total[i])
            if buffer.terminated[i, t] or buffer.truncated[i, t]:
                total[i] = 0.0
    return np.std(sums)


def test_reward_scale_divides_by_the_deviation_of_the_discounted_sum():
    model = make_model()
    buffers = [make_buffer(model, seed=seed) for seed in range(3)]
    scale = RewardScale(4, 0.9)
    for count, buffer in enumerate(buffers, 1):
        scaled = scale(buffer)
        torch.testing.assert_close(scaled.reward, buffer.reward / running_std(buffers[:count], 0.9))


def test_rewards_of_masked_steps_do_not_enter_the_reward_scale():
    buffers = [make_buffer(make_model(), seed=seed) for seed in range(2)]
    clean, spoiled = RewardScale(4, 0.9), RewardScale(4, 0.9)
    for buffer in buffers:
        clean(buffer)
        spoiled(buffer.replace(reward=torch.where(buffer.mask, buffer.reward, 1e3)))
    for name, statistic in clean.state_dict().items():
        assert torch.equal(spoiled.state_dict()[name], statistic)


def test_a_forced_step_in_the_middle_of_an_episode_takes_no_time_in_the_reward_scale():
    plain, forced = RewardScale(4, 0.9), RewardScale(4, 0.9)
    buffer = make_buffer(make_model())
    mask, ended = torch.ones_like(buffer.mask), torch.zeros_like(buffer.mask)
    ended[0, 5] = True
    buffer, at = buffer.replace(mask=mask, terminated=ended, truncated=~mask), 3
    plain(buffer)
    forced(buffer.map(lambda x: torch.cat([x[:, :at], torch.zeros_like(x[:, :1]), x[:, at:]], 1)))
    for name, statistic in plain.state_dict().items():
        assert torch.equal(forced.state_dict()[name], statistic)


def test_flattened_parameters_are_views_of_the_vector():
    layer = nn.Linear(2, 3)
    before = layer(torch.ones(2)).detach()
    theta = flatten_parameters(list(layer.parameters()))
    assert theta.shape == (9,)
    assert torch.equal(layer(torch.ones(2)), before)
    theta.zero_()
    assert torch.equal(layer(torch.ones(2)), torch.zeros(3))
    assert [p.shape for p in unflatten(theta, list(layer.parameters()))] == [(3, 2), (3,)]


def test_observations_are_normalised_by_those_of_unmasked_steps():
    config = make_config("ppo-clip", "CartPole-v1", normalize_obs=True, num_envs=2, num_steps=100)
    trainer, other = Trainer(config), Trainer(config)
    buffer = other.task.collect().buffer
    trainer.iterate()
    assert not buffer.mask.all()
    torch.testing.assert_close(trainer.model.normalizer.mean, buffer.obs[:, :-1][buffer.mask].mean(0))
