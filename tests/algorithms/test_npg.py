"""The natural policy gradient against an explicit Fisher matrix."""

import dataclasses

import numpy as np
import pytest
import torch
from builders import SPACES, PolicyAt, explicit_fisher, make_buffer, make_model

from rlzoo.algorithms import NPG
from rlzoo.core.estimators import GAE


def step_of(algorithm, space="discrete", progress=0.0):
    """The step of one update, the gradient and the Fisher matrix at its start, and the metrics."""
    model = make_model(SPACES[space], hidden=(3,), obs_size=2)
    buffer = make_buffer(model, rows=4, steps=8)
    batch = GAE(gamma=0.99, gae_lambda=0.97)(buffer).rows(1)
    policy = PolicyAt(model, batch.obs)
    theta = policy.theta
    advantage = batch.advantage[batch.mask]
    white = (batch.advantage - advantage.mean()) / advantage.std(correction=0)
    score = policy(theta).log_prob(batch.action)
    (g,) = torch.autograd.grad((score * white)[batch.mask].mean(), theta)
    fisher = explicit_fisher(policy, theta, batch.mask / batch.mask.sum(dtype=torch.float64))

    state = algorithm.init(model, np.random.default_rng(0))
    state.progress = progress
    metrics = algorithm.update(model, state, buffer)
    return policy.theta.detach() - theta.detach(), g, fisher, metrics


EXACT = NPG(cg_iters=100, cg_damping=0.0)


@pytest.mark.parametrize("space", ["discrete", "box", "multidiscrete"])
def test_step_goes_along_the_inverse_fisher_times_the_gradient(space):
    step, g, fisher, _ = step_of(EXACT, space)
    natural = torch.linalg.pinv(fisher, hermitian=True, rtol=1e-10) @ g
    assert float(step @ natural / (step.norm() * natural.norm())) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("step_kl", [1e-4, 0.01])
@pytest.mark.parametrize("space", ["discrete", "box"])
def test_quadratic_kl_of_the_step_is_the_one_asked_for(space, step_kl, damping):
    step, _, fisher, metrics = step_of(NPG(step_kl=step_kl, cg_iters=100, cg_damping=damping), space)
    assert float(0.5 * step @ fisher @ step) == pytest.approx(step_kl, rel=1e-6)
    assert metrics["step_norm"] == pytest.approx(float(step.norm()))


def test_damped_direction_solves_the_damped_system():
    step, g, fisher, _ = step_of(NPG(cg_iters=100, cg_damping=0.3))
    x = torch.linalg.solve(fisher + 0.3 * torch.eye(len(g), dtype=torch.float64), g)
    torch.testing.assert_close(step / step.norm(), x / x.norm(), rtol=0, atol=1e-4)


def test_step_kl_follows_its_schedule():
    step, _, fisher, _ = step_of(dataclasses.replace(EXACT, step_kl="linear:0.01:0"), progress=0.75)
    assert float(0.5 * step @ fisher @ step) == pytest.approx(0.01 / 4, rel=1e-6)


def test_quadratic_kl_of_the_step_is_that_of_all_rows_where_fisher_products_take_some():
    step, _, fisher, _ = step_of(NPG(cg_damping=0.3, fisher_fraction=0.3))
    assert float(0.5 * step @ fisher @ step) == pytest.approx(0.01, rel=1e-6)
