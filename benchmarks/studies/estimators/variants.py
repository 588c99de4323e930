"""What is compared: ways to turn a batch of sampled responses into a gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.studies.estimators.task import weighted
from rlzoo.algorithms.ppo_clip import PPOClip
from rlzoo.algorithms.reinforce import Reinforce
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, Estimator, GroupMean, GroupNorm, LeaveOneOut, MonteCarlo
from rlzoo.core.models import ActorCritic
from rlzoo.lm.reward.shaping import KL_ESTIMATORS, sequence_kl, shaped_reward
from rlzoo.optim.objective import surrogate

Objective = Callable[[ActorCritic, Buffer], Tensor]
_CLIP = 0.2
_LEAVE_ONE_OUT, _NO_BASELINE = LeaveOneOut(), MonteCarlo(gamma=1.0)


def token_ratio(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[r·Â], the surrogate of NPG and TRPO."""
    return surrogate(model.distribution(batch.obs), batch)


def log_probability(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[log π·Â], REINFORCE's objective: no ratio."""
    return -Reinforce().loss(model, batch, 0.0)


def clipped(model: ActorCritic, batch: Buffer) -> Tensor:
    """PPO-clip's objective: the ratio of each token, clipped to 1 ± 0.2."""
    return -PPOClip(vf_coef=0.0).loss(model, batch, _CLIP, 0.0)


def whitened(model: ActorCritic, batch: Buffer) -> Tensor:
    """PPO-clip's objective with advantages whitened over the batch."""
    return clipped(model, batch.whitened)


def sequence_ratio(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[w·log π·Â], w = Π_t r_t, the ratio of whole responses, which is not differentiated."""
    log_ratio = _log_ratio(model, batch)
    return batch.mean(log_ratio.sum(1, keepdim=True).exp().detach() * log_ratio * batch.advantage)


def geometric_ratio(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[(Π_t r_t)^{1/length}·Â], with the ratio of GSPO (Zheng et al. 2025), not clipped."""
    length = batch.mask.sum(1, keepdim=True)
    return batch.mean((_log_ratio(model, batch).sum(1, keepdim=True) / length).exp() * batch.advantage)


def _log_ratio(model: ActorCritic, batch: Buffer) -> Float[Tensor, "N T"]:
    return torch.where(batch.mask, model.distribution(batch.obs).log_prob(batch.action) - batch.logp, 0.0)


@dataclass(frozen=True)
class Variant:
    """A gradient estimator: the gradient of `objective` less the KL in the loss."""

    name: str
    reward_kl: str | None = "k1"
    """Estimator of each token's KL in the reward."""
    loss_kl: str | None = None
    """Estimator of each token's KL in the loss, which is differentiated."""
    whole: bool = False
    """Whether these estimate the KL from the log-probabilities of whole responses instead of single tokens."""
    score: Literal["last", "every", "spread"] = "last"
    """The score is the reward of the last token, that of every token, or divided evenly among the tokens."""
    estimator: Estimator = _LEAVE_ONE_OUT
    objective: Objective = token_ratio
    length: Literal["constant", "token", "response"] = "constant"
    """Sums over tokens are divided by nothing, by the tokens of the batch, or by those of each response."""
    minibatch: int | None = None
    """Responses of a minibatch, over whose gradients the mean is taken; None for the whole batch."""
    critic: bool = False
    """Whether the value is the exact one; otherwise it is 0."""
    setting: str = "–"
    """The settings that select it; a dash where it lives in the benchmark alone."""

    @property
    def enumerable(self) -> bool:
        """Whether its expectation is a sum over single responses (see `Judge.expected`)."""
        return self.length != "token" and self.minibatch is None and not isinstance(self.estimator, GroupNorm)

    def weighted(self, buffer: Buffer) -> Buffer:
        """`buffer` with the weights of `length`."""
        if self.length == "token":
            return buffer
        mask = buffer.mask.to(buffer.reward.dtype)
        per_row = mask / mask.sum(1, keepdim=True) if self.length == "response" else mask
        return weighted(buffer, per_row / len(mask))

    def rewards(
        self, model: ActorCritic, reference: ActorCritic, buffer: Buffer, score: Float[Tensor, "N"], beta: float
    ) -> Buffer:
        """`buffer` with the rewards of each token, as in `LMEnv.score` for a score on the last token."""
        with torch.no_grad():
            kl = self.kl(self.reward_kl, model, reference, buffer, buffer.logp)
        if self.score == "last":
            return buffer.replace(reward=shaped_reward(kl, score, beta, buffer.mask))
        each = score if self.score == "every" else score / buffer.mask.sum(1)
        return buffer.replace(reward=torch.where(buffer.mask, each.unsqueeze(1) - beta * kl, 0.0))

    def loss(
        self, model: ActorCritic, reference: ActorCritic, batch: Buffer, beta: float, rng: np.random.Generator
    ) -> Tensor:
        """The loss over a batch with advantages, whose negative gradient is the estimate."""
        parts = [batch] if self.minibatch is None else list(batch.minibatches(self.minibatch, rng))
        objective = torch.stack([self.objective(model, part) for part in parts]).mean()
        if self.loss_kl is None:
            return -objective
        logp = model.distribution(batch.obs).log_prob(batch.action)
        return beta * batch.mean(self.kl(self.loss_kl, model, reference, batch, logp)) - objective

    def kl(
        self, name: str | None, model: ActorCritic, reference: ActorCritic, batch: Buffer, logp: Float[Tensor, "N T"]
    ) -> Float[Tensor, "N T"]:
        """The estimate of KL(π ‖ π_ref) at each token or, of whole responses, at the last token of each."""
        of = response_kl if self.whole else token_kl
        return torch.zeros_like(logp) if name is None else of(name, model, reference, batch, logp)


def token_kl(
    name: str, model: ActorCritic, reference: ActorCritic, batch: Buffer, logp: Float[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """The estimate of KL(π ‖ π_ref) at each token, as in `LMEnv.kl`."""
    estimator, ref = KL_ESTIMATORS[name], reference.distribution(batch.obs)
    return model.distribution(batch.obs).kl(ref) if estimator is None else estimator(logp, ref.log_prob(batch.action))


def response_kl(
    name: str, model: ActorCritic, reference: ActorCritic, batch: Buffer, logp: Float[Tensor, "N T"]
) -> Float[Tensor, "N T"]:
    """The estimate of KL(π ‖ π_ref) from log π(y) and log π_ref(y) of each response y, at its last token."""
    estimator, ref = KL_ESTIMATORS[name], reference.distribution(batch.obs).log_prob(batch.action)
    assert estimator is not None, "the KL over the vocabulary is that of a token"
    kl = estimator(sequence_kl(logp, batch.mask), sequence_kl(ref, batch.mask))
    return shaped_reward(torch.zeros_like(logp), kl, 0.0, batch.mask)


def kl_variants(names: Iterable[str], whole: bool = False) -> tuple[Variant, ...]:
    """Each estimator of the KL in the reward, in the loss, and in both."""
    return tuple(
        Variant(
            f"{name}{' of the response' if whole else ''}, in {where}",
            reward_kl=name if where != "the loss" else None,
            loss_kl=name if where != "the reward" else None,
            whole=whole,
            setting=f"kl_estimator={name}" if where == "the reward" and not whole else "–",
        )
        for where in ("the reward", "the loss", "both")
        for name in names
    )


KL = kl_variants(KL_ESTIMATORS)
WHOLE = kl_variants(("k1", "k2", "k3"), whole=True)
SCORES = (
    Variant("on the last token", estimator=_NO_BASELINE, setting="all algorithms"),
    Variant("on every token", score="every", estimator=_NO_BASELINE),
    Variant("on every token, one return for the response", score="every"),
    Variant("divided among the tokens", score="spread", estimator=_NO_BASELINE),
    Variant("divided among the tokens, one return for the response", score="spread"),
)
BASELINES = (
    Variant("none", estimator=_NO_BASELINE, setting="estimator=monte-carlo, baseline=false"),
    Variant("leave-one-out (RLOO)", setting="estimator=leave-one-out"),
    Variant("group mean (Dr. GRPO)", estimator=GroupMean(), setting="estimator=group-mean"),
    Variant("group mean and std (GRPO)", estimator=GroupNorm(), setting="estimator=group-norm"),
    Variant("exact critic, λ = 1", estimator=GAE(1.0, 1.0), critic=True, setting="gae_lambda=1"),
    Variant("exact critic, λ = 0.95", estimator=GAE(1.0, 0.95), critic=True, setting="gae_lambda=0.95"),
    Variant("critic of 0, λ = 0.95", estimator=GAE(1.0, 0.95), setting="gae_lambda=0.95"),
)
LENGTHS = (
    Variant("constant (Dr. GRPO)"),
    Variant("per token of the batch (DAPO)", length="token", setting="all algorithms"),
    Variant("per response (GRPO)", length="response"),
)
WHITENING = tuple(
    Variant(
        f"{name}, minibatches of {rows}",
        estimator=estimator,
        objective=whitened,
        length="token",
        minibatch=rows,
        setting=f"normalize_advantage, minibatch_responses={rows}",
    )
    for name, estimator in (("no baseline", _NO_BASELINE), ("leave-one-out", _LEAVE_ONE_OUT))
    for rows in (48, 16, 8, 4)
)
STALE = (
    Variant("no ratio", objective=log_probability, setting="REINFORCE"),
    Variant("token ratio", objective=token_ratio, setting="TRPO, PPO-penalty"),
    Variant("token ratio, clipped (PPO)", objective=clipped, setting="PPO-clip"),
    Variant("sequence ratio", objective=sequence_ratio),
    Variant("geometric mean of ratios (GSPO)", objective=geometric_ratio, length="response"),
)
