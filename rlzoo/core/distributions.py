"""Action distributions, as immutable dataclasses. `...` stands for any batch shape, usually (N, T)."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.tensors import Tensors

IMPOSSIBLE = -1e9
"""Logit of an illegal category: its probability is exactly 0, and p·log p and every gradient stay finite."""
_BLOCK = 512
"""Categories whose probabilities are summed first when sampling from many."""


class Evaluated(NamedTuple):
    """What an objective of a policy π needs to know in each state, in nats."""

    log_prob: Float[Tensor, "*batch"]
    """log π(a)."""
    kl: Float[Tensor, "*batch"] | None
    """KL(π_old ‖ π), if asked for."""
    entropy: Float[Tensor, "*batch"] | None
    """−E[log π], if asked for."""


class Distribution(Tensors, abc.ABC):
    """Distribution over actions, one for each state of a batch.

    A sample is a deterministic function of noise that does not depend on the parameters, so the caller owns the
    random state.
    """

    @abc.abstractmethod
    def from_noise(self, noise: Float[Tensor, "*batch Z"]) -> Tensor:
        """A sample computed from standard noise: a Gumbel for each category, a normal for each other component.

        Control tasks draw this noise themselves, by the space of the actions. Another kind of distribution maps it
        through its quantile function.
        """

    def noise(self, generator: torch.Generator | None = None) -> Float[Tensor, "*batch Z"]:
        """Draws standard noise for `from_noise`. Control tasks do not need it."""
        raise ConfigError(f"{type(self).__name__} has no method noise(generator), which samples need here")

    @property
    def noise_size(self) -> int:
        """Z. Control tasks need it for the parts of a `Product`."""
        raise NotImplementedError(f"{type(self).__name__} has no noise_size, which a part of a Product needs")

    def typed(self, action: Tensor) -> Tensor:
        """Numbers (..., A) that stand for actions, as `log_prob` takes them."""
        return action

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """A sample, without gradient."""
        with torch.no_grad():
            return self.from_noise(self.noise(generator))

    @property
    @abc.abstractmethod
    def mode(self) -> Tensor:
        """The most probable action."""

    @property
    def std(self) -> Tensor | None:
        """Standard deviation of each component of the action; None for categories."""
        return None

    @abc.abstractmethod
    def log_prob(self, action: Tensor) -> Float[Tensor, "*batch"]:
        """log π(action)."""

    @abc.abstractmethod
    def entropy(self) -> Float[Tensor, "*batch"]:
        """−E[log π], in nats."""

    @abc.abstractmethod
    def kl(self, other: Self) -> Float[Tensor, "*batch"]:
        """KL(self ‖ other) in closed form, in nats."""

    def evaluate(self, action: Tensor, old: Self | None = None, entropy: bool = False) -> Evaluated:
        """`log_prob(action)`, and if asked for `old.kl(self)` and `entropy()`, all at once where that saves work."""
        log_prob = self.log_prob(action)
        return Evaluated(log_prob, None if old is None else old.kl(self), self.entropy() if entropy else None)

    def restrict(self, legal: Bool[Tensor, "*batch K"]) -> Self:
        """The distribution given that the action is legal. The K categories are those of all parts in order."""
        raise NotImplementedError(f"{type(self).__name__} has no categories")

    def detach(self) -> Self:
        """The same distribution without gradient, in tensors of its own: training changes parameters in place."""
        return self.map(lambda x: x.detach().clone())

    def fisher(self, tangents: Sequence[Tensor], weight: Float[Tensor, "*batch"]) -> list[Tensor]:
        """weight·F·u in each state: F is the Fisher information matrix of `tensors()` in a state, u the `tangents`.

        F is the Hessian of KL(self ‖ other) in the tensors of `other`, at `other` = `self`. By default it comes from
        two backward passes through `kl`; a closed form is faster. Integers and booleans get zeros.
        """
        with torch.enable_grad():
            tensors = [x.detach().requires_grad_(x.is_floating_point()) for x in self.tensors()]
            moving, us = zip(*((x, u) for x, u in zip(tensors, tangents, strict=True) if x.requires_grad), strict=True)
            kl = (weight * self.detach().kl(self.with_tensors(tensors))).sum()
            first = torch.autograd.grad(kl, moving, create_graph=True, allow_unused=True, materialize_grads=True)
            products = iter(torch.autograd.grad(first, moving, us, allow_unused=True, materialize_grads=True))
            return [next(products) if x.requires_grad else torch.zeros_like(x) for x in tensors]


@dataclass(frozen=True)
class Categorical(Distribution):
    """Categorical distribution over K categories. Actions are integers (...)."""

    logits: Float[Tensor, "*batch K"]
    """Log-probabilities up to a constant; −inf for an impossible category."""

    @property
    def noise_size(self) -> int:
        return self.logits.shape[-1]

    def typed(self, action: Tensor) -> Tensor:
        return action.squeeze(-1).long()

    @cached_property
    def log_probs(self) -> Float[Tensor, "*batch K"]:
        return self.logits.log_softmax(-1)

    @property
    def _finite(self) -> Tensor:
        """`log_probs` with which p·log p is 0 where p is."""
        return self.log_probs.clamp(min=IMPOSSIBLE)

    def from_noise(self, noise: Tensor) -> Tensor:
        return (self.logits + noise).argmax(-1)  # the Gumbel-max trick

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        exponential = torch.empty_like(self.logits).exponential_(generator=generator)
        return -exponential.clamp_(min=torch.finfo(self.logits.dtype).tiny).log()

    @torch.no_grad()
    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Samples by inversion: one uniform number for each sample, instead of a Gumbel for each category."""
        uniform = torch.empty(self.logits.shape[:-1], dtype=torch.float64, device=self.logits.device)
        return self.quantile(uniform.uniform_(generator=generator))

    def quantile(self, uniform: Float[Tensor, "*batch"]) -> Tensor:
        """The category where the cumulative probability passes `uniform`, float64 in [0, 1); K or more if it is NaN.

        Of many categories, it first finds a block of them, then the category in the block.
        """
        probs = self.logits.softmax(-1)
        if probs.shape[-1] <= 2 * _BLOCK:
            cumulative = probs.cumsum(-1, dtype=torch.float64)
            return _first_above(cumulative, uniform.unsqueeze(-1) * cumulative[..., -1:]).squeeze(-1)
        missing = -probs.shape[-1] % _BLOCK
        padded = nn.functional.pad(probs, (0, missing)) if missing else probs
        blocks = padded.view(*padded.shape[:-1], -1, _BLOCK)
        cumulative = blocks.sum(-1).cumsum(-1, dtype=torch.float64)
        threshold = uniform.unsqueeze(-1) * cumulative[..., -1:]
        block = _first_above(cumulative, threshold).clamp(max=blocks.shape[-2] - 1)
        before = nn.functional.pad(cumulative, (1, 0)).gather(-1, block)
        inside = blocks.gather(-2, block.unsqueeze(-1).expand(*block.shape, _BLOCK)).squeeze(-2)
        return (block * _BLOCK + _first_above(inside.cumsum(-1, dtype=torch.float64), threshold - before)).squeeze(-1)

    @property
    def mode(self) -> Tensor:
        return self.logits.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        return self.log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self._finite).sum(-1)

    def kl(self, other: Categorical) -> Tensor:
        return (self.log_probs.exp() * (self._finite - other._finite)).sum(-1)

    def restrict(self, legal: Tensor) -> Categorical:
        return Categorical(self.logits.masked_fill(~legal, IMPOSSIBLE))

    def fisher(self, tangents: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        return [categorical_fisher(self.logits, tangents[0], weight)]


def _first_above(cumulative: Float[Tensor, "*batch K"], threshold: Float[Tensor, "*batch 1"]) -> Tensor:
    """Index (..., 1) of the first cumulative probability above the threshold, and at most the last that grows."""
    last = cumulative[..., -1:].nextafter(cumulative.new_zeros(()))  # rounding may give the sum itself
    return torch.searchsorted(cumulative, threshold.minimum(last), right=True)


@dataclass(frozen=True)
class DiagGaussian(Distribution):
    """Gaussian distribution with diagonal covariance. Actions are (..., A), and are not clipped."""

    mean: Float[Tensor, "*batch A"]
    log_std: Float[Tensor, "*batch A"]

    def from_noise(self, noise: Tensor) -> Tensor:
        return self.mean + self.log_std.exp() * noise

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.empty_like(self.mean).normal_(generator=generator)

    @property
    def noise_size(self) -> int:
        return self.mean.shape[-1]

    @property
    def std(self) -> Float[Tensor, "*batch A"]:
        return self.log_std.exp()

    @property
    def mode(self) -> Tensor:
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        z = (action - self.mean) * torch.exp(-self.log_std)
        return -(0.5 * z.square() + self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: DiagGaussian) -> Tensor:
        log_ratio = self.log_std - other.log_std
        shift = (self.mean - other.mean) * torch.exp(-other.log_std)
        return (0.5 * (torch.exp(2 * log_ratio) + shift.square() - 1) - log_ratio).sum(-1)

    def fisher(self, tangents: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        mean, log_std = (weight.unsqueeze(-1) * u for u in tangents)
        return [mean * torch.exp(-2 * self.log_std), 2 * log_std]


@dataclass(frozen=True)
class _Independent(Distribution):
    """Product of independent distributions."""

    parts: tuple[Any, ...]

    @abc.abstractmethod
    def _split(self, action: Tensor) -> Sequence[Tensor]:
        """The action of each part."""

    @abc.abstractmethod
    def _join(self, actions: list[Tensor]) -> Tensor:
        """One vector of the parts' actions."""

    def from_noise(self, noise: Tensor) -> Tensor:
        pieces = torch.split(noise, [part.noise_size for part in self.parts], dim=-1)
        return self._join([part.from_noise(z) for part, z in zip(self.parts, pieces, strict=True)])

    def noise(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.cat([part.noise(generator) for part in self.parts], -1)

    @property
    def noise_size(self) -> int:
        return sum(part.noise_size for part in self.parts)

    @property
    def mode(self) -> Tensor:
        return self._join([part.mode for part in self.parts])

    def log_prob(self, action: Tensor) -> Tensor:
        pairs = zip(self.parts, self._split(action), strict=True)
        return torch.stack([part.log_prob(a) for part, a in pairs]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: Self) -> Tensor:
        pairs = zip(self.parts, other.parts, strict=True)
        return torch.stack([mine.kl(theirs) for mine, theirs in pairs]).sum(0)

    def restrict(self, legal: Tensor) -> Self:
        sizes, given = [_categories(part) for part in self.parts], legal.shape[-1]
        require(sum(sizes) == given, f"parts with a method restrict have {sum(sizes)} categories, the mask has {given}")
        masks = torch.split(legal, sizes, -1)
        parts = [part.restrict(x) if n else part for part, x, n in zip(self.parts, masks, sizes, strict=True)]
        return self.replace(parts=tuple(parts))

    def fisher(self, tangents: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        """The Fisher matrix has one block for each part."""
        rest = iter(tangents)
        return [x for part in self.parts for x in part.fisher([next(rest) for _ in part.tensors()], weight)]


def _categories(part: Distribution) -> int:
    """Categories that a part's `restrict` takes; 0 if it has no such method of its own."""
    if isinstance(part, _Independent):
        return sum(map(_categories, part.parts))
    return 0 if type(part).restrict is Distribution.restrict else part.noise_size


@dataclass(frozen=True)
class MultiCategorical(_Independent):
    """Product of K independent `Categorical`s. Actions are integers (..., K)."""

    parts: tuple[Categorical, ...]

    def typed(self, action: Tensor) -> Tensor:
        return action.long()

    def _split(self, action: Tensor) -> Sequence[Tensor]:
        return action.unbind(-1)

    def _join(self, actions: list[Tensor]) -> Tensor:
        return torch.stack(actions, -1)


@dataclass(frozen=True)
class Product(_Independent):
    """Product of independent distributions of any kinds. Actions are numbers (..., A), the parts' columns in order."""

    parts: tuple[Distribution, ...]
    columns: tuple[int, ...]
    """Numbers of each part's action."""

    @property
    def std(self) -> Tensor | None:
        stds = [part.std for part in self.parts if part.std is not None]
        return torch.cat(stds, -1) if stds else None

    def _split(self, action: Tensor) -> Sequence[Tensor]:
        pieces = torch.split(action, list(self.columns), dim=-1)
        return [part.typed(a) for part, a in zip(self.parts, pieces, strict=True)]

    def _join(self, actions: list[Tensor]) -> Tensor:
        pairs = zip(self.parts, actions, strict=True)
        columns = [a.unsqueeze(-1) if isinstance(part, Categorical) else a for part, a in pairs]
        dtype = next((a.dtype for a in columns if a.is_floating_point()), torch.float32)
        return torch.cat([a.to(dtype) for a in columns], -1)


def categorical_fisher(
    logits: Float[Tensor, "*batch K"], tangent: Float[Tensor, "*batch K"], weight: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch K"]:
    """weight·(diag(p) − p·pᵀ)·u, the Fisher matrix of the logits times the tangent u."""
    p = logits.softmax(-1)
    return weight.unsqueeze(-1) * p * (tangent - (p * tangent).sum(-1, keepdim=True))
