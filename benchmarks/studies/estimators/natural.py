"""The natural gradient: exact, and from the Fisher matrix of some responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from benchmarks.studies.estimators.judge import BLOCKS, GROUP, GROUPS, Estimate, Judge, assess
from benchmarks.studies.estimators.tabular import Table
from benchmarks.studies.estimators.task import Enumeration
from benchmarks.studies.estimators.variants import Variant
from rlzoo.optim.natural_gradient import conjugate_gradient

DAMPING = 0.01
CG_ITERS = 10
RESPONSES = (None, GROUP * GROUPS * 3, 12, 5)
"""Responses for the Fisher matrix, out of those of the batch; None for the exact matrix."""


def fisher_product(table: Table, visits: Float[Tensor, "S"], damping: float = 0.0) -> Callable[[Tensor], Tensor]:
    """v ↦ (F + damping)·v, F = Σ_s visits(s)·Σ_a π(a|s)·∇log π(a|s)·∇log π(a|s)ᵀ."""
    visited = visits.nonzero().squeeze(1)
    jacobian = table.jacobian.view(*table.log_probs.shape, -1)[visited].flatten(0, 1)
    weight = (visits[visited].unsqueeze(1) * table.log_probs[visited].exp()).flatten()
    return lambda v: jacobian.t() @ (weight * (jacobian @ v).t()).t() + damping * v


def visits(task: Enumeration, rows: Int[Tensor, "N"], weight: Float[Tensor, "N"]) -> Float[Tensor, "S"]:
    """The weighted number of visits of each state."""
    per_step = torch.where(task.mask[rows], weight.unsqueeze(1), 0.0)
    return torch.zeros(task.num_states, dtype=torch.float64).put_(task.state[rows], per_step, accumulate=True)


def exact_fisher(judge: Judge) -> Float[Tensor, "P P"]:
    """The Fisher matrix of whole responses, E[∇log π(y)·∇log π(y)ᵀ].

    It is the sum over the steps of those of a token, since ∇log π of one token has mean 0 given the tokens before it.
    """
    product = fisher_product(judge.new, expected_visits(judge))
    return product(torch.eye(judge.new.jacobian.shape[1], dtype=torch.float64))


def expected_visits(judge: Judge) -> Float[Tensor, "S"]:
    return visits(judge.task, torch.arange(len(judge.probability)), judge.probability)


def measure(judge: Judge, rows: Int[Tensor, "B N"], responses: int | None, rng: np.random.Generator) -> Estimate:
    """x ≈ (F + damping)⁻¹·g by conjugate gradient, as in NPG and TRPO, against the solution with exact F and g.

    g is estimated from the batch with leave-one-out, and F from some of its responses. Lengths and angles are those of
    the metric of F + damping.
    """
    fisher, everywhere = exact_fisher(judge), expected_visits(judge)
    metric = torch.linalg.cholesky(fisher + DAMPING * torch.eye(len(fisher), dtype=torch.float64))
    truth = torch.linalg.solve_triangular(metric, judge.gradient.unsqueeze(1), upper=False).squeeze(1)  # metricᵀ·x

    def samples() -> Iterator[Tensor]:
        for part in rows.tensor_split(BLOCKS):
            gradients = judge.new.gradient(judge.estimates(Variant("leave-one-out"), part, rng))
            directions = []
            for g, batch in zip(gradients, part, strict=True):
                subset = batch[torch.from_numpy(rng.permutation(len(batch))[:responses])]
                weight = torch.full(subset.shape, 1 / len(subset), dtype=torch.float64)
                visited = everywhere if responses is None else visits(judge.task, subset, weight)
                directions.append(conjugate_gradient(fisher_product(judge.new, visited, DAMPING), g, CG_ITERS).x)
            yield torch.stack(directions) @ metric

    return assess(samples(), truth)
