"""Objectives as sums of terms, and the one place where a model's auxiliary losses join them.

A term is a part of a loss that fits into memory by itself. Gradients, Fisher products and line searches go through
terms, so that micro-batches, auxiliary losses and several processes work the same for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import mse_loss

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Distribution
from rlzoo.core.kl import k3
from rlzoo.core.models import ActorCritic, Term
from rlzoo.core.system import processes

Loss = Callable[..., Tensor]
"""`(model, batch, *scalars) -> scalar`, pure except for the model's parameters and a `KLStop`."""
Surrogate = Callable[[Distribution, Buffer], Tensor]
"""`(policy, batch) -> scalar`, where `policy` is π_θ in the states of the batch."""


def micro_batches(model: ActorCritic, batch: Buffer) -> Iterator[Buffer]:
    """The micro-batches of this process's rows. The micro-batches of all processes are the whole batch."""
    own = batch if processes.size() == 1 else batch.part(processes.share(batch.num_rows))
    return own.micro_batches(model.micro_batch_steps)


def auxiliary_terms(model: ActorCritic, batch: Buffer) -> list[Term]:
    """The terms of the model's auxiliary loss that belong to an objective over the batch."""
    auxiliary = getattr(model, "auxiliary", None)  # a model may not have called `ActorCritic.__init__`
    return auxiliary.draw(batch.num_rows) if auxiliary is not None else []


def loss_terms(loss: Loss, model: ActorCritic, batch: Buffer, *scalars: float, auxiliary: bool = True) -> list[Term]:
    """`loss(model, batch, *scalars)` plus the auxiliary loss: one term for each micro-batch, then the auxiliary terms.

    Of several processes, each has its own terms. The objective is the sum of all.
    """

    def term(part: Buffer) -> Term:
        return lambda model: loss(model, part, *scalars)

    return [term(part) for part in micro_batches(model, batch)] + (auxiliary_terms(model, batch) if auxiliary else [])


def surrogate(policy: Distribution, batch: Buffer) -> Tensor:
    """E[π_θ/π_old·Â], whose gradient at θ_old is the policy gradient."""
    ratio = torch.exp(policy.log_prob(batch.action) - batch.logp)
    return batch.mean(ratio * batch.advantage)


def clipped_objective(ratio: Tensor, advantage: Tensor, clip_coef: float) -> Tensor:
    """min(r·Â, clip(r, 1 − ε, 1 + ε)·Â) at each step, (R, T), with r = π_θ/π_old (Schulman et al. 2017, eq. 7)."""
    return torch.min(ratio * advantage, ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantage)


def clipped_loss(model: ActorCritic, batch: Buffer, clip_coef: float) -> Tensor:
    """−E[min(r·Â, clip(r, 1 − ε, 1 + ε)·Â)]."""
    ratio = torch.exp(model.distribution(batch.obs).log_prob(batch.action) - batch.logp)
    return -batch.mean(clipped_objective(ratio, batch.advantage, clip_coef))


@torch.no_grad()
def with_old(model: ActorCritic, batch: Buffer) -> Buffer:
    """The batch with `old`, the policy as it is now. Each process computes its own rows."""
    return batch.replace(old=processes.rowwise(lambda rows: model.distribution(rows.obs).detach(), batch))


class PolicyStatistics(NamedTuple):
    """A policy in the states of a batch, (R, T) each, in nats."""

    log_prob: Float[Tensor, "R T"]
    """log π(a) of the batch's actions."""
    kl: Float[Tensor, "R T"] | None
    """KL(π_old ‖ π), exact over actions; None if the batch does not hold `old`."""
    entropy: Float[Tensor, "R T"]
    std: Float[Tensor, "R T"] | None
    """Mean standard deviation of Gaussian actions; None for other actions."""


@torch.no_grad()
def policy_statistics(model: ActorCritic, batch: Buffer) -> PolicyStatistics:
    """The policy as it is now in the states of the batch. Each process computes its own rows."""

    def forward(rows: Buffer) -> tuple[Any, ...]:
        policy = model.distribution(rows.obs)
        std = None if policy.std is None else policy.std.mean(-1)
        return *policy.evaluate(rows.action, rows.old, entropy=True), std

    return PolicyStatistics(*processes.rowwise(forward, batch))


class KLStop:
    """Stops an update where a minibatch's E[k3], an estimate of KL(π_old ‖ π_θ) from its actions, exceeds `limit`.

    The loss adds up this estimate during its own forward pass, so no other pass is needed.
    """

    def __init__(self, limit: float) -> None:
        self.limit, self.reached, self._kl = limit, False, 0.0

    def add(self, batch: Buffer, log_prob: Tensor) -> None:
        """Adds the part of a micro-batch, given log π_θ of its actions."""
        self._kl += float(batch.mean(k3(batch.logp, log_prob.detach())))

    def check(self) -> bool:
        """Whether the KL of the minibatch exceeds the limit. The next minibatch starts from 0."""
        kl, self._kl = processes.all_reduce(self._kl), 0.0
        self.reached = kl > self.limit
        return self.reached


def value_error(value: Tensor, batch: Buffer, clip_coef: float | None = None) -> Tensor:
    """(V − G)² at each step, (R, T).

    With `clip_coef` ε, the larger of that and (clip(V, V_old − ε, V_old + ε) − G)².
    """
    error = mse_loss(value, batch.return_, reduction="none")
    if clip_coef is not None:
        near = batch.value + (value - batch.value).clamp(-clip_coef, clip_coef)
        error = error.maximum(mse_loss(near, batch.return_, reduction="none"))
    return error


def value_loss(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[½(V(s) − G)²], where `batch.obs` holds the features that `model.value` takes."""
    return 0.5 * batch.mean(value_error(model.value(batch.obs), batch))
