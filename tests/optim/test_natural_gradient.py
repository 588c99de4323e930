"""Second-order tools against explicit matrices, in float64."""

import math

import pytest
import torch
from builders import SPACES, PolicyAt, explicit_fisher, make_buffer, make_model
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import DiagGaussian
from rlzoo.core.errors import NonFiniteError
from rlzoo.core.estimators import GAE
from rlzoo.optim.natural_gradient import (
    FlatFunction,
    FlatPolicy,
    conjugate_gradient,
    fisher_vector_product,
    line_search,
    relative_residual,
    trust_region_step,
)
from rlzoo.optim.objective import mean_kl

KINDS = {
    "discrete": {"space": SPACES["discrete"]},
    "multidiscrete": {"space": SPACES["multidiscrete"]},
    "box": {"space": SPACES["box"]},
    "box, state-dependent std": {"space": SPACES["box"], "state_dependent_std": True},
    "shared trunk": {"space": SPACES["discrete"], "shared_trunk": True},
}

WEIGHT = torch.full((6, 1), 1 / 6, dtype=torch.float64)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_policy(kind):
    model = make_model(hidden=(3,), **KINDS[kind])
    return PolicyAt(model, random(6, 1, 4, seed=1))


def kl_of(policy):
    """θ ↦ E[KL(π_old ‖ π_θ)] over the policy's observations, π_old being the policy as it is."""
    no = torch.zeros(len(policy.obs), 1, dtype=torch.bool)
    old = policy(policy.theta).detach()
    return policy.expectation(mean_kl, Buffer(policy.obs, no.long(), no.double(), no, no, ~no, old=old))


def product_matrix(product, size):
    return torch.stack([product(e) for e in torch.eye(size, dtype=torch.float64)])


