"""REINFORCE (Williams 1992)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import Estimator, MonteCarlo
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import (
    Advanced,
    MinibatchSize,
    NonNegativeInt,
    NonNegativeSchedule,
    Positive,
    PositiveSchedule,
)
from rlzoo.optim.adam import Adam


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """One step along E[Σ_t ∇log π(a_t|s_t)·(G_t − b(s_t))], where the baseline b is the learned value or 0.

    With Monte-Carlo returns it trains on complete episodes only. The factor γᵗ of the discounted objective's gradient
    is dropped, as is usual. Without a baseline a time limit counts as the episode's end; with one, a truncated return
    continues with the value of the final state.
    """

    name: ClassVar[str] = "reinforce"

    estimator: Estimator = MonteCarlo(gamma=0.99)
    learning_rate: PositiveSchedule = 3e-3
    """Adam's step size for the policy."""
    baseline: bool = True
    """Subtract the learned value from the return."""
    normalize_advantage: Advanced[bool] = True
    """Whiten G − b over the buffer."""
    ent_coef: NonNegativeSchedule = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Advanced[Positive | None] = 0.5
    """Maximum norm of the gradient; none for no maximum."""
    vf_learning_rate: PositiveSchedule = 3e-3
    """Adam's step size for the baseline."""
    vf_epochs: Advanced[NonNegativeInt] = 10
    """Passes over the buffer to fit the baseline."""
    vf_minibatch_size: Advanced[MinibatchSize] = 256
    """Steps in a minibatch when fitting the baseline."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fault = "without baseline the end of a buffer would count as that of an episode: use estimator monte-carlo"
        require(self.baseline or self.estimator.whole_episodes, fault)

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return State(rng, {"policy": Adam(model.policy_parameters()), "value": Adam(model.value_parameters())})

    def loss(self, model: ActorCritic, batch: Buffer, ent_coef: float) -> Tensor:
        """−E[log π(a|s)·Â] − ent_coef·E[H]."""
        policy = model.distribution(batch.obs)
        objective = policy.log_prob(batch.action) * batch.advantage
        if self.ent_coef:
            objective = objective + ent_coef * policy.entropy()
        return -batch.mean(objective)

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        if not self.baseline:
            buffer = buffer.replace(value=torch.zeros_like(buffer.value))
        batch = self.estimator(buffer).rows(model.context)
        if self.normalize_advantage:
            batch = batch.whitened

        rate, ent_coef = state.at(self.learning_rate), state.at(self.ent_coef)
        grad_norm = state.optimizers["policy"].minimize(
            self.loss, model, batch, ent_coef, learning_rate=rate, max_grad_norm=self.max_grad_norm
        )
        if self.baseline and self.estimator.needs_value:
            state.fit_value(model, batch, self.vf_epochs, self.vf_minibatch_size, self.vf_learning_rate)
        return {**measure(model, batch), "learning_rate": rate, "grad_norm": grad_norm}
