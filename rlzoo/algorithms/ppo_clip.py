"""Proximal policy optimisation with a clipped objective (Schulman et al. 2017, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, Estimator
from rlzoo.core.fields import Count, NonNegative, Positive
from rlzoo.core.models import ActorCritic
from rlzoo.optim.adam import Adam


@dataclass(frozen=True)
class PPOClip(Algorithm):
    """Maximise E[min(r·Â, clip(r, 1 − ε, 1 + ε)·Â)] (eq. 7), r = π_θ/π_old, by epochs of minibatch Adam."""

    name: ClassVar[str] = "ppo-clip"

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.95)
    clip_coef: Positive = 0.2
    """ε, how far the ratio may move before its gradient stops."""
    anneal_clip: bool = False
    """Lower ε linearly to 0 over the run."""
    learning_rate: Positive = 3e-4
    """Adam's step size."""
    anneal_lr: bool = False
    """Lower the learning rate linearly to 0 over the run."""
    epochs: Count = 10
    """Passes over each buffer."""
    minibatch_size: Count = 64
    """Steps a minibatch."""
    vf_coef: NonNegative = 1.0
    """Weight of the value loss ½(V − G)²."""
    clip_value: bool = False
    """Clip the value's move to ±ε around its old value, taking the larger loss."""
    ent_coef: NonNegative = 0.0
    """Weight of the entropy bonus."""
    max_grad_norm: Positive = 0.5
    """Bound on the gradient's norm."""
    normalize_advantage: bool = True
    """Whiten the advantages in each minibatch."""
    target_kl: Positive | None = None
    """Stop the update before a step where the minibatch's KL (k3) exceeds 1.5 times this."""

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return State(rng, {"all": Adam(list(model.parameters()))})

    def loss(self, model: ActorCritic, batch: Buffer, clip_coef: float) -> Tensor:
        """−E[min(r·Â, clip(r)·Â)] + vf_coef·E[½(V − G)²] − ent_coef·E[H], and that of the demonstrations."""
        policy, value = model(batch.obs)
        advantage = batch.whitened_advantage if self.normalize_advantage else batch.advantage
        logp = policy.log_prob(batch.action)
        ratio = torch.exp(logp - batch.logp)
        bound = advantage + clip_coef * advantage.abs()  # min(r·Â, clip(r)·Â) = min(r·Â, Â + ε|Â|)
        objective = (ratio * advantage).clamp(max=bound)
        error = mse_loss(value, batch.return_, reduction="none")
        if self.clip_value:
            near = batch.value + (value - batch.value).clamp(-clip_coef, clip_coef)
            error = torch.maximum(error, mse_loss(near, batch.return_, reduction="none"))
        loss = 0.5 * self.vf_coef * error - objective
        if self.ent_coef:
            loss = loss - self.ent_coef * policy.entropy()
        total = batch.mean(loss)
        return total - batch.demonstrated(logp) if batch.has_demonstrations else total

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = self.estimator(buffer).rows(model.context)
        remaining = 1 - state.progress
        learning_rate = self.learning_rate * (remaining if self.anneal_lr else 1.0)
        clip_coef = self.clip_coef * (remaining if self.anneal_clip else 1.0)

        steps, grad_norm = 0, 0.0
        for minibatch in (m for _ in range(self.epochs) for m in batch.minibatches(self.minibatch_size, state.rng)):
            if self.target_kl is not None and k3(model, minibatch) > 1.5 * self.target_kl:
                break
            grad_norm = state.optimizers["all"].minimize(
                self.loss,
                model,
                minibatch,
                clip_coef,
                learning_rate=learning_rate,
                max_grad_norm=self.max_grad_norm,
            )
            steps += 1
        return {
            **measure(model, batch, clip_coef),
            "gradient_steps": steps,
            "grad_norm": grad_norm,
        }


@torch.no_grad()
def k3(model: ActorCritic, batch: Buffer) -> float:
    """E[r − 1 − log r], an estimate of KL(π_old ‖ π_θ) that is never negative."""
    log_ratio = model.distribution(batch.obs).log_prob(batch.action) - batch.logp
    return float(batch.mean(log_ratio.expm1() - log_ratio))
