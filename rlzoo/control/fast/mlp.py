"""MLPs in native code: all layers in one call, forward or backward.

For small networks, PyTorch's overhead for each operation costs more than the arithmetic, and so would Python's for many
checks: these functions are called in each gradient step.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rlzoo.control.networks import MLP
from rlzoo.core.fast.library import build_library

Affine = list[tuple[Any, Any]]
"""(weight (O, I), bias (O,)) of each layer, or their derivatives."""

Numbers = ctypes.Array[ctypes.c_int64]

ACTIVATIONS = (None, "tanh", "relu")
"""As numbered in vectors.h."""
_GRAIN = 2**15
"""Numbers up to which PyTorch's elementwise operations take one thread."""


def forward(net: MLP, affine: Affine, x: Float[Tensor, "B I"]) -> list[Tensor] | None:
    """x and then the output of each layer (B, ·), without gradient.

    None if native code does not take these tensors, several threads are faster, or there is no compiler.
    """
    layers = _layers(net, affine, x, gradients=False)
    if layers is None:
        return None
    rows = x.shape[0]
    values = [x, *(torch.empty(rows, bias.numel(), dtype=torch.float32) for _, bias in affine)]
    _library().forward(layers, len(affine), rows, _places(values))
    return values


def backward(
    net: MLP, affine: Affine, values: list[Tensor], grad: Float[Tensor, "B O"], into_input: Tensor | None
) -> bool:
    """Adds the gradients of the parameters that have one, given the result of `forward` and the last output's gradient.

    Writes the gradient for x into `into_input`. False if nothing was done, for the same reasons as in `forward`.
    """
    layers = _layers(net, affine, values[0], gradients=True)
    if layers is None:
        return False
    into = None if into_input is None else into_input.data_ptr()
    _library().backward(layers, len(affine), grad.shape[0], _places(values), grad.data_ptr(), into)
    return True


def _layers(net: MLP, affine: Affine, x: Float[Tensor, "B I"], gradients: bool) -> Numbers | None:
    """The layers as in mlp.cpp; None if native code does not take them, or should not."""
    if not affine or not _is_plain(x) or _library() is None:
        return None
    numbers: list[int] = []
    rows, width = x.shape
    largest = sys.maxsize if torch.get_num_threads() == 1 else _GRAIN
    for (weight, bias), activated in zip(affine, net.activated, strict=True):
        outputs = bias.numel()
        if weight.shape != (outputs, width) or rows * outputs > largest:
            return None
        for y in (weight, bias, weight.grad, bias.grad) if gradients else (weight, bias, None, None):
            if y is not None and not _is_plain(y):
                return None
            numbers.append(0 if y is None else y.data_ptr())
        numbers += width, outputs, ACTIVATIONS.index(net.activation) if activated else 0
        width = outputs
    return _numbers(numbers)


def _is_plain(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cpu and x.is_contiguous()


def _places(tensors: list[Tensor]) -> Numbers:
    return _numbers([x.data_ptr() for x in tensors])


def _numbers(values: list[int]) -> Numbers:
    return (ctypes.c_int64 * len(values))(*values)


@functools.cache
def _library() -> Any:
    library: Any = build_library(Path(__file__).with_suffix(".cpp"), fused=True)
    if library is not None:
        library.forward.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        library.backward.argtypes = [*library.forward.argtypes, ctypes.c_void_p, ctypes.c_void_p]
    return library
