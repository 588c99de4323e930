"""The written-out backward pass through time against autograd."""

import pytest
import torch
from builders import accelerated, tape_gradients
from gymnasium import spaces

from rlzoo.control.fast.networks import FastRecurrentMLP
from rlzoo.control.networks import GRU, LSTM, RecurrentMLP
from rlzoo.core.recurrent import GRUCell
from rlzoo.core.seen import Seen


def make_model(kind, **settings):
    model = kind(cell_size=5, hidden=(4,), **settings).build(spaces.Box(-1, 1, (3,)), spaces.Discrete(3)).double()
    for p in model.parameters():
        torch.nn.init.normal_(p, 0, 0.5, generator=torch.Generator().manual_seed(p.numel()))
    return model


@pytest.mark.parametrize("kind", [GRU, LSTM])
@pytest.mark.parametrize(("shared_trunk", "activation"), [(False, "tanh"), (True, "relu")])
@pytest.mark.parametrize("starts", [[], [(0, 0), (1, 4), (1, 5), (2, 8)], [(0, 3), (1, 3), (2, 3)]])
@pytest.mark.parametrize("steps", [1, 9])
def test_tape_gives_the_gradients_of_autograd(kind, shared_trunk, activation, starts, steps):
    model = make_model(kind, shared_trunk=shared_trunk, activation=activation)
    obs, memory = (torch.randn(3, steps, n, dtype=torch.float64) for n in (3, model.memory_size))
    start = torch.zeros(3, steps, dtype=torch.bool)
    for row, step in starts:
        start[row, min(step, steps - 1)] = True
    seen, weight = Seen(obs, start=start, memory=memory), torch.randn(3, steps, dtype=torch.float64)

    def loss():
        policy, value = model(seen)
        return (policy.entropy() * weight + policy.logits[..., 1].sin() * value * weight.flip(0)).sum()

    parameters = list(model.parameters())
    expected = torch.autograd.grad(loss(), parameters)
    accelerated(model)
    for mine, theirs in zip(tape_gradients(loss, parameters), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


class Slower(GRUCell):
    """A user's own cell."""

    def forward(self, projected, memory):
        output, memory = super().forward(projected, memory)
        return output, 0.5 * memory


def test_a_cell_of_another_kind_is_left_to_autograd():
    model = make_model(GRU)
    recurrent = model.policy.net.recurrent
    recurrent.cell.__class__ = Slower
    accelerated(model)
    assert type(model.policy.net) is RecurrentMLP
    assert type(model.value.net) is FastRecurrentMLP
