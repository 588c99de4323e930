"""Advantages and returns: hand numbers, the definitions, and what must not matter."""

import itertools
import math

import numpy as np
import pytest
import torch
from builders import make_buffer, make_ends, make_model, with_junk
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.estimators import (
    ESTIMATORS,
    GAE,
    GroupMean,
    GroupNorm,
    LeaveOneOut,
    MonteCarlo,
    complete_episodes,
    gae,
    group_mean,
    group_norm,
    leave_one_out,
    monte_carlo,
)
from rlzoo.core.system.errors import ConfigError


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
    expected = gae_by_definition(*steps, gamma, gae_lambda)
    torch.testing.assert_close(gae(*steps, gamma, gae_lambda), expected, rtol=0, atol=1e-12)


@given(experience(), st.sampled_from([-1e6, torch.nan, torch.inf]))
def test_rewards_and_ends_of_forced_steps_change_nothing(steps, junk):
    reward, value, terminated, truncated, mask = steps
    spoiled = torch.where(mask, reward, junk), value, terminated | ~mask, truncated, mask
    assert torch.equal(gae(*spoiled, 0.9, 0.8), gae(*steps, 0.9, 0.8))
    torch.testing.assert_close(monte_carlo(*spoiled, 0.9), monte_carlo(*steps, 0.9), rtol=0, atol=0, equal_nan=True)


@given(experience(), st.integers(0, 2**32), st.sampled_from([-1e6, 3.0]))
def test_forced_steps_within_an_episode_change_nothing(steps, seed, junk):
    """They take no time: neither a reward nor a value there counts, and none is discounted for them."""
    reward, value, terminated, truncated, mask = (x[:1] for x in steps)
    length, rng, columns = reward.shape[1], np.random.default_rng(seed), []
    for t in range(length):
        columns.append(t)
        if t + 1 < length and not (terminated | truncated)[0, t] and mask[0, t]:
            columns += [-1] * rng.integers(3)
    index = torch.tensor(columns)
    added = index < 0

    def wide(x, fill, *more):
        return torch.where(
            torch.tensor([*added, *more]), fill, x[:, torch.tensor([*index.clamp(min=0), *([length] * len(more))])]
        )

    spread = wide(reward, junk), wide(value, junk, False), *(wide(x, False) for x in (terminated, truncated, mask))
    for estimate, rest in ((gae, (0.9, 0.8)), (monte_carlo, (0.9,))):
        found = estimate(*spread, *rest)
        narrow = estimate(reward, value, terminated, truncated, mask, *rest)
        torch.testing.assert_close(found[:, ~added], narrow, rtol=0, atol=1e-12, equal_nan=True)
        assert not found[:, added].any()


def test_returns_by_hand():
    reward, value = tensor([[1, 2, 4, 0, 8, 16]]), tensor([[0, 0, 32, 64, 0, 0, 0]])
    terminated = torch.tensor([[False, True, False, False, False, False]])
    mask = torch.tensor([[True, True, True, False, True, True]])
    truncated = torch.tensor([[False, True, True, False, False, False]])
    returns = monte_carlo(reward, value, terminated, truncated, mask, 0.5)
    torch.testing.assert_close(returns, tensor([[2, 2, 36, 0, torch.nan, torch.nan]]), equal_nan=True)


@given(experience(), st.floats(0, 1))
def test_returns_equal_their_definition(steps, gamma):
    expected = return_by_definition(*steps, gamma)
    torch.testing.assert_close(monte_carlo(*steps, gamma), expected, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.7, 0.3), (1 / 3, 1.0)])
def test_discounts_are_not_rounded_to_single_precision(gamma, gae_lambda):
    """One reward, 199 steps away: a discount rounded to single precision would be 1e-6 off there."""
    reward, value = torch.zeros(1, 200, dtype=torch.float64), torch.zeros(1, 201, dtype=torch.float64)
    reward[0, -1] = 1.0
    last = torch.arange(200)[None] == 199
    ends = last, ~last & last, torch.ones_like(last)
    exact = [[gamma**k for k in reversed(range(200))], [(gamma * gae_lambda) ** k for k in reversed(range(200))]]
    returns, advantages = monte_carlo(reward, value, *ends, gamma), gae(reward, value, *ends, gamma, gae_lambda)
    torch.testing.assert_close(torch.cat([returns, advantages]), tensor(exact), rtol=1e-12, atol=0)
    left_out = leave_one_out(torch.cat([reward, 0 * reward]), torch.ones(2, 200, dtype=torch.bool), 2, gamma)
    torch.testing.assert_close(left_out[0], torch.full((200,), gamma**199, dtype=torch.float64), rtol=1e-12, atol=0)


