"""The distribution of the next token. It holds hidden states; logits are computed for acting steps only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rlzoo.core.distributions import Categorical, Distribution, Evaluated
from rlzoo.lm.model import vocabulary
from rlzoo.lm.model.vocabulary import Evaluate, Head, Steps, restricted


@dataclass(frozen=True)
class TokenDistribution(Distribution):
    """A categorical over the vocabulary at every acting step of (R, T). Every result is 0 at the other steps.

    Log-probabilities, entropy, and the KL of a fixed distribution to this one come from one pass over blocks of the
    vocabulary, gradients too. Only the KL of a distribution with gradient to another one keeps logits (S, V).
    """

    hidden: Float[Tensor, "R T H"]
    acts: Bool[Tensor, "R T"]
    head: Head
    allowed: Int[Tensor, "R T W"] | None = None
    """Bits of the allowed tokens (see `words_of`); None if all are allowed."""

    @cached_property
    def _steps(self) -> Steps:
        return Steps(self.hidden[self.acts], self.head, None if self.allowed is None else self.allowed[self.acts])

    @cached_property
    def _log_probs(self) -> Float[Tensor, "S V"]:
        hidden, head, allowed = self._steps
        logits = head(hidden)
        return (logits if allowed is None else restricted(logits, allowed)).log_softmax(-1)

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and (self.hidden.requires_grad or self.head.weight.requires_grad)

    def _placed(self, found: Shaped[Tensor, "S"]) -> Shaped[Tensor, "R T"]:
        """Results at the acting steps, and 0 elsewhere."""
        return found.new_zeros(self.acts.shape).masked_scatter(self.acts, found)

    def from_noise(self, noise: Float[Tensor, "R T V"]) -> Int[Tensor, "R T"]:
        return self._placed((self._log_probs + noise[self.acts]).argmax(-1))

    def noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "R T V"]:
        shape = *self.acts.shape, len(self.head.weight)
        return Categorical(self.hidden.new_empty(shape)).noise(generator)

    @property
    def mode(self) -> Int[Tensor, "R T"]:
        with torch.no_grad():
            return self._placed(vocabulary.mode(self._steps))

    def evaluate(
        self, action: Int[Tensor, "R T"], old: TokenDistribution | None = None, entropy: bool = False
    ) -> Evaluated:
        if old is not None and old._differentiable:
            return super().evaluate(action, old, entropy)
        steps, of_old = self._steps, None if old is None else old._steps
        given = steps.hidden, self.head.weight, self.head.bias
        log_prob, *others = Evaluate.apply(*given, steps, action[self.acts], of_old, entropy, self._differentiable)  # type: ignore[no-untyped-call]
        return Evaluated(self._placed(log_prob), *(None if x is None else self._placed(x) for x in others))

    def log_prob(self, action: Int[Tensor, "R T"]) -> Float[Tensor, "R T"]:
        return self.evaluate(action).log_prob

    def entropy(self) -> Float[Tensor, "R T"]:
        found = self.evaluate(self.acts.long(), entropy=True).entropy
        assert found is not None
        return found

    def kl(self, other: TokenDistribution) -> Float[Tensor, "R T"]:
        if self._differentiable:
            return self._placed((self._log_probs.exp() * (self._log_probs - other._log_probs)).sum(-1))
        found = other.evaluate(self.acts.long(), old=self).kl
        assert found is not None
        return found

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
        hidden, of_weight, *of_bias = tangents
        moving = self.head._replace(weight=of_weight, bias=of_bias[0] if of_bias else None)
        of_steps, *of_head = vocabulary.fisher(self._steps, hidden[self.acts], moving, weight[self.acts])
        found = torch.zeros_like(hidden).masked_scatter_(self.acts.unsqueeze(-1), of_steps.to(hidden.dtype))
        return [found, *of_head[: len(tangents) - 1]]

    def detach(self) -> TokenDistribution:
        """Also copies the head, whose weights training changes in place."""
        bias = None if self.head.bias is None else self.head.bias.detach().clone()
        head = self.head._replace(weight=self.head.weight.detach().clone(), bias=bias)
        return replace(self, hidden=self.hidden.detach(), head=head)
