"""Products and norms of flat vectors of parameters.

PyTorch sums them in single precision: over a hundred million components `torch.dot` is off by one percent and a norm by
three, more or less with the number of threads.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

Vector = Float[Tensor, "P"]

_BLOCK = 2**16
"""Components that are summed in single precision."""


def inner(a: Vector, b: Vector) -> float:
    """aᵀb."""
    if len(a) <= _BLOCK:
        return float(torch.dot(a, b))
    blocks = zip(torch.split(a, _BLOCK), torch.split(b, _BLOCK), strict=True)
    return float(torch.stack([torch.dot(x, y) for x, y in blocks]).double().sum())


def norm(a: Vector) -> float:
    """‖a‖."""
    if len(a) <= _BLOCK:
        return float(torch.linalg.vector_norm(a))
    blocks = torch.stack([torch.linalg.vector_norm(x) for x in torch.split(a, _BLOCK)])
    return float(torch.linalg.vector_norm(blocks, dtype=torch.float64))
