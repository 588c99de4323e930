"""Layers with the same result, whose gradients go straight to their place."""

import copy

import pytest
import torch
from lm_builders import make_model, make_rows
from torch import nn

from rlzoo.lm.model.weights import Embedding, use_faster_layers
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam

ROWS = make_rows([(2, 4), (5, 3), (3, 6), (1, 1)])


class Batch:
    """Rows, cut into parts of one or of all."""

    def __init__(self, size):
        self.num_rows, self.size = 4, size

    def parts(self, steps):
        for start in range(0, 4, self.size):
            batch = Batch(self.size)
            batch.cut = slice(start, start + self.size)
            yield batch


def loss(model, batch):
    policy, value = model(ROWS.obs[batch.cut])
    return (value - 1).square().mean() - policy.log_prob(ROWS.action[batch.cut]).sum()


MODELS = {
    "gpt2": {},
    "gpt2 with a critic": {"critic": True},
    "gpt2, head of its own": {"tie_word_embeddings": False},
    "llama": {"kind": "llama"},
    "adapter": {"rank": 2},
}


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_steps_equal_those_of_the_plain_adam(model, size):
    models = [make_model(**model, dtype=torch.float64) for _ in range(2)]
    adams = [Adam(list(model.parameters())) for model in models]
    for model, optimizer in zip(models, (adams[0], FastAdam(adams[1])), strict=True):
        for _ in range(3):
            assert optimizer.minimize(loss, model, Batch(size), learning_rate=0.01) > 0
    torch.testing.assert_close(adams[1].theta, adams[0].theta, rtol=0, atol=1e-12)


def test_steps_in_lower_precision_are_near_those_of_the_plain_adam():
    models = [make_model(settings={"precision": torch.bfloat16}) for _ in range(2)]
    adams = [Adam(list(model.parameters())) for model in models]
    before = adams[0].theta.clone()
    for model, optimizer in zip(models, (adams[0], FastAdam(adams[1])), strict=True):
        optimizer.minimize(loss, model, Batch(4), learning_rate=0.01)
    same = (adams[1].theta - adams[0].theta).abs() < 1e-4
    assert same.float().mean() > 0.99
    assert (adams[0].theta != before).float().mean() > 0.9


def test_an_embedding_equals_that_of_torch_with_and_without_gradient():
    torch.manual_seed(0)
    theirs = nn.Embedding(7, 3, dtype=torch.float64)
    ours, token = Embedding(theirs), torch.tensor([[1, 1, 6], [0, 1, 3]])
    assert ours.weight is theirs.weight
    assert torch.equal(ours(token), theirs(token))
    with torch.no_grad():
        assert torch.equal(ours(token), theirs(token))
    grads = [torch.autograd.grad(layer(token).square().sum(), layer.weight)[0] for layer in (ours, theirs)]
    torch.testing.assert_close(*grads)


def test_only_plain_layers_are_replaced_and_copies_are_independent():
    model = nn.ModuleDict({"plain": nn.Embedding(5, 2), "padded": nn.Embedding(5, 2, padding_idx=0)})
    use_faster_layers(model)
    assert type(model["plain"]) is Embedding
    assert type(model["padded"]) is nn.Embedding
    twin = copy.deepcopy(model)
    assert twin["plain"].weight is not model["plain"].weight
    assert torch.equal(twin["plain"](torch.tensor([3])), model["plain"](torch.tensor([3])))
