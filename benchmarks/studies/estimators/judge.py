"""Bias and variance of gradient estimators, from many batches of the same policy and from enumeration."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.studies.estimators.tabular import Table
from benchmarks.studies.estimators.task import Enumeration, weighted
from benchmarks.studies.estimators.variants import Variant
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GroupMean, LeaveOneOut
from rlzoo.lm.reward.shaping import shaped_reward

GROUP = 4
"""Responses to a prompt that are compared."""
GROUPS = 4
"""Groups of each prompt in a batch."""
BLOCKS = 50
"""Equal numbers of batches, whose means are compared for the size of a bias."""
_FLIPS = 9_999
"""Random signs of the blocks, against which the size of a bias is tested."""
_SIGNIFICANT, _ROUNDING = 0.001, 1e-9


@dataclass(frozen=True)
class Estimate:
    """Bias and noise of an estimator ĝ of the gradient g, in units of ‖g‖.

    An estimator that divides by lengths of responses is multiplied by their mean length.
    """

    scale: float
    """⟨E[ĝ], g⟩ / ‖g‖², which is 1 without bias, and its standard error."""
    scale_error: float
    bias: float
    """‖E[ĝ] − g‖, without what the noise adds to it; 0 if the noise is larger."""
    bias_p: float
    """The probability of a distance so large if E[ĝ] = g."""
    cosine: float
    """Of the angle between E[ĝ] and g."""
    cosine_p: float
    """The probability of an angle so large if E[ĝ] is a multiple of g."""
    noise: float
    """Standard deviation of ĝ over batches, √tr Cov, in units of its mean along g."""
    exact_scale: float | None = None
    """`scale`, `bias` and `cosine` by enumeration; None where batches are not means over responses."""
    exact_bias: float | None = None
    exact_cosine: float | None = None

    @property
    def verdict(self) -> str:
        """From the enumeration if there is one, else from the probabilities."""
        if self.exact_bias is None or self.exact_cosine is None:
            if self.bias_p > _SIGNIFICANT:
                return "no bias found"
            return "biased" if self.cosine_p < _SIGNIFICANT else "biased in length"
        if self.exact_bias < _ROUNDING:
            return "unbiased"
        return "biased" if abs(1 - self.exact_cosine) > _ROUNDING else "biased in length"


@dataclass(frozen=True)
class Judge:
    """A policy π_θ whose gradient is estimated from responses of a policy π_old, the same or an earlier one."""

    task: Enumeration
    reference: Table
    new: Table
    old: Table
    beta: float

    @cached_property
    def gradient(self) -> Float[Tensor, "P"]:
        """∇J(θ), exact."""
        model = self.new.model()
        logp = self.task.logp(model, self.task.state)
        objective = self.task.objective(logp, self.reference_logp, self.beta)
        return self.new.gradient(torch.autograd.grad(objective, model.logits)[0])

    @cached_property
    def reference_logp(self) -> Float[Tensor, "R T"]:
        return self.task.logp(self.reference.model(), self.task.state).detach()

    @cached_property
    def buffer(self) -> Buffer:
        """Every response, with the log-probabilities of π_old."""
        with torch.no_grad():
            logp = self.task.logp(self.old.model(), self.task.state)
        return self.task.buffer(self.task.state).replace(logp=logp, group_size=GROUP)

    @cached_property
    def probability(self) -> Float[Tensor, "R"]:
        """Of each response under π_old."""
        return self.task.probability(self.buffer.logp)

    @property
    def mean_length(self) -> float:
        return float(self.probability @ self.task.length.double())

    def draw(self, batches: int, rng: np.random.Generator) -> Int[Tensor, "B N"]:
        """Indices of responses of π_old: `GROUPS` groups of `GROUP` responses to each prompt in a batch."""
        drawn = []
        for prompt in range(self.task.num_prompts):
            rows = (self.task.prompt == prompt).nonzero().squeeze(1).numpy()
            p = self.probability[rows].numpy()
            drawn.append(rng.choice(rows, (batches, GROUPS * GROUP), p=p / p.sum()))
        return torch.from_numpy(np.concatenate(drawn, 1))

    @cached_property
    def value(self) -> Float[Tensor, "R L"]:
        """Exact V of π_old at each of L = T + 1 steps, for rewards with k1; 0 after the end."""
        reward = shaped_reward(self.buffer.logp - self.reference_logp, self.task.score, self.beta, self.task.mask)
        later = reward.flip(1).cumsum(1).flip(1)
        weight = torch.where(self.task.mask, self.probability.unsqueeze(1), 0.0)
        of_state = torch.zeros(2, self.task.num_states, dtype=torch.float64)
        of_state[0].put_(self.task.state, later * weight, accumulate=True)
        of_state[1].put_(self.task.state, weight, accumulate=True)
        value = (of_state[0] / of_state[1])[self.task.state]
        return torch.nn.functional.pad(torch.where(self.task.mask, value, 0.0), (0, 1))

    def experience(self, variant: Variant) -> Buffer:
        """Every response, with the rewards of a variant and its critic."""
        buffer = self.buffer.replace(value=self.value) if variant.critic else self.buffer
        return variant.rewards(self.old.model(), self.reference.model(), buffer, self.task.score, self.beta)

    def estimates(self, variant: Variant, rows: Int[Tensor, "B N"], rng: np.random.Generator) -> Float[Tensor, "B S V"]:
        """The estimate of each batch, with respect to the table."""
        model, reference, whole = self.new.model(), self.reference.model(), self.experience(variant)
        estimates = torch.empty(len(rows), *model.logits.shape, dtype=torch.float64)
        for i, responses in enumerate(rows):
            batch = variant.weighted(variant.estimator(take(whole, responses)))
            loss = variant.loss(model, reference, batch, self.beta, rng)
            estimates[i] = -torch.autograd.grad(loss, model.logits)[0]
        return estimates

    def expected(self, variant: Variant) -> Float[Tensor, "P"]:
        """E[ĝ] of an enumerable variant, a sum over all responses.

        The others of a group are independent of a response. So the expectation with leave-one-out is that with the
        expected return of the prompt as baseline, and with the group's mean it is (n − 1)/n of that.
        """
        model, reference, whole = self.new.model(), self.reference.model(), self.experience(variant)
        batch = variant.weighted(variant.estimator(whole.replace(group_size=0)))
        if isinstance(variant.estimator, LeaveOneOut | GroupMean):
            returns, weight = whole.reward.sum(1), self.probability * self.task.num_prompts
            mean = torch.zeros(self.task.num_prompts, dtype=torch.float64).index_add(
                0, self.task.prompt, weight * returns
            )
            share = 1 - 1 / GROUP if isinstance(variant.estimator, GroupMean) else 1.0
            advantage = share * (returns - mean[self.task.prompt])
            batch = batch.replace(advantage=torch.where(batch.mask, advantage.unsqueeze(1), 0.0))
        batch = weighted(batch, batch.weight * (len(self.probability) * self.probability).unsqueeze(1))
        loss = variant.loss(model, reference, batch, self.beta, np.random.default_rng(0))
        return self.new.gradient(-torch.autograd.grad(loss, model.logits)[0])

    def constant(self, variant: Variant) -> float:
        """The factor of ĝ: the mean length if it divides by lengths, else 1."""
        return 1.0 if variant.length == "constant" else self.mean_length

    def measure(self, variant: Variant, rows: Int[Tensor, "B N"], rng: np.random.Generator) -> Estimate:
        """Bias and noise of a variant over B batches."""
        constant = self.constant(variant)
        samples = (
            self.new.gradient(self.estimates(variant, part, rng)) * constant for part in rows.tensor_split(BLOCKS)
        )
        expected = self.expected(variant) * constant if variant.enumerable else None
        return assess(samples, self.gradient, expected)


def assess(
    samples: Iterable[Float[Tensor, "b P"]], truth: Float[Tensor, "P"], expected: Float[Tensor, "P"] | None = None
) -> Estimate:
    """Bias and noise of an estimator of `truth`, from blocks of independent estimates and from its expectation."""
    norm = float(truth.norm())
    unit = truth / norm
    blocks, along, squares = [], [], []
    for sample in samples:
        blocks.append(sample.mean(0) / norm)
        along.append(sample @ unit / norm)
        squares.append(sample.square().sum(1) / norm**2)
    error = torch.stack(blocks) - unit
    across = error - (error @ unit).unsqueeze(1) * unit
    scale = torch.cat(along)
    mean = float(scale.mean())
    bias, bias_p = squared_mean(error)
    turned, cosine_p = squared_mean(across)
    exact: dict[str, float] = {}
    if expected is not None:
        exact["exact_scale"] = float(expected @ unit) / norm
        exact["exact_bias"] = float((expected - truth).norm()) / norm
        exact["exact_cosine"] = float(expected @ unit / expected.norm())
    return Estimate(
        scale=mean,
        scale_error=float(scale.std()) / math.sqrt(len(scale)),
        bias=math.sqrt(max(bias, 0.0)),
        bias_p=bias_p,
        cosine=mean / math.sqrt(mean**2 + max(turned, 0.0)),
        cosine_p=cosine_p,
        noise=math.sqrt(float(torch.cat(squares).mean()) - (bias + 2 * mean - 1)) / abs(mean),
        **exact,
    )


def take(buffer: Buffer, rows: Int[Tensor, "N"]) -> Buffer:
    """Some rows of a buffer."""
    return buffer.map(lambda x: x[rows])


def squared_mean(blocks: Float[Tensor, "K P"]) -> tuple[float, float]:
    """‖E[x]‖² from K independent means of x, and the probability of a mean so far from 0 if E[x] = 0.

    The first is the mean of the inner products of different blocks, which is unbiased. The second is the share of
    random signs of the blocks with which their sum is as long.
    """
    count = len(blocks)
    products = blocks @ blocks.t()
    signs = torch.from_numpy(np.random.default_rng(0).choice([-1.0, 1.0], (_FLIPS, count)))
    lengths = ((signs @ products) * signs).sum(1)
    larger = int((lengths >= products.sum()).sum())
    return float(products.sum() - products.trace()) / (count * (count - 1)), (1 + larger) / (1 + _FLIPS)
