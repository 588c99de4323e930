"""Measured biases are those of enumeration, and the judge finds an estimator that is wrong on purpose."""

import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.studies.estimators import natural, variants
from benchmarks.studies.estimators.judge import assess, squared_mean, take
from benchmarks.studies.estimators.study import kl_gradients, later_policies
from benchmarks.studies.estimators.variants import Variant, token_ratio

BY_NAME = {
    x.name: x
    for group in (variants.KL, variants.WHOLE, variants.SCORES, variants.BASELINES, variants.LENGTHS)
    for x in (*group, *variants.WHITENING, *variants.STALE)
}


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def rows(judge):
    return judge.draw(300, rng(1))


@pytest.fixture(scope="module")
def stale(judge, task, policies):
    """The policy after 16 minibatches, with samples of the first."""
    *_, later, _ = later_policies(policies[1], task, judge, rng(2))
    return dataclasses.replace(judge, new=later, beta=0.0)


@pytest.mark.slow
def test_k1_in_the_reward_is_unbiased_and_measured_so(judge, rows):
    found = judge.measure(BY_NAME["k1, in the reward"], rows, rng())
    assert found.exact_bias < 1e-12
    assert found.exact_cosine == pytest.approx(1, abs=1e-12)
    assert abs(found.scale - 1) < 2.5 * found.scale_error
    assert found.scale_error < 0.05
    assert min(found.bias_p, found.cosine_p) > 0.01
    assert found.verdict == "unbiased"


def backwards(model, batch):
    """Wrong on purpose: the advantages of one response go to the next one."""
    return token_ratio(model, batch.replace(advantage=batch.advantage.roll(1, 0)))


@pytest.mark.parametrize("wrong", [
    Variant("no KL", reward_kl=None),
    pytest.param(Variant("other rows", objective=backwards, length="token"), marks=pytest.mark.slow),
], ids=lambda x: x.name)  # fmt: skip
def test_a_wrong_estimator_is_found(judge, rows, wrong):
    found = judge.measure(wrong, rows, rng())
    assert found.bias_p < 0.001
    assert found.bias > 0.05
    assert found.verdict.startswith("biased")


UNBIASED = [
    *("k1, in the reward", "k1, in both", "k3, in both"),
    *("full, in both", "none", "leave-one-out (RLOO)", "exact critic, λ = 1"),
    *("exact critic, λ = 0.95", "constant (Dr. GRPO)"),
    *(
        f"{x} of the response, in {y}"
        for x, y in (("k1", "the reward"), ("k2", "the loss"), ("k1", "both"), ("k3", "both"))
    ),
    *("on the last token", "divided among the tokens, one return for the response"),
]
EXACT = (*variants.KL, *variants.WHOLE, *variants.SCORES, *variants.BASELINES)


@pytest.mark.parametrize("name", [x.name for x in EXACT if x.enumerable])
def test_expectations_by_enumeration(judge, name):
    bias = float((judge.expected(BY_NAME[name]) - judge.gradient).norm() / judge.gradient.norm())
    assert bias < 1e-12 if name in UNBIASED else bias > 0.01


def test_the_kl_in_the_loss_as_the_theory_says(judge):
    """k1 has no gradient on average; k2 has that of the exact KL of each token; k3 that of the reversed KL."""
    expected = {name: judge.expected(BY_NAME[f"{name}, in the loss"]) for name in ("k1", "k2", "k3", "full")}
    score_alone = judge.expected(Variant("score", reward_kl=None))
    torch.testing.assert_close(expected["k1"], score_alone, rtol=0, atol=1e-12)
    torch.testing.assert_close(expected["k2"], expected["full"], rtol=0, atol=1e-12)
    model, task = judge.new.model(), judge.task
    with torch.no_grad():
        reference = judge.reference.model().distribution(task.state)
    reverse = (reference.kl(model.distribution(task.state)) * task.mask).sum(1)
    gradient = judge.new.gradient(torch.autograd.grad(judge.probability @ reverse, model.logits)[0])
    torch.testing.assert_close(expected["k3"], score_alone - judge.beta * gradient, rtol=0, atol=1e-12)


def test_the_kl_of_whole_responses_in_the_loss(judge):
    """k2 of the response has the gradient of KL(π ‖ π_ref), and k3 of the response that of KL(π_ref ‖ π)."""
    distance = kl_gradients(judge)
    assert distance["k2 of the response, in the loss"]["forward"] < 1e-12 < distance["k2, in the loss"]["forward"]
    assert distance["k3 of the response, in the loss"]["reverse"] < 1e-12 < distance["k3, in the loss"]["reverse"]
    assert min(distance["k2, in the loss"]["forward"], distance["k3, in the loss"]["reverse"]) > 0.01
    assert distance["k1 of the response, in the loss"]["forward"] == pytest.approx(1)


