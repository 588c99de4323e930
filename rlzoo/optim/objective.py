"""Objectives as sums of terms, and the one place where a model's auxiliary losses join them.

A term is a part of a loss that fits into memory by itself. Gradients, Fisher products and line searches go through
terms, so that micro-batches, auxiliary losses and several processes work the same for every algorithm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import mse_loss

from rlzoo.core import processes
from rlzoo.core.buffer import Buffer
from rlzoo.core.kl import k3
from rlzoo.core.models import ActorCritic, Term

Loss = Callable[..., Tensor]
"""`(model, batch, *scalars) -> scalar`, pure except for the model's parameters."""


def objective_terms(
    loss: Loss, model: ActorCritic, batch: Buffer, *scalars: float, auxiliary: bool = True
) -> list[Term]:
    """`loss(model, batch, *scalars)` as one term for each micro-batch, and the terms of the model's auxiliary loss.

    Of several processes, each has its own terms. The objective is the sum of all.
    """
    parts = batch.parts(model.part_steps)
    terms: list[Term] = [lambda model, part=part: loss(model, part, *scalars) for part in parts]  # type: ignore[misc]
    return terms + (model.auxiliary.draw(batch.num_rows) if auxiliary and model.auxiliary else [])


@torch.no_grad()
def with_old(model: ActorCritic, batch: Buffer) -> Buffer:
    """The batch with `old`, the policy as it is now. Each process computes its rows."""
    own = model.distribution(batch.obs[processes.rows(batch.num_rows)]).detach()
    return batch.replace(old=own.map(lambda x: processes.gathered(x)[0]))


@torch.no_grad()
def approximate_kl(model: ActorCritic, batch: Buffer) -> float:
    """E[k3], an estimate of KL(π_old ‖ π_θ) from the actions of the batch. Each process computes its rows."""
    terms = (part.mean(k3(part.logp, model.distribution(part.obs).log_prob(part.action))) for part in batch.parts(None))
    return processes.total(sum(map(float, terms)))


def surrogate(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[π_θ/π_old·Â], whose gradient at θ_old is the policy gradient."""
    return _surrogate(model.distribution(batch.obs).log_prob(batch.action), batch)


def surrogate_and_kl(model: ActorCritic, batch: Buffer) -> Float[Tensor, "2"]:
    """`surrogate` and E[KL(π_old ‖ π_θ)], exact over actions, from one forward pass."""
    logp, kl, _ = model.distribution(batch.obs).evaluate(batch.action, batch.old)
    assert kl is not None
    return torch.stack([_surrogate(logp, batch), batch.mean(kl)])


def _surrogate(logp: Float[Tensor, "R T"], batch: Buffer) -> Tensor:
    return batch.mean(torch.exp(logp - batch.logp) * batch.advantage)


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