@pytest.mark.parametrize("kind", KINDS)
def test_fisher_product_equals_the_explicit_fisher_matrix(kind):
    policy = make_policy(kind)
    theta = policy.theta
    matrix = product_matrix(fisher_vector_product(kl_of(policy), theta), len(theta))
    torch.testing.assert_close(matrix, explicit_fisher(policy, theta, WEIGHT), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_fisher_product_is_symmetric_and_positive(kind):
    policy = make_policy(kind)
    theta = policy.theta
    matrix = product_matrix(fisher_vector_product(kl_of(policy), theta), len(theta))
    torch.testing.assert_close(matrix, matrix.t(), rtol=0, atol=1e-12)
    assert torch.linalg.eigvalsh(matrix).min() > -1e-12


@pytest.mark.parametrize("kind", ["discrete", "box", "shared trunk"])
def test_fisher_product_equals_the_gauss_newton_form(kind):
    """Jᵀ H J v, where J is the Jacobian of the distribution's parameters and H the KL's Hessian in them."""
    policy = make_policy(kind)
    theta = policy.theta.detach()

    def outputs(theta):
        distribution = policy(theta)
        if isinstance(distribution, DiagGaussian):
            return torch.cat([distribution.mean, distribution.log_std], -1)
        return distribution.logits

    def metric(out, tangent):
        if out.shape[-1] == 3:
            p = out.softmax(-1)
            return p * tangent - p * (p * tangent).sum(-1, keepdim=True)
        log_std = out[..., 2:]
        return tangent * torch.cat([torch.exp(-2 * log_std), torch.full_like(log_std, 2)], -1)

    v = random(len(theta), seed=2)
    out, tangent = torch.func.jvp(outputs, (theta,), (v,))
    (expected,) = torch.func.vjp(outputs, theta)[1](metric(out, tangent) / 6)
    product = fisher_vector_product(kl_of(policy), policy.theta)
    torch.testing.assert_close(product(v), expected, rtol=1e-10, atol=1e-12)


def test_damping_adds_a_multiple_of_the_vector():
    policy = make_policy("discrete")
    v = random(len(policy.theta))
    plain, damped = (fisher_vector_product(kl_of(policy), policy.theta, d)(v) for d in (0.0, 0.3))
    torch.testing.assert_close(damped, plain + 0.3 * v)


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_the_quadratic_form_to_third_order(kind):
    policy = make_policy(kind)
    theta, kl = policy.theta.detach(), kl_of(policy)
    fisher = fisher_vector_product(kl, theta)
    s = random(len(theta), seed=3)
    s = s / s.norm()

    def error(t):
        return abs(kl(theta + t * s) - 0.5 * t**2 * float(s @ fisher(s)))

    assert 6 < error(2e-2) / error(1e-2) < 10


def test_flat_policy_is_a_pure_function_of_theta():
    model = make_model(SPACES["box"])
    obs = random(6, 1, 4)
    policy = PolicyAt(model, obs)
    before = model.distribution(obs).mean
    assert torch.equal(policy(policy.theta).mean, before)
    assert not torch.equal(policy(policy.theta + 1).mean, before)
    assert torch.equal(model.distribution(obs).mean, before)


def test_assign_writes_the_policy_parameters_alone():
    model = make_model(SPACES["box"], shared_trunk=True)
    policy = PolicyAt(model, random(6, 1, 4))
    value = [p.clone() for p in model.value_parameters()]
    policy.assign(policy.theta + 1)
    assert torch.equal(policy(policy.theta).mean, model.distribution(random(6, 1, 4)).mean)
    for p, old in zip(model.value_parameters(), value, strict=True):
        assert torch.equal(p, old)


@pytest.mark.parametrize("kind", ["discrete", "box", "shared trunk"])
def test_theta_holds_every_policy_parameter_once(kind):
    model = make_model(**KINDS[kind])
    theta = PolicyAt(model, random(6, 1, 4)).theta
    assert torch.equal(theta, torch.cat([p.reshape(-1) for p in model.policy_parameters()]))


def test_log_std_is_part_of_theta():
    model = make_model(SPACES["box"])
    policy = PolicyAt(model, random(6, 1, 4))
    (g,) = torch.autograd.grad(policy(theta := policy.theta).log_std.sum(), theta)
    assert int((g != 0).sum()) == 2
    assert any(p is model.policy.log_std for p in model.policy_parameters())


def sum_of_squares(model):
    return sum(p.square().sum() for p in model.policy_parameters())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("count", [1, 3])
def test_value_gradient_and_hessian_of_a_quadratic(count, sign):
    policy = FlatPolicy(make_model())
    f = FlatFunction(policy, "quadratic", [sum_of_squares] * count, sign)
    theta, v = random(*policy.theta.shape, seed=1), random(*policy.theta.shape, seed=2)
    scale = sign * count
    assert f(theta) == pytest.approx(scale * float(theta @ theta), rel=1e-12)
    torch.testing.assert_close(f.gradient(theta), 2 * scale * theta)
    product = f.hessian_vector_product(theta, damping=0.3)
    for _ in range(2):
        torch.testing.assert_close(product(v), 2 * scale * v + 0.3 * v)


@pytest.mark.parametrize(("count", "calls"), [(1, 1), (2, 6)])
def test_first_backward_is_kept_for_one_term_alone(count, calls):
    policy, seen = FlatPolicy(make_model()), []

    def term(model):
        seen.append(model)
        return sum_of_squares(model)

    product = FlatFunction(policy, "quadratic", [term] * count).hessian_vector_product(policy.theta)
    for _ in range(3):
        product(policy.theta)
    assert len(seen) == calls


def test_gradient_that_is_not_finite_is_named():
    policy = FlatPolicy(make_model())
    f = FlatFunction(policy, "surrogate", [lambda model: model.policy.net.layers[0].weight.sqrt().sum()])
    with pytest.raises(NonFiniteError, match="gradient of the surrogate is not finite"):
        f.gradient(torch.zeros_like(policy.theta))


def whitened_surrogate(model, batch):
    ratio = torch.exp(model.distribution(batch.obs).log_prob(batch.action) - batch.logp)
    return batch.mean(ratio * batch.whitened_advantage)


def make_functions(part_steps):
    """θ, and a surrogate and the KL as functions of it, over parts of at most `part_steps` steps."""
    model = make_model(hidden=(3,))
    model.part_steps = part_steps
    batch = GAE()(make_buffer(model)).rows(1)
    with torch.no_grad():
        batch = batch.replace(old=model.distribution(batch.obs).detach())
    policy = FlatPolicy(model)
    return policy.theta, policy.objective(whitened_surrogate, batch), policy.expectation(mean_kl, batch)


@pytest.mark.parametrize(("part_steps", "parts"), [(1, 32), (5, 7), (17, 2)])
def test_uneven_parts_make_up_the_batch(part_steps, parts):
    theta, *whole = make_functions(None)
    _, *in_parts = make_functions(part_steps)
    moved = theta + 0.1 * random(len(theta), seed=3)
    for f, g in zip(whole, in_parts, strict=True):
        assert (len(f.terms), len(g.terms)) == (1, parts)
        assert g(moved) == pytest.approx(f(moved), rel=1e-12)
        torch.testing.assert_close(g.gradient(moved), f.gradient(moved), rtol=0, atol=1e-12)
    assert whole[1](moved) > 1e-3
    products = [fisher_vector_product(kl, theta, damping=0.1) for _, kl in (whole, in_parts)]
    for seed in range(3):
        one_batch, cut = (product(random(len(theta), seed=seed)) for product in products)
        torch.testing.assert_close(cut, one_batch, rtol=0, atol=1e-12)


@pytest.mark.parametrize("part_steps", [None, 5])
def test_values_and_gradients_leave_no_graph_behind(part_steps):
    theta, objective, _ = make_functions(part_steps)
    assert isinstance(objective(theta), float)
    assert not objective.gradient(theta).requires_grad
    assert not theta.requires_grad


def positive_matrix(size, seed):
    root = random(size, size, seed=seed)
    return root @ root.t() + 0.1 * torch.eye(size, dtype=torch.float64)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_conjugate_gradient_solves_in_as_many_steps_as_dimensions(size, seed):
    a, b = positive_matrix(size, seed), random(size, seed=seed + 1)
    x = conjugate_gradient(a.mv, b, 3 * size, tolerance=1e-24)
    torch.testing.assert_close(x, torch.linalg.solve(a, b), rtol=1e-6, atol=1e-8)


def test_conjugate_gradient_starts_from_zero():
    b = torch.tensor([3.0, 4.0])
    assert torch.equal(conjugate_gradient(lambda v: v, b, 0), torch.zeros(2))


def test_conjugate_gradient_stops_at_the_residual():
    products = []

    def product(v):
        products.append(v)
        return torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * v

    b = torch.ones(3, dtype=torch.float64)
    x = conjugate_gradient(product, b, 100)
    assert len(products) == 3
    torch.testing.assert_close(x, torch.tensor([1, 1 / 2, 1 / 3], dtype=torch.float64))
    products.clear()
    conjugate_gradient(product, b, 100, tolerance=0.2)
    assert len(products) == 1


def test_conjugate_gradient_of_zero_is_zero():
    assert torch.equal(conjugate_gradient(lambda v: v, torch.zeros(3), 10), torch.zeros(3))


@pytest.mark.parametrize("curvature", [-1.0, 0.0, math.nan])
def test_conjugate_gradient_stops_at_a_direction_without_positive_curvature(curvature):
    b = torch.tensor([1.0, 2.0])
    assert torch.equal(conjugate_gradient(lambda v: curvature * v, b, 10), torch.zeros(2))
    saddle = torch.tensor([2.0, -1.0])
    assert conjugate_gradient(lambda v: saddle * v, torch.tensor([2.0, 1.0]), 10).isfinite().all()


def test_trust_region_step_has_the_quadratic_kl_asked_for():
    a, x = positive_matrix(5, 0), random(5)
    step, scale, fx = trust_region_step(a.mv, x, 0.01)
    assert float(0.5 * step @ a @ step) == pytest.approx(0.01, rel=1e-12)
    assert torch.equal(step, scale * x)
    assert torch.equal(fx, a.mv(x))
    assert scale > 0


@pytest.mark.parametrize("curvature", [-1.0, 0.0, math.nan])
def test_trust_region_step_without_positive_curvature_is_zero(curvature):
    step, scale, _ = trust_region_step(lambda v: curvature * v, torch.ones(3), 0.01)
    assert torch.equal(step, torch.zeros(3))
    assert scale == 0


def test_residual_is_0_at_the_solution_and_1_at_zero():
    a, b = positive_matrix(5, 0), random(5)
    assert relative_residual(a.mv(conjugate_gradient(a.mv, b, 15, tolerance=1e-24)), b) < 1e-9
    assert relative_residual(torch.zeros(5), b) == 1
    assert relative_residual(0.5 * b, b) == pytest.approx(0.5)
    assert relative_residual(torch.zeros(5), torch.zeros(5)) == 0


def test_line_search_takes_the_first_step_accepted():
    tried = []

    def accept(theta):
        tried.append(theta.tolist())
        return float(theta[0]) < 4

    theta, backtracks = line_search(accept, torch.tensor([1.0]), torch.tensor([8.0]), 0.5, 10)
    assert tried == [[9], [5], [3]]
    assert theta.tolist() == [3]
    assert backtracks == 2


def test_line_search_that_fails_returns_theta_itself():
    theta = torch.tensor([1.0, 2.0])
    found, backtracks = line_search(lambda _: False, theta, torch.ones(2), 0.5, 4)
    assert found is theta
    assert backtracks == 4


def test_line_search_changes_neither_theta_nor_step():
    theta, step = torch.tensor([1.0]), torch.tensor([8.0])
    line_search(lambda t: float(t[0]) < 2, theta, step, 0.5, 10)
    assert theta.tolist() == [1]
    assert step.tolist() == [8]
