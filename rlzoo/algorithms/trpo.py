"""Trust region policy optimisation (Schulman et al. 2015, appendix C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

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
    OpenUnitInterval,
    PositiveSchedule,
)
from rlzoo.optim.adam import Adam
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, line_search, trust_region_step
from rlzoo.optim.objective import clipped_loss, surrogate, with_old
from rlzoo.optim.vectors import norm


@dataclass(frozen=True)
class TRPO(Algorithm):
    """Maximise E[π_θ/π_old·Â] subject to E[KL(π_old ‖ π_θ)] ≤ δ.

    The step is the natural one, √(2δ/xᵀFx)·x, or with `epochs` that of Adam on PPO's clipped surrogate. It is shortened
    until the surrogate improves and the KL is at most δ. If no step length satisfies both, θ is not changed.
    """

    name: ClassVar[str] = "trpo"

    estimator: Estimator = GAE(gamma=0.99, gae_lambda=0.97)
    max_kl: PositiveSchedule = 0.01
    """δ, the bound on the mean KL(π_old ‖ π_θ) of an update, in nats."""
    cg_iters: Count = 10
    """Conjugate-gradient iterations; each needs one Fisher-vector product."""
    cg_damping: NonNegative = 0.01
    """Multiple of the identity added to F when solving for x."""
    backtrack_coef: Advanced[OpenUnitInterval] = 0.8
    """Factor by which the line search shortens the step, in (0, 1)."""
    backtrack_iters: Advanced[Count] = 10
    """Step lengths that the line search tries."""
    fisher_fraction: Advanced[Fraction] = 1.0
    """Share of the rows that Fisher products average over, drawn for each update."""
    epochs: Advanced[NonNegativeInt] = 0
    """Passes of minibatch Adam over the buffer that give the step; 0 for the natural gradient step."""
    learning_rate: Advanced[PositiveSchedule] = 3e-4
    """Adam's step size in these passes."""
    minibatch_size: Advanced[MinibatchSize] = "all"
    """Steps in a minibatch of these passes."""
    clip_coef: Advanced[PositiveSchedule] = 0.2
    """ε, the clip range of the ratio in these passes."""
    normalize_advantage: Advanced[bool] = True
    """Whiten the advantages over the buffer; in passes of Adam, in each minibatch too."""
    vf_learning_rate: PositiveSchedule = 1e-3
    """Adam's step size for the value."""
    vf_epochs: Advanced[NonNegativeInt] = 10
    """Passes over the buffer to fit the value."""
    vf_minibatch_size: Advanced[MinibatchSize] = 128
    """Steps in a minibatch when fitting the value."""

    @property
    def second_order(self) -> bool:  # type: ignore[override]
        return not self.epochs

    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        fisher_rng = rng.spawn(1)[0] if self.fisher_fraction < 1 else None
        optimizers = {"value": Adam(model.value_parameters())}
        if self.epochs:
            optimizers["policy"] = Adam(model.policy_parameters())
        return State(rng, optimizers, fisher_rng=fisher_rng)

    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        batch = self.estimator(buffer).rows(model.context)
        if self.normalize_advantage:
            batch = batch.whitened
        batch = with_old(model, batch)
        policy = FlatPolicy(model)
        theta, max_kl = policy.theta, state.at(self.max_kl)
        objective = policy.objective(surrogate, batch)
        if self.epochs:
            before, _ = objective.value_and_kl(theta)
            rate, clip_coef = state.at(self.learning_rate), state.at(self.clip_coef)
            minibatches = Epochs(batch, self.epochs, self.minibatch_size, state.rng, self.normalize_advantage)
            state.optimizers["policy"].minimize_each(clipped_loss, model, minibatches, clip_coef, learning_rate=rate)
            step, further = policy.theta.sub_(theta), {"learning_rate": rate}
        else:
            before, g = objective.value_and_gradient(theta)
            some_rows = batch.sample(self.fisher_fraction, state.fisher_rng)
            fisher = fisher_vector_product(policy, theta, some_rows, self.cg_damping)
            x, residual = state.conjugate_gradient(fisher, g, self.cg_iters)
            step, _ = trust_region_step(x, fisher_curvature(policy, theta, batch, x), max_kl)
            further = {"grad_norm": norm(g), "cg_residual": residual}

        def accept(candidate: Tensor) -> bool:
            after, kl = objective.value_and_kl(candidate)
            return kl <= max_kl and after > before

        new, backtracks = line_search(accept, theta, step, self.backtrack_coef, self.backtrack_iters)
        policy.assign(new)

        if self.estimator.needs_value:
            state.fit_value(model, batch, self.vf_epochs, self.vf_minibatch_size, self.vf_learning_rate)
        return {
            **measure(model, batch),
            "step_norm": norm(new - theta),
            "backtracks": backtracks,
            "accepted": float(backtracks < self.backtrack_iters),
            **further,
        }