@given(experience())
def test_complete_episodes_are_those_that_end_within_the_row(steps):
    _, _, *ends = steps
    returns = monte_carlo(*steps, 0.9)
    assert torch.equal(complete_episodes(*ends), ends[2] & ~returns.isnan())


def test_gae_estimator_fills_advantage_and_lambda_return():
    buffer = make_buffer(make_model())
    filled = GAE(gamma=0.9, gae_lambda=0.8)(buffer)
    steps = buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask
    assert torch.equal(filled.advantage, gae(*steps, 0.9, 0.8))
    assert torch.equal(filled.return_, filled.advantage + buffer.value[:, :-1])
    assert torch.equal(filled.mask, buffer.mask)


def test_the_critic_may_have_a_lambda_of_its_own():
    buffer = make_buffer(make_model())
    filled = GAE(gamma=0.9, gae_lambda=0.8, vf_lambda=1.0)(buffer)
    steps = buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask
    assert torch.equal(filled.advantage, gae(*steps, 0.9, 0.8))
    assert torch.equal(filled.return_, gae(*steps, 0.9, 1.0) + buffer.value[:, :-1])


def test_monte_carlo_estimator_masks_the_unfinished_tail():
    buffer = make_buffer(make_model(), rows=6, steps=9)
    filled = MonteCarlo(gamma=0.9)(buffer)
    tail = buffer.mask & ~filled.mask
    assert tail.any()
    assert torch.equal(filled.mask, complete_episodes(buffer.terminated, buffer.truncated, buffer.mask))
    assert filled.return_.isfinite().all()
    assert torch.equal(filled.advantage[filled.mask], (filled.return_ - buffer.value[:, :-1])[filled.mask])
    assert filled.advantage[~filled.mask].abs().sum() == 0


RELATIVE = [leave_one_out, group_mean, group_norm]


def test_leave_one_out_by_hand():
    # Returns 3, 6, 0 and 4, 8, 6: the means of the others are 3, 1.5, 4.5 and 7, 5, 6.
    reward = tensor([[1, 2], [6, 0], [0, 0], [4, 50], [3, 5], [6, 50]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0], [1, 1], [1, 0]]).bool()
    expected = tensor([[0, 0], [4.5, 4.5], [-4.5, -4.5], [-3, 0], [3, 3], [0, 0]])
    torch.testing.assert_close(leave_one_out(reward, mask, 3), expected)


def test_group_mean_by_hand():
    # Returns 3, 6, 0 and 4, 8, 6: their means are 3 and 6.
    reward = tensor([[1, 2], [6, 0], [0, 0], [4, 50], [3, 5], [6, 50]])
    mask = torch.tensor([[1, 1], [1, 1], [1, 1], [1, 0], [1, 1], [1, 0]]).bool()
    expected = tensor([[0, 0], [3, 3], [-3, -3], [-2, 0], [2, 2], [0, 0]])
    torch.testing.assert_close(group_mean(reward, mask, 3), expected)


def test_group_norm_by_hand():
    # Returns 2, 5, 5, 8 and -1, 1, 3, 1: means 5 and 1, mean square deviations 18/4 and 8/4.
    reward = tensor([[2, 0], [5, 50], [1, 4], [3, 5], [50, -1], [1, 0], [1, 2], [1, 50]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1], [0, 1], [1, 1], [1, 1], [1, 0]]).bool()
    high, low = 1.4142135623730951, -1.4142135623730951
    expected = tensor([[low, low], [0, 0], [0, 0], [high, high], [0, low], [0, 0], [high, high], [0, 0]])
    torch.testing.assert_close(group_norm(reward, mask, 4), expected)


