"""Devices, the precision of their matrix products, and how near two results are that differ by rounding."""

from __future__ import annotations

import contextlib
import timeit

import torch
from torch import Tensor
from torch.nn.functional import linear

_MARGIN = 1e3 * torch.finfo(torch.float32).eps
"""Relative rounding error of a transformer. Many normalise in float32 whatever the precision of their weights."""
_WORTHWHILE = 0.7
"""Time of a product in bfloat16, in units of that in float32, below which a run gains in spite of the casts."""


def kind_of(device: torch.device) -> str:
    """What sizes are chosen by: "cpu" or "other"."""
    return "cpu" if device.type == "cpu" else "other"


def has_bfloat16(device: str) -> bool:
    """Whether an available device computes matrix products in bfloat16."""
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.amp.autocast_mode.is_autocast_available(kind)


def advice(device: str, precision: str) -> str | None:
    """A line that names a faster device, or a precision in which matrix products are faster; None if there is neither.

    On a CPU the products are timed, in some 20 ms: many that have instructions for bfloat16 are no faster with them.
    """
    if torch.device(device).type != "cpu":
        slow = precision == "float32" and has_bfloat16(device)
        return f"matrix products in bfloat16 are faster on {device}, and take less memory" if slow else None
    if torch.cuda.is_available():
        return "this machine has a GPU, and the model is on the CPU: the device cuda is faster"

    def seconds(dtype: torch.dtype) -> float:
        x, weight = torch.ones(256, 512, dtype=dtype), torch.ones(1024, 512, dtype=dtype)
        return min(timeit.repeat(lambda: linear(x, weight), number=1, repeat=7))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine, threads wait for each other
    ratio = seconds(torch.bfloat16) / seconds(torch.float32)
    torch.set_num_threads(threads)
    faster = "bfloat16" if ratio < _WORTHWHILE else "float32" if ratio > 1 else precision
    if faster == precision:
        return None
    return f"matrix products in bfloat16 take {ratio:.1f} times as long as in float32 on this CPU: {faster} is faster"


def autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[None]:
    """Context in which matrix products are computed in `dtype`; None changes nothing."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def equal_but_for_rounding(x: Tensor, expected: Tensor) -> bool:
    """‖x − expected‖ ≤ margin·‖expected‖, for two results of float32 or float64 weights."""
    return bool((x - expected).norm() <= _MARGIN * expected.norm())
