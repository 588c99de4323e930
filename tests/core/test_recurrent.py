"""Memory: rows that are unrolled with resets are the episodes that they consist of."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlzoo.control.recurrent import GRU, LSTM
from rlzoo.core.buffer import Buffer
from rlzoo.core.recurrent import GRUCell, LSTMCell, Recurrent
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

OBS = spaces.Box(-1, 1, (3,))
KINDS = {"gru": GRU, "lstm": LSTM}


def make_model(kind, space=None, **settings):
    network = KINDS[kind](**{"cell_size": 5, "hidden": (4,), **settings})
    return network.build(OBS, space or spaces.Discrete(3), torch.Generator().manual_seed(0)).double()


def packed(model, rows, steps, starts=(), seed=0):
    """What a model sees: random observations, episodes that begin at `starts` (row, step), and a random memory."""
    rng = torch.Generator().manual_seed(seed)
    obs = torch.randn(rows, steps, 3, generator=rng, dtype=torch.float64)
    start = torch.zeros(rows, steps, 1, dtype=torch.float64)
    for row, step in starts:
        start[row, step] = 1
    memory = torch.randn(rows, steps, model.memory_size, generator=rng, dtype=torch.float64)
    return torch.cat([obs, start, memory], -1)


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
    seen = torch.cat([x, torch.zeros(2, 6, 1 + cell.memory_size)], -1).double()
    torch.testing.assert_close(Recurrent(cell)(seen), other(x)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_gradient_through_a_row_with_resets_is_that_of_separate_episodes(kind, shared_trunk):
    model = make_model(kind, shared_trunk=shared_trunk)
    seen = packed(model, 1, 12, starts=[(0, 4), (0, 5), (0, 9)])
    weight = torch.randn(12, 4, dtype=torch.float64)

    def loss(seen, weight):
        policy, value = model(seen)
        return (policy.logits * weight[:, :3]).sum() + (value * weight[:, 3]).sum()

    whole = torch.autograd.grad(loss(seen, weight), list(model.parameters()))
    total = 0
    for first, last in itertools.pairwise([0, 4, 5, 9, 12]):
        episode = seen[:, first:last].clone()
        episode[..., 3] = 0
        if first:
            episode[..., 4:] = 0  # an empty memory
        total = total + loss(episode, weight[first:last])
    apart = torch.autograd.grad(total, list(model.parameters()))
    for one, other in zip(whole, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_memory_before_the_first_step_is_used(kind):
    model = make_model(kind)
    seen = packed(model, 2, 5)
    changed = seen.clone()
    changed[:, 1:, 4:] += 1
    assert torch.equal(model(seen)[0].logits, model(changed)[0].logits)
    changed[:, 0, 4:] += 1
    assert not torch.equal(model(seen)[0].logits, model(changed)[0].logits)
    begun = seen.clone()
    begun[:, 0, 3] = 1
    changed[:, 0, 3] = 1
    assert torch.equal(model(begun)[0].logits, model(changed)[0].logits)


@pytest.mark.parametrize("kind", KINDS)
def test_acting_step_by_step_is_the_unrolled_row(kind):
    model = make_model(kind)
    seen = packed(model, 4, 7, starts=[(0, 0), (1, 3), (2, 6)])
    memory, logits = seen[:, 0, 4:], []
    for t in range(7):
        memory = memory * (1 - seen[:, t, 3:4])
        policy, memory = model.act(seen[:, t, :3], memory)
        logits.append(policy.logits)
    torch.testing.assert_close(torch.stack(logits, 1), model(seen)[0].logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
@pytest.mark.parametrize("kind", KINDS)
def test_fisher_product_is_that_of_the_explicit_fisher_matrix(kind, space):
    """F = E[Σ_a π ∇log π ∇log πᵀ] for categories, E[JᵀF_out J] with the Fisher matrix of the Gaussian's parameters."""
    model = make_model(kind, space, cell_size=3, hidden=())
    seen = packed(model, 2, 4, starts=[(0, 2)])
    none = torch.zeros(2, 4, dtype=torch.bool)
    action = torch.zeros(2, 4, dtype=torch.long) if isinstance(space, spaces.Discrete) else torch.zeros(2, 4, 2)
    buffer = Buffer(seen, action, torch.zeros(2, 4).double(), none, none, ~none)
    flat = FlatPolicy(model)
    theta = flat.theta

    def parameters(theta):
        """All parameters of the distributions, (8, K)."""
        found = []

        def term(model):
            policy = model.distribution(seen)
            parts = (
                [policy.logits] if hasattr(policy, "logits") else [policy.mean, policy.log_std.expand_as(policy.mean)]
            )
            found.append(torch.cat(parts, -1).reshape(8, -1))
            return found[0].sum()

        flat(theta, term)
        return found[0]

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


@pytest.mark.parametrize("kind", KINDS)
def test_each_network_remembers_in_columns_of_its_own(kind):
    model = make_model(kind, shared_trunk=False)
    policy, value = (
        next(x for x in part.modules() if isinstance(x, Recurrent)).owned for part in (model.policy, model.value)
    )
    columns = list(range(model.memory_size))
    assert columns[policy] + columns[value] == columns
    seen = packed(model, 2, 3)
    before, values = model(seen)
    for owned in (policy, value):
        other = seen.clone()
        other[:, 0, 4:][:, owned] += 1
        after, changed = model(other)
        assert torch.equal(before.logits, after.logits) == (owned is value)
        assert torch.equal(values, changed) == (owned is policy)
