"""Layers with the same result, whose gradients are summed in place."""

import copy
import math

import pytest
import torch
from lm_builders import make_fast, make_model, make_rows
from torch import nn

from rlzoo.lm.fast.weights import Embedding, use_faster_layers
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam

ROWS = make_rows([(2, 4), (5, 3), (3, 6), (1, 1)])


class Batch:
    """Rows, cut into micro-batches of one or of all."""

    def __init__(self, size):
        self.num_rows, self.size = 4, size

    def micro_batches(self, steps):
        for start in range(0, 4, self.size):
            yield ROWS.map(lambda x, start=start: x[start : start + self.size])


def loss(model, tokens):
    policy, value = model(tokens)
    return (value - 1).square().mean() - policy.log_prob(tokens.action).sum()


MODELS = {
    "gpt2": {},
    "gpt2 with a critic": {"critic": True},
    "gpt2, head of its own": {"tie_word_embeddings": False},
    "llama": {"kind": "llama"},
    "llama with padding": {"kind": "llama", "pad_token_id": 2},
    "adapter": {"rank": 2},
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_steps_equal_those_of_the_plain_adam(model, size):
    models = [make(**model, dtype=torch.float64) for make in (make_model, make_fast)]
    adams = [Adam(list(model.parameters())) for model in models]
    for model, optimizer in zip(models, (adams[0], FastAdam(adams[1])), strict=True):
        for _ in range(3):
            assert optimizer.minimize(loss, model, Batch(size), learning_rate=0.01) > 0
    torch.testing.assert_close(adams[1].theta, adams[0].theta, rtol=0, atol=1e-11)


def test_steps_in_lower_precision_are_near_those_of_the_plain_adam():
    models = [make(settings={"precision": torch.bfloat16}) for make in (make_model, make_fast)]
    adams = [Adam(list(model.parameters())) for model in models]
    before = adams[0].theta.clone()
    for model, optimizer in zip(models, (adams[0], FastAdam(adams[1])), strict=True):
        optimizer.minimize(loss, model, Batch(4), learning_rate=0.01)
    same = (adams[1].theta - adams[0].theta).abs() < 1e-4
    assert same.float().mean() > 0.99
    assert (adams[0].theta != before).float().mean() > 0.9


def test_an_embedding_equals_that_of_torch_with_and_without_gradient():
    torch.manual_seed(0)
    theirs, ours = (nn.Embedding(7, 3, dtype=torch.float64) for _ in range(2))
    use_faster_layers(nn.ModuleList([ours]))
    ours.weight, token = theirs.weight, torch.tensor([[1, 1, 6], [0, 1, 3]])
    assert type(ours) is Embedding
    assert torch.equal(ours(token), theirs(token))
    with torch.no_grad():
        assert torch.equal(ours(token), theirs(token))
    grads = [torch.autograd.grad(layer(token).square().sum(), layer.weight)[0] for layer in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_an_embedding_adds_nothing_to_sums_of_a_user():
    layer = nn.Embedding(7, 3)
    use_faster_layers(nn.ModuleList([layer]))
    layer.weight.grad = total = torch.ones(7, 3)
    loss = layer(torch.tensor([1, 6])).sum()
    (grad,) = torch.autograd.grad(loss, layer.weight, retain_graph=True)
    assert grad.sum(1).tolist() == [0, 3, 0, 0, 0, 0, 3]
    assert total.eq(1).all()
    loss.backward()
    assert torch.equal(total, 1 + grad)


def test_only_plain_layers_are_replaced_and_copies_are_independent():
    model = nn.ModuleDict({"plain": nn.Embedding(5, 2), "scaled": nn.Embedding(5, 2, scale_grad_by_freq=True)})
    use_faster_layers(model)
    assert type(model["plain"]) is Embedding
    assert type(model["scaled"]) is nn.Embedding
    twin = copy.deepcopy(model)
    assert twin["plain"].weight is not model["plain"].weight
    assert torch.equal(twin["plain"](torch.tensor([3])), model["plain"](torch.tensor([3])))


def test_gelu_is_the_one_it_replaces():
    x = torch.linspace(-6, 6, 1001)
    fused = [m for m in make_fast().modules() if isinstance(m, torch.nn.GELU)]
    assert len(fused) == 2
    expected = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(fused[0](x), expected, rtol=0, atol=1e-6)
