"""Distributions against enumeration, `torch.distributions` and their own samples."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from scipy import stats
from simulated_gpu import GPU, simulated
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from rlzoo.core.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical, Product
from rlzoo.core.system.errors import ConfigError

SAMPLES = 20_000


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


CATEGORICAL = Categorical(tensor(0.3, -1.2, 2.0, 0.0))
GAUSSIAN = DiagGaussian(tensor(0.5, -2.0), tensor(-0.7, 0.4))
MULTI = MultiCategorical((Categorical(tensor(0.3, -1.2, 0.9)), Categorical(tensor(1.0, -0.5))))
PAIRS = torch.cartesian_prod(torch.arange(3), torch.arange(2))


def repeat(distribution, count=SAMPLES):
    return distribution.map(lambda x: x.expand(count, *x.shape))


def others(seed):
    """For each kind of distribution two that differ, over a batch of 7."""
    logits = random(4, 7, 3, seed=seed)
    return [
        (Categorical(logits[0]), Categorical(logits[1])),
        (DiagGaussian(logits[0], logits[1]), DiagGaussian(logits[2], logits[3])),
        (
            MultiCategorical((Categorical(logits[0]), Categorical(logits[1, :, :2]))),
            MultiCategorical((Categorical(logits[2]), Categorical(logits[3, :, :2]))),
        ),
    ]


KINDS = pytest.mark.parametrize("kind", range(4))


def of_kind(kind):
    """A distribution of each kind over a batch of 7."""
    pairs = others(0)
    return [*(mine for mine, _ in pairs), Product((pairs[1][0], pairs[0][0]), (3, 1))][kind]


@KINDS
def test_everything_stays_on_the_device_of_the_parameters(kind):
    def results(distribution, device):
        drawn = distribution.sample(torch.Generator(device).manual_seed(0))
        other = distribution.map(lambda x: 0.5 * x)
        legal = None if distribution.std is not None else (distribution.noise() > -99)
        return [
            drawn, distribution.mode, distribution.log_prob(drawn), distribution.entropy(), distribution.kl(other),
            *distribution.fisher(other.tensors(), distribution.entropy()),
            *([] if legal is None else distribution.restrict(legal).tensors()),
        ]  # fmt: skip

    expected = results(of_kind(kind), "cpu")
    with simulated() as gpu:
        distribution = of_kind(kind).map(lambda x: x.to(GPU))
        gpu.waits.clear()
        found = results(distribution, GPU)
        assert gpu.waits == []
        assert {x.device.type for x in found} == {GPU}
        assert all(torch.equal(x.cpu(), y) for x, y in zip(found, expected, strict=True))


@KINDS
def test_fisher_product_is_that_of_the_hessian_of_the_kl(kind):
    distribution = of_kind(kind)
    tensors = distribution.tensors()
    weight = random(7, seed=1).square()

    def weighted_kl(*tensors):
        return (weight * distribution.kl(distribution.with_tensors(tensors))).sum()

    tangents = [random(*x.shape, seed=2) for x in tensors]
    _, expected = torch.autograd.functional.hvp(weighted_kl, tuple(tensors), tuple(tangents))
    for found in (distribution.fisher(tangents, weight), Distribution.fisher(distribution, tangents, weight)):
        assert len(found) == len(tensors)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
            assert theirs.abs().max() > 0.01


@dataclass(frozen=True)
class Own(Categorical):
    """A distribution of a user's, without a Fisher matrix and `restrict` of its own."""

    legal: Tensor | None = None
    scale: float = field(default=1.0, kw_only=True)

    @property
    def log_probs(self):
        return (self.scale * self.logits).masked_fill(~self.legal, -1e9).log_softmax(-1)

    noise, restrict, fisher = Distribution.noise, Distribution.restrict, Distribution.fisher


OWN = Own(random(7, 3), torch.tensor([True, False, True]).expand(7, 3), scale=10.0)


def test_a_field_by_keyword_alone_stays():
    assert OWN.detach().scale == 10
    assert torch.equal(OWN.detach().log_probs, OWN.log_probs)


def test_fisher_products_leave_out_fields_that_are_no_numbers():
    tangent, weight = random(7, 3, seed=2), random(7, seed=3).square()
    found, none = OWN.fisher([tangent, torch.zeros(7, 3, dtype=torch.bool)], weight)
    (expected,) = Categorical(OWN.log_probs).fisher([tangent], weight)
    torch.testing.assert_close(found, 100 * expected)
    assert not none.any()


