"""Statistics of a few runs, after Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice".

A sample is the final scores of an algorithm's runs in one environment, (runs,), or their curves, (runs, points). A
sequence of samples has one for each environment; their numbers of runs may differ. A score of NaN, from a run that
diverged, counts as lower than any other. Each function raises `ConfigError` without environments or without runs.

Intervals are 95 % confidence intervals. Those with a `seed` are percentiles of a stratified bootstrap, which draws the
runs of each environment with replacement. With few runs they are too narrow. For the IQM of normal scores the coverage
is 93 % with ten runs, 90 % with five, 75 % with three, and the interval of one run has no width. For a probability of
improvement of 0.9 in one environment it is 86 % with ten runs and 70 % with five; where every run of one side is above
every run of the other, the interval has no width.
`scipy.stats.bootstrap` refuses a single run, and interpolates between order statistics, which gives NaN beside −inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import quantile_test, trim_mean

from rlzoo.core.system.errors import require

Array = np.ndarray[Any, Any]
_CONFIDENCE = 0.95


class Interval(NamedTuple):
    """An estimate and its 95 % interval: three numbers, or three arrays (points,)."""

    estimate: Any
    low: Any
    high: Any


def iqm(samples: Sequence[ArrayLike]) -> Any:
    """Interquartile mean: the mean of the middle half of the pooled runs of all environments.

    At each point it leaves out the ⌊N / 4⌋ best and worst of N runs. All runs have the same weight, so the scores of
    several environments have to be comparable (see `normalise`).

    Args:
        samples: (runs,) or (runs, points) each. NaN counts as −inf.

    Returns:
        A number or (points,); NaN only where both −inf and inf are in the middle half.
    """
    return _iqm(np.concatenate(_scores(samples))[np.newaxis])[0]


def iqm_interval(samples: Sequence[ArrayLike], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """`iqm` and its bootstrap interval. A resample draws whole curves."""
    rng = np.random.default_rng(seed)
    drawn = [x[_draw(len(x), resamples, rng)] for x in _scores(samples)]
    return _percentiles(_iqm(np.concatenate(drawn, axis=1)))


def performance_profile(
    samples: Sequence[ArrayLike], taus: ArrayLike, *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Share of runs with a score above τ, averaged over environments, and its bootstrap interval at each τ.

    Args:
        samples: (runs,) each. NaN is above no τ.
        taus: (points,).
    """
    rng = np.random.default_rng(seed)
    above = [x[:, np.newaxis] > np.asarray(taus) for x in _scores(samples)]
    shares = [a[_draw(len(a), resamples, rng)].mean(axis=1) for a in above]
    return _percentiles(np.mean(shares, axis=0))


def probability_of_improvement(
    x: Sequence[ArrayLike], y: Sequence[ArrayLike], *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """P(X > Y) + ½·P(X = Y) for a run of x and a run of y, averaged over environments, and its bootstrap interval.

    In an environment this is U / (n·m), with the Mann-Whitney statistic U and the numbers of runs n and m. The runs of
    x and y are drawn independently.

    Args:
        x: (runs,) each. NaN counts as −inf.
        y: (runs,) each, with the environments of x in the same order.
    """
    sides = _scores(x), _scores(y)
    n, m = map(len, sides)
    require(n == m, f"both sides of a comparison need the same environments, got {n} and {m}")
    rng = np.random.default_rng(seed)
    wins = []
    for ours, theirs in zip(*sides, strict=True):
        ours, theirs = ours[:, np.newaxis], theirs[np.newaxis]
        win = (ours > theirs) + 0.5 * (ours == theirs)
        rows, columns = (_draw(runs, resamples, rng) for runs in win.shape)
        wins.append(win[rows[:, :, np.newaxis], columns[:, np.newaxis]].mean(axis=(1, 2)))
    return _percentiles(np.mean(wins, axis=0))


def are_comparable(x: Sequence[ArrayLike], y: Sequence[ArrayLike]) -> bool:
    """Whether x and y have enough runs for a significant difference.

    Complete separation has a p-value below 0.05, and each spread is that of three runs or more: with two in each of
    three environments, one of two equal algorithms would be found better in 14 % of comparisons.
    """
    runs = [(len(ours), len(theirs)) for ours, theirs in zip(_scores(x), _scores(y), strict=True)]
    orders = math.prod(math.comb(n + m, n) for n, m in runs)
    return 2 / orders < 0.05 and all(min(sizes) > 2 for sizes in runs)


def is_better(x: Sequence[ArrayLike], y: Sequence[ArrayLike]) -> bool:
    """Whether x is better than y: comparable, and `probability_of_improvement` has its interval above one half."""
    return are_comparable(x, y) and bool(probability_of_improvement(x, y).low > 0.5)


def median_interval(values: ArrayLike) -> Interval:
    """Median and its distribution-free interval between two order statistics; values may be inf.

    With n ≤ 5 values the interval is their range, whose confidence is 1 − 2^(1−n): 94 % for five, 75 % for three.

    Args:
        values: (n,). With a NaN the result is NaN.
    """
    x = np.asarray(values, float)
    require(x.size > 0, "a median needs at least one value")
    if np.isnan(x).any():
        return Interval(np.nan, np.nan, np.nan)
    low, high = quantile_test(x, p=0.5).confidence_interval(_CONFIDENCE)
    low, high = x.min() if np.isnan(low) else low, x.max() if np.isnan(high) else high
    return Interval(float(np.median(x)), float(low), float(high))


def normalise(scores: ArrayLike, low: float, high: float) -> Array:
    """(scores − low) / (high − low): 0 at `low`, 1 at `high`, which must be above it."""
    require(low < high, f"normalising needs a high score above the low one, got low {low:g} and high {high:g}")
    return (np.asarray(scores, float) - low) / (high - low)


def _scores(samples: Sequence[ArrayLike]) -> list[Array]:
    scores = [np.asarray(x, float) for x in samples]
    require(len(scores) > 0, "statistics need at least one environment")
    require(all(len(x) > 0 for x in scores), "statistics need at least one run in every environment")
    return [np.where(np.isnan(x), -np.inf, x) for x in scores]


def _draw(runs: int, resamples: int, rng: np.random.Generator) -> Array:
    """(1 + resamples, runs) indices of the runs in each resample. The first row is the sample itself."""
    return np.vstack((np.arange(runs), rng.integers(runs, size=(resamples, runs))))


def _iqm(pooled: Array) -> Array:
    """IQM over the runs: (resamples, runs, ...) to (resamples, ...)."""
    with np.errstate(invalid="ignore"):  # −inf + inf
        return trim_mean(pooled, 0.25, axis=1)


def _percentiles(replicates: Array) -> Interval:
    """Interval of (1 + resamples, ...) replicates, of which the first is the estimate. Bounds are order statistics."""
    estimate, drawn = replicates[0], replicates[1:]
    tail = (1 - _CONFIDENCE) / 2
    low = np.quantile(drawn, tail, axis=0, method="lower")
    return Interval(estimate, low, np.quantile(drawn, 1 - tail, axis=0, method="higher"))
