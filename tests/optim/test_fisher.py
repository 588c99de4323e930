"""Fisher-vector products against explicit matrices, in float64."""

import pytest
import torch
from builders import KINDS, explicit_fisher, make_policy, mean_kl
from torch import nn

from rlzoo.core.buffer import Buffer
from rlzoo.core.system.errors import ConfigError
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product

WEIGHT = torch.full((6, 1), 1 / 6, dtype=torch.float64)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch_of(policy):
    """The policy's observations, with π_old the policy as it is."""
    no = torch.zeros(len(policy.obs), 1, dtype=torch.bool)
    old = policy(policy.theta).detach()
    return Buffer(policy.obs, no.long(), no.double(), no, no, ~no, old=old)


def fisher_of(policy, damping=0.0):
    return fisher_vector_product(policy, policy.theta, batch_of(policy), damping)


def product_matrix(product, size):
    return torch.stack([product(e) for e in torch.eye(size, dtype=torch.float64)])


@pytest.mark.parametrize("kind", KINDS)
def test_fisher_product_equals_the_explicit_fisher_matrix(kind):
    policy = make_policy(kind)
    theta = policy.theta
    matrix = product_matrix(fisher_of(policy), len(theta))
    torch.testing.assert_close(matrix, explicit_fisher(policy, theta, WEIGHT), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_fisher_product_equals_the_hessian_of_the_kl(kind):
    policy = make_policy(kind)
    theta, batch = policy.theta.detach(), batch_of(policy)
    hessian = torch.func.hessian(lambda theta: policy(theta, lambda model: mean_kl(model, batch)))(theta)
    torch.testing.assert_close(product_matrix(fisher_of(policy), len(theta)), hessian, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("micro_batch_steps", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_curvature_is_the_quadratic_form_of_the_fisher_matrix(kind, micro_batch_steps):
    policy = make_policy(kind)
    policy.model.micro_batch_steps = micro_batch_steps
    theta = policy.theta.detach()
    for seed in range(3):
        v = random(len(theta), seed=seed)
        curvature = fisher_curvature(policy, theta, batch_of(policy), v)
        assert curvature == pytest.approx(float(v @ fisher_of(policy)(v)), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_to_the_derivative_of_the_outputs_give_the_same_product(kind):
    policy, products = make_policy(kind), []
    v = random(len(policy.theta))
    for context in (0, 1):
        policy.model.context = context
        products.append(fisher_of(policy)(v))
    torch.testing.assert_close(*products, rtol=1e-12, atol=1e-15)


def test_damping_adds_a_multiple_of_the_vector():
    policy = make_policy("discrete")
    v = random(len(policy.theta))
    plain, damped = (fisher_of(policy, d)(v) for d in (0.0, 0.3))
    torch.testing.assert_close(damped, plain + 0.3 * v)


@pytest.mark.parametrize(
    ("context", "micro_batch_steps", "calls"), [(1, None, 1), (0, None, 1 + 3), (1, 4, 2 * 6), (0, 4, 2 * 6)]
)
def test_graph_is_kept_for_one_micro_batch_alone(context, micro_batch_steps, calls, monkeypatch):
    policy, passes = make_policy("discrete"), []
    batch = batch_of(policy)
    policy.model.context, policy.model.micro_batch_steps = context, micro_batch_steps
    forward = policy.model.policy.forward
    monkeypatch.setattr(policy.model.policy, "forward", lambda *args: passes.append(args) or forward(*args))
    product = fisher_vector_product(policy, policy.theta, batch)
    for _ in range(3):
        product(policy.theta.detach())
    assert len(passes) == calls


class Attentive(nn.MultiheadAttention):
    """Attention by the fused kernel, which has no second derivatives."""

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


def test_policy_without_second_derivatives():
    policy = make_policy("discrete")
    policy.model.policy.net = nn.Sequential(Attentive(4, 1, batch_first=True).double(), policy.model.policy.net)
    policy = type(policy)(policy.model, policy.obs)
    with pytest.raises(ConfigError, match=r"no second derivatives, which .* is not implemented; attention has them in"):
        fisher_of(policy)(torch.ones_like(policy.theta))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert fisher_of(policy)(torch.ones_like(policy.theta)).isfinite().all()
