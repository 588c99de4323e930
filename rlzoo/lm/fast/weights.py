"""Layers of a transformer with the same result, and gradients of large weights that are summed in place.

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

from rlzoo.lm.fast.kernels import gelu, is_followed, refuse_second_derivatives, takes
from rlzoo.lm.fast.products import CLASSES


def summed_gradient(weight: Tensor) -> Tensor | None:
    """The sum that a backward pass may add to in place; None if there is none."""
    return weight.grad if weight.is_leaf else None


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
