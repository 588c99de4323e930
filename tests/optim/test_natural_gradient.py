"""Second-order tools against explicit matrices, in float64."""

import math

import pytest
import torch
from builders import KINDS, SPACES, PolicyAt, make_buffer, make_model
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.estimators import GAE
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, conjugate_gradient, line_search, trust_region_step
from rlzoo.optim.objective import surrogate, with_old


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_flat_policy_is_a_pure_function_of_theta():
    model = make_model(SPACES["box"])
    obs = random(6, 1, 4)
    policy = PolicyAt(model, obs)
    before = model.distribution(obs).mean
    assert torch.equal(policy(policy.theta).mean, before)
    assert not torch.equal(policy(policy.theta + 1).mean, before)
    assert torch.equal(model.distribution(obs).mean, before)


def test_a_module_with_two_names_is_restored():
    """`torch.func.functional_call` alone leaves other tensors in it."""
    model = make_model()
    model.policy.body = model.policy.net
    before = dict(model.named_parameters())
    policy, obs = FlatPolicy(model), random(6, 1, 4)
    for _ in range(2):
        moved = policy(policy.theta + 1, lambda model: model.distribution(obs).logits)
    assert all(x is before[name] for name, x in model.named_parameters())
    policy.assign(policy.theta + 1)
    assert torch.equal(model.distribution(obs).logits, moved)


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


def make_functions(micro_batch_steps=None):
    """θ, the surrogate as an `Objective` and the Fisher product, in micro-batches of at most so many steps."""
    model = make_model(hidden=(3,))
    model.micro_batch_steps = micro_batch_steps
    batch = with_old(model, GAE()(make_buffer(model)).rows(1).whitened)
    policy = FlatPolicy(model)
    product = fisher_vector_product(policy, policy.theta, batch, damping=0.1)
    return policy.theta, policy.objective(surrogate, batch), product


def test_gradient_of_the_objective_is_that_of_its_value():
    theta, objective, _ = make_functions()
    moved, direction = theta + 0.1 * random(len(theta), seed=3), random(len(theta), seed=4)
    _, g = objective.value_and_gradient(moved)
    up, down = (objective.value_and_kl(moved + sign * 1e-5 * direction)[0] for sign in (1, -1))
    assert float(g @ direction) == pytest.approx((up - down) / 2e-5, rel=1e-6)


def test_gradient_that_is_not_finite_is_named():
    theta, objective, _ = make_functions()
    (part,) = objective.parts
    objective.parts = [part.replace(advantage=part.advantage * torch.nan)]
    with pytest.raises(NonFiniteError, match="gradient of the surrogate is not finite"):
        objective.value_and_gradient(theta)


@pytest.mark.parametrize(("micro_batch_steps", "count"), [(1, 32), (5, 7), (17, 2)])
def test_uneven_micro_batches_make_up_the_batch(micro_batch_steps, count):
    theta, whole, product = make_functions()
    _, in_parts, product_in_parts = make_functions(micro_batch_steps)
    moved = theta + 0.1 * random(len(theta), seed=3)
    assert (len(whole.parts), len(in_parts.parts)) == (1, count)
    value, kl = whole.value_and_kl(moved)
    assert kl > 1e-3
    assert in_parts.value_and_kl(moved) == pytest.approx((value, kl), rel=1e-12)
    (value, g), (_, expected) = in_parts.value_and_gradient(moved), whole.value_and_gradient(moved)
    assert value == pytest.approx(whole.value_and_kl(moved)[0], rel=1e-12)
    torch.testing.assert_close(g, expected, rtol=0, atol=1e-12)
    for seed in range(3):
        v = random(len(theta), seed=seed)
        torch.testing.assert_close(product_in_parts(v), product(v), rtol=0, atol=1e-12)


@pytest.mark.parametrize("micro_batch_steps", [None, 5])
def test_values_and_gradients_leave_no_graph_behind(micro_batch_steps):
    theta, objective, product = make_functions(micro_batch_steps)
    value, g = objective.value_and_gradient(theta)
    assert all(isinstance(x, float) for x in (value, *objective.value_and_kl(theta)))
    assert not any(x.requires_grad for x in (g, product(theta), theta))


