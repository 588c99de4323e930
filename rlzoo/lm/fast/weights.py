"""Weights of a transformer: cast once for each change of them, with gradients that are summed in place.

Autograd makes a new tensor for each gradient, fills that of an embedding with zeros, and adds it to that of the head if
both share their weight. For a large vocabulary these tensors cost more than the products. So the functions here add
their gradient to `weight.grad` where there is one already.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd import forward_ad
from transformers.activations import NewGELUActivation
from transformers.pytorch_utils import Conv1D

from rlzoo.lm.fast.kernels import add_to, gelu, is_followed, refuse_second_derivatives, takes
from rlzoo.lm.fast.products import CLASSES


def summed_gradient(weight: Tensor) -> Tensor | None:
    """The sum that a backward pass may add to in place; None if there is none."""
    return weight.grad if weight.is_leaf else None


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
        refuse_second_derivatives()
        total = summed_gradient(ctx.weight)
        if total is None:
            return grad.to(ctx.weight.dtype), None
        add_to(total, grad)
        return None, None


class Embedding(nn.Embedding):
    """An embedding whose gradient is summed in place."""

    def forward(self, token: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch H"]:
        if torch.is_grad_enabled() and forward_ad._current_level < 0 and not is_followed(self.weight):
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
        refuse_second_derivatives()
        total, row = summed_gradient(ctx.weight), ctx.token.reshape(-1)
        grad = grad.reshape(-1, grad.shape[-1]).to(ctx.weight.dtype)
        # The layer stays in the model of a user, whose own sums are no pieces of a flat gradient.
        if total is None or not total._is_view():  # not in place, which batched gradients (vmap) do not allow
            return torch.zeros_like(ctx.weight).index_add(0, row, grad), None
        if total.device.type == "cpu":
            total.index_add_(0, row, grad)
        else:  # which sorts the rows, and so sums each in a fixed order
            total.index_put_((row,), grad, accumulate=True)
        return None, None


class FastGELU(nn.GELU):
    """GELU in its approximation by tanh."""

    def __init__(self) -> None:
        super().__init__("tanh")

    def forward(self, x: Tensor) -> Tensor:
        return gelu(x) if takes(x) else super().forward(x)


def use_faster_layers(model: nn.Module) -> None:
    """Replaces layers by ones with the same result: GPT-2's GELU of eight operations, plain embeddings and products."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is NewGELUActivation:
                setattr(module, name, FastGELU())
            if type(child) is nn.Embedding and child.max_norm is None and not child.scale_grad_by_freq:
                child.__class__ = Embedding
            if type(child) in CLASSES and "forward" not in vars(child):
                child.__class__ = CLASSES[type(child)]
