"""The distribution of the next token, plain and in blocks of the vocabulary, against a `Categorical` of all logits."""

import dataclasses

import pytest
import torch
from simulated_gpu import GPU, simulated

from rlzoo.core.distributions import Categorical
from rlzoo.lm.fast import vocabulary
from rlzoo.lm.fast.vocabulary import BlockedTokenDistribution
from rlzoo.lm.model.tokens import Head, TokenDistribution, Tokens

R, T, H, V = 3, 5, 4, 150
ACTS = torch.tensor([[0, 1, 1, 1, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
ALLOWED = torch.tensor([1, 1, 1, 0, 1, 1, 0] * 22)[:V].bool().expand(R, T, V)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=["plain", "three blocks", "one block"])
def make(request, monkeypatch):
    """Makes a distribution, plain or computed in blocks of the vocabulary."""
    if request.param == "three blocks":  # 64, 64 and 22 tokens
        monkeypatch.setattr(vocabulary, "_BLOCK", {"cpu": 1, "other": 1})
        monkeypatch.setattr(vocabulary, "_NARROWEST", 64)
    kind = TokenDistribution if request.param == "plain" else BlockedTokenDistribution

    def make(seed=0, temperature=1.0, bias=False, acts=ACTS, dtype=torch.float64, allowed=None, precision=None):
        weight, offset = normal(V, H, seed=seed).to(dtype), normal(V, seed=seed + 1).to(dtype) if bias else None
        head = Head(weight, offset, temperature, precision)
        return kind(normal(R, T, H, seed=seed + 2).to(dtype), acts, head, allowed)

    return make


def whole(x):
    """Logits of every step, acting or not, by their definition."""
    bias = 0 if x.head.bias is None else x.head.bias
    policy = Categorical((x.hidden @ x.head.weight.t() + bias) / x.head.temperature)
    return policy if x.allowed is None else policy.restrict(x.allowed)


ACTION = torch.randint(V, (R, T), generator=torch.Generator().manual_seed(3))


def test_texts_are_padded_on_the_right_and_all_tokens_but_the_first_are_actions():
    tokens = Tokens.of_texts([[5, 6, 7], [8]], pad_token=9)
    assert tokens.token.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert tokens.attention.int().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert tokens.acts.int().tolist() == [[1, 1, 0], [0, 0, 0]]
    assert tokens.action.tolist() == [[6, 7, 0], [9, 9, 0]]
    assert tokens.columns(1, 3).token.tolist() == [[6, 7], [9, 9]]
    assert (len(tokens.tensors()), len(dataclasses.replace(tokens, allowed=ALLOWED).tensors())) == (3, 4)


def test_log_prob_by_hand():
    weight = torch.tensor([[4.0], [1.0], [1.0]], dtype=torch.float64).log()
    hidden, acts = torch.tensor([[[1.0], [1.0], [0.5]]], dtype=torch.float64), torch.tensor([[True, False, True]])
    logp = TokenDistribution(hidden, acts, Head(weight, None, 1.0, None)).log_prob(torch.tensor([[0, 0, 1]]))
    assert logp.exp().tolist() == [pytest.approx([4 / 6, 1, 1 / 4], abs=1e-12)]


@pytest.mark.parametrize("bias", [False, True])
def test_everything_stays_on_the_gpu(make, bias):
    """With gradients and without; with all tokens or some allowed."""

    def results(x, y, action, generator):
        hidden, weight = x.hidden.requires_grad_(), x.head.weight.requires_grad_()
        graph = [x.log_prob(action), x.entropy(), x.kl(y)]
        grads = torch.autograd.grad(sum(z.sum() for z in graph), (hidden, weight))
        x = x.detach()
        weight = x.entropy()
        fisher = x.fisher([z.clone() for z in x.tensors()], weight)
        return [*graph, *grads, *fisher, weight, x.kl(y), x.mode, x.sample(generator)]

    allowed = ALLOWED if bias else None
    expected = results(
        *(make(seed, 0.7, bias, allowed=allowed) for seed in (0, 10)), ACTION, torch.Generator().manual_seed(0)
    )
    pair = [make(seed, 0.7, bias, allowed=allowed) for seed in (0, 10)]
    with simulated():
        moved = [x.map(lambda z: z.to(GPU)).with_tensors([z.to(GPU) for z in x.tensors()]) for x in pair]
        found = results(*moved, ACTION.to(GPU), torch.Generator(GPU).manual_seed(0))
        assert {x.device.type for x in found} == {GPU}
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.4, 3.0])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_a_categorical_of_all_logits_where_it_acts_and_is_0_elsewhere(make, bias, temperature):
    x, y = make(0, temperature, bias), make(10, temperature, bias)
    logits = whole(x)
    for mine, expected in (
        (x.log_prob(ACTION), logits.log_prob(ACTION)),
        (x.entropy(), logits.entropy()),
        (x.kl(y), logits.kl(whole(y))),
        (x.mode.double(), logits.mode.double()),
    ):
        torch.testing.assert_close(mine, expected * ACTS, rtol=0, atol=1e-12)
    noise = x.noise(torch.Generator().manual_seed(0))
    assert torch.equal(x.from_noise(noise), logits.from_noise(noise) * ACTS)
    assert torch.equal(x.from_noise(torch.zeros_like(noise)), x.mode)


