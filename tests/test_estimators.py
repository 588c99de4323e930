"""Advantages and returns: hand numbers, the definitions, and what must not matter."""

import numpy as np
import pytest
import torch
from builders import make_buffer, make_ends, make_model, with_junk
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.errors import ConfigError
from rlzoo.estimators import GAE, MonteCarlo, complete_episodes, gae, monte_carlo


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


@st.composite
def experience(draw, rate=0.3):
    """Rewards, values, ends and mask of a few rows, with a forced step after each end or with none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, steps = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    terminated, truncated, mask = make_ends(rng, rows, steps, rate)
    if draw(st.booleans()):
        mask = torch.ones_like(mask)
    reward = torch.from_numpy(rng.normal(size=(rows, steps))) * mask
    value = torch.from_numpy(rng.normal(size=(rows, steps + 1)))
    return reward, value, terminated, truncated, mask


def gae_by_definition(reward, value, terminated, truncated, mask, gamma, gae_lambda):
    """A_t = Σ_k (γλ)^k δ_{t+k} up to the end of the episode or of the row, one sum for each t."""
    advantage = torch.zeros_like(reward)
    rows, steps = reward.shape
    for i, t in np.ndindex(rows, steps):
        if not mask[i, t]:
            continue
        for k in range(steps - t):
            u = t + k
            bootstrap = 0.0 if terminated[i, u] else value[i, u + 1]
            advantage[i, t] += (gamma * gae_lambda) ** k * (reward[i, u] + gamma * bootstrap - value[i, u])
            if terminated[i, u] or truncated[i, u]:
                break
    return advantage


def return_by_definition(reward, value, terminated, truncated, mask, gamma):
    """G_t = Σ_k γ^k r_{t+k} to the end of the episode, NaN if it has none."""
    returns = torch.zeros_like(reward)
    rows, steps = reward.shape
    for i, t in np.ndindex(rows, steps):
        if not mask[i, t]:
            continue
        for k in range(steps - t):
            u = t + k
            returns[i, t] += gamma**k * reward[i, u]
            if terminated[i, u]:
                break
            if truncated[i, u]:
                returns[i, t] += gamma ** (k + 1) * value[i, u + 1]
                break
        else:
            returns[i, t] = torch.nan
    return returns


# reward, value, terminated, truncated, mask, and the advantages worked out by hand for γ = 0.9, λ = 0.8
HAND = {
    "terminated": ([1, 2, 3], [0.5, 1, 1.5, 9], [0, 0, 1], [0, 0, 0], [1, 1, 1], [3.8696, 3.43, 1.5]),
    "truncated": ([1, 2, 3], [0.5, 1, 1.5, 10], [0, 0, 0], [0, 0, 1], [1, 1, 1], [8.5352, 9.91, 10.5]),
    "goes on": ([1, 2, 3], [0.5, 1, 1.5, 10], [0, 0, 0], [0, 0, 0], [1, 1, 1], [8.5352, 9.91, 10.5]),
    "next after termination": ([1, 0, 3], [0.5, 7, 1.5, 2], [1, 0, 0], [0, 0, 0], [1, 0, 1], [0.5, 0, 3.3]),
    "next after truncation": ([1, 0, 3], [0.5, 7, 1.5, 2], [0, 0, 0], [1, 0, 0], [1, 0, 1], [6.8, 0, 3.3]),
}


@pytest.mark.parametrize("case", HAND)
def test_gae_by_hand(case):
    reward, value, terminated, truncated, mask, expected = (tensor([x]) for x in HAND[case])
    advantage = gae(reward, value, terminated.bool(), truncated.bool(), mask.bool(), 0.9, 0.8)
    torch.testing.assert_close(advantage, expected)


@given(experience(), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition(steps, gamma, gae_lambda):
    torch.testing.assert_close(gae(*steps, gamma, gae_lambda), gae_by_definition(*steps, gamma, gae_lambda))


@given(experience())
def test_gae_with_lambda_zero_is_the_td_error(steps):
    reward, value, terminated, _, mask = steps
    td = (reward + 0.9 * value[:, 1:] * ~terminated - value[:, :-1]) * mask
    torch.testing.assert_close(gae(*steps, 0.9, 0.0), td)


@given(experience())
def test_gae_with_lambda_one_is_the_return_minus_the_value(steps):
    _, value, *ends = steps
    complete = complete_episodes(*ends)
    returns = monte_carlo(*steps, 0.9)
    torch.testing.assert_close(gae(*steps, 0.9, 1.0)[complete], (returns - value[:, :-1])[complete])


@given(experience(), st.floats(-3, 3))
def test_gae_is_linear_in_rewards_and_values(steps, scale):
    reward, value, *ends = steps
    other_reward, other_value = reward.flip(1), value.flip(1)
    both = gae(reward + scale * other_reward, value + scale * other_value, *ends, 0.9, 0.8)
    sum_of_each = gae(*steps, 0.9, 0.8) + scale * gae(other_reward, other_value, *ends, 0.9, 0.8)
    torch.testing.assert_close(both, sum_of_each)


@given(experience(rate=0), st.floats(-10, 10))
def test_shifted_rewards_and_values_leave_gae_alone_in_endless_episodes(steps, shift):
    reward, value, *ends = steps
    shifted = gae(reward + shift, value + shift / (1 - 0.9), *ends, 0.9, 0.8)
    torch.testing.assert_close(shifted, gae(*steps, 0.9, 0.8))


@given(experience(), st.sampled_from([-1e6, torch.nan, torch.inf]))
def test_rewards_and_ends_of_forced_steps_change_nothing(steps, junk):
    reward, value, terminated, truncated, mask = steps
    spoiled = torch.where(mask, reward, junk), value, terminated | ~mask, truncated, mask
    assert torch.equal(gae(*spoiled, 0.9, 0.8), gae(*steps, 0.9, 0.8))
    torch.testing.assert_close(monte_carlo(*spoiled, 0.9), monte_carlo(*steps, 0.9), rtol=0, atol=0, equal_nan=True)


@given(experience())
def test_value_before_a_reset_is_used_by_truncation_alone(steps):
    reward, value, terminated, truncated, mask = steps
    after_end = ~mask & torch.cat([torch.zeros_like(mask[:, :1]), terminated[:, :-1]], 1)
    spoiled = value.clone()
    spoiled[:, :-1][after_end] += 1e6
    assert torch.equal(gae(reward, spoiled, terminated, truncated, mask, 0.9, 0.8), gae(*steps, 0.9, 0.8))


@given(experience())
def test_episodes_do_not_leak_into_those_before(steps):
    reward, value, terminated, truncated, mask = steps
    first = (torch.cumsum(terminated | truncated, 1) - (terminated | truncated).int()) == 0
    after = ~first & mask
    after[:, 1:] &= ~truncated[:, :-1]
    spoiled_value = value.clone()
    spoiled_value[:, :-1][after] += 5
    spoiled = torch.where(after, reward + 7, reward), spoiled_value, terminated, truncated, mask
    assert torch.equal(gae(*spoiled, 0.9, 0.8)[first], gae(*steps, 0.9, 0.8)[first])


@given(experience(), st.integers(1, 5))
def test_padding_changes_nothing(steps, padding):
    reward, value, *ends = steps
    rows, length = reward.shape
    no, pad = torch.zeros(rows, padding, dtype=torch.bool), torch.full((rows, padding), 13.0, dtype=torch.float64)
    padded = (torch.cat([reward, pad], 1), torch.cat([value, pad], 1), *(torch.cat([x, no], 1) for x in ends))
    assert torch.equal(gae(*padded, 0.9, 0.8)[:, :length], gae(*steps, 0.9, 0.8))
    assert torch.equal(gae(*padded, 0.9, 0.8)[:, length:], torch.zeros_like(pad))


@given(experience())
def test_order_of_rows_does_not_matter(steps):
    flipped = [x.flip(0) for x in steps]
    assert torch.equal(gae(*flipped, 0.9, 0.8).flip(0), gae(*steps, 0.9, 0.8))


def test_returns_by_hand():
    reward, value = tensor([[1, 2, 4, 0, 8, 16]]), tensor([[0, 0, 0, 64, 0, 0, 0]])
    terminated = torch.tensor([[False, True, False, False, False, False]])
    mask = torch.tensor([[True, True, True, False, True, True]])
    truncated = torch.tensor([[False, False, True, False, False, False]])
    returns = monte_carlo(reward, value, terminated, truncated, mask, 0.5)
    torch.testing.assert_close(returns, tensor([[2, 2, 36, 0, torch.nan, torch.nan]]), equal_nan=True)


@given(experience(), st.floats(0, 1))
def test_returns_equal_their_definition(steps, gamma):
    expected = return_by_definition(*steps, gamma)
    torch.testing.assert_close(monte_carlo(*steps, gamma), expected, equal_nan=True)


@given(experience())
def test_complete_episodes_are_those_that_end_within_the_row(steps):
    _, _, *ends = steps
    returns = monte_carlo(*steps, 0.9)
    assert torch.equal(complete_episodes(*ends), ends[2] & ~returns.isnan())


def test_single_precision_and_other_layouts_give_the_same():
    model = make_model()
    buffer = make_buffer(model)
    steps = buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask
    single = gae(steps[0].float(), steps[1].float(), *steps[2:], 0.9, 0.8)
    strided = gae(*(x.t().contiguous().t() for x in steps), 0.9, 0.8)
    torch.testing.assert_close(single.double(), strided, rtol=1e-5, atol=1e-5)


def test_gae_estimator_fills_advantage_and_lambda_return():
    buffer = make_buffer(make_model())
    filled = GAE(gamma=0.9, gae_lambda=0.8)(buffer)
    steps = buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask
    assert torch.equal(filled.advantage, gae(*steps, 0.9, 0.8))
    assert torch.equal(filled.return_, filled.advantage + buffer.value[:, :-1])
    assert torch.equal(filled.mask, buffer.mask)


def test_monte_carlo_estimator_masks_the_unfinished_tail():
    buffer = make_buffer(make_model(), rows=6, steps=9)
    filled = MonteCarlo(gamma=0.9)(buffer)
    tail = buffer.mask & ~filled.mask
    assert tail.any()
    assert torch.equal(filled.mask, complete_episodes(buffer.terminated, buffer.truncated, buffer.mask))
    assert filled.return_.isfinite().all()
    assert torch.equal(filled.advantage[filled.mask], (filled.return_ - buffer.value[:, :-1])[filled.mask])
    assert filled.advantage[~filled.mask].abs().sum() == 0


@pytest.mark.parametrize("estimator", [GAE(), MonteCarlo()])
def test_junk_in_forced_steps_leaves_estimates_alone(estimator):
    buffer = make_buffer(make_model(), rows=6)
    clean, spoiled = estimator(buffer), estimator(with_junk(buffer))
    assert torch.equal(clean.advantage, spoiled.advantage)
    assert torch.equal(clean.return_[clean.mask], spoiled.return_[clean.mask])
    assert torch.equal(clean.mask, spoiled.mask)


@pytest.mark.parametrize("settings", [{"gamma": 1.1}, {"gamma": -0.1}, {"gae_lambda": 2.0}])
def test_discounts_outside_the_unit_interval_are_an_error(settings):
    with pytest.raises(ConfigError, match=rf"{next(iter(settings))} must be in \[0, 1\]"):
        GAE(**settings)
