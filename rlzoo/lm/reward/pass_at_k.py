"""pass@k, the usual measure of a policy whose responses are right or wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlzoo.core.system.errors import require

RIGHT = 1.0
"""Score from which a response is right."""


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that one of k responses is right, estimated without bias from n of which c are (Chen et al. 2021).

    Eq. 1, 1 − C(n − c, k) / C(n, k), as 1 − Π_i (1 − k/i) over i from n − c + 1 to n, which cannot overflow.

    Raises:
        ConfigError: k is not in [1, n].
    """
    require(1 <= k <= n, f"k must be in [1, {n}], the number of responses; got {k}")
    if n - c < k:
        return 1.0
    return float(1 - np.prod(1 - k / np.arange(n - c + 1, n + 1)))


def mean_pass_at_k(scores: Sequence[Sequence[float]], k: int) -> float:
    """The mean of `pass_at_k` over prompts, from the scores of the responses to each."""
    return float(np.mean([pass_at_k(len(row), sum(score >= RIGHT for score in row), k) for row in scores]))
