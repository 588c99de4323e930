"""What of the differences between algorithms is the algorithm, and what the details of its code (suite `details`).

python -m benchmarks.studies.details benchmarks/results/details --out benchmarks/results/details.md

The results may be incomplete. A difference is one of interquartile means of final returns with sampled actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import bootstrap, trim_mean

from benchmarks.studies.papers import FEWEST_RUNS, command, table
from rlzoo.benchmark.reports.statistics import Interval, are_comparable, iqm, iqm_interval, probability_of_improvement
from rlzoo.benchmark.reports.study import Group, Study
from rlzoo.benchmark.reports.tables import NOTHING, estimate, fixed, significant
from rlzoo.core.system.errors import require

PUBLISHED = {
    "Hopper-v5": {"PPO": 2513, "PPO-M": 2142, "TRPO": 2043, "TRPO+": 2466},
    "Walker2d-v5": {"PPO": 3292, "PPO-M": 2735, "TRPO": 2791, "TRPO+": 3050},
}
"""Mean returns of Engstrom et al. 2020, who ran version 2 of these tasks."""
PAIRS = [
    ("PPO", "TRPO+"), ("PPO-M", "TRPO"),
    ("PPO", "PPO-M"), ("TRPO+", "TRPO"), ("NPG+", "NPG"), ("PPO-penalty", "PPO-penalty-M"),
]  # fmt: skip
"""Two algorithms, with details or without; then an algorithm with and without them."""


def difference(ours: Group, theirs: Group) -> Interval:
    """The difference of the interquartile means, and its bootstrap interval."""
    x, y = ours.final, theirs.final
    middle = float(iqm([x]) - iqm([y]))
    if min(len(x), len(y)) < FEWEST_RUNS:
        return Interval(middle, middle, middle)

    def gap(x: Any, y: Any, axis: int) -> Any:
        return trim_mean(x, 0.25, axis=axis) - trim_mean(y, 0.25, axis=axis)

    bounds = bootstrap((x, y), gap, n_resamples=2000, method="percentile", rng=0).confidence_interval
    return Interval(middle, float(bounds.low), float(bounds.high))


def scores(study: Study) -> str:
    """A row for each algorithm and environment: the published return, ours, and what an update did."""
    rows = []
    for (name, env), group in sorted(study.groups.items(), key=lambda x: list(study.environments).index(x[0][1])):
        of_paper, few = PUBLISHED.get(env, {}).get(name), len(group.runs) < FEWEST_RUNS
        final = iqm_interval([group.final])
        updates = [group.updates.get(key, np.nan) for key in ("kl_median", "ratio_outside")]
        rows.append([
            name, env, NOTHING if of_paper is None else fixed(of_paper, 0),
            fixed(float(final.estimate), 0) if few else estimate(final, 0),
            *(NOTHING if np.isnan(x) else significant(x) for x in updates), str(len(group.runs)),
        ])  # fmt: skip
    head = ["Algorithm", "Environment", "In the paper", "Final return", "KL, median", "Ratios outside 1 ± 0.2", "Runs"]
    return table(head, rows)


def differences(study: Study, pairs: Sequence[tuple[str, str]]) -> str:
    """A row for each pair and environment: the published difference, ours, and the probability of improvement."""
    rows = []
    for env in study.environments:
        own, published = study.within(env), PUBLISHED.get(env, {})
        for ours, theirs in pairs:
            if not {ours, theirs} <= own.keys():
                continue
            x, y = own[ours], own[theirs]
            few = min(len(x.runs), len(y.runs)) < FEWEST_RUNS
            gap, better = difference(x, y), probability_of_improvement([x.final], [y.final])
            enough = are_comparable([x.final], [y.final])
            in_paper = fixed(published[ours] - published[theirs], 0) if {ours, theirs} <= published.keys() else NOTHING
            rows.append([
                f"{ours} − {theirs}", env, in_paper, fixed(gap.estimate, 0) if few else estimate(gap, 0),
                fixed(better.estimate, 2) if few else estimate(better, 2, enough),
            ])  # fmt: skip
    return table(["Pair", "Environment", "Difference, in the paper", "Difference", "P(first is better)"], rows)


def to_markdown(study: Study) -> str:
    """The three tables, and what they are made of."""
    require(bool(study.groups), "no run has finished yet")
    folders = study.folders.values()
    finished, planned = sum(len(x.outcomes) for x in folders), sum(len(x.keys) for x in folders)
    without = [name for name in study.algorithms if name.startswith(("no ", "neither ")) or name == "relu"]
    single = [("PPO", name) for name in without]
    single.append(("no reward scaling", "neither reward scaling nor value clipping"))
    parts = [
        f"{finished} of {planned} runs have finished. With fewer than {FEWEST_RUNS} there is no interval.\n",
        differences(study, PAIRS),
        differences(study, single),
        scores(study),
    ]
    return "\n".join(part for part in parts if part)


def main() -> None:
    command(__doc__, to_markdown)


if __name__ == "__main__":
    main()
