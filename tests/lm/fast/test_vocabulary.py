"""The distribution of the next token in blocks of the vocabulary: what it computes and keeps. Values: `test_tokens`."""

import dataclasses

import pytest
import torch

from rlzoo.lm.fast import vocabulary
from rlzoo.lm.fast.vocabulary import BlockedTokenDistribution, Steps
from rlzoo.lm.model.tokens import Head, TokenDistribution

R, T, H, V = 3, 5, 4, 150
ACTS = torch.tensor([[0, 1, 1, 1, 0], [1, 0, 0, 0, 1], [0, 0, 0, 0, 0]]).bool()
ACTION = torch.randint(V, (R, T), generator=torch.Generator().manual_seed(3))


def make(seed=0):
    generator = torch.Generator().manual_seed(seed)
    weight, hidden = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((V, H), (R, T, H)))
    return BlockedTokenDistribution(hidden, ACTS, Head(weight, None))


@pytest.fixture
def shapes(monkeypatch):
    """The shapes of all blocks of logits that are computed. There are three: 64, 64 and 22 tokens."""
    monkeypatch.setattr(vocabulary, "_BLOCK", {"cpu": 1})
    monkeypatch.setattr(vocabulary, "_NARROWEST", 64)
    shapes, finish = [], Steps.finish
    monkeypatch.setattr(Steps, "finish", lambda *x: shapes.append(finish(*x).shape) or finish(*x))
    return shapes


def test_logits_exist_for_acting_steps_alone_and_a_block_at_a_time(shapes):
    x = make()
    x.log_prob(ACTION)
    assert shapes == [(5, 64), (5, 64), (5, 22)]
    x.kl(make(10))
    assert len(shapes) == 9
    x.evaluate(ACTION, make(10), entropy=True)
    assert len(shapes) == 15
    assert max(shapes) == (5, 64)


@pytest.mark.parametrize(("most", "products"), [(10**6, 1), (0, 3)])
def test_one_product_gives_all_results_unless_it_is_too_large_to_keep(most, products, monkeypatch):
    monkeypatch.setattr(vocabulary, "_MOST_KEPT", most)
    calls, inputs = [], Steps.inputs
    monkeypatch.setattr(Steps, "inputs", lambda steps: calls.append(steps.head) or inputs(steps))
    old, policy = make(1), make()
    policy.log_prob(ACTION)
    old.kl(policy)
    policy.entropy()
    assert sum(head is policy.head for head in calls) == products


def test_second_derivatives_are_refused():
    x = make()
    x.hidden.requires_grad_()
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(x.log_prob(ACTION).sum(), x.hidden, create_graph=True)


def test_the_gradient_is_added_to_the_sum_that_there_is():
    x = make()
    weight, expected = x.head.weight.requires_grad_(), None
    (expected,) = torch.autograd.grad(x.log_prob(ACTION).sum(), weight)
    weight.grad = total = torch.ones_like(weight)
    x.log_prob(ACTION).sum().backward()
    assert weight.grad is total
    torch.testing.assert_close(total, 1 + expected)


def test_weights_in_double_precision_with_products_in_a_lower_one():
    x = make()
    x.hidden.requires_grad_()
    half = dataclasses.replace(x, head=x.head._replace(precision=torch.bfloat16))
    gradients = [torch.autograd.grad(policy.log_prob(ACTION).sum(), x.hidden)[0] for policy in (half, x)]
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.05)


def test_kl_to_a_distribution_that_is_not_in_blocks():
    x, plain = make(), TokenDistribution(*(getattr(make(10), name) for name in ("hidden", "acts", "head")))
    torch.testing.assert_close(x.kl(plain), x.kl(make(10)))
