"""Rewards of tokens: KL estimators by name, where the score goes, β, what becomes of scores."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.estimators import gae
from rlzoo.core.kl import k1, k2, k3
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.lm.reward.shaping import (
    KL_ESTIMATORS,
    AdaptiveKL,
    FixedKL,
    Moments,
    ScoreTreatment,
    sequence_kl,
    shaped_reward,
)


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def masks(*rows):
    return torch.tensor(rows).bool()


def test_kl_estimators_by_name():
    assert {"k1": k1, "k2": k2, "k3": k3, "full": None} == KL_ESTIMATORS


def test_shaped_reward_by_hand():
    kl, score = tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), tensor([10, 20])
    mask = masks([0, 1, 1, 0], [1, 0, 1, 1])
    expected = tensor([[0, -1, 8.5, 0], [-2.5, 0, -3.5, 16]])
    torch.testing.assert_close(shaped_reward(kl, score, 0.5, mask), expected)
    torch.testing.assert_close(shaped_reward(kl, score, 0.0, mask), tensor([[0, 0, 10, 0], [0, 0, 0, 20]]))


def test_junk_in_masked_steps_and_empty_rows_gets_no_reward():
    kl = torch.where(masks([1, 0, 0], [0, 0, 0]), 1.0, torch.nan)
    reward = shaped_reward(kl, torch.tensor([3.0, torch.nan]), 2.0, masks([1, 0, 0], [0, 0, 0]))
    assert torch.equal(reward, torch.tensor([[1.0, 0, 0], [0, 0, 0]]))


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 0), (0, 2), (3, 1)])
def test_advantages_of_a_score_at_the_end_of_three_tokens(before, after):
    mask = masks([0] * before + [1, 1, 1] + [0] * after)
    zeros = torch.zeros(mask.shape, dtype=torch.float64)
    reward = shaped_reward(zeros, tensor([1]), 0.1, mask)
    terminated = torch.zeros_like(mask)
    terminated[0, before + 2] = True
    value = torch.zeros(1, mask.shape[1] + 1, dtype=torch.float64)
    advantage = gae(reward, value, terminated, torch.zeros_like(mask), mask, 1.0, 0.95)
    torch.testing.assert_close(advantage, tensor([[0.0] * before + [0.9025, 0.95, 1] + [0.0] * after]))


def test_sequence_kl_sums_over_each_response():
    kl = tensor([[1, 2, torch.nan], [torch.nan, -3, 5]])
    torch.testing.assert_close(sequence_kl(kl, masks([1, 1, 0], [0, 1, 1])), tensor([3, 2]))


def test_fixed_coefficient():
    assert FixedKL(beta=0.3).update(0.3, 100.0, 64) == 0.3


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (6.0, 0.2),
        (6.6, 0.2 * 1.00064),
        (5.7, 0.2 * 0.99968),
        (100.0, 0.2 * 1.00128),
        (-3.0, 0.2 * 0.99872),
    ],
)
def test_adaptive_coefficient_by_hand(kl, expected):
    """β·(1 + clip(KL/6 − 1, ±0.2)·64/10000): errors of 0, 0.1, −0.05, and beyond the bounds."""
    assert AdaptiveKL().update(0.2, kl, 64) == pytest.approx(expected, rel=1e-12)


def test_adaptive_coefficient_steers_towards_its_target():
    """Where KL = 1/β, β settles at 1/target."""
    controller, beta = AdaptiveKL(beta=5.0, target=4.0, horizon=100.0), 5.0
    for _ in range(100):
        beta = controller.update(beta, 1 / beta, 50)
    assert beta == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("n", [500, 501])
def test_batch_that_could_make_the_coefficient_vanish_is_an_error(n):
    with pytest.raises(ConfigError, match=f"horizon must be above a fifth of the batch's {n} responses, got 100"):
        AdaptiveKL(horizon=100.0).update(0.2, 6.0, n)


@pytest.mark.parametrize("kl", [math.nan, math.inf])
def test_kl_that_is_not_finite_is_an_error(kl):
    with pytest.raises(NonFiniteError, match="KL to the reference is not finite"):
        AdaptiveKL().update(0.2, kl, 64)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FixedKL(beta=-0.1), "beta"),
        (lambda: AdaptiveKL(beta=0.0), "beta"),
        (lambda: AdaptiveKL(target=0.0), "target"),
        (lambda: AdaptiveKL(horizon=-1.0), "horizon"),
        (lambda: ScoreTreatment(normalization="batch"), "normalization"),
        (lambda: ScoreTreatment(clip=0.0), "clip"),
        (lambda: ScoreTreatment(missing_eos_penalty=-1.0), "missing_eos_penalty"),
    ],
)
def test_settings_out_of_range_are_an_error(make, field):
    with pytest.raises(ConfigError, match=f"^{field} must be"):
        make()


SCORES = st.lists(st.floats(-100, 100, width=32), max_size=6)


@given(st.lists(SCORES, max_size=5))
def test_merged_moments_are_those_of_all_scores(batches):
    moments = Moments()
    for batch in batches:
        moments = moments.merge(Moments.of(tensor(batch)))
    scores = np.concatenate([np.array(batch) for batch in [[], *batches]])
    assert moments.count == len(scores)
    if len(scores):
        assert moments.mean == pytest.approx(scores.mean(), abs=1e-10)
        assert moments.std == pytest.approx(scores.std(), abs=1e-6)


def test_moments_by_hand_and_through_json():
    moments = Moments.of(tensor([1, 3])).merge(Moments.of(tensor([0.1, 5.9])))
    assert (moments.count, moments.mean) == (4, 2.5)
    assert moments.m2 == pytest.approx(19.82, rel=1e-12)
    assert Moments(**json.loads(json.dumps(dataclasses.asdict(moments)))) == moments


def test_gain_and_bias_by_hand():
    """Of 1, 3, 5, 7: mean 4, standard deviation √5."""
    gain, bias = Moments.of(tensor([1, 3, 5, 7])).gain_and_bias()
    assert gain == pytest.approx(0.4472135954999579)
    assert bias == pytest.approx(-1.7888543819998317)
    x = gain * tensor([1, 3, 5, 7]) + bias
    assert float(x.mean()) == pytest.approx(0, abs=1e-12)
    assert float(x.std(correction=0)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("scores", "message"), [([0.1, 0.1, 0.1], "all 3 are 0.1"), ([7.0], "all 1 are 7"), ([], "there are none")]
)
def test_gain_and_bias_of_equal_scores_is_an_error(scores, message):
    with pytest.raises(ConfigError, match=f"reference scores must differ .*, but {message}"):
        Moments.of(torch.tensor(scores)).gain_and_bias()


def test_missing_eos_is_subtracted_from_the_score():
    score, ended = tensor([1, 2, -3]), torch.tensor([True, False, False])
    treated, _ = ScoreTreatment(missing_eos_penalty=0.5)(score, ended, Moments())
    assert torch.equal(treated, tensor([1, 1.5, -3.5]))


ALL_ENDED = torch.ones(4, dtype=torch.bool)


def test_scores_left_as_they_are():
    score = torch.tensor([0.1, -1e9, 3e-8, 7])
    treated, moments = ScoreTreatment()(score, ALL_ENDED, Moments())
    assert torch.equal(treated, score)
    assert treated.dtype == torch.float32
    assert moments == Moments()


def test_running_normalisation_takes_in_a_batch_before_its_use():
    """Mean 4 and standard deviation √5 after the first batch, 6 and 3 after the second."""
    treatment = ScoreTreatment(normalization="running")
    first, moments = treatment(tensor([1, 3, 5, 7]), ALL_ENDED, Moments())
    torch.testing.assert_close(first, tensor([-3, -1, 1, 3]) / 5**0.5)
    second, moments = treatment(tensor([5, 7, 9, 11]), ALL_ENDED, moments)
    torch.testing.assert_close(second, tensor([-1, 1, 3, 5]) / 3)
    assert (moments.count, moments.mean, moments.std) == (8, 6.0, 3.0)


def test_running_normalisation_of_equal_scores_gives_zeros():
    treatment, moments = ScoreTreatment(normalization="running"), Moments()
    for _ in range(3):
        treated, moments = treatment(torch.full((4,), 0.1), ALL_ENDED, moments)
        assert torch.equal(treated, torch.zeros(4))


def test_reference_normalisation_stays_what_it_is():
    reference = Moments.of(tensor([1, 3, 5, 7]))
    treated, moments = ScoreTreatment(normalization="reference")(tensor([4, 9, -1, 4]), ALL_ENDED, reference)
    torch.testing.assert_close(treated, tensor([0, 5, -5, 0]) / 5**0.5)
    assert moments is reference


def test_reference_normalisation_without_reference_is_an_error():
    with pytest.raises(ConfigError, match=r"reference scores must differ .*, but there are none"):
        ScoreTreatment(normalization="reference")(tensor([1, 2, 3, 4]), ALL_ENDED, Moments())


def test_penalty_comes_after_the_clip_and_the_clip_after_normalisation():
    treatment = ScoreTreatment(normalization="reference", clip=1.5, missing_eos_penalty=2.0)
    ended = torch.tensor([True, False, True, False])
    treated, _ = treatment(tensor([4, 40, -40, 5]), ended, Moments(count=2, mean=4.0, m2=8.0))
    torch.testing.assert_close(treated, tensor([0, -0.5, -1.5, -1.5]))
