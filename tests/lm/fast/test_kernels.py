"""Native code between matrix products against the same in double precision by PyTorch."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional

from rlzoo.core.distributions import IMPOSSIBLE
from rlzoo.lm.fast import kernels
from rlzoo.lm.fast.kernels import Segments, Slopes
from rlzoo.lm.fast.vocabulary import _gradient, _sums

PRECISIONS = {torch.float32: 3e-6, torch.bfloat16: 1e-2}
TREES = {
    "one": [(5, [])],
    "some": [(3, [4, 1, 6]), (2, []), (1, [1])],
    "longer than a block": [(70, [100, 9]), (17, [49])],
}
"""Lengths of prompts, and of what follows each of them."""


@pytest.fixture(params=PRECISIONS, ids=str, autouse=True)
def dtype(request):
    assert kernels.takes(torch.ones(1, dtype=request.param)), "this test needs a C++ compiler"
    return request.param


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near(x, expected):
    x, expected = x.detach(), expected.detach()
    return float((x.double() - expected).norm()) <= PRECISIONS[x.dtype] * float(expected.norm())


def segments_of(trees):
    segments, begins, place = [], [0], 0
    for length, others in trees:
        root = place
        segments.append([root, length, 0, 0])
        place += length
        for other in others:
            segments.append([place, other, root, length])
            place += other
        begins.append(len(segments))
    return Segments(torch.tensor(segments), torch.tensor(begins)), place


def same_gradients(outputs, inputs, doubles):
    """Whether a result and its gradients are near those of the same function of `doubles`."""
    ours, expected = outputs
    slope = normal(*ours.shape, seed=9, dtype=ours.dtype)
    gradients = torch.autograd.grad(ours, inputs, slope), torch.autograd.grad(expected, doubles, slope.double())
    return near(ours, expected) and all(near(x, y) for x, y in zip(*gradients, strict=True))


@pytest.mark.parametrize("trees", TREES.values(), ids=TREES)
@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 32), (6, 2, 64), (2, 1, 6), (3, 1, 20)])
@pytest.mark.parametrize("rotated", [False, True])
def test_attention_and_its_gradients(trees, heads, groups, size, rotated, dtype):
    segments, tokens = segments_of(trees)
    inputs = [normal(1, tokens, n, size, seed=n + i, dtype=dtype) for i, n in enumerate((heads, groups, groups))]
    inputs = [x.transpose(1, 2).requires_grad_() for x in inputs]
    angle = normal(1, tokens, size // 2).repeat(1, 1, 2)
    angles = (angle.cos(), angle.sin()) if rotated else None
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    q, k, v = doubles
    if angles is not None:
        q, k = (x * angles[0] + torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1) * angles[1] for x in (q, k))
    seen = torch.zeros(tokens, tokens, dtype=torch.bool)
    for start, length, before, count in segments.segments.tolist():
        own = slice(start, start + length)
        seen[own, before : before + count] = True
        seen[own, own] = torch.ones(length, length, dtype=torch.bool).tril()
    out = functional.scaled_dot_product_attention(q, k, v, seen, scale=0.3, enable_gqa=True).transpose(1, 2)
    assert same_gradients((kernels.attention(*inputs, segments, 0.3, angles), out), inputs, doubles)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 32), (6, 2, 64), (3, 1, 20)])
def test_attention_of_one_more_token_to_keys_with_room(masked, heads, groups, size, dtype):
    q = normal(5, 1, heads, size, dtype=dtype).transpose(1, 2)
    k, v = (normal(5, groups, 40, size, seed=i, dtype=dtype)[:, :, :23] for i in (1, 2))
    mask = (normal(5, 1, 1, 23) > 0) | (torch.arange(23) == 22) if masked else None
    out = kernels.attention_step(q, k, v, mask, 0.3)
    given = (x.double() for x in (q, k, v))
    expected = functional.scaled_dot_product_attention(*given, mask, scale=0.3, enable_gqa=True).transpose(1, 2)
    assert out.is_contiguous()
    assert near(out, expected)


@pytest.mark.parametrize("shape", [(1,), (3, 37), (130, 200)])
def test_activations_and_their_gradients(shape, dtype):
    pair = [(3 * normal(*shape, seed=i, dtype=dtype)).requires_grad_() for i in range(2)]
    doubles = [x.detach().double().requires_grad_() for x in pair]
    expected = functional.silu(doubles[0]) * doubles[1]
    assert same_gradients((kernels.swiglu(*pair), expected), pair, doubles)
    expected = functional.gelu(doubles[0], approximate="tanh")
    assert same_gradients((kernels.gelu(pair[0]), expected), pair[:1], doubles[:1])


def test_activations_of_large_numbers_are_their_limits(dtype):
    x = torch.tensor([-1e4, -100.0, 100.0, 1e4, float("nan")], dtype=dtype, requires_grad=True)
    y = kernels.gelu(x), kernels.swiglu(x, torch.ones_like(x))
    for out in y:
        assert near(out[:4], x[:4].double().clamp(min=0))
        (slope,) = torch.autograd.grad(out, x, torch.ones_like(x))
        torch.testing.assert_close(slope[:4].float(), torch.tensor([0.0, 0, 1, 1]))
        assert out[4].isnan()
        assert slope[4].isnan()


@pytest.mark.parametrize("shape", [(1, 5), (2, 3, 37), (70, 64)])
@pytest.mark.parametrize("trained", [False, True])
def test_a_normalisation_and_its_gradients(shape, trained, dtype):
    x, weight = normal(*shape, seed=1).requires_grad_(), normal(shape[-1], seed=2).requires_grad_(trained)
    x_, weight_ = (y.detach().double().requires_grad_(y.requires_grad) for y in (x, weight))
    expected = weight_ * x_ * torch.rsqrt(x_.square().mean(-1, keepdim=True) + 1e-5)
    inputs, doubles = ([x, weight], [x_, weight_]) if trained else ([x], [x_])
    ours = kernels.rms_norm(x, weight, 1e-5, dtype)
    assert ours.dtype == dtype
    slope = normal(*shape, seed=3, dtype=dtype)
    gradients = torch.autograd.grad(ours, inputs, slope), torch.autograd.grad(expected, doubles, slope.double())
    assert near(ours, expected)
    assert all(near(a, b) for a, b in zip(*gradients, strict=True))


def test_a_sum_in_single_precision(dtype):
    total, x = normal(50, 41), normal(50, 41, seed=1, dtype=dtype)
    expected = total + x.float()
    kernels.add_to(total, x)
    assert torch.equal(total, expected)
    kernels.add_to(total.t(), x.t())
    assert torch.equal(total, expected + x.float())


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("columns", [1, 33, 700])
def test_sums_over_a_vocabulary_and_their_gradients(older, entropy, columns, dtype):
    logits, old = (20 * normal(40, columns, seed=i, dtype=dtype) for i in range(2))
    if columns > 1:
        logits[::2, 0] = old[::2, 0] = IMPOSSIBLE
    action = torch.arange(40).unsqueeze(1) % columns
    given, wide = (logits, old if older else None), (logits.double(), old.double() if older else None)
    sums, expected = kernels.softmax_sums(*given, action, entropy), _sums(*wide, action, entropy)
    for ours, theirs in zip(sums, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)
    slopes = [normal(40, seed=i) for i in range(6)]
    log_z, old_log_z = expected.total.float(), expected.old_total
    of_entropy, h = (slopes[2], slopes[5]) if entropy else (None, None)
    values = Slopes(*slopes[:2], of_entropy, log_z, None if old_log_z is None else old_log_z.float(), h)
    in_double = Slopes(*(None if x is None else x.double() for x in values))
    of_action = torch.where(torch.arange(40) % 3 > 0, slopes[0], 0)
    ours = kernels.softmax_gradient(*given, action, of_action, values)
    theirs = _gradient(*wide, action, of_action.double(), in_double)
    assert ours.dtype == dtype
    assert float((ours.double() - theirs).norm()) <= 3 * PRECISIONS[dtype] * float(theirs.norm())


def test_results_do_not_depend_on_the_number_of_threads(dtype):
    segments, tokens = segments_of([(30, [40, 50, 60])] * 4)
    inputs = [normal(1, 4, tokens, 32, seed=i, dtype=dtype).requires_grad_() for i in range(3)]
    x, weight = normal(300, 64).requires_grad_(), normal(64).requires_grad_()
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out, y = kernels.attention(*inputs, segments, 0.2, None), kernels.rms_norm(x, weight, 1e-5, dtype)
        gradients = torch.autograd.grad(out.float().sum() + y.float().square().sum(), [*inputs, x, weight])
        results.append([out, y, *gradients])
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


def test_what_native_code_does_not_take(dtype, monkeypatch):
    x = torch.ones(2, dtype=dtype)
    assert kernels.takes(x, x)
    assert not kernels.takes(x.double())
    assert not kernels.takes(x, x.half())
    assert not kernels.takes(x.to("meta"))
    with forward_ad.dual_level():
        assert not kernels.takes(x)
    taken = []
    torch.func.vmap(lambda y: taken.append(kernels.takes(y)) or y)(x)
    assert taken == [False]
    monkeypatch.setattr(kernels, "_has_threads", lambda: False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not kernels.takes(x)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert kernels.takes(x)
    monkeypatch.setattr(kernels, "_library", lambda: None)
    assert not kernels.takes(x)


def test_second_derivatives_are_refused(dtype):
    x = torch.ones(2, dtype=dtype, requires_grad=True)
    with pytest.raises(RuntimeError, match="this model can be differentiated once"):
        torch.autograd.grad(kernels.gelu(x).sum(), x, create_graph=True)
