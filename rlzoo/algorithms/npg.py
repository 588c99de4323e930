"""Natural policy gradient (Kakade 2001)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, Estimator
from rlzoo.core.fields import Count, NonNegative, NonNegativeInt, Positive
from rlzoo.core.models import ActorCritic
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.natural_gradient import (
    FlatPolicy,
    conjugate_gradient,
    fisher_vector_product,
    gradient,
    trust_region_step,
)


@dataclass(frozen=True)
class NPG(Algorithm):
    """θ ← θ + √(2δ/xᵀFx)·x with x = F⁻¹g: the steepest ascent direction in the metric of the Fisher matrix F.

    F is averaged over the visited states, in closed form over actions. The step's length makes the
    quadratic model of KL(π_old ‖ π_θ) equal δ; nothing checks the KL itself, which is what TRPO adds.
    """

    name: ClassVar[str] = "npg"
    second_order: ClassVar[bool] = True

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.97)
    max_kl: Positive = 0.01
    """δ, what ½sᵀFs equals for the step s, in nats."""
    anneal_kl: bool = False
    """Lower δ linearly to 0 over the run."""
    cg_iters: Count = 10
    """Conjugate-gradient iterations, each one Fisher-vector product."""
    cg_damping: NonNegative = 0.01
    """Multiple of the identity added to F when solving for x."""
    normalize_advantage: bool = True
    """Whiten the advantages over the buffer."""
    vf_learning_rate: Positive = 1e-3
    """Adam's step size for the value."""
    vf_epochs: NonNegativeInt = 10
    """Passes over the buffer to fit the value."""
    vf_minibatch_size: Count = 128
    """Steps a minibatch when fitting the value."""

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        return State(rng, {"value": Adam(model.value_parameters())})

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = self.estimator(buffer).rows(model.context)
        if self.normalize_advantage:
            batch = batch.replace(advantage=batch.whitened_advantage)
        max_kl = self.max_kl * (1 - state.progress if self.anneal_kl else 1.0)
        with torch.no_grad():
            batch = batch.replace(old=model.distribution(batch.obs).detach())
        policy = FlatPolicy(model)
        theta = policy.theta

        def surrogate(theta: Tensor, batch: Buffer) -> Tensor:
            logp = policy(theta, batch.obs).log_prob(batch.action)
            ratio = torch.exp(logp - batch.logp)
            gain = batch.mean(ratio * batch.advantage)
            return gain + batch.demonstrated(logp) if batch.has_demonstrations else gain

        def kl(theta: Tensor, batch: Buffer) -> Tensor:
            assert batch.old is not None
            return batch.mean(batch.old.kl(policy(theta, batch.obs)))

        parts = list(batch.parts(model.part_steps))
        g = gradient(surrogate, theta, parts)
        fisher = fisher_vector_product(kl, theta, parts)
        x = conjugate_gradient(lambda v: fisher(v) + self.cg_damping * v, g, self.cg_iters)
        step, scale = trust_region_step(fisher, x, max_kl)
        policy.assign(theta + step)

        fit_value(
            model, state.optimizers["value"], batch,
            self.vf_epochs, self.vf_minibatch_size, self.vf_learning_rate, state.rng,
        )  # fmt: skip
        return {
            **measure(model, batch),
            "grad_norm": float(g.norm()),
            "step_norm": float(step.norm()),
            "step_scale": scale,
        }
