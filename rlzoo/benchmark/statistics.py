"""Statistics of few runs, after Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice".

A sample is the final scores of an algorithm's runs in one environment, (runs,), or their curves, (runs, points).
Where samples come in a sequence there is one for each environment; their numbers of runs may differ.

A score that is NaN is that of a run that broke: it is worse than any other, and never left out.

Intervals are of 95 %. Those with a `seed` are percentiles of a stratified bootstrap: the runs of each environment
are drawn anew from its own, as many as there are. Of few runs they are too short: for the IQM of normal scores, ten
runs cover the truth 93 times in a hundred, five 90, three 75, and a single run has no width at all.
`scipy.stats.bootstrap` does not serve: it refuses a single run, and it interpolates between order statistics, which
gives NaN beside −inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import quantile_test, trim_mean

from rlzoo.core.errors import require

Array = np.ndarray[Any, Any]

_CONFIDENCE = 0.95


class Interval(NamedTuple):
    """An estimate and its 95 % interval: three numbers, or three arrays (points,)."""

    estimate: Any
    low: Any
    high: Any


def iqm(samples: Sequence[ArrayLike]) -> Any:
    """Interquartile mean: the mean of the middle half of all environments' runs together.

    Of N runs the ⌊N / 4⌋ best and worst are left out, at each point anew. All runs count alike, so an environment
    with more of them counts more, and the scores of several have to be comparable (see `normalise`).

    Args:
        samples: (runs,) or (runs, points) each. NaN counts as −inf.

    Returns:
        A number or (points,); NaN only where both −inf and inf are in the middle half.

    Raises:
        ConfigError: an environment without runs, or no environment.
    """
    return _iqm(np.concatenate(_scores(samples))[np.newaxis])[0]


def iqm_interval(samples: Sequence[ArrayLike], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """`iqm` and its bootstrap interval. A resample draws whole curves, so that all its points are of the same runs."""
    rng = np.random.default_rng(seed)
    drawn = [x[_draw(len(x), resamples, rng)] for x in _scores(samples)]
    return _percentiles(_iqm(np.concatenate(drawn, axis=1)))


def performance_profile(
    samples: Sequence[ArrayLike], taus: ArrayLike, *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Share of runs whose score is above τ, averaged over environments, and its bootstrap interval at each τ.

    Args:
        samples: (runs,) each. NaN is above no τ.
        taus: (points,).

    Raises:
        ConfigError: an environment without runs, or no environment.
    """
    rng = np.random.default_rng(seed)
    above = [x[:, np.newaxis] > np.asarray(taus) for x in _scores(samples)]
    shares = [a[_draw(len(a), resamples, rng)].mean(axis=1) for a in above]
    return _percentiles(np.mean(shares, axis=0))


def probability_of_improvement(
    x: Sequence[ArrayLike], y: Sequence[ArrayLike], *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """P(X > Y) + ½·P(X = Y) for a run of x and a run of y, averaged over environments, and its bootstrap interval.

    In an environment this is U / (n·m), of the Mann-Whitney statistic U and the numbers of runs n and m. The
    interval draws the runs of x and those of y independently.

    Args:
        x: (runs,) each. NaN loses to all but NaN.
        y: (runs,) each, of the environments of x in their order.

    Raises:
        ConfigError: an environment without runs, no environment, or other numbers of them in x and y.
    """
    pairs = _scores(x), _scores(y)
    require(
        len(pairs[0]) == len(pairs[1]),
        f"both sides of a comparison need the same environments, got {len(pairs[0])} and {len(pairs[1])}",
    )
    rng = np.random.default_rng(seed)
    wins = []
    for ours, theirs in zip(*pairs, strict=True):
        ours, theirs = ours[:, np.newaxis], theirs[np.newaxis]
        win = (ours > theirs) + 0.5 * (ours == theirs)
        rows, columns = (_draw(runs, resamples, rng) for runs in win.shape)
        wins.append(win[rows[:, :, np.newaxis], columns[:, np.newaxis]].mean(axis=(1, 2)))
    return _percentiles(np.mean(wins, axis=0))


def first_reaching(times: ArrayLike, scores: ArrayLike, threshold: float) -> Array:
    """First time of each run at which its score is at least `threshold`; inf where none is. NaN is below any.

    Args:
        times: (runs, K), increasing, in steps or seconds.
        scores: (runs, K).

    Returns:
        (runs,), in the unit of `times`.
    """
    reached = np.asarray(scores, float) >= threshold
    return np.where(reached, np.asarray(times, float), np.inf).min(axis=1, initial=np.inf)


def median_interval(values: ArrayLike) -> Interval:
    """Median and its distribution-free interval, between two order statistics; values may be inf.

    Five values or fewer have no such interval of 95 %. The least and the greatest stand in for it, with a confidence
    of 1 − 2^(1−n): 94 % of five, 75 % of three, none of one.

    Args:
        values: (n,). One NaN makes all three numbers NaN.

    Raises:
        ConfigError: no values.
    """
    x = np.asarray(values, float)
    require(x.size > 0, "a median needs at least one value")
    if np.isnan(x).any():
        return Interval(np.nan, np.nan, np.nan)
    low, high = quantile_test(x, p=0.5).confidence_interval(_CONFIDENCE)
    return Interval(
        float(np.median(x)),
        float(x.min() if np.isnan(low) else low),
        float(x.max() if np.isnan(high) else high),
    )


def retention(final_scores: ArrayLike, threshold: float) -> float:
    """Share of runs whose last score is at least `threshold`. NaN is below any.

    Args:
        final_scores: (runs,).

    Raises:
        ConfigError: no runs.
    """
    scores = np.asarray(final_scores, float)
    require(scores.size > 0, "a share of runs needs at least one run")
    return float((scores >= threshold).mean())


def normalise(scores: ArrayLike, low: float, high: float) -> Array:
    """(scores − low) / (high − low): 0 at `low`, 1 at `high`.

    Raises:
        ConfigError: `high` is not above `low`, so that better scores would not become greater.
    """
    require(low < high, f"normalising needs a high score above the low one, got low {low:g} and high {high:g}")
    return (np.asarray(scores, float) - low) / (high - low)


def _scores(samples: Sequence[ArrayLike]) -> list[Array]:
    scores = [np.asarray(x, float) for x in samples]
    require(len(scores) > 0, "statistics need at least one environment")
    require(all(len(x) > 0 for x in scores), "statistics need at least one run in every environment")
    return [np.where(np.isnan(x), -np.inf, x) for x in scores]


def _draw(runs: int, resamples: int, rng: np.random.Generator) -> Array:
    """Indices of the runs in each resample, (1 + resamples, runs). The first row is the sample itself."""
    return np.vstack((np.arange(runs), rng.integers(runs, size=(resamples, runs))))


def _iqm(pooled: Array) -> Array:
    """(resamples, runs, ...) to (resamples, ...)."""
    with np.errstate(invalid="ignore"):  # −inf + inf
        return trim_mean(pooled, 0.25, axis=1)


def _percentiles(replicates: Array) -> Interval:
    """Of (1 + resamples, ...), the first being the estimate. Bounds are order statistics, as replicates may be −inf."""
    estimate, drawn = replicates[0], replicates[1:]
    tail = (1 - _CONFIDENCE) / 2
    low = np.quantile(drawn, tail, axis=0, method="lower")
    return Interval(estimate, low, np.quantile(drawn, 1 - tail, axis=0, method="higher"))