@pytest.mark.parametrize("quantity", ["log_prob", "entropy", "kl", "kl of a fixed one"])
def test_gradients_are_those_of_a_categorical_of_all_logits(make, quantity):
    def gradients(view):
        x, y = make(0, 0.4, bias=True), make(10, 0.4, bias=True)
        leaves = [leaf.requires_grad_() for leaf in (x.hidden, x.head.weight, x.head.bias)]
        first, second = view(x), view(y)
        found = {
            "log_prob": lambda: first.log_prob(ACTION),
            "entropy": first.entropy,
            "kl": lambda: first.kl(second),
            "kl of a fixed one": lambda: second.kl(first),
        }[quantity]()
        weight = 3 * normal(R, T, seed=7) * ACTS  # of either sign, and not small
        return torch.autograd.grad((weight * found).sum(), leaves)

    mine, expected = gradients(lambda x: x), gradients(whole)
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert not mine[0][~ACTS].any()
    assert mine[0][ACTS].all(-1).all()


@pytest.mark.parametrize("parts", ["log_prob", "log_prob kl", "log_prob entropy", "kl entropy", "log_prob kl entropy"])
@pytest.mark.parametrize("restrict", [False, True])
def test_what_an_objective_needs_has_its_gradient(make, parts, restrict):
    def found(evaluate):
        x, y = (make(seed, 0.4, bias=True, allowed=ALLOWED if restrict else None) for seed in (0, 10))
        leaves = [leaf.requires_grad_() for leaf in (x.hidden, x.head.weight, x.head.bias)]
        together = evaluate(x, y)._asdict()
        values = [together[name] for name in parts.split()]
        total = sum((3 * normal(R, T, seed=7 + i) * ACTS * value).sum() for i, value in enumerate(values))
        return values, torch.autograd.grad(total, leaves)

    action = 5 * torch.ones_like(ACTION) if restrict else ACTION
    mine = found(lambda x, y: x.evaluate(action, y, entropy="entropy" in parts))
    expected = found(lambda x, y: whole(x).evaluate(action, whole(y), entropy="entropy" in parts))
    for a, b in zip(mine[0], expected[0], strict=True):
        torch.testing.assert_close(a, b * ACTS, rtol=0, atol=1e-12)
    for a, b in zip(mine[1], expected[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_nothing_acts(make):
    x = make(acts=torch.zeros_like(ACTS))
    for quantity in (x.log_prob(ACTION), x.entropy(), x.kl(x), x.mode, x.sample()):
        assert torch.equal(quantity, torch.zeros(R, T).to(quantity.dtype))
    x = make(acts=torch.zeros_like(ACTS))
    x.hidden.requires_grad_()
    (g,) = torch.autograd.grad(x.log_prob(ACTION).sum(), x.hidden)
    assert not g.any()


def test_map_takes_rows_and_steps_of_both(make):
    x = make()
    part = x.map(lambda x: x[1:, :3])
    torch.testing.assert_close(part.log_prob(ACTION[1:, :3]), x.log_prob(ACTION)[1:, :3])


def test_detached_keeps_what_training_changes(make):
    x = make(bias=True)
    x.hidden.requires_grad_()
    before = x.log_prob(ACTION).detach()
    old = x.detach()
    for tensor in (x.head.weight, x.head.bias):
        tensor.zero_()
    assert torch.equal(old.log_prob(ACTION), before)
    assert not old.hidden.requires_grad
    assert not torch.equal(x.map(lambda x: x).log_prob(ACTION), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_log_probabilities_have_single_precision_at_least(make, dtype):
    logp = make(dtype=dtype).log_prob(ACTION)
    assert logp.dtype == torch.promote_types(dtype, torch.float32)


def test_autocast_rounds_the_product_alone(make):
    x = make(dtype=torch.float32)
    rounded = make(dtype=torch.float32, precision=torch.bfloat16)
    expected = (x.hidden.bfloat16() @ x.head.weight.bfloat16().t()).float().log_softmax(-1)
    expected = expected.gather(-1, ACTION.unsqueeze(-1)).squeeze(-1) * ACTS
    torch.testing.assert_close(rounded.log_prob(ACTION), expected, rtol=0, atol=1e-6)
    assert not torch.equal(rounded.log_prob(ACTION), x.log_prob(ACTION))


def test_sampled_frequencies_are_the_probabilities():
    acts = torch.ones(1, 20_000, dtype=torch.bool)
    hidden, head = normal(H, seed=5).expand(1, 20_000, H), Head(normal(7, H, seed=6), None, 0.7, None)
    x = TokenDistribution(hidden, acts, head)
    counts = torch.bincount(x.sample(torch.Generator().manual_seed(0))[0], minlength=7)
    p = (head.weight @ hidden[0, 0] / 0.7).softmax(0)
    chi2 = ((counts - 20_000 * p).square() / (20_000 * p)).sum()
    assert chi2 < 22.46  # the 99.9th percentile with 6 degrees of freedom


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("restrict", [False, True])
def test_fisher_product_is_that_of_the_hessian_of_the_kl(make, bias, temperature, restrict):
    x = make(0, temperature, bias, allowed=ALLOWED if restrict else None)
    weight = normal(R, T, seed=5).square()
    tangents = [normal(*u.shape, seed=6) for u in x.tensors()]

    def kl(*tensors):
        return (weight * ACTS * whole(x).kl(whole(x.with_tensors(tensors)))).sum()

    _, expected = torch.autograd.functional.hvp(kl, tuple(x.tensors()), tuple(tangents))
    found = x.fisher(tangents, weight)
    assert len(found) == len(expected) == 2 + bias
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-10)
        assert theirs.abs().max() > 0.01
