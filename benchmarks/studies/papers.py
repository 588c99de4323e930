"""Results of a suite by the protocol of the PPO paper and by ours, and whether the paper's claims are found.

python benchmarks/studies/papers.py benchmarks/results/ppo-paper --out benchmarks/results/papers.md

Several folders are read as one study, which may be incomplete: its environments are those in which every algorithm that
has a run has one. The suites need `measure_updates: true`, which records the last 100 episodes of training.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlzoo.benchmark.job import Outcome
from rlzoo.benchmark.reports.statistics import Interval, iqm_interval, is_better, normalise, probability_of_improvement
from rlzoo.benchmark.reports.study import Study
from rlzoo.benchmark.reports.tables import NOTHING, estimate, fixed, significant, updates_columns
from rlzoo.benchmark.results import Results
from rlzoo.core.system.errors import ConfigError, RunError, require

PUBLISHED = {
    "none": -0.39, "clip 0.1": 0.76, "clip 0.2": 0.82, "clip 0.3": 0.70, "adaptive 0.003": 0.68, "adaptive 0.01": 0.74,
    "adaptive 0.03": 0.71, "fixed 0.3": 0.62, "fixed 1": 0.71, "fixed 3": 0.72, "fixed 10": 0.69,
}  # fmt: skip
"""Average normalised scores in Table 1 of Schulman et al. 2017."""
BEST = "clip 0.2"
ORDER = {"clip > adaptive": (BEST, "adaptive 0.01"), "adaptive > fixed": ("adaptive 0.01", "fixed 1"),
         "fixed > none": ("fixed 1", "none")}  # fmt: skip
"""The paper's order, each pair with the settings that have most seeds here."""
FEWEST_RUNS = 3
"""With fewer runs in an environment there are neither intervals nor verdicts."""

Samples = list[np.ndarray[Any, Any]]
"""(runs,) scores in each environment."""
PROTOCOLS: dict[str, Callable[[Outcome], float]] = {
    "Last 100 episodes": lambda run: run.updates["last_100"],
    "Final evaluation": lambda run: run.final_stochastic,
}
"""The score of a run: the paper's, and ours."""


@dataclass(frozen=True)
class Comparison:
    """The algorithms that have runs, in the environments that they share."""

    study: Study
    names: list[str]
    environments: list[str]

    @classmethod
    def of(cls, study: Study) -> Comparison:
        """Raises `ConfigError` if there is nothing to compare, or if runs lack the score of the paper's protocol."""
        names = [name for name in study.algorithms if any(name == of for of, _ in study.groups)]
        environments = [env for env in study.environments if all((name, env) in study.groups for name in names)]
        require(bool(names), "no run has finished yet")
        require(bool(environments), "no environment has runs of all algorithms yet")
        for (name, env), group in study.groups.items():
            measured = all("last_100" in run.updates for run in group.runs)
            require(measured, f"{name} on {env} lacks the last 100 episodes: the suite needs measure_updates: true")
        return cls(study, names, environments)

    def samples(self, name: str, protocol: str) -> Samples:
        """Scores of an algorithm."""
        runs = [self.study.groups[name, env].runs for env in self.environments]
        return [np.array([PROTOCOLS[protocol](run) for run in x], float) for x in runs]

    def normalised(self, protocol: str) -> dict[str, Samples]:
        """Scores where 0 is the mean before training, and 1 the mean of the best of the paper's variants or of all."""
        samples = {name: self.samples(name, protocol) for name in self.names}
        variants = [name for name in self.names if name in PUBLISHED] or self.names
        scales = []
        for i, env in enumerate(self.environments):
            untrained = [run.stochastic[0] for group in self.study.within(env).values() for run in group.runs]
            scales.append((float(np.mean(untrained)), float(np.nanmax([samples[name][i].mean() for name in variants]))))
        return {
            name: [normalise(x, *scale) for x, scale in zip(of, scales, strict=True)] for name, of in samples.items()
        }

    def few(self, *names: str) -> bool:
        """Whether there are too few runs of one of these."""
        return any(len(self.study.groups[name, env].runs) < FEWEST_RUNS for name in names for env in self.environments)

    def better(self, ours: str, theirs: str, protocol: str) -> Interval:
        """Probability that a run of `ours` has a higher score than one of `theirs`."""
        return probability_of_improvement(self.samples(ours, protocol), self.samples(theirs, protocol))

    def verdict(self, ours: str, theirs: Sequence[str], protocol: str) -> str:
        """Whether `ours` is better than each of the others, with the lowest of its probabilities."""
        rival = min(theirs, key=lambda name: float(self.better(ours, name, protocol).estimate))
        p = shown(self.better(ours, rival, protocol), self.few(ours, rival))
        if self.few(ours, *theirs):
            return f"too few runs ({p})"
        mine, others = self.samples(ours, protocol), [self.samples(name, protocol) for name in theirs]
        found = all(is_better(mine, x) for x in others)
        opposite = any(is_better(x, mine) for x in others)
        return f"{'found' if found else 'not found' if opposite else 'undecided'} ({p})"


