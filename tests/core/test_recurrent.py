"""Memory: rows that are unrolled with resets are the episodes that they consist of."""

import copy
import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlzoo.control.networks import GRU, LSTM, MLP, MLPPolicy, MLPValue
from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic
from rlzoo.core.recurrent import GRUCell, LSTMCell, Recurrent
from rlzoo.core.seen import Seen
from rlzoo.core.system.errors import ConfigError
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

OBS = spaces.Box(-1, 1, (3,))
KINDS = {"gru": GRU, "lstm": LSTM}


def make_model(kind, space=None, **settings):
    network = KINDS[kind](**{"cell_size": 5, "hidden": (4,), **settings})
    return network.build(OBS, space or spaces.Discrete(3), torch.Generator().manual_seed(0)).double()


def make_seen(model, rows, steps, starts=(), seed=0):
    """Random observations, episodes that begin at `starts` (row, step), and a random memory."""
    rng = torch.Generator().manual_seed(seed)
    obs, memory = (torch.randn(rows, steps, n, generator=rng, dtype=torch.float64) for n in (3, model.memory_size))
    start = torch.zeros(rows, steps, dtype=torch.bool)
    for row, step in starts:
        start[row, step] = True
    return Seen(obs, start=start, memory=memory)


@pytest.mark.parametrize(("ours", "theirs"), [(GRUCell, torch.nn.GRU), (LSTMCell, torch.nn.LSTM)])
def test_cells_are_pytorchs(ours, theirs):
    cell, other = ours(3, 4).double(), theirs(3, 4, batch_first=True).double()
    other.load_state_dict(
        {
            "weight_ih_l0": cell.into.weight,
            "bias_ih_l0": cell.into.bias,
            "weight_hh_l0": cell.across.weight,
            "bias_hh_l0": cell.across.bias,
        }
    )
    x = torch.randn(2, 6, 3, dtype=torch.float64)
    no, memory = torch.zeros(2, 6, dtype=torch.bool), torch.zeros(2, 6, cell.memory_size).double()
    seen = Seen(x, start=no, memory=memory)
    torch.testing.assert_close(Recurrent(cell)(seen), other(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_gradient_through_a_row_with_resets_is_that_of_separate_episodes(kind, shared_trunk):
    model = make_model(kind, shared_trunk=shared_trunk)
    seen = make_seen(model, 1, 12, starts=[(0, 4), (0, 5), (0, 9)])
    weight = torch.randn(12, 4, dtype=torch.float64)

    def loss(seen, weight):
        policy, value = model(seen)
        return (policy.logits * weight[:, :3]).sum() + (value * weight[:, 3]).sum()

    whole = torch.autograd.grad(loss(seen, weight), list(model.parameters()))
    total = 0
    for first, last in itertools.pairwise([0, 4, 5, 9, 12]):
        episode = seen.map(lambda x, cut=slice(first, last): x[:, cut])
        episode = episode.replace(start=torch.zeros_like(episode.start))
        if first:
            episode = episode.replace(memory=torch.zeros_like(episode.memory))
        total = total + loss(episode, weight[first:last])
    apart = torch.autograd.grad(total, list(model.parameters()))
    for one, other in zip(whole, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_memory_before_the_first_step_is_used(kind):
    model = make_model(kind)
    seen = make_seen(model, 2, 5)
    later, first = (seen.memory.clone() for _ in range(2))
    later[:, 1:] += 1
    first[:, 0] += 1

    def same(seen, other):
        return torch.equal(model(seen)[0].logits, model(other)[0].logits)

    assert same(seen, seen.replace(memory=later))
    assert not same(seen, seen.replace(memory=first))
    begun = make_seen(model, 2, 5, starts=[(0, 0), (1, 0)])
    assert same(begun, begun.replace(memory=first))


@pytest.mark.parametrize("kind", KINDS)
def test_each_network_has_columns_of_the_memory_of_its_own(kind):
    model = make_model(kind)
    policy, value = (net.recurrent.owned for net in (model.policy.net, model.value.net))
    size = model.memory_size // 2
    assert (policy, value) == (slice(0, size), slice(size, 2 * size))
    seen = make_seen(model, 2, 5)
    for owned, same in ((policy, [False, True]), (value, [True, False])):
        memory = seen.memory.clone()
        memory[..., owned] += 1
        before, after = model(seen), model(seen.replace(memory=memory))
        assert [torch.equal(before[0].logits, after[0].logits), torch.equal(before[1], after[1])] == same


def test_a_network_has_one_place_in_one_memory():
    first, second = make_model("gru"), make_model("gru", cell_size=7)
    with pytest.raises(ConfigError, match=r"^a recurrent network is that of a model with another memory: give a copy"):
        ActorCritic(second.policy, first.value)
    assert first.value.net.recurrent.owned == slice(5, 10)
    assert ActorCritic(first.policy, first.value).memory_size == 10
    copied = ActorCritic(second.policy, copy.deepcopy(first.value))
    assert copied.value.net.recurrent.owned == slice(7, 12)
    first.value.net.recurrent.cell = first.policy.net.recurrent.cell
    with pytest.raises(ConfigError, match=r"^two recurrent networks share a cell"):
        ActorCritic(first.policy, first.value)


@pytest.mark.parametrize("kind", KINDS)
def test_acting_step_by_step_is_the_unrolled_row(kind):
    model = make_model(kind)
    seen = make_seen(model, 4, 7, starts=[(0, 0), (1, 3), (2, 6)])
    memory, logits = seen.memory[:, 0], []
    for t in range(7):
        memory = memory.masked_fill(seen.start[:, t, None], 0)
        policy, memory = model.act(seen.obs[:, t], memory)
        logits.append(policy.logits)
    torch.testing.assert_close(torch.stack(logits, 1), model(seen)[0].logits, rtol=0, atol=1e-12)


class Stacked(nn.Module):
    """An encoder of bytes, a GRU on its features, and another GRU on the outputs of the first."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(3, 6)
        self.lower, self.upper = Recurrent(GRUCell(6, 4)), Recurrent(GRUCell(4, 5))

    def forward(self, seen):
        lower = self.lower(seen.replace(obs=self.encode(seen.obs.double() / 255).tanh()))
        return self.upper(seen.replace(obs=lower))


def test_acting_with_memories_above_an_encoder_is_the_unrolled_row():
    torch.manual_seed(0)
    policy, value = MLPPolicy(MLP(5, (), "tanh", 2), spaces.Discrete(2)), MLPValue(MLP(5, (), "tanh", 1))
    model = ActorCritic(policy, value, Stacked()).double()
    obs = torch.randint(0, 256, (4, 7, 3), dtype=torch.uint8)
    memory, logits = None, []
    for t in range(7):
        policy, memory = model.act(obs[:, t], memory)
        logits.append(policy.logits)
    start, empty = torch.zeros(4, 7, dtype=torch.bool), torch.zeros(4, 7, model.memory_size, dtype=torch.float64)
    unrolled = model(Seen(obs, start=start, memory=empty))[0].logits
    torch.testing.assert_close(torch.stack(logits, 1), unrolled, rtol=0, atol=1e-12)
    assert (memory[:, 4:].abs() > 1e-3).all()


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
@pytest.mark.parametrize("kind", KINDS)
def test_fisher_product_is_that_of_the_explicit_fisher_matrix(kind, space):
    """F = E[Σ_a π ∇log π ∇log πᵀ] for categories, E[JᵀF_out J] with the Fisher matrix of the Gaussian's parameters."""
    model = make_model(kind, space, cell_size=3, hidden=())
    seen = make_seen(model, 2, 4, starts=[(0, 2)])
    none = torch.zeros(2, 4, dtype=torch.bool)
    action = torch.zeros(2, 4, dtype=torch.long) if isinstance(space, spaces.Discrete) else torch.zeros(2, 4, 2)
    buffer = Buffer(seen, action, torch.zeros(2, 4).double(), none, none, ~none)
    flat = FlatPolicy(model)
    theta = flat.theta

    def parameters(theta):
        """All parameters of the distributions, (8, K)."""
        policy = flat(theta, lambda model: model.distribution(seen))
        if hasattr(policy, "logits"):
            return policy.logits.reshape(8, -1)
        return torch.cat([policy.mean, policy.log_std.expand_as(policy.mean)], -1).reshape(8, -1)

    jacobian = torch.autograd.functional.jacobian(parameters, theta)
    fisher = torch.zeros(len(theta), len(theta), dtype=torch.float64)
    for J, row in zip(jacobian, parameters(theta), strict=True):
        if isinstance(space, spaces.Discrete):
            p = row.softmax(-1)
            inner = torch.diag(p) - torch.outer(p, p)
        else:
            inner = torch.diag(torch.cat([torch.exp(-2 * row[2:]), torch.full((2,), 2.0, dtype=torch.float64)]))
        fisher += J.T @ inner @ J / 8
    product = fisher_vector_product(flat, theta, buffer)
    for seed in range(3):
        v = torch.randn(len(theta), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        torch.testing.assert_close(product(v), fisher @ v, rtol=0, atol=1e-10)


def test_rows_are_padded_by_masked_steps():
    rng = np.random.default_rng(0)
    reward = torch.from_numpy(rng.normal(size=(2, 7)))
    none = torch.zeros(2, 7, dtype=torch.bool)
    buffer = Buffer(torch.zeros(2, 8, 3), torch.zeros(2, 7, dtype=torch.long), reward, none, none, ~none)
    rows = buffer.rows(4)
    assert rows.mask.shape == (4, 4)
    assert rows.mask.sum() == 14
    assert rows.row_size == 4
    assert torch.equal(rows.reward[rows.mask], torch.cat([reward[0], reward[1]]))
    assert float(rows.mean(rows.reward)) == pytest.approx(float(reward.mean()))
