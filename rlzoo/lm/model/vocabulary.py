"""The output embedding, and sums over a large vocabulary, a block of its tokens at a time.

The logits of GPT-2 at 512 steps take 100 MB. In blocks they stay in the processor's cache, and the weights are cast to
a lower precision block by block.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rlzoo.core.distributions import IMPOSSIBLE, categorical_fisher
from rlzoo.core.gradients import Place, differentiated_once

_BLOCK = {"cpu": 2**20, "other": 2**25}
"""Number of logits in a block, by kind of device."""
_NARROWEST = 512
"""Number of tokens that a block has at least, a multiple of 64."""


class Head(NamedTuple):
    """logits = (hidden · weightᵀ + bias) / temperature."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, "V"] | None
    temperature: float
    autocast: torch.dtype | None
    """Precision of the product; None for that of the weights."""

    def __call__(self, hidden: Float[Tensor, "S H"]) -> Float[Tensor, "S V"]:
        """Logits of all tokens. Computed as (V, S), which is faster on a CPU for few rows and many columns."""
        with autocast(hidden.device, self.autocast):
            logits = (self.weight @ (hidden / self.temperature if self.temperature != 1 else hidden).t()).t()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return logits if self.bias is None else logits + self.bias / self.temperature


class Steps(NamedTuple):
    """S steps at which a token is chosen. The methods are not differentiable."""

    hidden: Float[Tensor, "S H"]
    head: Head
    allowed: Int[Tensor, "S W"] | None
    """Bits of the allowed tokens (see `words_of`); None if all are allowed."""

    def blocks(self) -> list[slice]:
        """The vocabulary in blocks of tokens, each a multiple of 64."""
        size = _BLOCK["cpu" if self.hidden.device.type == "cpu" else "other"] // max(len(self.hidden), 1)
        size = max(_NARROWEST, size // 64 * 64)
        return [slice(start, start + size) for start in range(0, len(self.head.weight), size)]

    def inputs(self) -> Float[Tensor, "S H"]:
        """hidden / temperature in the precision of the product."""
        hidden = self.hidden if self.head.temperature == 1 else self.hidden / self.head.temperature
        return hidden.to(self.precision)

    @property
    def precision(self) -> torch.dtype:
        return self.head.autocast or self.head.weight.dtype

    def products(self) -> Iterator[tuple[slice, Float[Tensor, "S C"]]]:
        """Each block, and its inputs · weightᵀ."""
        inputs = self.inputs()
        for block in self.blocks():
            yield block, inputs @ self.head.weight[block].to(self.precision).t()

    def finish(self, product: Float[Tensor, "S C"], block: slice) -> Float[Tensor, "S C"]:
        """The logits that belong to a product, in single precision at least."""
        logits = product if product.dtype == torch.float64 else product.float()
        if self.head.bias is not None:
            logits = logits + self.head.bias[block] / self.head.temperature
        if self.allowed is not None:
            logits = restricted(logits, self.allowed[:, block.start // 64 : -(-block.stop // 64)])
        return logits

    def logits(self) -> Iterator[Float[Tensor, "S C"]]:
        """The logits of each block."""
        return (self.finish(product, block) for block, product in self.products())


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
        totals, logit_means, old_totals, differences, kept = [], [], [], [], []
        taken = action.new_zeros(action.shape, dtype=torch.promote_types(weight.dtype, torch.float32))
        old_products = itertools.repeat(None) if old is None else (product for _, product in old.products())
        for (block, product), old_product in zip(steps.products(), old_products, strict=False):
            logits = steps.finish(product, block)
            totals.append(logits.logsumexp(-1))
            inside, index = _inside(action, block)
            taken = torch.where(inside, logits.gather(-1, index).squeeze(-1), taken)
            if entropy:
                logit_means.append(((logits - totals[-1].unsqueeze(-1)).exp_() * logits).sum(-1))
            if old is not None and old_product is not None:
                theirs = old.finish(old_product, block)
                old_totals.append(theirs.logsumexp(-1))
                differences.append(((theirs - old_totals[-1].unsqueeze(-1)).exp_() * (theirs - logits)).sum(-1))
            if keep:
                kept.append((product, old_product))
        log_z = torch.stack(totals).logsumexp(0)
        h = log_z - _mean(logit_means, totals) if entropy else None
        old_log_z = None if old is None else torch.stack(old_totals).logsumexp(0)
        kl = None if old_log_z is None else _mean(differences, old_totals) - old_log_z + log_z
        ctx.steps, ctx.action, ctx.old, ctx.kept = steps, action, old, kept
        ctx.log_z, ctx.entropy, ctx.old_log_z = log_z, h, old_log_z
        return taken - log_z, kl, h

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, of_kl: Tensor | None, of_entropy: Tensor | None) -> tuple[Any, ...]:
        differentiated_once()
        steps, (wants_hidden, wants_weight, wants_bias) = ctx.steps, ctx.needs_input_grad[:3]
        head, precision, inputs = steps.head, steps.precision, steps.inputs()
        d_hidden = torch.zeros_like(steps.hidden) if wants_hidden else None
        d_weight = Place(head.weight) if wants_weight else None
        d_bias = torch.empty_like(head.bias) if wants_bias else None
        for block, (product, old_product) in zip(steps.blocks(), ctx.kept, strict=True):
            d_logits = Evaluate._of_logits(ctx, block, product, old_product, grad, of_kl, of_entropy)
            if d_bias is not None:
                d_bias[block] = d_logits.sum(0) / head.temperature
            d_product = d_logits.to(precision)
            if d_hidden is not None:
                d_hidden += d_product @ head.weight[block].to(precision)
            if d_weight is not None:
                d_weight.put(d_product.t() @ inputs, block)
        if d_hidden is not None and head.temperature != 1:
            d_hidden /= head.temperature
        return d_hidden, None if d_weight is None else d_weight.result, d_bias, None, None, None, None, None

    @staticmethod
    def _of_logits(
        ctx: Any,
        block: slice,
        product: Float[Tensor, "S C"],
        old_product: Float[Tensor, "S C"] | None,
        grad: Float[Tensor, "S"] | None,
        of_kl: Float[Tensor, "S"] | None,
        of_entropy: Float[Tensor, "S"] | None,
    ) -> Float[Tensor, "S C"]:
        """The gradient in the logits of a block of the vocabulary."""
        logp = ctx.steps.finish(product, block) - ctx.log_z.unsqueeze(-1)
        zero = logp.new_zeros(len(logp))
        grad, of_kl = (zero if g is None else g for g in (grad, of_kl))
        scale = (of_kl - grad).unsqueeze(-1)
        if of_entropy is not None:
            scale = scale - of_entropy.unsqueeze(-1) * (logp + ctx.entropy.unsqueeze(-1))
        d_logits = logp.exp_().mul_(scale)
        inside, index = _inside(ctx.action, block)
        d_logits.scatter_add_(-1, index, (grad * inside).unsqueeze(-1))
        if old_product is not None:
            theirs = ctx.old.finish(old_product, block) - ctx.old_log_z.unsqueeze(-1)
            d_logits -= theirs.exp_().mul_(of_kl.unsqueeze(-1))
        return d_logits


def _mean(means: list[Float[Tensor, "S"]], totals: list[Float[Tensor, "S"]]) -> Float[Tensor, "S"]:
    """The mean over the vocabulary, given the means in its blocks and the logarithms of their shares."""
    return (torch.stack(totals).softmax(0) * torch.stack(means)).sum(0)


def _inside(action: Int[Tensor, "S"], block: slice) -> tuple[Bool[Tensor, "S"], Int[Tensor, "S 1"]]:
    """Whether each action is in the block, and its column there (0 if it is not)."""
    inside = (action >= block.start) & (action < block.stop)
    return inside, torch.where(inside, action - block.start, 0).unsqueeze(-1)


def mode(steps: Steps) -> Int[Tensor, "S"]:
    """The most probable token, the first if there are several."""
    best = [logits.max(-1) for logits in steps.logits()]
    winner = torch.stack([x.values for x in best]).argmax(0)
    starts = torch.tensor([block.start for block in steps.blocks()], device=winner.device)
    return torch.stack([x.indices for x in best]).gather(0, winner.unsqueeze(0)).squeeze(0) + starts[winner]


def fisher(
    steps: Steps, hidden: Float[Tensor, "S H"], moving: Head, weight: Float[Tensor, "S"]
) -> tuple[Float[Tensor, "S H"], Float[Tensor, "V H"], Float[Tensor, "V"]]:
    """weight·Jᵀ·(diag(π) − π·πᵀ)·J·u at each step, not differentiable.

    J is the Jacobian of the logits in the hidden states, the head's weight and its bias; u is given by tangents: those
    of the hidden states, and those of the head in `moving`. The result has the parts of u. Computed in blocks of steps.
    """
    still, precision = steps.head._replace(bias=None), steps.precision
    size = max(1, 4 * _BLOCK["cpu" if weight.device.type == "cpu" else "other"] // len(steps.head.weight))
    of_steps = torch.zeros_like(hidden)
    of_weight, of_bias = torch.zeros_like(steps.head.weight), steps.head.weight.new_zeros(len(steps.head.weight))
    for start in range(0, len(hidden), size):
        block = slice(start, start + size)
        inputs, allowed = steps.hidden[block], None if steps.allowed is None else steps.allowed[block]
        logits = steps.head(inputs) if allowed is None else restricted(steps.head(inputs), allowed)
        tangent = still(hidden[block]) + moving(inputs)
        force = categorical_fisher(logits, tangent, weight[block]) / steps.head.temperature
        low = force.to(precision)
        of_steps[block] = low @ steps.head.weight.to(precision)
        of_weight += low.t() @ inputs.to(precision)
        of_bias += force.sum(0)
    return of_steps, of_weight, of_bias


def words_of(allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(…, V) flags as the bits of (…, W) integers, W = ⌈V / 64⌉."""
    words = -(-allowed.shape[-1] // 64)
    padding = [(0, 0)] * (allowed.ndim - 1) + [(0, 64 * words - allowed.shape[-1])]
    return np.packbits(np.pad(allowed, padding), axis=-1, bitorder="little").view(np.int64)


def restricted(logits: Float[Tensor, "S V"], words: Int[Tensor, "S W"]) -> Float[Tensor, "S V"]:
    """The logits, but `IMPOSSIBLE` for tokens whose bit in `words` (see `words_of`) is 0."""
    octets = words.contiguous().view(torch.uint8).unsqueeze(-1)
    bits = (octets >> torch.arange(8, dtype=torch.uint8, device=words.device)) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[-1]] == 0, IMPOSSIBLE)


def has_bfloat16(device: str) -> bool:
    """Whether a device that is there computes matrix products in bfloat16."""
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.amp.autocast_mode.is_autocast_available(kind)


def autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[None]:
    """Context in which matrix products are computed in `dtype`; None changes nothing."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)
