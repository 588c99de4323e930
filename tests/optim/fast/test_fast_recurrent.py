"""The written-out backward pass through time against autograd."""

import pytest
import torch
from gymnasium import spaces

from rlzoo.control.recurrent import GRU, LSTM
from rlzoo.core.recurrent import GRUCell, Recurrent
from rlzoo.optim.fast.recurrent import is_written
from rlzoo.optim.fast.tape import Tape

OBS = spaces.Box(-1, 1, (3,))


def make_model(kind, **settings):
    model = kind(cell_size=5, hidden=(4,), **settings).build(OBS, spaces.Discrete(3)).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, 0, 0.5, generator=torch.Generator().manual_seed(p.numel()))
    return model


def packed(model, rows, steps, starts=()):
    seen = torch.randn(rows, steps, 4 + model.memory_size, dtype=torch.float64)
    seen[..., 3] = 0
    for row, step in starts:
        seen[row, step, 3] = 1
    return seen


@pytest.mark.parametrize("kind", [GRU, LSTM])
@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("starts", [[], [(0, 0), (1, 4), (1, 5), (2, 8)], [(0, 3), (1, 3), (2, 3)]])
def test_tape_gives_the_gradients_of_autograd(kind, shared_trunk, activation, starts):
    model = make_model(kind, shared_trunk=shared_trunk, activation=activation)
    seen = packed(model, 3, 9, starts)
    weight = torch.randn(3, 9, dtype=torch.float64)

    def loss():
        policy, value = model(seen)
        return (policy.entropy() * weight + policy.logits[..., 1].sin() * value * weight.flip(0)).sum()

    parameters = list(model.parameters())
    expected = torch.autograd.grad(loss(), parameters)
    with Tape() as tape:
        actual = tape.gradients(loss(), parameters)
    assert tape.used
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_a_row_of_one_step():
    model = make_model(GRU)
    seen = packed(model, 4, 1)
    expected = torch.autograd.grad(model(seen)[1].sum(), list(model.value.parameters()))
    with Tape() as tape:
        actual = tape.gradients(model(seen)[1].sum(), list(model.value.parameters()))
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


class Slower(GRUCell):
    """A user's own cell."""

    def forward(self, projected, memory):
        output, memory = super().forward(projected, memory)
        return output, 0.5 * memory


def test_a_cell_of_another_kind_is_left_to_autograd():
    assert is_written(Recurrent(GRUCell(2, 3)))
    assert not is_written(Recurrent(Slower(2, 3)))
