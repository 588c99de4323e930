"""Products and norms of flat vectors of parameters.

PyTorch sums them in single precision: over a hundred million components `torch.dot` is off by one percent and a norm by
three, more or less with the number of threads.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.core.system.errors import NonFiniteError

Vector = Float[Tensor, "P"]

_BLOCK = 2**16
"""Components that are summed in single precision."""


def inner(a: Vector, b: Vector) -> float:
    """aᵀb."""
    if len(a) <= _BLOCK:
        return float(torch.dot(a, b))
    if a.device.type != "cpu":
        return float(torch.linalg.vecdot(_in_rows(a), _in_rows(b)).double().sum())
    blocks = zip(torch.split(a, _BLOCK), torch.split(b, _BLOCK), strict=True)
    return float(torch.stack([torch.dot(x, y) for x, y in blocks]).double().sum())


def norm(a: Vector) -> float:
    """‖a‖."""
    if len(a) <= _BLOCK:
        return float(torch.linalg.vector_norm(a))
    if a.device.type == "cpu":
        blocks = torch.stack([torch.linalg.vector_norm(x) for x in torch.split(a, _BLOCK)])
    else:
        blocks = torch.linalg.vector_norm(_in_rows(a), dim=1)
    return float(torch.linalg.vector_norm(blocks, dtype=torch.float64))


def _in_rows(a: Vector) -> Float[Tensor, "n block"]:
    """Blocks of `a`, filled up with zeros, in one tensor. On a GPU, launching a kernel for each takes longer."""
    return nn.functional.pad(a, (0, -len(a) % _BLOCK)).view(-1, _BLOCK)


def clip_norm(g: Vector, max_grad_norm: float | None, name: str) -> float:
    """Scales `g` in place so that its norm is at most `max_grad_norm`; returns the norm before.

    Raises:
        NonFiniteError: the gradient of `name` is not finite.
    """
    grad_norm = norm(g)
    if not math.isfinite(grad_norm):
        raise NonFiniteError(f"gradient of {name} is not finite")
    if max_grad_norm is not None and grad_norm > max_grad_norm:
        g.mul_(max_grad_norm / grad_norm)
    return grad_norm
