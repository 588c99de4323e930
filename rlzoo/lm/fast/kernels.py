"""What a transformer computes between the products with its weights, in native code: each in one pass over its numbers.

Results are in float32 or bfloat16, and computed in float32. Gradients can be differentiated no further.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd import forward_ad

from rlzoo.core.fast.library import build_library

TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""Precisions in which numbers are kept, and the names that functions of native code end with."""


def check_interfaces() -> None:
    """Raises `AttributeError` if PyTorch lacks what is asked here, which is no public part of it."""
    for name in ("peek_interpreter_stack", "is_batchedtensor", "is_legacy_batchedtensor"):
        getattr(torch._C._functorch, name)
    for place, name in ((forward_ad, "_current_level"), (torch._C, "_get_tracing_state")):
        getattr(place, name)


def refuse_second_derivatives(grad: Tensor | None = None) -> None:
    """Raises `RuntimeError` in a backward pass with `create_graph`, which PyTorch's `once_differentiable` lets pass.

    Given a gradient, also if it is a batch of gradients.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("this model can be differentiated once: for Fisher products use fisher_vector_product")
    batched = torch._C._functorch.is_batchedtensor, torch._C._functorch.is_legacy_batchedtensor
    if grad is not None and any(is_batched(grad) for is_batched in batched):
        raise RuntimeError("this model has no batched gradients: use a plain one (fast=False)")


def takes(*tensors: Tensor) -> bool:
    """Whether native code computes with these tensors, which it cannot where PyTorch follows each operation."""
    first = tensors[0]
    if first.dtype not in TYPES or any(not x.is_cpu or x.dtype is not first.dtype for x in tensors):
        return False
    if forward_ad._current_level >= 0 or is_followed(*tensors) or _library() is None:
        return False
    return _has_threads() or torch.get_num_threads() == 1


def is_followed(*tensors: Tensor) -> bool:
    """Whether something follows each operation on these tensors: a transform, a tracer, or a class of their own."""
    followed = torch._C._functorch.peek_interpreter_stack() is not None or torch._C._get_tracing_state() is not None
    return followed or torch.compiler.is_compiling() or any(type(x) not in (Tensor, nn.Parameter) for x in tensors)


def _call(name: str, dtype: torch.dtype, *values: Any) -> None:
    arguments = [_argument(x) for x in values]
    _function(name, TYPES[dtype])(*arguments)


def _argument(x: Any) -> Any:
    if isinstance(x, Tensor):
        return ctypes.c_void_p(x.data_ptr())
    if isinstance(x, float):
        return ctypes.c_float(x)
    return ctypes.c_int64(x or 0) if x is None or isinstance(x, int) else x


@functools.cache
def _function(name: str, dtype: str) -> Any:
    return ctypes.CFUNCTYPE(None)(ctypes.c_void_p.in_dll(_library(), f"{name}_{dtype}").value or 0)


@functools.cache
def _library() -> Any:
    return build_library(Path(__file__).with_suffix(".cpp"), fused=True)


@functools.cache
def _has_threads() -> bool:
    """Whether native code runs in the threads of PyTorch: by the OpenMP that PyTorch has loaded."""
    with contextlib.suppress(OSError, AttributeError):
        _library().use_threads(ctypes.CDLL(torch._C.__file__).GOMP_parallel)
        return True
    return False


def add_to(total: Tensor, x: Tensor) -> None:
    """total += x, of which PyTorch would make a copy in float32."""
    if total.dtype is torch.float32 and total.is_contiguous() and x.is_contiguous() and total.is_cpu and takes(x):
        _call("add_to", x.dtype, x.numel(), x, total)
    else:
        total += x


def transpose(x: Float[Tensor, "M N"]) -> Float[Tensor, "N M"]:
    """The transpose of a contiguous matrix, which is contiguous too."""
    out = x.new_empty(x.shape[1], x.shape[0])
    _call("transpose", x.dtype, *x.shape, x, out)
    return out


class _SwiGLU(torch.autograd.Function):
    """silu(gate)·up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _call("swiglu", gate.dtype, gate.numel(), gate, up, out)
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        refuse_second_derivatives(grad)
        gate, up = ctx.saved_tensors
        d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
        _call("swiglu_backward", gate.dtype, gate.numel(), gate, up, grad.contiguous(), d_gate, d_up)
        return d_gate, d_up


