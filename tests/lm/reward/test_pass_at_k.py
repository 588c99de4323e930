"""The estimator of pass@k against its definition, its expectation, and by hand."""

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.reward.pass_at_k import mean_pass_at_k, pass_at_k


@given(st.integers(1, 60), st.data())
def test_equals_the_binomial_form(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - Fraction(comb(n - c, k), comb(n, k))), abs=1e-12)


def test_is_the_share_of_choices_with_a_right_one():
    right = [True, False, False, True, False]
    chosen = list(combinations(right, 3))
    assert pass_at_k(5, 2, 3) == pytest.approx(sum(map(any, chosen)) / len(chosen))


def test_is_unbiased():
    n, k, p = 6, 3, 0.3
    expected = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k)


def test_many_responses_do_not_overflow():
    assert pass_at_k(10_000, 100, 100) == pytest.approx(1 - np.exp(-1.0), abs=0.01)
    assert pass_at_k(10_000, 0, 100) == 0.0


def test_mean_over_prompts_counts_scores_of_one_or_more():
    assert mean_pass_at_k([[1.0, 0.0], [0.99, 0.0], [1.0, 2.0]], 1) == pytest.approx(0.5)
    assert mean_pass_at_k([[1.0, 0.0], [0.99, 0.0], [1.0, 2.0]], 2) == pytest.approx(2 / 3)


@pytest.mark.parametrize("k", [0, 4])
def test_k_out_of_range(k):
    with pytest.raises(ConfigError, match=rf"k must be in \[1, 3\], the number of responses; got {k}"):
        pass_at_k(3, 1, k)
