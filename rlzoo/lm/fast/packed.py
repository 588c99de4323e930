"""Linear layers with a memory layout of the weights for products of few rows, as in sampling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rlzoo.lm.fast.products import CLASSES, weight_of

_WORTH = 10**5
"""Number of weights above which the layout is faster."""


def check_interfaces() -> None:
    """Raises `AttributeError` if PyTorch lacks the layout, which is no public part of it."""
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        for name in ("_reorder_linear_weight", "_linear_pointwise"):
            getattr(torch.ops.mkldnn, name)


class Packed:
    """Inside `with packed:`, linear layers on the CPU use packed copies of their weights, up to three times as fast.

    Valid without gradients, and as long as the weights do not change. Results differ by rounding. Other layers are not
    changed.

    Args:
        precision: precision of the products; None for that of the weights.
    """

    def __init__(self, *roots: nn.Module, rows: int, precision: torch.dtype | None = None) -> None:
        modules = dict.fromkeys(m for root in roots for m in root.modules())
        self._forwards = {m: forward for m in modules if (forward := _packed_forward(m, rows, precision)) is not None}

    def __enter__(self) -> None:
        for module, forward in self._forwards.items():
            module.forward = forward

    def __exit__(self, *_: object) -> None:
        for module in self._forwards:
            del module.forward


@torch.no_grad()
def _packed_forward(module: nn.Module, rows: int, precision: torch.dtype | None) -> Callable[[Tensor], Tensor] | None:
    if "forward" in vars(module):  # the user's own
        return None
    if type(module) not in (*CLASSES, *CLASSES.values()):
        return None
    weight, given = weight_of(module), getattr(module, "bias", None)
    dtype = precision or weight.dtype
    possible = weight.device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
    possible = possible and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    possible = possible and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if weight.numel() < _WORTH or not possible:
        return None
    bias = None if given is None else given.to(dtype)
    layout = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), rows)

    def forward(x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.to(dtype), layout, bias, "none", [], "")

    return forward
