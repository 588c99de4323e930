"""Products of large matrices in float32 by oneDNN, on processors where the BLAS of PyTorch is slower.

On AMD's processors MKL computes with AVX2, also where there are the wider vectors of AVX-512. What oneDNN gains on a
Zen 5 is in benchmarks/results/fast-parts.md. Results differ by rounding.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from rlzoo.lm.fast.kernels import is_followed, refuse_second_derivatives, takes, transpose

_WORTH = 2**24
"""Number of multiplications from which a product is faster, though oneDNN compiles code for each new shape."""


def matmul(a: Float[Tensor, "M K"], b: Float[Tensor, "K N"]) -> Float[Tensor, "M N"]:
    """a·b."""
    if not _takes(a, b):
        return a @ b
    if a.t().is_contiguous() and takes(a):  # oneDNN would copy it more slowly
        a = transpose(a.t())
    return _by_onednn(a, b.t(), None)


class Layer(nn.Module):
    """A linear layer whose products are those of this module, with derivatives in both modes."""

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        weight, bias = weight_of(self), getattr(self, "bias", None)
        if torch.is_autocast_enabled("cpu") or not _takes(x, weight.t()) or is_followed(x, weight):
            return super().forward(x)
        return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]


class FastLinear(Layer, nn.Linear):
    """x·weightᵀ + bias."""


class FastConv1D(Layer, Conv1D):
    """x·weight + bias."""


CLASSES: dict[type[nn.Module], type[Layer]] = {nn.Linear: FastLinear, Conv1D: FastConv1D}
"""The layer here for one of PyTorch or transformers."""


def weight_of(layer: nn.Module) -> Float[Tensor, "O I"]:
    """The weight of a layer of one of these kinds."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight if isinstance(layer, nn.Linear) else weight.t()


class _Linear(torch.autograd.Function):
    """x·weightᵀ + bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Float[Tensor, "*batch I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None
    ) -> Float[Tensor, "*batch O"]:
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        return _by_onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "*batch O"]) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives(grad)
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        x, rows = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        d_weight = None
        if of_weight:  # with the memory layout of the weight
            d_weight = matmul(rows.t(), x) if weight.is_contiguous() else matmul(x.t(), rows).t()
        d_x = matmul(rows, weight).view(*grad.shape[:-1], -1) if of_x else None
        return d_x, d_weight, rows.sum(0) if of_bias else None

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None) -> Tensor | None:
        x, weight = ctx.saved_tensors
        tangent = None if of_bias is None else of_bias.expand(*x.shape[:-1], -1)
        if of_x is not None:
            tangent = _by_onednn(of_x, weight, of_bias)
        if of_weight is None or tangent is None:
            return tangent if of_weight is None else _by_onednn(x, of_weight, None)
        return torch.ops.mkldnn._linear_pointwise(x, tangent.contiguous(), of_weight, None, "add")


def _takes(a: Float[Tensor, "*batch K"], b: Float[Tensor, "K N"]) -> bool:
    """Whether a·b is faster by oneDNN."""
    worth = a.dtype is b.dtype is torch.float32 and a.is_cpu and a.numel() * b.shape[1] >= _WORTH
    return worth and _is_faster()


def _by_onednn(
    x: Float[Tensor, "*batch I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None
) -> Float[Tensor, "*batch O"]:
    """x·weightᵀ + bias."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


@functools.cache
def _is_faster() -> bool:
    """Whether oneDNN uses wider vectors than the BLAS of PyTorch."""
    libraries = torch.backends.mkl, torch.backends.mkldnn
    if not all(x.is_available() for x in libraries) or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    with contextlib.suppress(OSError):
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    return False
