"""Llama's layers in native code: which layers become them, and that everything else about them stays."""

import copy
import pickle

import pytest
import torch
from lm_builders import make_actor, make_fast, make_model, make_rows
from torch import nn

from rlzoo.lm.fast import kernels
from rlzoo.lm.fast.layers import GatedMLP, Native, Norm, RotaryAttention, native_layers, use_classes
from rlzoo.lm.fast.model import accelerate_model
from rlzoo.lm.model.language_model import LanguageModel

ROWS = make_rows([(2, 4), (5, 3), (3, 6), (1, 1)])


def results(model, rows=ROWS):
    """Log-probabilities, values, and the gradient of the sum of their squares."""
    policy, value = model(rows)
    logp = policy.log_prob(rows.action)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(logp.square().sum() + value.square().sum(), parameters)
    return logp.detach(), value.detach(), torch.cat([g.reshape(-1) for g in gradient])


def close(model, other):
    """Whether the results of two models differ by rounding."""
    return all(
        float((x - y).norm()) <= 1e-5 * float(y.norm()) for x, y in zip(results(model), results(other), strict=True)
    )


def kinds_in(model):
    return {type(m).__bases__[0] for m in model.modules() if isinstance(m, Native)}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_the_layers_of_llama_and_its_like(kind):
    fast, plain = (make("llama", model_type=kind, num_key_value_heads=1) for make in (make_fast, make_model))
    assert kinds_in(fast) == {Norm, GatedMLP, RotaryAttention}
    assert close(fast, plain)
    assert fast.state_dict().keys() == plain.state_dict().keys()


def test_native_code_computes_where_it_can(monkeypatch):
    """All kinds of calls, counted: without them the test above would compare the plain model with itself."""
    calls = []
    call = kernels._call
    monkeypatch.setattr(kernels, "_call", lambda name, *values: (calls.append(name), call(name, *values)))
    results(make_fast("llama"))
    both = {"swiglu", "rms_norm", "attention"}
    assert set(calls) >= both | {f"{name}_backward" for name in both} | {"softmax_sums", "softmax_gradient"}


def test_another_rotation_is_left_to_the_own_class():
    """Helium's code has the names of Llama's, but rotates other pairs of numbers."""
    fast, plain = (
        make("llama", model_type="helium", head_dim=16, num_key_value_heads=2) for make in (make_fast, make_model)
    )
    assert fast.trunk.unpads
    assert kinds_in(fast) == {Norm, GatedMLP}
    assert close(fast, plain)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "olmo", "clip_qkv": 100.0},
        {"model_type": "ministral3", "head_dim": 16, "sliding_window": None, "num_key_value_heads": 2},
        {"model_type": "smollm3", "num_key_value_heads": 2},
    ],
    ids=lambda x: x["model_type"],
)
def test_attention_that_no_example_tells_from_that_of_llama_keeps_its_class(config):
    """It clips large queries, or scales those far into a text, or does not rotate in some layers."""
    kinds = set(native_layers(make_actor("llama", **config)).values())
    assert GatedMLP in kinds
    assert RotaryAttention not in kinds


def test_another_activation_is_no_gated_silu():
    actor = make_actor("llama", hidden_act="gelu")
    assert native_layers(actor) == {}
    assert native_layers(type("InC", (nn.Module,), {"forward": len})()) == {}
    model = LanguageModel(actor)
    accelerate_model(model)
    assert not kinds_in(model)


def test_layers_that_compute_otherwise_get_their_classes_back(monkeypatch):
    monkeypatch.setattr("rlzoo.lm.fast.layers.swiglu", lambda gate, up: gate * up)
    fast, plain = make_fast("llama"), make_model("llama")
    assert not kinds_in(fast)
    assert fast.trunk.unpads
    assert close(fast, plain)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copied", "pickled"])
def test_layers_can_be_copied_and_pickled(copied):
    actor = make_fast("llama").actor
    other = copied(actor)
    token = torch.arange(4).unsqueeze(0)
    assert torch.equal(other(token).logits, actor(token).logits)
    assert kinds_in(other) == kinds_in(actor)
    with torch.no_grad():
        next(iter(other.parameters())).add_(1)
    assert not torch.equal(other(token).logits, actor(token).logits)


def test_classes_are_put_back():
    model = make_actor("llama")
    before = [type(m) for m in model.modules()]
    kinds = native_layers(model)
    use_classes(kinds)
    use_classes(kinds)
    assert kinds_in(model) == {Norm, GatedMLP, RotaryAttention}
    use_classes(dict.fromkeys(kinds))
    assert [type(m) for m in model.modules()] == before


def test_results_without_a_compiler_are_the_same(monkeypatch):
    plain = make_model("llama")
    monkeypatch.setattr(kernels, "_library", lambda: None)
    assert close(make_fast("llama"), plain)


def test_an_adapter_stays_where_it_is():
    fast, plain = make_fast("llama", rank=2), make_model("llama", rank=2)
    assert kinds_in(fast) == {Norm, GatedMLP, RotaryAttention}
    assert close(fast, plain)
    assert not any(isinstance(m, Native) for m in nn.ModuleList([plain]).modules())


def test_projections_of_several_precisions_are_computed_in_that_of_the_values():
    """Some adapters give single precision where products are in bfloat16."""
    fast, same = (make_fast("llama", settings={"precision": torch.bfloat16}) for _ in range(2))
    for layer in fast.trunk.base.layers:
        layer.self_attn.k_proj.register_forward_hook(lambda module, inputs, output: output.float())
    assert close(fast, same)


TOKEN = torch.arange(5).unsqueeze(0)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_actor_is_traced_without_native_code(kind):
    actor = make_fast(kind).actor.requires_grad_(False)
    traced = torch.jit.trace(lambda token: actor(token, use_cache=False).logits, TOKEN, check_trace=False)
    torch.testing.assert_close(traced(TOKEN), actor(TOKEN).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_an_actor_generates_with_a_static_cache(kind):
    fast, plain = (make(kind).actor for make in (make_fast, make_model))
    more = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True}
    texts = [actor.generate(TOKEN, attention_mask=torch.ones_like(TOKEN), **more) for actor in (fast, plain)]
    assert torch.equal(*texts)


def test_an_actor_computes_in_half_precision():
    actor = make_fast("llama").actor
    with torch.autocast("cpu", torch.float16):
        assert actor(TOKEN).logits.isfinite().all()


def test_batched_gradients_are_refused():
    model = make_fast("llama")
    logits = model.actor(TOKEN).logits[0, -1, :2]
    with pytest.raises(RuntimeError, match="no batched gradients"):
        torch.autograd.grad(logits, next(model.actor.parameters()), torch.eye(2), is_grads_batched=True)
