"""Products in float32 by oneDNN against those of PyTorch."""

from pathlib import Path

import pytest
import torch
from lm_builders import make_buffer, make_model, make_rows
from torch import nn
from torch.autograd import forward_ad
from transformers.pytorch_utils import Conv1D

from rlzoo.lm.fast import products
from rlzoo.lm.fast.model import accelerate_model
from rlzoo.lm.fast.products import FastConv1D, FastLinear, matmul
from rlzoo.lm.fast.weights import use_faster_layers
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

LAYERS = {
    "linear": lambda: nn.Linear(24, 40),
    "linear without bias": lambda: nn.Linear(24, 40, bias=False),
    "Conv1D": lambda: Conv1D(40, 24),
}
INPUTS = {"vector": (24,), "rows": (7, 24), "batch": (2, 7, 24)}


@pytest.fixture
def calls(monkeypatch):
    """Products of any size are by oneDNN. The list has the shape of each result."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    shapes, by_onednn = [], products._by_onednn

    def counted(*args):
        result = by_onednn(*args)
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(products, "_WORTH", 0)
    monkeypatch.setattr(products, "_is_faster", lambda: True)
    monkeypatch.setattr(products, "_by_onednn", counted)
    return shapes


def pair(make):
    """A layer, and the faster one with the same weights."""
    torch.manual_seed(0)
    plain, fast = make(), nn.ModuleList([make()])
    fast[0].load_state_dict(plain.state_dict())
    use_faster_layers(fast)
    assert type(fast[0]) in (FastLinear, FastConv1D)
    return plain, fast[0]


@pytest.mark.parametrize("shape", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_layer_has_the_outputs_and_gradients_of_the_plain_one(calls, make, shape):
    layers, x = pair(make), torch.randn(shape).requires_grad_()
    outputs = [layer(x) for layer in layers]
    torch.testing.assert_close(*outputs)
    cotangent = torch.randn_like(outputs[0])
    grads = [
        torch.autograd.grad(y, [x, *layer.parameters()], cotangent) for y, layer in zip(outputs, layers, strict=True)
    ]
    torch.testing.assert_close(*grads)
    assert calls[0] == outputs[0].shape
    assert len(calls) == 3


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("moving", [("x",), ("weight",), ("x", "weight"), ("bias",), ("x", "weight", "bias")])
def test_a_layer_has_the_forward_mode_derivatives_of_the_plain_one(calls, make, moving):
    layers, x = pair(make), torch.randn(7, 24)
    own = dict(layers[0].named_parameters())
    if not {*moving} <= {"x", *own}:
        pytest.skip("without bias")
    values = {name: (x if name == "x" else own[name].detach()) for name in moving}
    tangents = {name: torch.randn_like(value) for name, value in values.items()}
    results = []
    for layer in layers:
        with forward_ad.dual_level():
            dual = {name: forward_ad.make_dual(values[name], tangents[name]) for name in moving}
            y = torch.func.functional_call(layer, {k: v for k, v in dual.items() if k != "x"}, dual.get("x", x))
            results.append(forward_ad.unpack_dual(y))
    torch.testing.assert_close(*results)
    assert calls


def test_frozen_weights_get_no_gradient(calls):
    plain, fast = pair(LAYERS["linear"])
    fast.requires_grad_(False)
    x = torch.randn(7, 24).requires_grad_()
    fast(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(plain(x).sum(), x)[0])
    assert fast.weight.grad is None
    assert len(calls) == 2


def test_other_types_and_followed_operations_are_those_of_pytorch(calls):
    plain, fast = pair(LAYERS["linear"])
    x = torch.randn(7, 24)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast(x), plain(x))
    assert torch.equal(torch.vmap(fast)(x), torch.vmap(plain)(x))
    assert torch.equal(fast.double()(x.double()), plain.double()(x.double()))
    assert not calls


def test_second_derivatives_are_refused(calls):
    _, fast = pair(LAYERS["linear"])
    x = torch.randn(7, 24).requires_grad_()
    with pytest.raises(RuntimeError, match="differentiated once"):
        torch.autograd.grad(fast(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no batched gradients"):
        torch.autograd.grad(fast(x), x, torch.ones(2, 7, 40), is_grads_batched=True)


def test_a_layer_with_a_forward_of_its_own_keeps_it(calls):
    layer = nn.Linear(3, 3)
    layer.forward = lambda x: x
    use_faster_layers(nn.ModuleList([layer]))
    assert type(layer) is nn.Linear


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_gives_the_same_losses_gradients_and_fisher_products(calls, kind):
    rows = make_rows([(2, 4), (5, 3), (3, 6), (1, 1)])
    results = []
    for fast in (False, True):
        model = make_model(kind=kind, attention="eager")
        batch = make_buffer(model, rows).rows(0)
        if fast:
            accelerate_model(model)
            calls.clear()
        policy, value = model(rows)
        loss = (value - 1).square().mean() - policy.log_prob(rows.action).sum()
        gradients = torch.autograd.grad(loss, model.policy_parameters())
        before = len(calls)
        flat = FlatPolicy(model)
        v = torch.randn(flat.theta.shape, generator=torch.Generator().manual_seed(0))
        product = fisher_vector_product(flat, flat.theta, batch)(v)
        results.append((loss.detach(), *gradients, product))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert results[0][-1].abs().max() > 0.01
    assert before > 20
    assert len(calls) > 2 * before  # with those of the forward mode


@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_is_that_of_pytorch(calls, transposed):
    a, b = torch.randn(5, 70), torch.randn(70, 33)
    if transposed:
        a = a.t().contiguous().t()
    torch.testing.assert_close(matmul(a, b), a @ b)
    assert calls == [(5, 33)]


VENDORS = {"vendor_id\t: AuthenticAMD\n": True, "vendor_id\t: GenuineIntel\n": False}


@pytest.mark.parametrize("capability", ["AVX512", "AVX2"])
@pytest.mark.parametrize("vendor", VENDORS)
def test_processors_on_which_it_is_faster(vendor, capability, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda path: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for library in (torch.backends.mkl, torch.backends.mkldnn):
        monkeypatch.setattr(library, "is_available", lambda: True)
    assert products._is_faster.__wrapped__() == (VENDORS[vendor] and capability == "AVX512")


def test_small_products_are_those_of_pytorch(calls, monkeypatch):
    monkeypatch.setattr(products, "_WORTH", 5 * 70 * 33 + 1)
    a, b = torch.randn(5, 70), torch.randn(70, 33)
    assert torch.equal(matmul(a, b), a @ b)
    assert not calls
