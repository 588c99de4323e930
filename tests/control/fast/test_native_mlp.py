"""MLPs in native code against autograd in double precision."""

import copy

import pytest
import torch

from rlzoo.control.fast import mlp
from rlzoo.control.fast.networks import FastMLP, evaluate, pull_back
from rlzoo.control.networks import MLP

SIZES = [(4, (64, 64), 2), (17, (64, 64), 6), (3, (5, 33), 7), (1, (1,), 1), (16, (), 16), (64, (48,), None)]
"""Inputs, hidden layers, outputs."""


def make_net(inputs, hidden, outputs, activation="tanh"):
    torch.manual_seed(3)
    net = MLP(inputs, hidden, activation, outputs)
    for p in net.parameters():
        p.data += 0.3 * torch.randn_like(p)
    net.__class__ = FastMLP
    return net


def make_rows(net, rows):
    """Inputs, and gradients of the outputs."""
    return torch.randn(rows, net.layers[0].in_features), torch.randn(rows, net.outputs)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [0, 1, 5, 191, 192, 193, 400])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_outputs_and_gradients_are_those_of_autograd(sizes, activation, rows):
    net = make_net(*sizes, activation)
    x, grad = make_rows(net, rows)
    exact, exact_x = copy.deepcopy(net).double(), x.double().requires_grad_()
    expected = MLP.forward(exact, exact_x)
    of_exact = torch.autograd.grad(expected, [exact_x, *exact.parameters()], grad.double())

    for p in net.parameters():
        p.grad = torch.ones_like(p)  # gradients are added to what is there
    values = mlp.forward(net, net.affine, x)
    assert values is not None
    assert [len(y) for y in values] == [rows] * (1 + len(net.layers))
    into_input = torch.empty_like(x)
    assert mlp.backward(net, net.affine, values, grad, into_input)
    torch.testing.assert_close(values[-1].double(), expected, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip([into_input, *(p.grad - 1 for p in net.parameters())], of_exact, strict=True):
        scale = theirs.abs().max() if theirs.numel() else 0
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=float(1e-5 * (1 + scale)))


def test_gradients_of_outputs_that_are_not_contiguous():
    net = make_net(4, (8,), 2)
    x, grad = make_rows(net, 10)
    values = evaluate(net, net.affine, x)
    found = []
    for given in (grad, grad.t().contiguous().t(), grad[0].expand(10, 2), grad[:1].repeat(10, 1)):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        into_input = pull_back(net, net.affine, values, given, to_input=True)
        found.append(torch.cat([into_input.flatten(), *(p.grad.flatten() for p in net.parameters())]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[2], found[3])


def test_parameters_without_a_gradient_get_none():
    net = make_net(4, (8,), 2)
    x, grad = make_rows(net, 10)
    expected = torch.autograd.grad(MLP.forward(net, x), list(net.parameters()), grad)
    of_weight, of_bias = net.layers[0].weight, net.layers[1].bias
    of_weight.grad, of_bias.grad = torch.zeros_like(of_weight), torch.zeros_like(of_bias)
    assert mlp.backward(net, net.affine, mlp.forward(net, net.affine, x), grad, None)
    torch.testing.assert_close(of_weight.grad, expected[0])
    torch.testing.assert_close(of_bias.grad, expected[3])
    assert net.layers[0].bias.grad is None
    assert net.layers[1].weight.grad is None


def test_the_hyperbolic_tangent_is_exact_to_rounding_near_0_too():
    net = make_net(1, (1,), None)
    net.layers[0].weight.data.fill_(1)
    net.layers[0].bias.data.zero_()
    x = torch.logspace(-8, 2, 4001)
    x = torch.cat([x, -x, torch.tensor([0, torch.inf, -torch.inf, torch.nan])])[:, None]
    torch.testing.assert_close(
        mlp.forward(net, net.affine, x)[1].double(), x.double().tanh(), rtol=3e-7, atol=0, equal_nan=True
    )


def test_numbers_that_are_not_finite_stay_in_their_row_and_column():
    for activation in ("tanh", "relu"):
        net = make_net(5, (7,), 3, activation)
        x = make_rows(net, 9)[0]
        plain = mlp.forward(net, net.affine, x)
        x[4, 2] = torch.nan
        values = mlp.forward(net, net.affine, x)
        others = [i for i in range(9) if i != 4]
        assert values[-1][4].isnan().all()
        assert torch.equal(values[-1][others], plain[-1][others])


OTHER_TENSORS = {
    "double precision": lambda net, x: (net.double(), x.double()),
    "not contiguous": lambda net, x: (net, x.t().contiguous().t()),
    "weights that are not contiguous": lambda net, x: (transposed(net), x),
    "other inputs than the weights take": lambda net, x: (net, x[:, :3].contiguous()),
    "on no device": lambda net, x: (net.to("meta"), x.to("meta")),
}


def transposed(net):
    weight = net.layers[0].weight
    weight.data = weight.data.t().contiguous().t()
    return net


@pytest.mark.parametrize("case", OTHER_TENSORS)
def test_other_tensors_are_left_to_pytorch(case):
    net = make_net(4, (8,), 2)
    net, x = OTHER_TENSORS[case](net, make_rows(net, 10)[0])
    assert mlp.forward(net, net.affine, x) is None
    if case.startswith("other inputs"):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            evaluate(net, net.affine, x)
    else:
        assert evaluate(net, net.affine, x)[-1].shape == (10, 2)


def test_a_network_without_layers_is_left_to_pytorch():
    net, x = make_net(4, (), None), torch.randn(10, 4)
    (same,) = evaluate(net, net.affine, x)
    assert same is x
    assert pull_back(net, net.affine, [x], 2 * x, to_input=True).equal(2 * x)


def test_gradients_in_memory_of_another_kind_are_left_to_pytorch():
    net = make_net(4, (8,), 2)
    x, grad = make_rows(net, 10)
    values = mlp.forward(net, net.affine, x)
    expected = torch.autograd.grad(MLP.forward(net, x), list(net.parameters()), grad)
    net.layers[0].weight.grad = torch.zeros(4, 8).t()
    assert not mlp.backward(net, net.affine, values, grad, None)
    pull_back(net, net.affine, values, grad)
    torch.testing.assert_close(net.layers[0].weight.grad, expected[0])


def test_several_threads_share_large_batches_by_pytorch():
    torch.set_num_threads(2)
    net = make_net(4, (64,), 2)
    assert mlp.forward(net, net.affine, torch.randn(512, 4)) is not None
    assert mlp.forward(net, net.affine, torch.randn(513, 4)) is None


def test_without_a_compiler_the_results_are_those_of_pytorch(monkeypatch):
    net = make_net(4, (64, 64), 2)
    x, grad = make_rows(net, 50)

    def results():
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        values = evaluate(net, net.affine, x)
        into_input = pull_back(net, net.affine, values, grad, to_input=True)
        return [*values, into_input, *(p.grad for p in net.parameters())]

    native = results()
    monkeypatch.setattr(mlp, "_library", lambda: None)
    assert mlp.forward(net, net.affine, x) is None
    for mine, theirs in zip(native, results(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
