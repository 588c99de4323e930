"""The distribution of the next token over a large vocabulary, a block of its tokens at a time.

The logits of GPT-2 at 512 steps take 100 MB. In blocks they stay in the processor's cache, and the weights are cast to
a lower precision block by block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlzoo.core.distributions import Categorical, Distribution, Evaluated, categorical_fisher
from rlzoo.lm.fast.kernels import (
    Slopes,
    Sums,
    add_to,
    refuse_second_derivatives,
    softmax_gradient,
    softmax_sums,
    takes,
)
from rlzoo.lm.fast.products import matmul
from rlzoo.lm.fast.weights import summed_gradient
from rlzoo.lm.model.precision import autocast, kind_of
from rlzoo.lm.model.tokens import Head, TokenDistribution, apply_temperature, at_least_single

_BLOCK = {"cpu": 2**20, "other": 2**25}
"""Number of logits in a block, by kind of device."""
_NARROWEST = 512
"""Number of tokens that a block has at least."""
_FEW = 16
"""Number of steps from which the logits (S, V) are as fast as their transpose."""
_MOST_KEPT = 2**26
"""Number of logits up to which products are kept from one result to the next, such as log π(a) and the KL."""


def _logits(head: Head, hidden: Float[Tensor, "S H"]) -> Float[Tensor, "S V"]:
    """Logits of all tokens. Those of few steps are computed as (V, S), which is faster on a CPU."""
    hidden = apply_temperature(hidden, head.temperature)
    with autocast(hidden.device, head.precision):
        few = len(hidden) < _FEW
        logits = (head.weight @ hidden.t()).t() if few else matmul(hidden, head.weight.t())
    logits = at_least_single(logits)
    return logits if head.bias is None else logits + head.bias / head.temperature


def _policy(head: Head, hidden: Float[Tensor, "S H"], allowed: Bool[Tensor, "S V"] | None) -> Categorical:
    """The distributions over all allowed tokens."""
    policy = Categorical(_logits(head, hidden))
    return policy if allowed is None else policy.restrict(allowed)


@dataclass
class Steps:
    """S steps at which a token is chosen. The methods are not differentiable."""

    hidden: Float[Tensor, "S H"]
    head: Head
    allowed: Bool[Tensor, "S V"] | None
    _kept: list[Float[Tensor, "S C"]] = field(default_factory=list, init=False)
    """The products of all blocks, once they are computed, if they are not too large."""

    @property
    def precision(self) -> torch.dtype:
        return self.head.precision or self.head.weight.dtype

    def blocks(self) -> list[slice]:
        """The vocabulary in blocks of tokens."""
        size = max(_NARROWEST, _BLOCK[kind_of(self.hidden.device)] // max(len(self.hidden), 1) // 64 * 64)
        return [slice(start, start + size) for start in range(0, len(self.head.weight), size)]

    def inputs(self) -> Float[Tensor, "S H"]:
        """hidden / temperature in the precision of the product."""
        return apply_temperature(self.hidden, self.head.temperature).to(self.precision)

    def products(self) -> Iterable[Float[Tensor, "S C"]]:
        """inputs · weightᵀ of each block."""
        if not self._kept:
            inputs = self.inputs()
            products = (matmul(inputs, self.head.weight[block].to(self.precision).t()) for block in self.blocks())
            if len(inputs) * len(self.head.weight) > _MOST_KEPT:
                return products
            self._kept = list(products)
        return self._kept

    def finish(self, product: Float[Tensor, "S C"], block: slice) -> Float[Tensor, "S C"]:
        """The logits that belong to a product, in single precision at least unless native code takes the product."""
        if self.head.bias is None and self.allowed is None and takes(product):
            return product
        logits = at_least_single(product)
        if self.head.bias is not None:
            logits = logits + self.head.bias[block] / self.head.temperature
        return logits if self.allowed is None else Categorical(logits).restrict(self.allowed[:, block]).logits


class Evaluate(torch.autograd.Function):
    """At each step log π(a); if asked for, also KL(π_old ‖ π) and the entropy H of π.

    The gradients in a step's logits are 1[a] − π, π − π_old, and −π·(log π + H). π_old is held fixed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "S H"],
        weight: Float[Tensor, "V H"],
        bias: Float[Tensor, "V"] | None,
        steps: Steps,
        action: Int[Tensor, "S"],
        old: Steps | None,
        entropy: bool,
        keep: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """`hidden`, `weight` and `bias` are those of `steps`, named for autograd. `keep` keeps what backward needs."""
        ctx.set_materialize_grads(False)
        blocks: list[Sums] = []
        kept = []
        taken = action.new_zeros(action.shape, dtype=torch.promote_types(steps.precision, torch.float32))
        old_products = itertools.repeat(None) if old is None else old.products()
        for block, product, old_product in zip(steps.blocks(), steps.products(), old_products, strict=False):
            inside, index = _inside(action, block)
            logits, theirs = _both(steps, old, product, old_product, block)
            blocks.append((softmax_sums if takes(logits) else _sums)(logits, theirs, index, entropy))
            taken = torch.where(inside, blocks[-1].chosen, taken)
            if keep:
                kept.append((block, product, old_product))
        _, total, mean, old_total, difference = map(_stacked, zip(*blocks, strict=True))
        assert total is not None
        log_z = total.logsumexp(0)
        h = None if mean is None else log_z - _mean(mean, total)
        old_log_z = None if old_total is None else old_total.logsumexp(0)
        kl = None
        if old_total is not None and difference is not None and old_log_z is not None:
            kl = _mean(difference, old_total) - old_log_z + log_z
        ctx.steps, ctx.action, ctx.old, ctx.kept = steps, action, old, kept
        ctx.log_z, ctx.entropy, ctx.old_log_z = log_z, h, old_log_z
        return taken - log_z, kl, h

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_kl: Tensor | None, of_entropy: Tensor | None) -> tuple[Any, ...]:
        refuse_second_derivatives()
        steps, (wants_hidden, wants_weight, wants_bias) = ctx.steps, ctx.needs_input_grad[:3]
        head, precision, inputs = steps.head, steps.precision, steps.inputs()
        d_hidden = torch.zeros_like(steps.hidden) if wants_hidden else None
        total = summed_gradient(head.weight) if wants_weight else None
        d_weight = torch.empty_like(head.weight) if wants_weight and total is None else None
        d_bias = torch.empty_like(head.bias) if wants_bias else None
        zero = torch.zeros_like(ctx.log_z)
        grad, of_kl = (zero if g is None else g for g in (grad, of_kl))
        slopes = Slopes(grad, of_kl, of_entropy, ctx.log_z, ctx.old_log_z, ctx.entropy)
        for block, product, old_product in ctx.kept:
            inside, index = _inside(ctx.action, block)
            logits, theirs = _both(steps, ctx.old, product, old_product, block)
            gradient = softmax_gradient if takes(logits) else _gradient
            d_logits = gradient(logits, theirs, index, grad * inside, slopes)
            if d_bias is not None:
                d_bias[block] = d_logits.sum(0) / head.temperature
            d_product = d_logits.to(precision)
            if d_hidden is not None:
                d_hidden += matmul(d_product, head.weight[block].to(precision))
            if total is not None:
                add_to(total[block], matmul(d_product.t(), inputs))
            if d_weight is not None:
                d_weight[block] = matmul(d_product.t(), inputs)
        if d_hidden is not None and head.temperature != 1:
            d_hidden /= head.temperature
        return d_hidden, d_weight, d_bias, None, None, None, None, None


