"""Conjugate gradient with Fisher products as one call of native code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.optim.fast.compilation import Compilation, signature
from rlzoo.optim.fast.native import other_tensors, pad, pure
from rlzoo.optim.fisher import FisherProduct
from rlzoo.optim.natural_gradient import FlatPolicy, Solution, conjugate_gradient
from rlzoo.optim.vectors import Vector

_MOST = 2**16
"""Parameters of a policy up to which `rlzoo.optim.vectors` sums in single precision, as the native loop does."""


class NativeConjugateGradient:
    """`conjugate_gradient` as native code, which is compiled for each shape of buffer (see `Compilation`).

    The number of rows is rounded up to a power of two. What is not a Fisher product of a policy that sees single steps,
    in one micro-batch, is left to `conjugate_gradient`.

    Args:
        waits: whether to wait for the compilation. Until it says so, iterations are not native.
    """

    def __init__(self, waits: Callable[[], bool] = lambda: True) -> None:
        self._waits = waits
        self._compilations: dict[Any, Compilation] = {}

    def __call__(
        self, product: Callable[[Vector], Vector], b: Vector, iters: int, tolerance: float = 1e-10
    ) -> Solution:
        if not isinstance(product, FisherProduct) or not _is_small(product) or not torch.dot(b, b):
            return conjugate_gradient(product, b, iters, tolerance)
        policy, batch = product.policy, product.batch.replace(old=None)
        rest, fields = other_tensors(policy.model, policy.named.values()), pad(batch)
        start = torch.dot(b, b)
        carry = torch.zeros_like(b), b, b, start
        inputs = product.theta, b.new_tensor([product.damping, tolerance]), start, *rest.values(), *fields
        kind = tuple(map(signature, inputs))
        if kind not in self._compilations:
            step = _pure_step(policy, batch, list(rest))
            self._compilations[kind] = Compilation(step, carry, inputs)
        loop = self._compilations[kind].loop() if self._waits() else None
        if loop is None:
            return conjugate_gradient(product, b, iters, tolerance)
        x, _, _, rr = loop(torch.tensor(iters), *carry, *inputs)
        return Solution(x, float(rr / start) ** 0.5)


def _is_small(product: FisherProduct) -> bool:
    """Whether its policy sees single steps, has few parameters, and takes all rows at once."""
    model, most = product.policy.model, product.policy.model.micro_batch_steps
    return model.context == 1 and len(product.theta) <= _MOST and (most is None or product.batch.num_rows <= most)


def _pure_step(policy: FlatPolicy, like: Buffer, rest: list[str]) -> Callable[..., tuple[Tensor, ...]]:
    """An iteration of conjugate gradient as a function of tensors; one that changes nothing where the loop would end.

    (i, x, r, p, rᵀr, θ, damping and tolerance, bᵀb, the model's other tensors, the buffer's tensors) -> (x, r, p, rᵀr).
    """
    evaluated, others = pure(policy.model, list(policy.named.values()), rest), len(rest)

    def step(
        _: Tensor, x: Tensor, r: Tensor, p: Tensor, rr: Tensor,
        theta: Tensor, knobs: Tensor, start: Tensor, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        batch, (damping, tolerance) = like.with_tensors(tensors[others:]), knobs.unbind()
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            policy = evaluated(theta, tensors[:others], lambda model: model.distribution(batch.obs))
            ys = policy.tensors()
            moving = [y for y in ys if y.requires_grad]
            us = [torch.zeros_like(y, requires_grad=True) for y in moving]
            (pulled,) = torch.autograd.grad(moving, theta, us, create_graph=True)
            pushed = iter(torch.autograd.grad(pulled, us, p, retain_graph=True))  # J·p
            tangents = [next(pushed) if y.requires_grad else torch.zeros_like(y) for y in ys]
            cotangents = policy.detach().fisher(tangents, batch.weight)
            cotangents = [cotangent for cotangent, y in zip(cotangents, ys, strict=True) if y.requires_grad]
            (ap,) = torch.autograd.grad(moving, theta, cotangents)
        ap = ap + damping * p
        curvature = torch.dot(p, ap)
        goes_on = (rr > tolerance * start) & (curvature > 0)
        alpha = torch.where(goes_on, rr / curvature, 0.0)
        x, r = x + alpha * p, r - alpha * ap
        new = torch.where(goes_on, torch.dot(r, r), rr)
        return x, r, torch.where(goes_on, r + new / rr * p, p), new

    return step
