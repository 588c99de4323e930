"""Conjugate gradient as a native loop against the plain one, without a compiler."""

import numpy as np
import pytest
import torch
from builders import NETWORKS, PythonLoop, make_buffer, make_model

from rlzoo.core.estimators import GAE
from rlzoo.optim.fast import natural_gradient as fast
from rlzoo.optim.fast.natural_gradient import NativeConjugateGradient
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, conjugate_gradient
from rlzoo.optim.objective import surrogate, with_old


@pytest.fixture
def loops(monkeypatch):
    monkeypatch.setattr(fast, "Compilation", PythonLoop)
    monkeypatch.setattr(PythonLoop, "made", [])
    return PythonLoop.made


def make_problem(model, rows=None, damping=0.1):
    """A Fisher product over the first rows of a buffer, and the policy gradient."""
    batch = with_old(model, GAE()(make_buffer(model)).rows(model.context).whitened)
    batch = batch if rows is None else batch.map(lambda x: x[:rows])
    policy = FlatPolicy(model)
    _, g = policy.objective(surrogate, batch).value_and_gradient(policy.theta)
    return fisher_vector_product(policy, policy.theta, batch, damping), g


@pytest.mark.parametrize("rows", [None, 27])
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_the_loop_that_is_compiled_equals_conjugate_gradient(network, rows, loops):
    """Also where rows of zeros are added, and where it ends before the last iteration. In float64.

    Conjugate gradient amplifies rounding, here to 6e-7.
    """
    product, g = make_problem(make_model(**network), rows)
    native = NativeConjugateGradient()
    for iters, tolerance in ((1, 1e-10), (6, 1e-10), (30, 1e-3)):
        (x, residual), (expected, plain) = (f(product, g, iters, tolerance) for f in (native, conjugate_gradient))
        torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-7)
        assert residual == pytest.approx(plain, rel=1e-5)
    assert plain < 1e-3**0.5  # the last one ended by its tolerance
    assert len(loops) == 1


def test_it_stops_at_a_direction_without_positive_curvature(loops):
    product, g = make_problem(make_model(), damping=-100.0)
    assert torch.equal(NativeConjugateGradient()(product, g, 5).x, torch.zeros_like(g))
    assert len(loops) == 1


def test_buffers_of_other_sizes_share_a_loop_up_to_a_power_of_two(loops):
    native, model = NativeConjugateGradient(), make_model()
    for rows in (32, 27, 17, 16):
        product, g = make_problem(model, rows)
        torch.testing.assert_close(native(product, g, 6).x, conjugate_gradient(product, g, 6).x, rtol=1e-7, atol=1e-9)
    assert len(loops) == 2


def test_the_code_is_that_of_the_next_run_and_depends_on_the_network(loops):
    for network in ({}, {}, {"activation": "relu"}):
        NativeConjugateGradient()(*make_problem(make_model(**network)), 2)
    codes = [loop.code for loop in loops]
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize(
    "case", ["micro-batches", "whole rows", "large", "no gradient", "tiny gradient", "another matrix", "waits"]
)
def test_what_is_not_native_is_left_to_conjugate_gradient(case, loops, monkeypatch):
    model = make_model()
    if case == "micro-batches":
        model.micro_batch_steps = 5
    elif case == "whole rows":
        model.context = 0
    elif case == "large":
        monkeypatch.setattr(fast, "_MOST", 10)
    product, g = make_problem(model)
    if case == "no gradient":
        g = torch.zeros_like(g)
    elif case == "tiny gradient":
        g = 1e-200 * g  # its square is zero
    elif case == "another matrix":
        product = torch.diag(torch.from_numpy(np.linspace(1, 2, len(g)))).mv
    native = NativeConjugateGradient(waits=lambda: case != "waits")
    (x, residual), (expected, plain) = (f(product, g, 6) for f in (native, conjugate_gradient))
    assert torch.equal(x, expected)
    assert residual == plain
    assert len(loops) == (case == "waits")
