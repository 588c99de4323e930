"""MLPs in fewer operations, and their written-out backward pass, against autograd on the plain ones."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from builders import SPACES, accelerated, make_buffer, make_model, tape_gradients
from torch.autograd import forward_ad
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx

from rlzoo.control.fast.networks import FastMLP
from rlzoo.control.networks import MLP
from rlzoo.optim.fast.tape import Tape, TapeJacobian
from rlzoo.optim.fisher import jacobian
from rlzoo.optim.natural_gradient import FlatPolicy


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("space", SPACES)
def test_tape_gives_the_gradients_of_autograd(space, shared_trunk, activation):
    settings = {"hidden": (6, 5), "shared_trunk": shared_trunk, "activation": activation}
    plain, fast = make_model(SPACES[space], **settings), accelerated(make_model(SPACES[space], **settings))
    batch = make_buffer(plain).rows(1)

    def loss(model):
        policy, value = model(batch.obs)
        again = model.distribution(batch.obs.flip(0)).entropy()
        return batch.mean(policy.log_prob(batch.action) * value.sin() + again)

    expected = torch.autograd.grad(loss(plain), list(plain.parameters()))
    by_autograd = torch.autograd.grad(loss(fast), list(fast.parameters()))
    by_tape = tape_gradients(lambda: loss(fast), list(fast.parameters()))
    for theirs, one, two in zip(expected, by_autograd, by_tape, strict=True):
        torch.testing.assert_close(one, theirs)
        torch.testing.assert_close(two, theirs)


@pytest.mark.parametrize("frozen", [None, "bias", "weight"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    "settings", [{}, {"shared_trunk": True}, {"state_dependent_std": True}, {"hidden": ()}], ids=str
)
@pytest.mark.parametrize("space", SPACES)
def test_products_with_the_jacobian_are_those_of_autograd(space, settings, activation, frozen):
    settings = {"hidden": (6, 5), "activation": activation, **settings}
    plain, fast = make_model(SPACES[space], **settings), accelerated(make_model(SPACES[space], **settings))
    batch = make_buffer(plain).rows(1)

    def products(model):
        if frozen:
            getattr(model.policy.net.layers[-1], frozen).requires_grad_(False)
        policy = FlatPolicy(model)
        at_theta = jacobian(policy, policy.theta + 0.1, batch)
        found = []
        for v in torch.eye(len(policy.theta), dtype=torch.float64)[::7]:
            pushed, pulled = at_theta.push(v), torch.ones_like(v)
            at_theta.pull([y.sin() for y in pushed], pulled, keep=True)
            found += [*pushed, pulled]
        return at_theta, found

    (_, expected), (at_theta, found) = products(plain), products(fast)
    assert isinstance(at_theta, TapeJacobian)
    assert at_theta.tape.records
    for theirs, own in zip(expected, found, strict=True):
        torch.testing.assert_close(own, theirs)


def test_jacobian_of_a_policy_that_leaves_out_what_a_network_computed():
    model = accelerated(make_model())
    unused = FastMLP(4, (3,)).double()
    model.policy.register_forward_pre_hook(lambda policy, args: unused(args[0]) is None or None)
    policy, batch = FlatPolicy(model), make_buffer(model).rows(1)
    at_theta, total = jacobian(policy, policy.theta, batch), torch.zeros_like(policy.theta)
    at_theta.pull(at_theta.push(torch.ones_like(total)), total, keep=True)
    assert len(at_theta.tape.records) == 2
    assert total.abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_are_those_of_the_plain_network_to_rounding(dtype):
    net = MLP(1, (1,)).to(dtype)
    x = torch.linspace(-30, 30, 2001, dtype=dtype)[:, None]
    expected = net(x)
    net.__class__ = FastMLP
    torch.testing.assert_close(net(x), expected, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_outputs_without_gradient_are_those_of_the_plain_network_to_rounding(dtype):
    net = make_fast(MLP(3, [16, 16], outputs=2)).to(dtype)
    x = torch.randn(7, 5, 3, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(net(x), MLP.forward(net, x), rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_derivatives_and_traces_pass_a_network_without_gradient():
    net = make_fast(MLP(3, [16], outputs=2)).double()
    x, v = torch.randn(2, 5, 3, dtype=torch.float64).unbind()
    (expected,) = torch.autograd.functional.jvp(lambda x: MLP.forward(net, x), x, v)[1:]
    parameters, zeros = dict(net.named_parameters()), {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    with torch.no_grad():
        assert torch.allclose(torch.func.jvp(net, (x,), (v,))[1], expected, rtol=1e-12)
        at = torch.func.jvp(lambda p, x: torch.func.functional_call(net, p, x), (parameters, x), (zeros, v))
        assert torch.allclose(at[1], expected, rtol=1e-12)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(x, v))).tangent
            assert torch.allclose(tangent, expected, rtol=1e-12)
        assert torch.allclose(torch.vmap(net)(x), net(x), rtol=1e-12)
        for trace in (lambda: make_fx(net)(x), lambda: torch.jit.trace(net, x), lambda: export(net, (x,)).module()):
            assert torch.allclose(trace()(v), MLP.forward(net, v), rtol=1e-12)


def make_fast(net):
    net.__class__ = FastMLP
    return net


def test_tape_gives_zeros_for_parameters_that_the_loss_does_not_touch():
    model = accelerated(make_model())
    obs = torch.ones(2, 1, 4, dtype=torch.float64)
    grads = tape_gradients(lambda: model.value(obs).sum(), model.policy_parameters())
    assert all(not g.any() for g in grads)


def test_tape_ends_with_its_block():
    net, x = FastMLP(4, (3,), outputs=1), torch.ones(1, 4)
    with pytest.raises(ZeroDivisionError), Tape():
        1 / 0  # noqa: B018
    assert net(x).grad_fn is not None


def test_tape_records_neither_other_threads_nor_what_needs_no_gradient():
    net, x = FastMLP(4, (3,), outputs=1), torch.ones(1, 4)
    with Tape() as tape, ThreadPoolExecutor(1) as pool:
        assert pool.submit(net, x).result().grad_fn is not None
        with torch.no_grad():
            assert not net(x).requires_grad
        assert not tape.records
        net(x)
        assert len(tape.records) == 1
