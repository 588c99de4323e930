"""Estimators of the KL divergence against exact expectations over a small categorical."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.kl import k1, k2, k3


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


P, Q = tensor([0.5, 0.3, 0.2]), tensor([0.2, 0.3, 0.5])
KL = 0.3 * math.log(2.5)


def expectation(estimator, p=P, q=Q):
    return float(p @ estimator(p.log(), q.log()))


def test_estimates_by_hand():
    torch.testing.assert_close(k1(P.log(), Q.log()), tensor([0.916290731874155, 0, -0.916290731874155]))
    torch.testing.assert_close(k2(P.log(), Q.log()), tensor([0.419794352659237, 0, 0.419794352659237]))
    torch.testing.assert_close(k3(P.log(), Q.log()), tensor([0.316290731874155, 0, 0.583709268125845]))


def test_expectations():
    assert pytest.approx(0.274887219562247, abs=1e-14) == KL
    assert expectation(k1) == pytest.approx(KL, abs=1e-14)
    assert expectation(k2) == pytest.approx(0.293856046861466, abs=1e-14)
    assert expectation(k3) == pytest.approx(KL, abs=1e-14)


def test_k3_with_exchanged_arguments_estimates_something_else():
    exchanged = expectation(lambda logp, logq: k3(logq, logp))
    assert exchanged == pytest.approx(0.63 - KL, abs=1e-14)
    assert abs(exchanged - KL) > 0.05


def test_mean_of_k2_is_the_kl_to_third_order():
    direction = tensor([0.7, -1.0, 0.4])
    errors = []
    for size in (0.1, 0.05):
        q = torch.softmax(P.log() + size * direction, -1)
        errors.append(expectation(k2, q=q) - expectation(k1, q=q))
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.1)


@given(st.lists(st.floats(-20, 0), min_size=1), st.floats(-5, 5))
def test_k2_and_k3_are_never_negative(logp, shift):
    logp = tensor(logp)
    assert (k2(logp, logp - shift) >= 0).all()
    assert (k3(logp, logp - shift) >= 0).all()
    assert k3(logp, logp).count_nonzero() == 0
