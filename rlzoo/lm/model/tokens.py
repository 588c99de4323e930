"""The distribution of the next token. It holds hidden states; logits are computed for acting steps only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from rlzoo.core.distributions import IMPOSSIBLE, Categorical, Distribution, categorical_fisher

_CHUNK = 2**24
"""Number of logits that are computed at a time without gradient."""


class Head(NamedTuple):
    """logits = (hidden · weightᵀ + bias) / temperature."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, "V"] | None
    temperature: float
    autocast: torch.dtype | None
    """Precision of the product; None for that of the weights."""

    def __call__(self, hidden: Float[Tensor, "S H"]) -> Float[Tensor, "S V"]:
        """Computed as (V, S), which is the faster order on a CPU for few rows and many columns."""
        with autocast(hidden.device, self.autocast):
            logits = (self.weight @ (hidden / self.temperature if self.temperature != 1 else hidden).t()).t()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return logits if self.bias is None else logits + self.bias / self.temperature


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


def autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[None]:
    """Context in which matrix products are computed in `dtype`; None changes nothing."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@dataclass(frozen=True)
class TokenDistribution(Distribution):
    """A categorical over the vocabulary at every acting step of (R, T). Every result is 0 at the other steps.

    Without gradients, results are computed in chunks of steps, and no tensor of the size of the vocabulary is kept.
    With gradients, micro-batches bound the number of steps.
    """

    hidden: Float[Tensor, "R T H"]
    acts: Bool[Tensor, "R T"]
    head: Head
    allowed: Int[Tensor, "R T W"] | None = None
    """Bits of the allowed tokens (see `words_of`); None if all are allowed."""

    @cached_property
    def _steps(self) -> Float[Tensor, "S H"]:
        return self.hidden[self.acts]

    @cached_property
    def _allowed_steps(self) -> Int[Tensor, "S W"] | None:
        return None if self.allowed is None else self.allowed[self.acts]

    @cached_property
    def _logits(self) -> Float[Tensor, "S V"]:
        logits, allowed = self.head(self._steps), self._allowed_steps
        return logits if allowed is None else restricted(logits, allowed)

    @cached_property
    def _log_probs(self) -> Float[Tensor, "S V"]:
        return self._logits.log_softmax(-1)

    def _per_step(self, fn: Callable[..., Shaped[Tensor, "S"]], *others: TokenDistribution) -> Shaped[Tensor, "R T"]:
        """`fn(distributions, steps)` at the acting steps: at once with gradients, otherwise in chunks."""
        given = self, *others
        if torch.is_grad_enabled() and any(x.hidden.requires_grad or x.head.weight.requires_grad for x in given):
            found = fn(given, slice(None))
        else:
            found = torch.cat([fn([x._chunk(cut) for x in given], cut) for cut in self._cuts()])
        out = torch.zeros(self.acts.shape, dtype=found.dtype, device=found.device)
        return out.masked_scatter(self.acts, found)

    def _cuts(self) -> list[slice]:
        """Chunks of the acting steps, at least one."""
        chunk = max(1, _CHUNK // len(self.head.weight))
        return [slice(i, i + chunk) for i in range(0, max(len(self._steps), 1), chunk)]

    def _chunk(self, cut: slice) -> TokenDistribution:
        steps, allowed = self._steps[cut].unsqueeze(0), self._allowed_steps
        allowed = None if allowed is None else allowed[cut].unsqueeze(0)
        acts = torch.ones(steps.shape[:2], dtype=torch.bool, device=steps.device)
        return replace(self, hidden=steps, acts=acts, allowed=allowed)

    def from_noise(self, noise: Float[Tensor, "R T V"]) -> Int[Tensor, "R T"]:
        chosen = (self._log_probs + noise[self.acts]).argmax(-1)
        return chosen.new_zeros(self.acts.shape).masked_scatter(self.acts, chosen)

    def noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "R T V"]:
        shape = *self.acts.shape, len(self.head.weight)
        return Categorical(self.hidden.new_empty(shape)).noise(generator)

    @property
    def mode(self) -> Int[Tensor, "R T"]:
        return self._per_step(lambda given, _: given[0]._log_probs.argmax(-1))

    def log_prob(self, action: Int[Tensor, "R T"]) -> Float[Tensor, "R T"]:
        taken = action[self.acts]
        return self._per_step(lambda given, cut: _LogProb.apply(given[0]._logits, taken[cut]))  # type: ignore[no-untyped-call]

    def entropy(self) -> Float[Tensor, "R T"]:
        return self._per_step(lambda given, _: -(given[0]._log_probs.exp() * given[0]._log_probs).sum(-1))

    def kl(self, other: TokenDistribution) -> Float[Tensor, "R T"]:
        def between(given: tuple[TokenDistribution, TokenDistribution], _: slice) -> Tensor:
            mine, theirs = (x._log_probs for x in given)
            return (mine.exp() * (mine - theirs)).sum(-1)

        return self._per_step(between, other)

    def map(self, fn: Callable[[Tensor], Tensor]) -> TokenDistribution:
        allowed = None if self.allowed is None else fn(self.allowed)
        return replace(self, hidden=fn(self.hidden), acts=fn(self.acts), allowed=allowed)

    def tensors(self) -> list[Tensor]:
        """The hidden states, and the head's weight and bias."""
        return [self.hidden, self.head.weight, *([] if self.head.bias is None else [self.head.bias])]

    def with_tensors(self, tensors: Iterable[Tensor]) -> TokenDistribution:
        hidden, weight, *bias = tensors
        return replace(self, hidden=hidden, head=self.head._replace(weight=weight, bias=bias[0] if bias else None))

    @torch.no_grad()
    def fisher(self, tangents: Sequence[Tensor], weight: Float[Tensor, "R T"]) -> list[Tensor]:
        """In chunks of steps."""
        hidden, of_weight, *of_bias = tangents
        still = self.head._replace(bias=None)
        moving = self.head._replace(weight=of_weight, bias=of_bias[0] if of_bias else None)
        of_steps: list[Tensor] = []
        of_head: list[Tensor] = []
        for cut in self._cuts():
            chunk, u = self._chunk(cut), still(hidden[self.acts][cut])
            u += moving(chunk._steps)
            force = categorical_fisher(chunk._logits, u, weight[self.acts][cut]) / self.head.temperature
            with autocast(u.device, self.head.autocast):
                of_steps.append(force @ self.head.weight)
                head = [(force.t() @ chunk._steps).to(of_weight.dtype), force.sum(0)]
            of_head = [x.add_(y) for x, y in zip(of_head, head, strict=True)] if of_head else head
        found = torch.zeros_like(hidden).masked_scatter_(self.acts.unsqueeze(-1), torch.cat(of_steps).to(hidden.dtype))
        return [found, *of_head[: len(tangents) - 1]]

    def detach(self) -> TokenDistribution:
        """Also copies the head, whose weights training changes in place."""
        bias = None if self.head.bias is None else self.head.bias.detach().clone()
        head = self.head._replace(weight=self.head.weight.detach().clone(), bias=bias)
        return replace(self, hidden=self.hidden.detach(), head=head)


class _LogProb(torch.autograd.Function):
    """log softmax(logits)[a] of each row. Its gradient is g·(1[a] − softmax).

    The gradient overwrites the log-probabilities, so the backward pass can run once. Autograd raises an error for a
    second one.
    """

    @staticmethod
    def forward(ctx: Any, logits: Float[Tensor, "S V"], action: Int[Tensor, "S"]) -> Float[Tensor, "S"]:
        log_probs = logits.log_softmax(-1)
        ctx.save_for_backward(log_probs, action)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Float[Tensor, "S"]) -> tuple[Float[Tensor, "S V"], None]:
        log_probs, action = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        return log_probs.exp_().mul_(-grad).scatter_add_(-1, action.unsqueeze(-1), grad), None