def test_discount_of_relative_advantages_counts_from_the_first_unmasked_step():
    # Returns 1 + 2/2 + 4/4 = 3 and 8 + 0/2 + 4/4 = 9, at γ = 1/2.
    reward, mask = tensor([[1e20, 50, 1, 2, 4], [8, 50, 0, 4, 1e20]]), torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 0]])
    expected = tensor([[0, 0, -6, -6, -6], [6, 0, 6, 6, 0]])
    torch.testing.assert_close(leave_one_out(reward, mask.bool(), 2, 0.5), expected)
    torch.testing.assert_close(group_mean(reward, mask.bool(), 2, 0.5), expected / 2)
    torch.testing.assert_close(group_norm(reward, mask.bool(), 2, 0.5), expected / 6)


@st.composite
def groups(draw):
    """Rewards and mask of a few groups, and their size; every row has an unmasked step."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, steps = draw(st.integers(2, 5)), draw(st.integers(1, 6))
    rows = size * draw(st.integers(1, 3))
    mask = rng.random((rows, steps)) < 0.7
    mask[np.arange(rows), rng.integers(steps, size=rows)] = True
    return torch.from_numpy(rng.normal(size=(rows, steps))), torch.from_numpy(mask), size


@given(groups(), st.floats(0, 1))
def test_relative_advantages_equal_their_definitions(experience, gamma):
    reward, mask, size = experience
    returns = [sum(gamma**k * r for k, r in enumerate(row[m].tolist())) for row, m in zip(reward, mask, strict=True)]
    for i, row in enumerate(mask):
        group = returns[i - i % size : i - i % size + size]
        others = group[: i % size] + group[i % size + 1 :]
        left_out = torch.full((len(row),), returns[i] - np.mean(others), dtype=torch.float64) * row
        centred = torch.full((len(row),), returns[i] - np.mean(group), dtype=torch.float64) * row
        normed = torch.full((len(row),), (returns[i] - np.mean(group)) / (np.std(group) + 1e-8)).double() * row
        torch.testing.assert_close(leave_one_out(reward, mask, size, gamma)[i], left_out, rtol=0, atol=1e-12)
        torch.testing.assert_close(group_mean(reward, mask, size, gamma)[i], centred, rtol=0, atol=1e-12)
        torch.testing.assert_close(group_norm(reward, mask, size, gamma)[i], normed, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("relative", RELATIVE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("size", "r"), [(3, 0.1), (7, 1e6 / 3), (6, -0.7), (2, 0.0)])
def test_equal_returns_have_no_relative_advantage(relative, dtype, size, r):
    advantage = relative(torch.full((2 * size, 3), r, dtype=dtype), torch.ones(2 * size, 3, dtype=torch.bool), size)
    assert torch.equal(advantage, torch.zeros_like(advantage))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returns_that_differ_by_rounding_alone_are_equal_when_normalised(dtype):
    rounded = torch.nextafter(torch.tensor(2.4, dtype=dtype), torch.tensor(9, dtype=dtype))
    reward = torch.tensor([[2.4, -3.0], [rounded, -3.0], [2.4, -3.0], [2.4, math.nan]], dtype=dtype)
    mask = torch.ones(4, 2, dtype=torch.bool)
    assert torch.equal(group_norm(reward[:2], mask[:2], 2), torch.zeros(2, 2, dtype=dtype))
    assert group_norm(reward, mask, 2)[2:].isnan().all()
    reward[1, 0] = 2.4 * (1 + 1e-4)
    torch.testing.assert_close(
        group_norm(reward[:2], mask[:2], 2).abs(), torch.ones(2, 2, dtype=dtype), rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("relative", RELATIVE)
def test_rows_without_a_step_are_no_samples(relative):
    reward, mask = tensor([[1], [50], [3], [2], [50], [50]]), torch.tensor([[1], [0], [1], [1], [0], [0]]).bool()
    expected = tensor([[-1], [0], [1], [0], [0], [0]]) * (2 if relative is leave_one_out else 1)
    torch.testing.assert_close(relative(reward, mask, 3), expected)
    trailing = torch.arange(5).unsqueeze(1) >= 3
    torch.testing.assert_close(relative(reward[:5], mask[:5] & ~trailing, 3), expected[:5])
    assert torch.equal(relative(reward, mask & False, 3), torch.zeros_like(reward))


@pytest.mark.parametrize("relative", RELATIVE)
@pytest.mark.parametrize(
    ("rows", "size", "message"),
    [
        (4, 1, "relative to a group need at least 2 rows with the same start, got 1"),
        (8, 3, "8 rows cannot be divided into groups of 3"),
        (2, 3, "2 rows cannot be divided into groups of 3"),
    ],
)
def test_groups_that_cannot_be_are_an_error(relative, rows, size, message):
    with pytest.raises(ConfigError, match=message):
        relative(torch.zeros(rows, 2), torch.ones(rows, 2, dtype=torch.bool), size)


def test_leave_one_out_gradient_is_unbiased():
    """Over all groups of three actions, E[⅓ Σ_i ∇log π(a_i)·A_i] is ∇E[r]; normalised advantages give another."""
    logits = tensor([0.3, -0.5, 1.1]).requires_grad_()
    reward, logp = tensor([1, -2, 5]), torch.log_softmax(logits, 0)
    (exact,) = torch.autograd.grad(logp.exp() @ reward, logits, retain_graph=True)
    expected = dict.fromkeys(RELATIVE, 0.0)
    for drawn in itertools.product(range(3), repeat=3):
        actions = torch.tensor(drawn)
        probability = logp[actions].sum().exp().detach()
        for relative in RELATIVE:
            advantage = relative(reward[actions].unsqueeze(1), torch.ones(3, 1, dtype=torch.bool), 3).squeeze(1)
            (g,) = torch.autograd.grad((logp[actions] * advantage).mean(), logits, retain_graph=True)
            expected[relative] = expected[relative] + probability * g
    torch.testing.assert_close(expected[leave_one_out], exact)
    torch.testing.assert_close(expected[group_mean], 2 / 3 * exact)
    assert not torch.allclose(expected[group_norm], exact, rtol=0.1)


@pytest.mark.parametrize(
    ("estimator", "relative"), [(LeaveOneOut, leave_one_out), (GroupMean, group_mean), (GroupNorm, group_norm)]
)
@pytest.mark.parametrize("group_size", [0, 2])
def test_relative_estimators_compare_complete_episodes_within_their_groups(estimator, relative, group_size):
    buffer = make_buffer(make_model(), rows=6, steps=9).replace(group_size=group_size)
    filled, by_return = estimator(gamma=0.9)(buffer), MonteCarlo(gamma=0.9)(buffer)
    assert (buffer.mask & ~filled.mask).any()
    assert torch.equal(filled.mask, by_return.mask)
    assert torch.equal(filled.return_, by_return.return_)
    assert torch.equal(filled.advantage, relative(buffer.reward, by_return.mask, group_size or 6, 0.9))
    assert estimator.whole_episodes
    assert estimator().gamma == 1.0


def test_relative_estimators_are_known_by_name():
    assert ESTIMATORS["leave-one-out"] is LeaveOneOut
    assert ESTIMATORS["group-mean"] is GroupMean
    assert ESTIMATORS["group-norm"] is GroupNorm


@pytest.mark.parametrize("estimator", [GAE(), MonteCarlo(), LeaveOneOut(), GroupMean(), GroupNorm()])
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


def test_the_end_of_a_forced_step_completes_no_episode():
    mask, ended = torch.tensor([[True, False]]), torch.tensor([[False, True]])
    returns = monte_carlo(tensor([[1, 5]]), tensor([[0, 0, 0]]), ended, ended, mask, 0.5)
    torch.testing.assert_close(returns, tensor([[torch.nan, 0]]), equal_nan=True)


def test_returns_that_differ_by_a_rounding_of_their_size_are_equal():
    reward = torch.tensor([[1e4], [1e4]])
    reward[1] = torch.nextafter(reward[1], torch.tensor(2e4))
    assert group_norm(reward, torch.ones(2, 1, dtype=torch.bool), 2).abs().max() == 0


def test_the_targets_lambda_may_be_zero():
    buffer = make_buffer(make_model())
    steps = buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask
    expected = gae(*steps, 0.9, 0.0) + buffer.value[:, :-1]
    assert torch.equal(GAE(0.9, 0.8, vf_lambda=0.0)(buffer).return_, expected)
