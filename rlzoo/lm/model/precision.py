"""Precision of matrix products, and how near two results are that differ by rounding."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

_MARGIN = 1e3 * torch.finfo(torch.float32).eps
"""Relative rounding error of a transformer. Many normalise in float32 whatever the precision of their weights."""


def has_bfloat16(device: str) -> bool:
    """Whether an available device computes matrix products in bfloat16."""
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.amp.autocast_mode.is_autocast_available(kind)


def autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[None]:
    """Context in which matrix products are computed in `dtype`; None changes nothing."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def equal_but_for_rounding(x: Tensor, expected: Tensor) -> bool:
    """‖x − expected‖ ≤ margin·‖expected‖, for two results of float32 or float64 weights."""
    return bool((x - expected).norm() <= _MARGIN * expected.norm())
