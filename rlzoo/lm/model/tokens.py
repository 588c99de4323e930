"""What a language model sees, `Tokens`, and its distribution of the next token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import linear, pad

from rlzoo.core.distributions import Categorical, Distribution, categorical_fisher
from rlzoo.core.tensors import Tensors
from rlzoo.lm.model import padding
from rlzoo.lm.model.precision import autocast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Tokens(Tensors):
    """What a language model sees at each step. `...` is (N, T) in a buffer, and (N,) for one step of N rows."""

    token: Any
    """(...) integers."""
    attention: Any
    """(...) booleans: False at padding."""
    acts: Any
    """(...) booleans: whether the next token is an action, or a target of the pretraining loss."""
    allowed: Any = None
    """(..., V) booleans: whether each token may come next; None if all may."""

    @classmethod
    def of_texts(cls, texts: Sequence[Sequence[int]], pad_token: int) -> Tokens:
        """Texts padded on the right, in which every token but the first is an action."""
        token, attention = padding.pad(texts, pad_token, side="right")
        return cls(token, attention, pad(attention[:, 1:], (0, 1)))

    @property
    def action(self) -> Int[Tensor, "N T"]:
        """The next token at each step; 0 in the last column."""
        return pad(self.token[:, 1:], (0, 1))

    def columns(self, start: int, end: int) -> Tokens:
        """The steps from `start` to `end` of (N, T)."""
        return self.map(lambda x: x[:, start:end])


class Head(NamedTuple):
    """logits = (hidden · weightᵀ + bias) / temperature."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, "V"] | None
    temperature: float = 1.0
    precision: torch.dtype | None = None
    """Precision of the product; None for that of the weights."""

    def __call__(self, hidden: Float[Tensor, "S H"]) -> Float[Tensor, "S V"]:
        with autocast(hidden.device, self.precision):
            logits = linear(hidden, self.weight, self.bias)
        return apply_temperature(at_least_single(logits), self.temperature)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature."""
    return logits if temperature == 1 else logits / temperature


def at_least_single(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is already."""
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True)
class TokenDistribution(Distribution):
    """A categorical over the vocabulary at every acting step of (R, T). Every result is 0 at the other steps.

    It holds hidden states, and computes logits at the acting steps alone.
    """

    hidden: Float[Tensor, "R T H"]
    acts: Bool[Tensor, "R T"]
    head: Head
    allowed: Bool[Tensor, "R T V"] | None = None
    """Whether each token may come next; None if all may."""

    @cached_property
    def at_steps(self) -> Categorical:
        """The distributions (S,) at the acting steps alone."""
        categorical = Categorical(self.head(self.hidden[self.acts]))
        return categorical if self.allowed is None else categorical.restrict(self.allowed[self.acts])

    def scatter(self, x: Shaped[Tensor, "S"]) -> Shaped[Tensor, "R T"]:
        """Results at the acting steps, and 0 elsewhere."""
        return x.new_zeros(self.acts.shape).masked_scatter(self.acts, x)

    def from_noise(self, noise: Float[Tensor, "R T V"]) -> Int[Tensor, "R T"]:
        return self.scatter(self.at_steps.from_noise(noise[self.acts]))

    def noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "R T V"]:
        shape = *self.acts.shape, len(self.head.weight)
        return Categorical(self.hidden.new_empty(shape)).noise(generator)

    @property
    def mode(self) -> Int[Tensor, "R T"]:
        return self.scatter(self.at_steps.mode)

    def log_prob(self, action: Int[Tensor, "R T"]) -> Float[Tensor, "R T"]:
        return self.scatter(self.at_steps.log_prob(action[self.acts]))

    def entropy(self) -> Float[Tensor, "R T"]:
        return self.scatter(self.at_steps.entropy())

    def kl(self, other: TokenDistribution) -> Float[Tensor, "R T"]:
        return self.scatter(self.at_steps.kl(other.at_steps))

    def map(self, fn: Callable[[Tensor], Tensor]) -> TokenDistribution:
        allowed = None if self.allowed is None else fn(self.allowed)
        return replace(self, hidden=fn(self.hidden), acts=fn(self.acts), allowed=allowed)

    def tensors(self) -> list[Tensor]:
        """The hidden states, and the head's weight and bias."""
        return [self.hidden, self.head.weight, *([] if self.head.bias is None else [self.head.bias])]

    def with_tensors(self, tensors: Iterable[Tensor]) -> TokenDistribution:
        hidden, weight, *bias = tensors
        return replace(self, hidden=hidden, head=self.head._replace(weight=weight, bias=bias[0] if bias else None))

    def fisher(self, tangents: Sequence[Tensor], weight: Float[Tensor, "R T"]) -> list[Tensor]:
        """weight·Jᵀ·(diag(π) − π·πᵀ)·J·u, where J is the Jacobian of the logits in `tensors()`."""

        def logits(*tensors: Tensor) -> Tensor:
            return self.with_tensors(tensors).at_steps.logits

        tensors = tuple(x.detach() for x in self.tensors())
        value, pull_back = torch.func.vjp(logits, *tensors)[:2]
        tangent = torch.func.jvp(logits, tensors, tuple(tangents))[1]
        return list(pull_back(categorical_fisher(value, tangent, weight[self.acts])))

    def detach(self) -> TokenDistribution:
        """Also copies the head, whose weights training changes in place."""
        hidden, *head = (x.detach() for x in self.tensors())
        return self.with_tensors([hidden, *(x.clone() for x in head)])


def is_special(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    """Whether a token is special, also without a name: many chat models end a turn with such a token."""
    plain = tokenizer.decode([token], skip_special_tokens=True)
    return token in tokenizer.all_special_ids or tokenizer.decode([token]) != plain
