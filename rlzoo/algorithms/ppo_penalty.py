"""Proximal policy optimisation with an adaptive KL penalty (Schulman et al. 2017, section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, joint_state, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, Estimator
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import (
    Advanced,
    Count,
    MinibatchSize,
    NonNegative,
    NonNegativeInt,
    NonNegativeSchedule,
    Positive,
    PositiveSchedule,
)
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.objective import policy_statistics, value_error, with_old


@dataclass(frozen=True)
class PPOPenalty(Algorithm):
    """Maximise E[π_θ/π_old·Â − β·KL(π_old ‖ π_θ)] by several epochs of minibatch Adam.

    After each update, with d = E[KL(π_old ‖ π_θ)]: β is halved if d < target/1.5 and doubled if d > 1.5·target. The
    new β is used by the next update.
    """

    name: ClassVar[str] = "ppo-penalty"

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.95)
    target_kl: Positive = 0.01
    """d_targ, the KL of an update that β aims at, in nats."""
    kl_coef: Positive = 1.0
    """β of the first update."""
    kl_coef_min: Advanced[Positive] = 1e-4
    """Lower bound of β."""
    kl_coef_max: Advanced[Positive] = 1e4
    """Upper bound of β."""
    learning_rate: PositiveSchedule = 3e-4
    """Adam's step size."""
    epochs: Count = 10
    """Passes over each buffer."""
    minibatch_size: MinibatchSize = 64
    """Steps in a minibatch."""
    vf_coef: Advanced[NonNegative] = 1.0
    """Weight of the value loss ½(V − G)²."""
    vf_learning_rate: Advanced[PositiveSchedule | None] = None
    """Adam's step size for the value's own parameters; none stands for `learning_rate`."""
    vf_warmup: Advanced[NonNegativeInt] = 0
    """First updates in which only the value's own parameters move. Adam's moments take in all gradients."""
    ent_coef: NonNegativeSchedule = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Advanced[Positive | None] = 0.5
    """Maximum norm of the gradient; none for no maximum."""
    normalize_advantage: Advanced[bool] = True
    """Whiten the advantages in each minibatch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = self.kl_coef_min <= self.kl_coef <= self.kl_coef_max
        require(ordered, f"kl_coef must be in [kl_coef_min, kl_coef_max], got {self.kl_coef}")

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return joint_state(model, rng, self.vf_warmup, self.vf_learning_rate, kl_coef=self.kl_coef)

    def loss(self, model: ActorCritic, batch: Buffer, kl_coef: float, ent_coef: float) -> Tensor:
        """−E[r·Â − β·KL] + vf_coef·E[½(V − G)²] − ent_coef·E[H]."""
        policy, value = model(batch.obs)
        logp, kl, entropy = policy.evaluate(batch.action, batch.old, entropy=bool(self.ent_coef))
        assert kl is not None
        ratio = torch.exp(logp - batch.logp)
        objective = ratio * batch.advantage - kl_coef * kl
        loss = 0.5 * self.vf_coef * value_error(value, batch) - objective
        if entropy is not None:
            loss = loss - ent_coef * entropy
        return batch.mean(loss)

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = self.estimator(buffer).rows(model.context)
        batch = with_old(model, batch)
        kl_coef, ent_coef = state.scalars["kl_coef"], state.at(self.ent_coef)
        rates = state.rates(self.learning_rate, self.vf_learning_rate)

        minibatches = Epochs(batch, self.epochs, self.minibatch_size, state.rng, whiten=self.normalize_advantage)
        _, grad_norm = state.optimizers["all"].minimize_each(
            self.loss, model, minibatches, kl_coef, ent_coef, **rates, max_grad_norm=self.max_grad_norm
        )

        after = policy_statistics(model, batch)
        assert after.kl is not None
        if rates["learning_rate"]:
            state.scalars["kl_coef"] = self.adapt(kl_coef, d=float(batch.mean(after.kl)))
        metrics = measure(model, batch.whitened if self.normalize_advantage else batch, after=after)
        return {**metrics, "learning_rate": rates["learning_rate"], "kl_coef": kl_coef, "grad_norm": grad_norm}

    def adapt(self, kl_coef: float, d: float) -> float:
        """β for the next update, given d = E[KL(π_old ‖ π_θ)] of this one."""
        if d < self.target_kl / 1.5:
            kl_coef = kl_coef / 2
        elif d > self.target_kl * 1.5:
            kl_coef = kl_coef * 2
        return min(max(kl_coef, self.kl_coef_min), self.kl_coef_max)
