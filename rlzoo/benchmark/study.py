"""Result folders as one study: who is compared with whom, in which environments, and on what scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlzoo.benchmark.job import Outcome
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.statistics import Interval, first_reaching, iqm, normalise, probability_of_improvement
from rlzoo.benchmark.suite import Environment
from rlzoo.core.errors import require

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Algorithm:
    """A label of one folder."""

    name: str
    """The label, with its folder where another has the same label: 'ppo-clip (A)'."""
    label: str
    folder: str
    counterpart: str | None = None
    """Name of the algorithm that a peer is compared with."""


@dataclass(frozen=True)
class Group:
    """The finished runs of one algorithm in one environment, at least one."""

    environment: Environment
    """With the budget that its folder gave it."""
    runs: tuple[Outcome, ...]

    @property
    def final(self) -> Array:
        """(runs,) mean returns of sampled actions at the end; NaN of a run that diverged."""
        return _numbers([run.final_stochastic for run in self.runs])

    @property
    def final_modes(self) -> Array:
        """(runs,) as `final`, of the policies' modes."""
        return _numbers([run.final_deterministic for run in self.runs])

    @property
    def grid(self) -> Array:
        """(points,) steps: the multiples of the evaluation interval, and the end of the budget."""
        total = self.environment.total_steps
        return np.append(np.arange(0, total, self.environment.eval_interval), total)

    def curves(self, steps: ArrayLike) -> Array:
        """(runs, points): the stochastic evaluations, interpolated linearly."""
        return np.array([np.interp(np.asarray(steps), run.steps, _numbers(run.stochastic)) for run in self.runs])

    def reaching(self, threshold: float) -> tuple[Array, Array]:
        """(runs,) each: steps, and seconds of training, at the first evaluation that reaches the threshold."""

        def first(times: Callable[[Outcome], Sequence[float]]) -> Array:
            # Run by run, as runs may differ in their number of evaluations.
            return np.concatenate([first_reaching([times(x)], _numbers([x.stochastic]), threshold) for x in self.runs])

        return first(lambda run: run.steps), first(lambda run: run.seconds)

    @property
    def seconds(self) -> Array:
        """(runs,) of training."""
        return _numbers([run.seconds[-1] for run in self.runs])

    @property
    def pace(self) -> Array:
        """(runs,) steps per second of training."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _numbers([run.steps[-1] for run in self.runs]) / self.seconds

    @property
    def further(self) -> dict[str, float]:
        """Medians over the runs of what else a task says."""
        names = dict.fromkeys(name for run in self.runs for name in run.further)
        return {
            name: float(np.median([run.further[name] for run in self.runs if name in run.further])) for name in names
        }


@dataclass(frozen=True)
class Study:
    """Everything that a report compares."""

    folders: dict[str, Results]
    """By the shortest names that tell them apart."""
    algorithms: dict[str, Algorithm]
    """By name."""
    environments: dict[str, Environment]
    """As the first folder has them that has them."""
    groups: dict[tuple[str, str], Group]
    """By name of the algorithm and environment; a pair without a finished run is not there."""

    @classmethod
    def of(cls, results: Sequence[Results]) -> Study:
        """
        Raises:
            ConfigError: there is no folder, or one is there twice.
        """
        require(bool(results), "a report needs at least one folder of results")
        folders = dict(zip(_names([folder.path for folder in results]), results, strict=True))
        algorithms = _algorithms(folders)
        environments: dict[str, Environment] = {}
        for folder in results:
            environments = folder.environments | environments
        order = dict.fromkeys(env for folder in results for env in folder.environments)
        runs: dict[tuple[str, str, str], list[Outcome]] = {}
        for name, folder in folders.items():
            for outcome in folder.outcomes:
                runs.setdefault((name, outcome.label, outcome.env), []).append(outcome)
        groups = {
            (algorithm.name, env): Group(
                folders[algorithm.folder].environments[env], tuple(sorted(found, key=lambda run: run.seed))
            )
            for env in order
            for algorithm in algorithms.values()
            if (found := runs.get((algorithm.folder, algorithm.label, env)))
        }
        return cls(folders, algorithms, {env: environments[env] for env in order}, groups)

    def within(self, env: str) -> dict[str, Group]:
        """The groups of an environment, by algorithm."""
        return {name: self.groups[name, env] for name in self.algorithms if (name, env) in self.groups}

    @cached_property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Mean returns that count as 0 and 1, by environment.

        0 is the mean of all runs before training; 1 the threshold, or where there is none the best IQM of final
        scores. An environment in which these leave no room is not there.
        """
        scales = {}
        for env, environment in self.environments.items():
            groups = self.within(env).values()
            untrained = _numbers([run.stochastic[0] for group in groups for run in group.runs])
            best = [x for group in groups if np.isfinite(x := iqm([group.final]))]
            high = environment.threshold if environment.threshold is not None else max(best, default=np.nan)
            if np.isfinite(untrained).any() and np.isfinite(high):
                low = float(untrained[np.isfinite(untrained)].mean())
                if high > low:
                    scales[env] = low, float(high)
        return scales

    @cached_property
    def overall(self) -> tuple[list[str], list[str]]:
        """Algorithms and environments of the aggregates: every one of these has runs in every one of those.

        The environments are those of the algorithm that has runs in most; an algorithm that lacks one of them is
        left out.
        """
        covered = {name: [env for env in self.scales if (name, env) in self.groups] for name in self.algorithms}
        environments = max(covered.values(), key=len, default=[])
        return [name for name, envs in covered.items() if set(environments) <= set(envs)], environments

    def normalised_final(self, name: str) -> list[Array]:
        """(runs,) for each environment of `overall`."""
        return [normalise(self.groups[name, env].final, *self.scales[env]) for env in self.overall[1]]

    @property
    def shares(self) -> Array:
        """(points,) of the budget, from 0 to 1."""
        return np.linspace(0, 1, 41)

    def normalised_curves(self, name: str) -> list[Array]:
        """(runs, points): scores at the `shares`, for each environment of `overall`."""
        groups = [(self.groups[name, env], self.scales[env]) for env in self.overall[1]]
        return [normalise(x.curves(self.shares * x.environment.total_steps), *scale) for x, scale in groups]

    def better(self, ours: str, theirs: str, environments: Sequence[str]) -> Interval:
        """Probability that a run of `ours` ends above one of `theirs`."""
        return probability_of_improvement(
            *[[self.groups[name, env].final for env in environments] for name in (ours, theirs)]
        )

    def beats(self, ours: str, theirs: str, environments: Sequence[str]) -> bool:
        """Whether the runs are evidence that `ours` is better: the interval of the probability lies above one half.

        Nor may there be so few runs that even their clearest order has a chance of 1 in 20 or more by itself.
        """
        sizes = [[len(self.groups[name, env].runs) for name in (ours, theirs)] for env in environments]
        orders = math.prod(math.comb(n + m, n) for n, m in sizes)
        return bool(2 / orders < 0.05 and self.better(ours, theirs, environments).low > 0.5)

    def shared(self, ours: str, theirs: str) -> list[str]:
        """The environments in which both have runs."""
        return [env for env in self.environments if (ours, env) in self.groups and (theirs, env) in self.groups]

    @property
    def peers(self) -> list[tuple[str, str]]:
        """(ours, peer) pairs that have an environment in common."""
        pairs = [(x.counterpart, x.name) for x in self.algorithms.values() if x.counterpart is not None]
        return [pair for pair in pairs if self.shared(*pair)]

    @property
    def namesakes(self) -> list[tuple[str, str]]:
        """Pairs of algorithms with one label in two folders, and an environment in common; the earlier folder first."""
        pairs = itertools.combinations(self.algorithms.values(), 2)
        names = [(x.name, y.name) for x, y in pairs if x.label == y.label]
        return [pair for pair in names if self.shared(*pair)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    require(len(set(parts)) == len(parts), "a folder of results is given twice")
    names = [["/".join(x[-depth:]) for x in parts] for depth in range(1, max(map(len, parts)) + 1)]
    return next(x for x in names if len(set(x)) == len(x))


def _algorithms(folders: dict[str, Results]) -> dict[str, Algorithm]:
    labels = [label for folder in folders.values() for label in folder.labels]

    def name(label: str, folder: str) -> str:
        return f"{label} ({folder})" if labels.count(label) > 1 else label

    def counterpart(label: str, folder: str) -> str | None:
        """In the peer's own folder if it is there, else in the first that has it."""
        ours = folders[folder].counterparts.get(label)
        homes = [
            home for home in (folder, *folders) if ours in set(folders[home].labels) - set(folders[home].counterparts)
        ]
        return name(ours, homes[0]) if ours is not None and homes else None

    found = [
        Algorithm(name(label, folder), label, folder, counterpart(label, folder))
        for folder, results in folders.items()
        for label in results.labels
    ]
    return {algorithm.name: algorithm for algorithm in found}


def _numbers(values: Any) -> Array:
    """As floats, NaN for None."""
    return np.array(values, dtype=float)
