"""The distribution of the next token, held as hidden states: logits exist for acting steps, and few at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rlzoo.core.distributions import Categorical, Distribution

_CHUNK = 2**24
"""Logits that exist at a time where no gradient is asked for."""


class Head(NamedTuple):
    """logits = hidden · weightᵀ + bias, divided by the temperature."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, "V"] | None
    temperature: float
    autocast: torch.dtype | None
    """Precision of the product; None for that of the weights."""

    def __call__(self, hidden: Float[Tensor, "S H"]) -> Float[Tensor, "S V"]:
        """A view of (V, S), the order in which this product of few rows and many columns is fastest on a CPU."""
        with autocast(hidden.device, self.autocast):
            logits = (self.weight @ (hidden / self.temperature if self.temperature != 1 else hidden).t()).t()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return logits if self.bias is None else logits + self.bias / self.temperature


def autocast(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[None]:
    """Matrix products in `dtype`, or nothing."""
    return contextlib.nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@dataclass(frozen=True)
class TokenDistribution(Distribution):
    """A categorical over the vocabulary at every acting step of (R, T); elsewhere whatever is asked for is 0.

    Without gradients, results are computed a few steps at a time and nothing of the size of the vocabulary is
    kept. With gradients, `Buffer.parts` bounds how many steps there are.
    """

    hidden: Float[Tensor, "R T H"]
    acts: Bool[Tensor, "R T"]
    head: Head

    @cached_property
    def _steps(self) -> Float[Tensor, "S H"]:
        return self.hidden[self.acts]

    @cached_property
    def _logits(self) -> Float[Tensor, "S V"]:
        return self.head(self._steps)

    @cached_property
    def _log_probs(self) -> Float[Tensor, "S V"]:
        return self._logits.log_softmax(-1)

    def _per_step(self, fn: Callable[..., Shaped[Tensor, "S"]], *others: TokenDistribution) -> Shaped[Tensor, "R T"]:
        """`fn(distributions, steps)` of the acting steps: in one piece with gradients, else in chunks."""
        given = self, *others
        if torch.is_grad_enabled() and any(x.hidden.requires_grad or x.head.weight.requires_grad for x in given):
            found = fn(given, slice(None))
        else:
            chunk = max(1, _CHUNK // len(self.head.weight))
            cuts = [slice(i, i + chunk) for i in range(0, max(len(self._steps), 1), chunk)]
            found = torch.cat([fn([x._part(cut) for x in given], cut) for cut in cuts])
        out = torch.zeros(self.acts.shape, dtype=found.dtype, device=found.device)
        return out.masked_scatter(self.acts, found)

    def _part(self, cut: slice) -> TokenDistribution:
        steps = self._steps[cut].unsqueeze(0)
        return replace(self, hidden=steps, acts=torch.ones(steps.shape[:2], dtype=torch.bool, device=steps.device))

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
        return self._per_step(lambda given, cut: _Chosen.apply(given[0]._logits, taken[cut]))  # type: ignore[no-untyped-call]

    def entropy(self) -> Float[Tensor, "R T"]:
        return self._per_step(lambda given, _: -(given[0]._log_probs.exp() * given[0]._log_probs).sum(-1))

    def kl(self, other: TokenDistribution) -> Float[Tensor, "R T"]:
        def between(given: tuple[TokenDistribution, TokenDistribution], _: slice) -> Tensor:
            mine, theirs = (x._log_probs for x in given)
            return (mine.exp() * (mine - theirs)).sum(-1)

        return self._per_step(between, other)

    def map(self, fn: Callable[[Tensor], Tensor]) -> TokenDistribution:
        return replace(self, hidden=fn(self.hidden), acts=fn(self.acts))

    def detach(self) -> TokenDistribution:
        """With a copy of the head, which training goes on to change."""
        bias = None if self.head.bias is None else self.head.bias.detach().clone()
        head = self.head._replace(weight=self.head.weight.detach().clone(), bias=bias)
        return replace(self, hidden=self.hidden.detach(), head=head)


class _Chosen(torch.autograd.Function):
    """log softmax(logits)[a] of each row; its gradient is g·(1[a] − softmax).

    The gradient takes the place of the log-probabilities, so it can be had once; autograd says so to whoever asks
    again.
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