def positive_matrix(size, seed):
    root = random(size, size, seed=seed)
    return root @ root.t() + 0.1 * torch.eye(size, dtype=torch.float64)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_conjugate_gradient_solves_in_as_many_steps_as_dimensions(size, seed):
    a, b = positive_matrix(size, seed), random(size, seed=seed + 1)
    x, _ = conjugate_gradient(a.mv, b, 3 * size, tolerance=1e-24)
    torch.testing.assert_close(x, torch.linalg.solve(a, b), rtol=1e-6, atol=1e-8)


def test_conjugate_gradient_stops_at_the_residual():
    products = []

    def product(v):
        products.append(v)
        return torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * v

    b = torch.ones(3, dtype=torch.float64)
    x, _ = conjugate_gradient(product, b, 100)
    assert len(products) == 3
    torch.testing.assert_close(x, torch.tensor([1, 1 / 2, 1 / 3], dtype=torch.float64))
    products.clear()
    conjugate_gradient(product, b, 100, tolerance=0.2)
    assert len(products) == 1


def test_conjugate_gradient_of_zero_is_zero():
    assert torch.equal(conjugate_gradient(lambda v: v, torch.zeros(3), 10).x, torch.zeros(3))


@pytest.mark.parametrize("curvature", [-1.0, 0.0, math.nan])
def test_conjugate_gradient_stops_at_a_direction_without_positive_curvature(curvature):
    b = torch.tensor([1.0, 2.0])
    assert torch.equal(conjugate_gradient(lambda v: curvature * v, b, 10).x, torch.zeros(2))
    saddle = torch.tensor([2.0, -1.0])
    assert conjugate_gradient(lambda v: saddle * v, torch.tensor([2.0, 1.0]), 10).x.isfinite().all()


def test_trust_region_step_has_the_quadratic_kl_asked_for():
    a, x = positive_matrix(5, 0), random(5)
    step, scale = trust_region_step(x, float(x @ a @ x), 0.01)
    assert float(0.5 * step @ a @ step) == pytest.approx(0.01, rel=1e-12)
    assert torch.equal(step, scale * x)
    assert scale > 0


@pytest.mark.parametrize("curvature", [-1.0, 0.0, math.nan])
def test_trust_region_step_without_positive_curvature_is_zero(curvature):
    step, scale = trust_region_step(torch.ones(3), curvature, 0.01)
    assert torch.equal(step, torch.zeros(3))
    assert scale == 0
    assert not trust_region_step(torch.ones(3), 1e-40, 0.01).step.any()


@pytest.mark.parametrize("iters", [0, 1, 2, 5])
def test_residual_is_that_of_the_solution(iters):
    a, b = positive_matrix(5, 0), random(5)
    x, residual = conjugate_gradient(a.mv, b, iters, tolerance=1e-24)
    assert residual == pytest.approx(float((a.mv(x) - b).norm() / b.norm()), rel=1e-6, abs=1e-9)
    assert conjugate_gradient(a.mv, torch.zeros(5, dtype=torch.float64), iters).residual == 0


def test_residual_of_no_step_is_one_although_the_square_of_b_underflows():
    assert conjugate_gradient(lambda v: v, torch.full((3,), 1e-30), 10) == (pytest.approx(torch.zeros(3)), 1)


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
    same, backtracks = line_search(lambda _: False, theta, torch.ones(2), 0.5, 4)
    assert same is theta
    assert backtracks == 4


def test_a_policy_without_a_parameter_to_train():
    model = make_model()
    model.policy.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^there is no parameter of the policy to train: unfreeze it with"):
        FlatPolicy(model)


def test_an_objective_without_the_old_policy_says_how_to_get_it():
    model = make_model()
    policy = FlatPolicy(model)
    objective = policy.objective(surrogate, GAE()(make_buffer(model)).rows(1))
    with pytest.raises(ConfigError, match=r"^the batch has no `old`, .* use with_old\(model, batch\)$"):
        objective.value_and_kl(policy.theta)