def test_a_score_on_every_token_is_that_times_the_length(judge, task):
    """With one return for the response: the gradient of E[length · score], here from the definition."""
    model = judge.new.model()
    logp = task.logp(model, task.state)
    objective = task.probability(logp) @ (task.length * task.score - judge.beta * (logp - judge.reference_logp).sum(1))
    truth = judge.new.gradient(torch.autograd.grad(objective, model.logits)[0])
    torch.testing.assert_close(
        judge.expected(BY_NAME["on every token, one return for the response"]), truth, rtol=0, atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["k3, in the reward", "per response (GRPO)", "critic of 0, λ = 0.95"])
def test_measurements_agree_with_enumeration(judge, rows, name):
    found = judge.measure(BY_NAME[name], rows, rng())
    assert abs(found.scale - found.exact_scale) < 3 * found.scale_error
    assert found.bias == pytest.approx(found.exact_bias, abs=0.08)
    assert abs(found.cosine) == pytest.approx(found.exact_cosine, abs=0.01)


def test_a_batch_in_the_table_equals_the_language_model(judge, task, policies, rows):
    """The estimate of one batch through the real model, against table and Jacobian, for the most intricate variant."""
    variant = BY_NAME["full, in both"]
    found = judge.new.gradient(judge.estimates(variant, rows[:1], rng()))[0]
    model, chosen = policies[1], rows[0]
    batch = take(judge.experience(variant), chosen)
    batch = variant.weighted(variant.estimator(batch)).replace(obs=task.rows.map(lambda x: x[chosen]))
    logp = model.distribution(batch.obs).log_prob(batch.action)
    logits = model.actor(batch.obs.token, attention_mask=batch.obs.attention.long()).logits
    policy = torch.distributions.Categorical(logits=logits)
    ref = judge.reference.log_probs[task.state[chosen]]
    kl = (policy.probs * (policy.logits - ref)).sum(-1)
    objective = (torch.exp(logp - logp.detach()) * batch.advantage - judge.beta * kl) * batch.weight
    g = torch.autograd.grad(objective.sum(), model.policy_parameters())
    torch.testing.assert_close(found, torch.cat([x.reshape(-1) for x in g]), rtol=0, atol=1e-10)


@pytest.mark.slow
def test_only_the_sequence_ratio_is_unbiased_for_stale_samples(stale):
    cosine = {}
    for variant in variants.STALE:
        expected = stale.expected(variant) * stale.constant(variant)
        error = float((expected - stale.gradient).norm() / stale.gradient.norm())
        assert error < 1e-10 if variant.name == "sequence ratio" else error > 0.003
        cosine[variant.name] = float(expected @ stale.gradient / expected.norm() / stale.gradient.norm())
    assert cosine["token ratio"] > cosine["no ratio"]


def test_value_is_the_expected_return_at_each_state(judge, task):
    """Against the definition, at the three first states and at a later one."""
    reward = task.score - judge.beta * (judge.buffer.logp - judge.reference_logp).sum(1)
    for prompt in range(3):
        mine = task.prompt == prompt
        expected = 3 * float(judge.probability[mine] @ reward[mine])
        torch.testing.assert_close(judge.value[mine, 0], torch.full_like(judge.value[mine, 0], expected))
    assert not judge.value[:, 4].any()


@pytest.mark.slow
def test_fisher_matrices_of_samples(judge, rows):
    """With few responses the step is longer and off; the exact matrix gives the exact step on average."""
    exact = natural.measure(judge, rows[:100], None, rng())
    few = natural.measure(judge, rows[:100], 5, rng())
    assert abs(exact.scale - 1) < 0.1
    assert few.scale > 1.5 * exact.scale


@pytest.mark.slow
def test_squared_mean_is_unbiased_and_its_probability_uniform():
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([0.3, 0.0, 0.0], dtype=torch.float64)
    noise = torch.randn(400, 40, 3, generator=generator, dtype=torch.float64)
    assert np.mean([squared_mean(x + truth)[0] for x in noise]) == pytest.approx(0.09, abs=0.02)
    p = np.array([squared_mean(x)[1] for x in noise])
    assert np.quantile(p, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.09)
    assert np.median([squared_mean(x + 3 * truth)[1] for x in noise]) < 0.001


def test_assessment_by_hand():
    """Two dimensions: twice the truth along it, with known noise."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([3.0, 4.0], dtype=torch.float64)
    samples = 2 * truth + torch.randn(50, 100, 2, generator=generator, dtype=torch.float64)
    found = assess(samples, truth, expected=2 * truth)
    assert found.scale == pytest.approx(2, abs=0.02)
    assert found.bias == pytest.approx(1, abs=0.02)
    assert found.cosine == pytest.approx(1, abs=1e-3)
    assert found.noise == pytest.approx(2**0.5 / 10, rel=0.03)
    assert (found.exact_scale, found.exact_bias, found.exact_cosine) == pytest.approx((2, 1, 1))
    assert found.verdict == "biased in length"
