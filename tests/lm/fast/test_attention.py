"""Attention by products against PyTorch's fused kernel, and the key-value cache with room."""

import pytest
import torch
from lm_builders import make_actor, make_fast, make_model, make_rows
from transformers.cache_utils import DynamicLayer

from rlzoo.lm.fast import attention as ours
from rlzoo.lm.fast.attention import CachedLayer, attention, use_fastest_attention
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam


class Layer(torch.nn.Module):
    is_causal = True
    num_key_value_groups = 2


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize(("queries", "dtype"), [(6, torch.float32), (6, torch.bfloat16), (1, torch.float32)])
def test_equals_the_fused_kernel(padded, scaling, queries, dtype, monkeypatch):
    """Two queries to each key, and keys of which the first two rows are padding."""
    q, k, v = normal(2, 4, queries, 8, seed=0), normal(2, 2, 6, 8, seed=1), normal(2, 2, 6, 8, seed=2)
    mask = torch.ones(6, 6).tril()[-queries:].bool().expand(2, 1, queries, 6).clone() if padded else None
    if mask is not None:
        mask[1, ..., :2] = False
        mask[1, ..., 2] = True
    out, _ = attention(Layer(), q.to(dtype), k.to(dtype), v.to(dtype), mask, scaling=scaling)
    monkeypatch.setattr(ours, "_LONGEST", {})
    fused, _ = attention(Layer(), q, k, v, mask, scaling=scaling)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), fused, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize(
    ("of_keys", "dtype"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)],
)
def test_a_cache_with_room_keeps_the_keys_and_values_of_hugging_face(of_keys, dtype):
    """Rotary embeddings give keys in float32 where the values are in the precision of products."""
    mine, theirs = CachedLayer(), DynamicLayer()
    for step, tokens in enumerate((3, 1, 1, 4, 1, 1, 1, 20)):
        k, v = normal(2, 4, tokens, 8, seed=step).to(of_keys), normal(2, 4, tokens, 8, seed=100 + step).to(dtype)
        for a, b in zip(mine.update(k, v), theirs.update(k, v), strict=True):
            assert a.dtype == dtype
            assert torch.equal(a, b.to(dtype))
    assert mine.get_seq_length() == 32


def test_keys_in_single_precision_do_not_decide_which_kernel_is_faster(monkeypatch):
    monkeypatch.setattr(ours, "sdpa_attention_forward", None)
    length = ours._LONGEST[torch.float32] + 1
    q, k, v = (normal(1, 2, length, 8, seed=seed) for seed in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = attention(Layer(), q, k, v.bfloat16(), None)
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=0.05)


def test_attention_without_the_fused_kernel_stays_without_it():
    for chosen, name in ours.NAMES.items():
        actor = make_actor(attention=chosen)
        use_fastest_attention(actor)
        assert actor.config._attn_implementation == name


def test_gradients_of_both_kinds_agree(monkeypatch):
    def gradients():
        model, rows = make_fast(), make_rows([(2, 4), (5, 3), (1, 6)])
        logp = model.distribution(rows).log_prob(rows.action)
        return torch.autograd.grad(logp.sum(), model.policy_parameters())

    products = gradients()
    monkeypatch.setattr(ours, "_LONGEST", {})
    for a, b in zip(products, gradients(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fast", [False, True])
def test_a_pass_in_lower_precision_after_a_step_reads_the_new_weights(fast):
    settings = {"precision": torch.bfloat16}
    model, plain, rows = make_fast(settings=settings), make_model(settings=settings), make_rows([(2, 4), (5, 3)])
    adam = Adam(list(model.parameters()))

    def loss(model, batch):
        return -model.distribution(rows).log_prob(rows.action).sum()

    before = loss(model, None)
    (FastAdam(adam) if fast else adam).minimize(loss, model, OneBatch(), learning_rate=0.01)
    plain.load_state_dict(model.state_dict())
    after, expected = (loss(x, None) for x in (model, plain))
    torch.testing.assert_close(after, expected, rtol=0.01, atol=0)
    assert after < 0.9 * before


class OneBatch:
    """A batch whose only part is itself."""

    num_rows = 2

    def micro_batches(self, steps):
        yield self


@pytest.mark.parametrize("queries", [1, 6])
@pytest.mark.parametrize("mask", ["values of another size", "added", "for each head"])
def test_what_only_pytorch_computes(queries, mask):
    """Values of another size than keys, as in DeepSeek; and masks that a user may give."""
    q, k = normal(2, 4, queries, 8, seed=0), normal(2, 2, 6, 8, seed=1)
    v = normal(2, 2, 6, 4 if mask == "values of another size" else 8, seed=2)
    seen = (normal(2, 4, queries, 6, seed=3) > 0) | (torch.arange(6) == 0)
    given = {"values of another size": None, "added": torch.where(seen, 0.0, -1e9)[:, :1], "for each head": seen}[mask]
    with torch.no_grad():
        out, _ = attention(Layer(), q, k, v, given, is_causal=False)
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, given, enable_gqa=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_one_more_token_sees_all_keys_by_products():
    """On a GPU always; here where native code does not take it, as with autograd."""
    q, k, v = (normal(2, 2, n, 8, seed=n) for n in (1, 5, 6))
    v = v[:, :, :5]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    torch.testing.assert_close(ours._products(q * 8**-0.5, k, v, None, causal=True), expected)
