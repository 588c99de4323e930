"""Proximal policy optimisation with a clipped objective (Schulman et al. 2017, section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, joint_state, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, Estimator
from rlzoo.core.models import ActorCritic
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
from rlzoo.optim.objective import KLStop, clipped_objective, value_error


@dataclass(frozen=True)
class PPOClip(Algorithm):
    """Maximise E[min(r·Â, clip(r, 1 − ε, 1 + ε)·Â)] (eq. 7), r = π_θ/π_old, by epochs of minibatch Adam."""

    name: ClassVar[str] = "ppo-clip"
    renamed: ClassVar[Mapping[str, str]] = {"target_kl": "stop_kl"}

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.95)
    clip_coef: PositiveSchedule = 0.2
    """ε, the clip range of the ratio."""
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
    clip_value: Advanced[bool] = False
    """Clip the value to ±ε around its old value, and use the larger loss."""
    ent_coef: NonNegativeSchedule = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Advanced[Positive | None] = 0.5
    """Maximum norm of the gradient; none for no maximum."""
    normalize_advantage: Advanced[bool] = True
    """Whiten the advantages in each minibatch."""
    stop_kl: Positive | None = None
    """Stop the update before a step where the minibatch's KL (k3) exceeds 1.5 times this."""

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return joint_state(model, rng, self.vf_warmup, self.vf_learning_rate)

    def loss(
        self, model: ActorCritic, batch: Buffer, clip_coef: float, ent_coef: float, stop: KLStop | None = None
    ) -> Tensor:
        """−E[min(r·Â, clip(r, 1 − ε, 1 + ε)·Â)] + vf_coef·E[½(V − G)²] − ent_coef·E[H]."""
        policy, value = model(batch.obs)
        logp = policy.log_prob(batch.action)
        if stop is not None:
            stop.add(batch, logp)
        ratio = torch.exp(logp - batch.logp)
        objective = clipped_objective(ratio, batch.advantage, clip_coef)
        error = value_error(value, batch, clip_coef if self.clip_value else None)
        loss = 0.5 * self.vf_coef * error - objective
        if self.ent_coef:
            loss = loss - ent_coef * policy.entropy()
        return batch.mean(loss)

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = self.estimator(buffer).rows(model.context)
        clip_coef, ent_coef = state.at(self.clip_coef), state.at(self.ent_coef)
        rates = state.rates(self.learning_rate, self.vf_learning_rate)

        minibatches = Epochs(batch, self.epochs, self.minibatch_size, state.rng, whiten=self.normalize_advantage)
        stop = None if self.stop_kl is None else KLStop(1.5 * self.stop_kl)
        steps, grad_norm = state.optimizers["all"].minimize_each(
            self.loss, model, minibatches, clip_coef, ent_coef, **rates, max_grad_norm=self.max_grad_norm, stop=stop
        )
        metrics = measure(model, batch.whitened if self.normalize_advantage else batch, clip_coef)
        return {**metrics, "learning_rate": rates["learning_rate"], "gradient_steps": steps, "grad_norm": grad_norm}