def _both(
    steps: Steps, old: Steps | None, product: Tensor, old_product: Tensor | None, block: slice
) -> tuple[Float[Tensor, "S C"], Float[Tensor, "S C"] | None]:
    """The logits of a block, and those of an older policy, in one precision."""
    logits = steps.finish(product, block)
    if old is None or old_product is None:
        return logits, None
    theirs = old.finish(old_product, block)
    dtype = torch.promote_types(logits.dtype, theirs.dtype)
    return logits.to(dtype), theirs.to(dtype)


def _sums(
    logits: Float[Tensor, "S C"], old: Float[Tensor, "S C"] | None, action: Int[Tensor, "S 1"], entropy: bool
) -> Sums:
    """The `Sums` of logits."""
    total = logits.logsumexp(-1, keepdim=True)
    mean = ((logits - total).exp_() * logits).sum(-1) if entropy else None
    old_total = difference = None
    if old is not None:
        old_total = old.logsumexp(-1)
        difference = ((old - old_total.unsqueeze(-1)).exp_() * (old - logits)).sum(-1)
    return Sums(logits.gather(-1, action).squeeze(-1), total.squeeze(-1), mean, old_total, difference)


def _gradient(
    logits: Float[Tensor, "S C"],
    old: Float[Tensor, "S C"] | None,
    action: Int[Tensor, "S 1"],
    of_action: Float[Tensor, "S"],
    slopes: Slopes,
) -> Float[Tensor, "S C"]:
    """The gradient for the logits. `of_action` is that for the logit of the action alone."""
    of_log_prob, of_kl, of_entropy, log_z, old_log_z, entropy = (None if x is None else x.unsqueeze(-1) for x in slopes)
    assert of_log_prob is not None
    assert of_kl is not None
    assert log_z is not None
    logp, scale = logits - log_z, of_kl - of_log_prob
    if of_entropy is not None and entropy is not None:
        scale = scale - of_entropy * (logp + entropy)
    d_logits = logp.exp_().mul_(scale)
    d_logits.scatter_add_(-1, action, of_action.unsqueeze(-1))
    if old is not None and old_log_z is not None:
        d_logits -= (old - old_log_z).exp_().mul_(of_kl)
    return d_logits