def shown(interval: Interval, few: bool) -> str:
    """An estimate, with its interval if there are enough runs."""
    return fixed(float(interval.estimate), 2) if few else estimate(interval, 2)


def scores(comparison: Comparison) -> list[list[str]]:
    """A row for each algorithm: the published score, both protocols, the comparison with the paper's best, runs."""
    paper, ours = map(comparison.normalised, PROTOCOLS)
    final = list(PROTOCOLS)[-1]
    rows = []
    for name in comparison.names:
        against = comparison.better(BEST, name, final) if BEST in comparison.names and name != BEST else None
        rows.append([
            name,
            fixed(PUBLISHED[name], 2) if name in PUBLISHED else NOTHING,
            fixed(float(np.mean([x.mean() for x in paper[name]])), 2),
            shown(iqm_interval(ours[name]), comparison.few(name)),
            NOTHING if against is None else shown(against, comparison.few(BEST, name)),
            str(sum(map(len, ours[name]))),
        ])  # fmt: skip
    return rows


def claims(comparison: Comparison) -> list[list[str]]:
    """A row for each of the paper's claims whose algorithms have runs."""
    rivals = [name for name in comparison.names if name in PUBLISHED and name != BEST]
    named = {name: f"{name} ({fixed(score, 2)})" for name, score in PUBLISHED.items()}
    pairs = {
        f"{claim}: {named[ours]} above {named[theirs]}": (ours, [theirs]) for claim, (ours, theirs) in ORDER.items()
    }
    pairs[f"{BEST} is the best of the {len(rivals) + 1} variants with runs"] = BEST, rivals
    return [
        [claim, *(comparison.verdict(ours, theirs, protocol) for protocol in PROTOCOLS)]
        for claim, (ours, theirs) in pairs.items()
        if theirs and {ours, *theirs} <= set(comparison.names)
    ]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right of the first column; nothing without rows."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) if rows else ""


def updates(comparison: Comparison) -> str:
    """A row for each algorithm: what its updates did, as the median over the environments of the medians over seeds."""
    groups = {
        name: [comparison.study.groups[name, env] for env in comparison.environments] for name in comparison.names
    }
    columns, rows = updates_columns(itertools.chain(*groups.values())), []
    for name, of in groups.items():
        values = [[x.updates[key] for x in of if key in x.updates] for key in columns]
        rows.append([name, *(significant(float(np.median(x))) if x else NOTHING for x in values)])
    return table(["Algorithm", *columns.values()], rows)


def to_markdown(study: Study) -> str:
    """The tables, and what they are made of."""
    comparison = Comparison.of(study)
    folders = study.folders.values()
    finished, planned = sum(len(x.outcomes) for x in folders), sum(len(x.keys) for x in folders)
    seeds = {len(study.groups[name, env].runs) for name in comparison.names for env in comparison.environments}
    few = " These are too few for intervals." if max(seeds) < FEWEST_RUNS else ""
    parts = [
        f"{finished} of {planned} runs have finished. Environments: {', '.join(comparison.environments)}. Runs of each "
        f"algorithm in each of them: {' to '.join(map(str, sorted({min(seeds), max(seeds)})))}.{few}\n",
        table(["Algorithm", "In the paper", *PROTOCOLS, f"P({BEST} > row)", "Runs"], scores(comparison)),
        table(["Claim", *PROTOCOLS], claims(comparison)),
        updates(comparison),
    ]
    return "\n".join(part for part in parts if part)


def command(description: str | None, tables: Callable[[Study], str]) -> None:
    """Reads result folders from the command line, prints their tables, and writes them to a file if asked to."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="result folder of a suite")
    parser.add_argument("--out", type=Path, help="write the tables to this file, too")
    arguments = parser.parse_args()
    try:
        text = tables(Study.of([Results.read(folder) for folder in arguments.folders]))
    except (ConfigError, RunError) as error:
        parser.error(str(error))
    print(text, end="")
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


def main() -> None:
    command(__doc__, to_markdown)


if __name__ == "__main__":
    main()
