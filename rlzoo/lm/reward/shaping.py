"""Per-token rewards: KL to the reference, its coefficient β, and the score of a response.

A row is one response. Its unmasked steps are the tokens that the policy π sampled. π_ref is the frozen reference.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlzoo.core.kl import k1, k2, k3
from rlzoo.core.system.errors import NonFiniteError, require
from rlzoo.core.system.fields import Checked, NonNegative, Positive

KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {"k1": k1, "k2": k2, "k3": k3, "full": None}
"""(log π(a), log π_ref(a)) -> kl. None stands for Σ_a π(a)·(log π(a) − log π_ref(a)), which needs the distributions."""


def shaped_reward(
    kl: Float[Tensor, "N T"], score: Float[Tensor, "N"], beta: float, mask: Bool[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """r_t = −β·kl_t + [t = last]·score (Ziegler et al. 2019, eq. 2), where `last` is the row's last unmasked step.

    Masked steps get 0, whatever `kl` is there. A row without unmasked steps gets no score.
    """
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    return torch.where(mask, -beta * kl, 0.0) + torch.where(last, score.unsqueeze(1), 0.0)


def sequence_kl(kl: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"]) -> Float[Tensor, "N"]:
    """Σ_t kl_t over the unmasked steps of each row."""
    return torch.where(mask, kl, 0.0).sum(1)


class KLController(Checked, abc.ABC):
    """The rule for β. It is stateless: the caller keeps the current β."""

    beta: float

    @abc.abstractmethod
    def update(self, beta: float, kl: float, n: int) -> float:
        """The next β, after a batch of `n` rows with mean `sequence_kl` `kl`."""


@dataclass(frozen=True)
class FixedKL(KLController):
    """A constant β."""

    beta: NonNegative = 0.05
    """Coefficient of the KL to the reference."""

    def update(self, beta: float, kl: float, n: int) -> float:
        return beta


@dataclass(frozen=True)
class AdaptiveKL(KLController):
    """β ← β·(1 + clip(KL/target − 1, ±0.2)·n/horizon) (Ziegler et al. 2019), after each batch of n rows.

    KL is summed over each response and averaged over the rows.
    """

    beta: Positive = 0.2
    """Initial coefficient of the KL to the reference."""
    target: Positive = 6.0
    """KL of a whole response, in nats, that β adapts to."""
    horizon: Positive = 10_000.0
    """Responses over which β changes by about a fifth at most."""

    def update(self, beta: float, kl: float, n: int) -> float:
        """
        Raises:
            ConfigError: the batch is so large, relative to the horizon, that β could become 0 or negative.
            NonFiniteError: `kl` is not finite.
        """
        fault = f"horizon must be above a fifth of the batch's {n} responses, got {self.horizon:g}: β would fall to 0"
        require(0.2 * n < self.horizon, fault)
        if not math.isfinite(kl):
            raise NonFiniteError("KL to the reference is not finite")
        return beta * (1 + min(max(kl / self.target - 1, -0.2), 0.2) * n / self.horizon)


@dataclass(frozen=True)
class Moments:
    """Number, mean and sum of squared deviations of scores."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, score: Float[Tensor, "N"]) -> Moments:
        x = score.double()
        if not len(x):
            return cls()
        mean = x.mean()
        return cls(len(x), float(mean), float((x - mean).square().sum()))

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets of scores together (Chan et al. 1979)."""
        count = self.count + other.count
        if not count:
            return self
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        return Moments(count, mean, self.m2 + other.m2 + delta**2 * self.count * other.count / count)

    @property
    def std(self) -> float:
        """Biased standard deviation; 0 without scores."""
        return math.sqrt(self.m2 / self.count) if self.count else 0.0

    def gain_and_bias(self) -> tuple[float, float]:
        """(gain, bias) for which gain·score + bias has mean 0 and (biased) standard deviation 1.

        Raises `ConfigError` if there are no scores, or all are equal.
        """
        what = f"all {self.count} are {self.mean:g}" if self.count else "there are none"
        require(self.std > 0, f"reference scores must differ to be scaled to mean 0 and std 1, but {what}")
        return 1 / self.std, -self.mean / self.std


@dataclass(frozen=True)
class ScoreTreatment(Checked):
    """Processing of raw scores: normalisation, then clipping, then the penalty for a missing EOS."""

    normalization: Literal["none", "running", "reference"] = "none"
    """`running`: by mean and std of all scores so far. `reference`: by the fixed mean and std of the reference's own
    responses, as in Ziegler et al. (2019)."""
    clip: Positive | None = None
    """Bound on the absolute normalised score; None for no bound."""
    missing_eos_penalty: NonNegative = 0.0
    """Subtracted from the score of a response without a stop token, so that such scores still differ. Ziegler et al.
    (2019) give all such responses the same low score."""

    def __call__(
        self, score: Float[Tensor, "N"], ended: Bool[Tensor, "N"], moments: Moments
    ) -> tuple[Float[Tensor, "N"], Moments]:
        """Processed scores, and the moments to pass with the next batch.

        For `running`, `moments` are those of all earlier scores; this batch is added before they are used, and 1e-8 is
        added to the std. For `reference`, they are those of the reference's responses, and do not change.

        Raises:
            ConfigError: the scores of the reference are missing or all equal.
        """
        x = score.double()
        if self.normalization == "running":
            moments = moments.merge(Moments.of(score))
            x = (x - moments.mean) / (moments.std + 1e-8)
        elif self.normalization == "reference":
            gain, bias = moments.gain_and_bias()
            x = gain * x + bias
        if self.clip is not None:
            x = x.clamp(-self.clip, self.clip)
        return torch.where(ended, x, x - self.missing_eos_penalty).to(score.dtype), moments
