"""The written-out backward pass of MLPs against autograd."""

import pytest
import torch
from builders import SPACES, make_buffer, make_model

from rlzoo.control.networks import MLP
from rlzoo.optim.fast.tape import Tape


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_tape_gives_the_gradients_of_autograd(space, shared_trunk, activation):
    model = make_model(SPACES[space], hidden=(6, 5), shared_trunk=shared_trunk, activation=activation)
    batch = make_buffer(model).rows(1)

    def loss():
        policy, value = model(batch.obs)
        again = model.distribution(batch.obs.flip(0)).entropy()
        return batch.mean(policy.log_prob(batch.action) * value.sin() + again)

    parameters = list(model.parameters())
    expected = torch.autograd.grad(loss(), parameters)
    with Tape() as tape:
        actual = tape.gradients(loss(), parameters)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_tape_gives_zeros_for_parameters_that_the_loss_does_not_touch():
    model = make_model()
    obs = torch.ones(2, 1, 4, dtype=torch.float64)
    with Tape() as tape:
        grads = tape.gradients(model.value(obs).sum(), model.policy_parameters())
    assert all(not g.any() for g in grads)


def test_tape_ends_with_its_block():
    net, x = MLP(4, (3,), outputs=1), torch.ones(1, 4)
    with pytest.raises(ZeroDivisionError), Tape():
        1 / 0  # noqa: B018
    assert net(x).grad_fn is not None
