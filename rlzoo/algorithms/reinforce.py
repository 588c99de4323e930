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
from rlzoo.core.fields import Count, NonNegative, NonNegativeInt, Positive
from rlzoo.core.models import ActorCritic
from rlzoo.optim.adam import Adam, fit_value


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """One step up E[Σ_t ∇log π(a_t|s_t)·(G_t − b(s_t))], where the baseline b is the learned value or 0.

    Trains on complete episodes only. The factor γᵗ of the discounted objective's gradient is dropped, as
    is usual. Without a baseline a time limit counts as the episode's end; with one, a truncated return
    continues with the value of the final state.
    """

    name: ClassVar[str] = "reinforce"

    estimator: Estimator = MonteCarlo(gamma=0.99)
    learning_rate: Positive = 3e-3
    """Adam's step size for the policy."""
    anneal_lr: bool = False
    """Lower the learning rates linearly to 0 over the run."""
    baseline: bool = True
    """Subtract the learned value from the return."""
    normalize_advantage: bool = True
    """Whiten G − b over the buffer."""
    ent_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Positive = 0.5
    """Bound on the gradient's norm."""
    vf_learning_rate: Positive = 3e-3
    """Adam's step size for the baseline."""
    vf_epochs: NonNegativeInt = 10
    """Passes over the buffer to fit the baseline."""
    vf_minibatch_size: Count = 256
    """Steps a minibatch when fitting the baseline."""

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return State(rng, {"policy": Adam(model.policy_parameters()), "value": Adam(model.value_parameters())})

    def loss(self, model: ActorCritic, batch: Buffer) -> Tensor:
        """−E[log π(a|s)·Â] − ent_coef·E[H], and that of the demonstrations."""
        policy = model.distribution(batch.obs)
        logp = policy.log_prob(batch.action)
        objective = logp * batch.advantage
        if self.ent_coef:
            objective = objective + self.ent_coef * policy.entropy()
        loss = -batch.mean(objective)
        return loss - batch.demonstrated(logp) if batch.has_demonstrations else loss

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        if not self.baseline:
            buffer = buffer.replace(value=torch.zeros_like(buffer.value))
        batch = self.estimator(buffer).rows(model.context)
        if self.normalize_advantage:
            batch = batch.replace(advantage=batch.whitened_advantage)
        anneal = 1 - state.progress if self.anneal_lr else 1.0

        grad_norm = state.optimizers["policy"].minimize(
            self.loss,
            model,
            batch,
            learning_rate=anneal * self.learning_rate,
            max_grad_norm=self.max_grad_norm,
        )
        if self.baseline:
            fit_value(
                model,
                state.optimizers["value"],
                batch,
                self.vf_epochs,
                self.vf_minibatch_size,
                anneal * self.vf_learning_rate,
                state.rng,
            )
        return {**measure(model, batch), "grad_norm": grad_norm}