def _stacked(values: Sequence[Tensor | None]) -> Float[Tensor, "B S"] | None:
    """The values of all blocks; None if there are none."""
    return None if values[0] is None else torch.stack([x for x in values if x is not None])


def _mean(means: Float[Tensor, "B S"], totals: Float[Tensor, "B S"]) -> Float[Tensor, "S"]:
    """The mean over the vocabulary, from the means in its blocks and the logarithms of the blocks' weights."""
    return (totals.softmax(0) * means).sum(0)


def _inside(action: Int[Tensor, "S"], block: slice) -> tuple[Bool[Tensor, "S"], Int[Tensor, "S 1"]]:
    """Whether each action is in the block, and its column there (0 if it is not)."""
    inside = (action >= block.start) & (action < block.stop)
    return inside, torch.where(inside, action - block.start, 0).unsqueeze(-1)


@dataclass(frozen=True)
class BlockedTokenDistribution(TokenDistribution):
    """A `TokenDistribution` that computes logits block by block, with gradients.

    Only the KL of a distribution with gradient to another one keeps logits (S, V).
    """

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self.hidden[self.acts], self.head, None if self.allowed is None else self.allowed[self.acts])

    @cached_property
    def at_steps(self) -> Categorical:
        return _policy(self.head, self._steps.hidden, self._steps.allowed)

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and (self.hidden.requires_grad or self.head.weight.requires_grad)

    def evaluate(self, action: Int[Tensor, "R T"], old: Distribution | None = None, entropy: bool = False) -> Evaluated:
        """log π(action), and if asked for KL(π_old ‖ π) of a fixed π_old and the entropy, from one pass."""
        assert old is None or isinstance(old, BlockedTokenDistribution)
        if old is not None and old._differentiable:
            return Evaluated(self.log_prob(action), old.kl(self), self.entropy() if entropy else None)
        steps, of_old = self._steps, None if old is None else old._steps
        inputs = steps.hidden, self.head.weight, self.head.bias
        log_prob, *others = Evaluate.apply(*inputs, steps, action[self.acts], of_old, entropy, self._differentiable)  # type: ignore[no-untyped-call]
        return Evaluated(self.scatter(log_prob), *(None if x is None else self.scatter(x) for x in others))

    def log_prob(self, action: Int[Tensor, "R T"]) -> Float[Tensor, "R T"]:
        return self.evaluate(action).log_prob

    def entropy(self) -> Float[Tensor, "R T"]:
        return cast(Tensor, self.evaluate(self.acts.long(), entropy=True).entropy)

    def kl(self, other: TokenDistribution) -> Float[Tensor, "R T"]:
        if self._differentiable or not isinstance(other, BlockedTokenDistribution):
            return super().kl(other)
        return cast(Tensor, other.evaluate(self.acts.long(), old=self).kl)

    @torch.no_grad()
    def fisher(self, tangents: Sequence[Tensor], weight: Float[Tensor, "R T"]) -> list[Tensor]:
        """Computed in blocks of steps, with weights that are cast once for all of them."""
        steps, head, precision = self._steps, self.head, self._steps.precision
        head = head._replace(weight=head.weight.to(precision))
        moving = head._replace(weight=tangents[1].to(precision), bias=tangents[2] if head.bias is not None else None)
        still, of_hidden, weight = head._replace(bias=None), tangents[0][self.acts], weight[self.acts]
        cotangents = [torch.zeros_like(x) for x in (of_hidden, *tangents[1:])]
        # Each block adds to a tensor of the size of the weight, so its logits may take a quarter of that memory.
        size = max(4 * _BLOCK[kind_of(weight.device)] // len(head.weight), head.weight.shape[1] // 4)
        for start in range(0, len(weight), size):
            cut = slice(start, start + size)
            hidden = steps.hidden[cut]
            policy = _policy(head, hidden, None if steps.allowed is None else steps.allowed[cut])
            tangent = _logits(still, of_hidden[cut]) + _logits(moving, hidden)
            cotangent = categorical_fisher(policy.logits, tangent, weight[cut]) / head.temperature
            low = cotangent.to(precision)
            cotangents[0][cut] = matmul(low, head.weight)
            add_to(cotangents[1], matmul(low.t(), hidden.to(precision)))
            if head.bias is not None:
                cotangents[2] += cotangent.sum(0)
        whole = torch.zeros_like(tangents[0]).masked_scatter_(self.acts.unsqueeze(-1), cotangents[0])
        return [whole, *cotangents[1:]]