swiglu: Callable[[Tensor, Tensor], Tensor] = _SwiGLU.apply
"""silu(gate)·up."""


class _GELU(torch.autograd.Function):
    """GELU in its approximation by tanh."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        _call("gelu", x.dtype, x.numel(), x, out)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        refuse_second_derivatives(grad)
        (x,) = ctx.saved_tensors
        dx = torch.empty_like(x)
        _call("gelu_backward", x.dtype, x.numel(), x, grad.contiguous(), dx)
        return dx


gelu: Callable[[Tensor], Tensor] = _GELU.apply
"""GELU in its approximation by tanh."""


class _RMSNorm(torch.autograd.Function):
    """x / √(mean of x² + ε) · weight, in the given precision."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "*batch H"], weight: Float[Tensor, "H"], eps: float, dtype: torch.dtype
    ) -> Float[Tensor, "*batch H"]:
        x, size = x.contiguous(), x.shape[-1]
        out, scale = torch.empty_like(x, dtype=dtype), x.new_empty(x.numel() // size)
        _call("rms_norm", dtype, scale.numel(), size, eps, x, weight, out, scale)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "*batch H"]) -> tuple[Tensor, Tensor | None, None, None]:
        refuse_second_derivatives(grad)
        x, weight, scale = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        shape = scale.numel(), x.shape[-1]
        _call("rms_norm_backward", grad.dtype, *shape, x, weight, scale, grad.contiguous(), dx, dw)
        return dx, dw, None, None


rms_norm: Callable[[Tensor, Tensor, float, torch.dtype], Tensor] = _RMSNorm.apply
"""x / √(mean of x² + ε) · weight, in the given precision."""


class Segments(NamedTuple):
    """Where the tokens of rows are among S, for attention."""

    segments: Int[Tensor, "N 4"]
    """Of each segment its first token and its length, and those of what it sees besides itself."""
    trees: Int[Tensor, "U+1"]
    """Where the segments begin that see the same one, which is the first of them; and their number."""


class _Heads(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("token", ctypes.c_int64), ("head", ctypes.c_int64)]


class _Shape(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("heads", "groups", "size")),
        ("scale", ctypes.c_float),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
    ]


def _heads(x: Float[Tensor, "1 h S d"]) -> _Heads:
    return _Heads(x.data_ptr(), x.stride(2), x.stride(1))


