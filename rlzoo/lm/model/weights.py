"""Weights of a transformer: cast once for each change of them, and with gradients that go straight to their place."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from rlzoo.core.gradients import Place


class Casts:
    """The weights of the linear layers of a transformer in the precision of products."""

    def __init__(self, base: nn.Module, precision: torch.dtype) -> None:
        self._base, self._precision = base, precision
        self._kept: dict[str, tuple[tuple[int, torch.device], Tensor]] = {}

    def weights(self) -> dict[str, Tensor]:
        """By name; none of them if parameters are replaced."""
        linear = {name: m for name, m in self._base.named_modules() if isinstance(m, (nn.Linear, Conv1D))}
        weights = {f"{name}.weight": m.weight for name, m in linear.items()}
        if not all(isinstance(weight, nn.Parameter) for weight in weights.values()):
            return {}
        for name, weight in weights.items():
            state = weight._version, weight.device
            if name not in self._kept or self._kept[name][0] != state:
                self._kept[name] = state, weight.detach().to(self._precision)
        return {name: _Cast.apply(weight, self._kept[name][1]) for name, weight in weights.items()}  # type: ignore[no-untyped-call]


class _Cast(torch.autograd.Function):
    """A weight in lower precision, given its cast."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, cast: Tensor) -> Tensor:
        ctx.weight = weight
        return cast.view_as(cast)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        place = Place(ctx.weight)
        place.put(grad)
        return place.result, None


class Embedding(nn.Embedding):
    """An embedding that shares the weight of another one."""

    def __init__(self, other: nn.Embedding) -> None:
        rows, size = other.weight.shape
        super().__init__(rows, size, _weight=other.weight)
        self.weight = other.weight

    def forward(self, token: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch H"]:
        if torch.is_grad_enabled() and isinstance(self.weight, nn.Parameter):
            return _Embedded.apply(self.weight, token)  # type: ignore[no-untyped-call]
        return super().forward(token)


class _Embedded(torch.autograd.Function):
    """The rows of a weight that belong to tokens."""

    @staticmethod
    def forward(ctx: Any, weight: Float[Tensor, "V H"], token: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch H"]:
        ctx.weight, ctx.token = weight, token
        return nn.functional.embedding(token, weight)

    @staticmethod
    def backward(ctx: Any, grad: Float[Tensor, "*batch H"]) -> tuple[Tensor | None, None]:
        place = Place(ctx.weight)
        place.put_rows(ctx.token, grad)
        return place.result, None


def use_faster_layers(model: nn.Module) -> None:
    """Replaces layers by ones with the same result: GPT-2's GELU of eight operations, and plain embeddings."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is NewGELUActivation:
                setattr(module, name, nn.GELU("tanh"))
            if type(child) is nn.Embedding and child.padding_idx is None and child.max_norm is None:
                setattr(module, name, Embedding(child))