def test_only_parts_that_can_be_restricted_take_masks():
    legal = torch.ones(7, 3, dtype=torch.bool)
    legal[:, 0] = False
    product = Product((OWN, Product((CATEGORICAL.map(lambda x: x[:3].expand(7, 3)),), (1,))), (1, 1))
    assert product.restrict(legal).parts[0] is OWN
    assert (product.restrict(legal).parts[1].mode > 0).all()
    with pytest.raises(ConfigError, match="parts with a method restrict have 3 categories, the mask has 6"):
        product.restrict(legal.repeat(1, 2))


def test_a_sample_without_a_way_to_draw_noise_is_an_error():
    with pytest.raises(ConfigError, match=r"^Own has no method noise\(generator\), which samples need here$"):
        Distribution.sample(OWN)


def test_categorical_probabilities_by_hand():
    distribution = Categorical(tensor(0, math.log(2), math.log(5)) + 3)
    probabilities = repeat(distribution, 3).log_prob(torch.arange(3)).exp()
    torch.testing.assert_close(probabilities, tensor(0.125, 0.25, 0.625))


def test_gaussian_density_by_hand():
    density = DiagGaussian(tensor(1, 0), tensor(0, math.log(2))).log_prob(tensor(2, 4))
    assert float(density) == pytest.approx(-0.5 - 2 - math.log(2) - math.log(2 * math.pi))


@pytest.mark.parametrize(("distribution", "actions"), [(CATEGORICAL, torch.arange(4)), (MULTI, PAIRS)])
def test_probabilities_sum_to_one(distribution, actions):
    assert float(repeat(distribution, len(actions)).log_prob(actions).exp().sum()) == pytest.approx(1)


@pytest.mark.parametrize(("distribution", "actions"), [(CATEGORICAL, torch.arange(4)), (MULTI, PAIRS)])
def test_entropy_by_enumeration(distribution, actions):
    logp = repeat(distribution, len(actions)).log_prob(actions)
    torch.testing.assert_close(distribution.entropy(), -(logp.exp() * logp).sum())


@pytest.mark.parametrize("k", [0, 2])
def test_kl_by_enumeration(k):
    p, q = others(seed=1)[k]
    actions = torch.arange(3) if k == 0 else PAIRS

    def table(distribution):
        return distribution.map(lambda x: x[:, None].expand(-1, len(actions), -1)).log_prob(
            actions.expand(7, *actions.shape)
        )

    expected = (table(p).exp() * (table(p) - table(q))).sum(1)
    torch.testing.assert_close(p.kl(q), expected)


def test_gaussian_entropy_and_kl_by_monte_carlo():
    p, q = DiagGaussian(tensor(0.5, -2), tensor(-0.7, 0.4)), DiagGaussian(tensor(0, -1), tensor(0.2, 0.1))
    x = repeat(p, 200_000).sample(generator())
    logp, logq = (repeat(d, len(x)).log_prob(x) for d in (p, q))
    assert float(p.entropy()) == pytest.approx(float(-logp.mean()), abs=4 * float(logp.std()) / 200_000**0.5)
    log_ratio = logp - logq
    assert float(p.kl(q)) == pytest.approx(float(log_ratio.mean()), abs=4 * float(log_ratio.std()) / 200_000**0.5)


def test_gaussian_equals_torch():
    _, (p, q), _ = others(seed=2)
    torch_p, torch_q = (Independent(Normal(d.mean, d.log_std.exp()), 1) for d in (p, q))
    action = p.sample(generator())
    torch.testing.assert_close(p.log_prob(action), torch_p.log_prob(action))
    torch.testing.assert_close(p.entropy(), torch_p.entropy())
    torch.testing.assert_close(p.kl(q), kl_divergence(torch_p, torch_q))


@pytest.mark.parametrize("k", range(3))
def test_kl_is_zero_only_for_equals_and_has_a_direction(k):
    p, q = others(seed=3)[k]
    torch.testing.assert_close(p.kl(p), torch.zeros(7, dtype=torch.float64))
    assert (p.kl(q) > 0).all()
    assert ((p.kl(q) - q.kl(p)).abs() > 1e-6).all()


def test_categorical_sample_frequencies_match_probabilities():
    sample = repeat(CATEGORICAL).sample(generator(4))
    expected = CATEGORICAL.log_probs.exp().numpy() * SAMPLES
    assert stats.chisquare(np.bincount(sample, minlength=4), expected).pvalue > 0.01


