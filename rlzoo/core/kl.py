"""Estimators of the Kullback-Leibler divergence from log-probabilities of samples (Schulman 2020).

Each estimates KL(p ‖ q) at a sample x ~ p from log p(x) and log q(x), in nats.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def k1(logp: Float[Tensor, "*batch"], logq: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """log p − log q: unbiased, of either sign."""
    return logp - logq


def k2(logp: Float[Tensor, "*batch"], logq: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """½·k1²: never negative. Its mean is the KL up to terms of third order in k1."""
    return 0.5 * k1(logp, logq).square()


def k3(logp: Float[Tensor, "*batch"], logq: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """e^{−k1} − 1 + k1: unbiased and never negative."""
    log_ratio = k1(logp, logq)
    return torch.expm1(-log_ratio) + log_ratio
