"""Natural policy gradient (Kakade 2001)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, Estimator
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.fields import (
    Advanced,
    Count,
    Fraction,
    MinibatchSize,
    NonNegative,
    NonNegativeInt,
    PositiveSchedule,
)
from rlzoo.optim.adam import Adam
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, trust_region_step
from rlzoo.optim.objective import surrogate, with_old
from rlzoo.optim.vectors import norm


@dataclass(frozen=True)
class NPG(Algorithm):
    """θ ← θ + √(2δ/xᵀFx)·x with x = F⁻¹g: the steepest ascent direction in the metric of the Fisher matrix F.

    F is averaged over the visited states, in closed form over actions. The step's length makes the quadratic model of
    KL(π_old ‖ π_θ) equal to δ. The KL itself is not checked, unlike in TRPO.
    """

    name: ClassVar[str] = "npg"
    renamed: ClassVar[Mapping[str, str]] = {"max_kl": "step_kl"}
    second_order: ClassVar[bool] = True

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.97)
    step_kl: PositiveSchedule = 0.01
    """δ, the length ½sᵀFs of the step s, in nats."""
    cg_iters: Count = 10
    """Conjugate-gradient iterations; each needs one Fisher-vector product."""
    cg_damping: NonNegative = 0.01
    """Multiple of the identity added to F when solving for x."""
    fisher_fraction: Advanced[Fraction] = 1.0
    """Share of the rows that Fisher products average over, drawn for each update."""
    normalize_advantage: Advanced[bool] = True
    """Whiten the advantages over the buffer."""
    vf_learning_rate: PositiveSchedule = 1e-3
    """Adam's step size for the value."""
    vf_epochs: Advanced[NonNegativeInt] = 10
    """Passes over the buffer to fit the value."""
    vf_minibatch_size: Advanced[MinibatchSize] = 128
    """Steps in a minibatch when fitting the value."""

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        fisher_rng = rng.spawn(1)[0] if self.fisher_fraction < 1 else None
        return State(rng, {"value": Adam(model.value_parameters())}, fisher_rng=fisher_rng)

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = self.estimator(buffer).rows(model.context)
        if self.normalize_advantage:
            batch = batch.whitened
        batch = with_old(model, batch)
        policy = FlatPolicy(model)
        theta = policy.theta

        _, g = policy.objective(surrogate, batch).value_and_gradient(theta)
        some_rows = batch.sample(self.fisher_fraction, state.fisher_rng)
        fisher = fisher_vector_product(policy, theta, some_rows, self.cg_damping)
        x, residual = state.conjugate_gradient(fisher, g, self.cg_iters)
        step, scale = trust_region_step(x, fisher_curvature(policy, theta, batch, x), state.at(self.step_kl))
        policy.assign(theta + step)

        if self.estimator.needs_value:
            state.fit_value(model, batch, self.vf_epochs, self.vf_minibatch_size, self.vf_learning_rate)
        return {
            **measure(model, batch),
            "grad_norm": norm(g),
            "step_norm": norm(step),
            "step_scale": scale,
            "cg_residual": residual,
        }