class _Attention(torch.autograd.Function):
    """Causal attention of `Segments`. Given cos and sin (1, S, d) of angles, queries and keys are rotated first."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Float[Tensor, "1 h S d"],
        key: Float[Tensor, "1 g S d"],
        value: Float[Tensor, "1 g S d"],
        segments: Segments,
        scale: float,
        angles: tuple[Tensor, Tensor] | None,
    ) -> Float[Tensor, "1 S h d"]:
        query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
        _, heads, tokens, size = query.shape
        out, log_z = query.new_empty(1, tokens, heads, size), query.new_empty(heads, tokens, dtype=torch.float32)
        ctx.angles = None if angles is None else [x.float().contiguous() for x in angles]
        ctx.segments, ctx.scale = segments, scale
        ctx.save_for_backward(query, key, value, log_z)
        where = segments.segments, len(segments.segments), tokens, ctypes.byref(_shape(ctx, query, key))
        _call("attention", query.dtype, *where, *map(_heads, (query, key, value, out.transpose(1, 2))), log_z)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "1 S h d"]) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives(grad)
        query, key, value, log_z = ctx.saved_tensors
        inputs = query, key, value
        grads = [x.new_empty(1, x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in inputs]
        grad = grad.contiguous().transpose(1, 2)
        segments, trees = ctx.segments
        where = segments, trees, len(trees) - 1, query.shape[2], ctypes.byref(_shape(ctx, query, key))
        _call("attention_backward", query.dtype, *where, *map(_heads, inputs), log_z, *map(_heads, [grad, *grads]))
        return *grads, None, None, None


attention: Callable[..., Tensor] = _Attention.apply
"""Causal attention of `Segments`: see `_Attention.forward`."""


@torch.no_grad()
def attention_step(
    query: Float[Tensor, "N h 1 d"],
    key: Float[Tensor, "N g C d"],
    value: Float[Tensor, "N g C d"],
    mask: Bool[Tensor, "N 1 1 C"] | None,
    scale: float,
) -> Float[Tensor, "N 1 h d"]:
    """Attention of one more token, without gradient."""
    rows, heads, _, size = query.shape
    query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key, value))
    out = query.new_empty(rows, 1, heads, size)
    shape = _Shape(heads, key.shape[1], size, scale, None, None)
    of_rows = [_Heads(x.data_ptr(), x.stride(0), x.stride(1)) for x in (query, key, value)]
    given = None if mask is None else mask.expand(rows, 1, 1, -1).contiguous()
    into = _Heads(out.data_ptr(), out.stride(0), out.stride(2))
    sizes = rows, key.shape[2], ctypes.byref(shape)
    _call("attention_step", query.dtype, *sizes, *of_rows, key.stride(2), value.stride(2), given, into)
    return out


def _shape(ctx: Any, query: Tensor, key: Tensor) -> _Shape:
    angles = [None, None] if ctx.angles is None else [x.data_ptr() for x in ctx.angles]
    return _Shape(query.shape[1], key.shape[1], query.shape[3], ctx.scale, *angles)


class Sums(NamedTuple):
    """What is needed of logits (S, C), to find log π(a), the entropy of π and KL(π_old ‖ π)."""

    chosen: Float[Tensor, "S"]
    """The logits of the actions."""
    total: Float[Tensor, "S"]
    """ln Σ exp(logit)."""
    mean: Float[Tensor, "S"] | None
    """The mean logit under the distribution; None if it is not asked for."""
    old_total: Float[Tensor, "S"] | None
    """`total` of the older logits, if there are any."""
    difference: Float[Tensor, "S"] | None
    """Mean of (older logit − logit) under the older distribution."""


class Slopes(NamedTuple):
    """Derivatives (S,) of a loss by results at each step, and the results that their gradients for logits depend on."""

    of_log_prob: Float[Tensor, "S"]
    of_kl: Float[Tensor, "S"]
    of_entropy: Float[Tensor, "S"] | None
    log_z: Float[Tensor, "S"]
    old_log_z: Float[Tensor, "S"] | None
    entropy: Float[Tensor, "S"] | None


def softmax_sums(
    logits: Float[Tensor, "S C"], old: Float[Tensor, "S C"] | None, action: Int[Tensor, "S 1"], entropy: bool
) -> Sums:
    """The `Sums` of logits."""
    new = partial(logits.new_empty, len(logits), dtype=torch.float32)
    total, mean = new(), new() if entropy else None
    old_total, difference = (None, None) if old is None else (new(), new())
    _call("softmax_sums", logits.dtype, *logits.shape, logits, old, total, mean, old_total, difference)
    return Sums(logits.gather(1, action).squeeze(1).float(), total, mean, old_total, difference)


def softmax_gradient(
    logits: Float[Tensor, "S C"],
    old: Float[Tensor, "S C"] | None,
    action: Int[Tensor, "S 1"],
    of_action: Float[Tensor, "S"],
    slopes: Slopes,
) -> Float[Tensor, "S C"]:
    """The gradient for the logits, in their precision. `of_action` is that for the logit of the action alone."""
    out, given = torch.empty_like(logits), [None if x is None else x.contiguous() for x in slopes]
    _call("softmax_gradient", logits.dtype, *logits.shape, logits, old, action, of_action, *given, out)
    return out