def test_gaussian_samples_have_the_density():
    sample = repeat(GAUSSIAN).sample(generator(4)).numpy()
    for column, mean, log_std in zip(sample.T, GAUSSIAN.mean, GAUSSIAN.log_std, strict=True):
        assert stats.kstest(column, stats.norm(float(mean), math.exp(log_std)).cdf).pvalue > 0.01
    assert stats.pearsonr(*sample.T).pvalue > 0.01


@pytest.mark.parametrize("distribution", [CATEGORICAL, MULTI])
def test_categorical_noise_is_standard_gumbel(distribution):
    noise = repeat(distribution, 5000).noise(generator(6))
    assert stats.kstest(noise.flatten(), "gumbel_r").pvalue > 0.01


def test_gaussian_noise_is_standard_normal():
    assert stats.kstest(repeat(GAUSSIAN, 5000).noise(generator(6)).flatten(), "norm").pvalue > 0.01


@pytest.mark.parametrize("distribution", [CATEGORICAL, GAUSSIAN, MULTI])
def test_zero_noise_gives_the_most_probable_action(distribution):
    zero = torch.zeros_like(distribution.noise())
    mode = distribution.from_noise(zero)
    assert torch.equal(mode, distribution.mode)
    samples = repeat(distribution, 1000).sample(generator())
    assert (repeat(distribution, 1000).log_prob(samples) <= distribution.log_prob(mode)).all()


@pytest.mark.parametrize("k", range(3))
def test_detach_cuts_the_graph_and_keeps_the_values(k):
    p, _ = others(seed=5)[k]
    p = p.map(lambda x: x.clone().requires_grad_())
    assert p.entropy().requires_grad
    assert not p.detach().entropy().requires_grad
    assert torch.equal(p.detach().entropy(), p.entropy())


def test_extreme_logits_stay_finite():
    extreme = Categorical(torch.tensor([1e30, -1e30, 0.0]))
    assert extreme.log_prob(torch.tensor(0)) == 0
    assert extreme.entropy() == 0


def test_a_logit_of_minus_infinity_leaves_the_category_out():
    logits = torch.tensor([[0.5, -math.inf, 1.0], [0.2, -math.inf, -math.inf]], dtype=torch.float64, requires_grad=True)
    p, other = Categorical(logits), Categorical(tensor([1.0, -math.inf, 0.0], [0.0, -math.inf, -math.inf]))
    without = Categorical(logits[:, [0, 2]]).map(lambda x: x.clamp(min=-1e9))
    torch.testing.assert_close(p.entropy(), without.entropy())
    torch.testing.assert_close(p.kl(other), without.kl(Categorical(tensor([1.0, 0.0], [0.0, -1e9]))))
    (p.entropy() + p.kl(other) + p.log_prob(torch.tensor([2, 0]))).sum().backward()
    assert logits.grad.isfinite().all()


def test_detached_keeps_what_training_changes():
    p = DiagGaussian(tensor([1.0]), tensor([0.0]))
    old = p.detach()
    p.log_std.fill_(1.0)
    assert old.log_std == 0


def test_samples_are_quantiles_of_uniform_numbers_in_double_precision():
    p = Categorical(torch.zeros(1000, 3))
    uniform = torch.empty(1000, dtype=torch.float64).uniform_(generator=generator())
    assert torch.equal(p.sample(generator()), p.quantile(uniform))


@pytest.mark.parametrize("k", [4, 3000])
def test_the_largest_quantile_is_a_category_that_is_possible(k):
    logits = torch.randn(200, k, generator=generator())
    logits[:, k - 3 :] = -math.inf
    assert (Categorical(logits).quantile(torch.ones(200, dtype=torch.float64)) == k - 4).all()


@pytest.mark.parametrize("k", [3, 1024, 3000])
def test_quantiles_are_those_of_the_cumulative_probabilities(k):
    logits, uniform = torch.randn(k, generator=generator()), torch.rand(500, generator=generator(), dtype=torch.float64)
    expected = np.searchsorted(logits.double().softmax(-1).cumsum(-1).numpy(), uniform.numpy(), side="right")
    found = Categorical(logits.expand(500, k)).quantile(uniform).numpy()
    assert (found != expected).sum() < 3  # rounding


def test_an_impossible_category_is_no_quantile():
    policy = Categorical(torch.tensor([-torch.inf, 0.0, 0.0]))
    assert policy.quantile(torch.zeros((), dtype=torch.float64)) == 1
    assert policy.quantile(torch.tensor(0.5, dtype=torch.float64)) == 2
