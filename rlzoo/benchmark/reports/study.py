"""Several result folders as one study: algorithms, environments, and the runs of each pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from rlzoo.benchmark.job import Key, Outcome
from rlzoo.benchmark.reports import statistics
from rlzoo.benchmark.reports.statistics import Array, Interval, iqm, iqm_interval, normalise
from rlzoo.benchmark.results import Results
from rlzoo.benchmark.suite import Environment
from rlzoo.core.system.errors import require
from rlzoo.runs.configuration.record import unequal_versions


@dataclass(frozen=True)
class Label:
    """A label of one folder."""

    name: str
    """The label, followed by its folder if another has the same label, or other versions: 'ppo-clip (A)'."""
    label: str
    folder: str
    counterpart: str | None = None
    """Name of the algorithm that a peer is compared with."""


@dataclass(frozen=True)
class Group:
    """The finished runs, at least one, of one algorithm in one environment."""

    environment: Environment
    """As its own folder defines it."""
    runs: tuple[Outcome, ...]
    unfinished: frozenset[Key] = frozenset()
    """Runs whose training has not ended."""

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        """(runs,) whether training has ended, so that there is a final deterministic evaluation."""
        return np.array([run.key not in self.unfinished for run in self.runs])

    @property
    def final(self) -> Array:
        """(runs,) mean returns of the final stochastic evaluation; NaN for a run that diverged."""
        return _floats([run.final_stochastic for run in self.runs])

    @property
    def final_deterministic(self) -> Array:
        """(runs,) mean returns of the final deterministic evaluation."""
        return _floats([run.final_deterministic for run in self.runs])

    @property
    def grid(self) -> Array:
        """(points,) steps: the multiples of the evaluation interval, and the end of the budget.

        From about the first evaluation of all runs on, and as far as all have trained.
        """
        interval = self.environment.eval_interval
        start = max(run.steps[0] for run in self.runs) // interval * interval
        total = min(self.environment.total_steps, *(run.steps[-1] for run in self.runs))
        return np.append(np.arange(min(start, total), total, interval), total)

    def curves(self, steps: ArrayLike) -> Array:
        """(runs, points): returns of the stochastic evaluations, interpolated linearly."""
        return np.array([np.interp(np.asarray(steps), run.steps, _floats(run.stochastic)) for run in self.runs])

    @cached_property
    def curve(self) -> tuple[Array, Interval]:
        """Steps, and the IQM of the returns there with its interval."""
        return self.grid, iqm_interval([self.curves(self.grid)])

    def reaching(self, threshold: float) -> tuple[Array, Array]:
        """(runs,) steps and (runs,) seconds of training at the first evaluation that reaches the threshold."""
        first = []
        for run in self.runs:
            evaluations = zip(run.steps, run.seconds, _floats(run.stochastic), strict=True)
            first.append(next(((steps, time) for steps, time, x in evaluations if x >= threshold), (np.inf, np.inf)))
        steps, seconds = _floats(first).T
        return steps, seconds

    @property
    def seconds(self) -> Array:
        """(runs,) seconds of training."""
        return _floats([run.seconds[-1] for run in self.runs])

    @property
    def pace(self) -> Array:
        """(runs,) steps per second of training."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return _floats([run.steps[-1] for run in self.runs]) / self.seconds

    def metric(self, name: str) -> Array:
        """(runs,) values of a metric of the task in the final evaluation; NaN for a run without it."""
        return _floats([run.further.get(name) for run in self.runs])

    def path(self, name: str) -> list[tuple[Array, Array]]:
        """(runs,) values of a metric of the task and (runs,) scores, in each stochastic evaluation of training.

        The final evaluation is in the place of the last. It is alone if the runs do not have the others.
        """
        courses = [run.course.get(name, []) for run in self.runs]
        before = min(map(len, courses)) - 1
        earlier = [
            (_floats([x[k] for x in courses]), _floats([run.stochastic[k] for run in self.runs])) for k in range(before)
        ]
        return [*earlier, (self.metric(name), self.final)]

    @property
    def further(self) -> dict[str, float]:
        """Interquartile means over the runs of the task's own metrics in the final evaluation."""
        return _averages([run.further for run in self.runs], lambda x: iqm([x]))

    @property
    def updates(self) -> dict[str, float]:
        """Medians over the runs of what their updates did; empty if the suite did not measure it."""
        return _averages([run.updates for run in self.runs], np.median)


class Points(NamedTuple):
    """A metric and the score of a group's runs in one evaluation, (runs,) each."""

    group: Group
    metric: Array
    score: Array


@dataclass(frozen=True)
class Study:
    """The data of a report."""

    folders: dict[str, Results]
    """Results by the shortest folder names that are unique."""
    algorithms: dict[str, Label]
    """Algorithms by name."""
    environments: dict[str, Environment]
    """Environments by id, as the first folder that has them defines them."""
    groups: dict[tuple[str, str], Group]
    """Runs by (name of the algorithm, environment), without pairs that have no finished run."""

    @classmethod
    def of(cls, results: Sequence[Results]) -> Study:
        """The study of several result folders. Raises `ConfigError` if there is none, or one is given twice."""
        require(bool(results), "a report needs at least one folder of results")
        folders = dict(zip(unique_names([folder.path for folder in results]), results, strict=True))
        algorithms = _algorithms(folders)
        environments = {env: x for folder in reversed(results) for env, x in folder.environments.items()}
        environments = {env: environments[env] for folder in results for env in folder.environments}
        groups = {}
        for env, algorithm in itertools.product(environments, algorithms.values()):
            folder = folders[algorithm.folder]
            runs = [run for run in folder.outcomes if run.key[:2] == (algorithm.label, env)]
            if runs:
                runs.sort(key=lambda run: run.seed)
                groups[algorithm.name, env] = Group(folder.environments[env], tuple(runs), frozenset(folder.unfinished))
        return cls(folders, algorithms, environments, groups)

    @property
    def title(self) -> str:
        """Titles of the suites."""
        return " · ".join(dict.fromkeys(folder.title for folder in self.folders.values()))

    @property
    def against(self) -> str | None:
        """The metric that scores are drawn against: that of the first folder that names one."""
        return next((folder.against for folder in self.folders.values() if folder.against), None)

    def lines(self, env: str) -> dict[str, list[Points]]:
        """Scores and values of the metric `against`, by algorithm, in the order of its medians.

        An algorithm has final scores for each label with which a suite runs it, such as for each β. With one label, it
        has those of the evaluations during training too.
        """
        metric, groups = str(self.against), dict[str, list[Group]]()
        for name, group in self.within(env).items():
            if metric in group.further:
                label = self.algorithms[name].label
                folder = name.removeprefix(label)  # of folders that are shown apart
                groups.setdefault(group.runs[0].settings.get("algorithm", label) + folder, []).append(group)
        lines = {}
        for name, own in groups.items():
            points = [Points(group, x, y) for group in own for x, y in group.path(metric)[-1 if len(own) > 1 else 0 :]]
            points = [x for x in points if np.isfinite(x.metric).any()]
            lines[name] = sorted(points, key=lambda point: float(np.nanmedian(point.metric)))
        return lines

    def at_equal(self, env: str) -> dict[float, dict[str, Array]]:
        """(seeds,) scores of each algorithm at three values of the metric `against`.

        Each seed's scores are interpolated linearly between its runs, and NaN outside their range. The values are the
        quarters of the range from where half of the algorithms have begun to where half have ended. Empty if there is
        no such range.
        """
        paths: dict[str, list[Array]] = {}
        for name, line in self.lines(env).items():
            by_seed: dict[int, list[tuple[float, float]]] = {}
            for group, metric, score in line:
                for run, x, y in zip(group.runs, metric, score, strict=True):
                    if np.isfinite(x):
                        by_seed.setdefault(run.seed, []).append((x, y))
            paths[name] = [np.transpose(sorted(points)) for points in by_seed.values()]
        if not paths:
            return {}
        low = np.quantile([np.median([x[0] for x, _ in path]) for path in paths.values()], 0.5, method="higher")
        high = np.quantile([np.median([x[-1] for x, _ in path]) for path in paths.values()], 0.5, method="lower")
        levels: list[float] = np.linspace(low, high, 5)[1:-1].tolist() if low < high else []
        return {
            level: {
                name: _floats([np.interp(level, x, y, np.nan, np.nan) for x, y in path]) for name, path in paths.items()
            }
            for level in levels
        }

    def within(self, env: str) -> dict[str, Group]:
        """The groups of an environment, by algorithm."""
        return {name: self.groups[name, env] for name in self.algorithms if (name, env) in self.groups}

    @cached_property
    def scales(self) -> dict[str, tuple[float, float]]:
        """Mean returns that are normalised to 0 and 1, by environment.

        0 is the mean return of all runs before training. 1 is the threshold, or without one the highest IQM of final
        scores. An environment is left out if the latter is not above the former, or no run was evaluated before
        training.
        """
        scales = {}
        for env, environment in self.environments.items():
            groups = self.within(env).values()
            untrained = _floats([run.stochastic[0] for group in groups for run in group.runs if run.steps[0] == 0])
            untrained = untrained[np.isfinite(untrained)]
            best = [x for group in groups if np.isfinite(x := iqm([group.final]))]
            high = environment.threshold if environment.threshold is not None else max(best, default=np.nan)
            if untrained.size and untrained.mean() < high < np.inf:
                scales[env] = float(untrained.mean()), float(high)
        return scales

    @cached_property
    def overall(self) -> tuple[list[str], list[str]]:
        """Algorithms and environments of the aggregates, of which every pair has runs.

        The environments are those of the algorithm that has runs in most of them. An algorithm without runs in one of
        these is left out. Both are empty if scores are drawn against a metric: then the score alone ranks nothing.
        """
        if self.against:
            return [], []
        covered = {name: [env for env in self.scales if (name, env) in self.groups] for name in self.algorithms}
        environments = max(covered.values(), key=len, default=[])
        return [name for name, envs in covered.items() if environments and set(environments) <= set(envs)], environments

    def normalised_final(self, name: str) -> list[Array]:
        """(runs,) normalised final scores, for each environment of `overall`."""
        return [normalise(self.groups[name, env].final, *self.scales[env]) for env in self.overall[1]]

    def normalised_curves(self, name: str) -> tuple[Array, list[Array]]:
        """Shares of the budget, as far as all runs have trained, and (runs, points) normalised returns there.

        The latter for each environment of `overall`.
        """
        groups = [(self.groups[name, env], self.scales[env]) for env in self.overall[1]]
        ends = [run.steps[-1] / group.environment.total_steps for group, _ in groups for run in group.runs]
        shares = np.linspace(0, min(1.0, *ends), 41)
        return shares, [normalise(x.curves(shares * x.environment.total_steps), *scale) for x, scale in groups]

    def finals(self, name: str, environments: Sequence[str]) -> list[Array]:
        """(runs,) final scores of an algorithm in each of the environments."""
        return [self.groups[name, env].final for env in environments]

    def better(self, ours: str, theirs: str, environments: Sequence[str]) -> Interval:
        """Probability that a run of `ours` has a higher final score than a run of `theirs`.

        The bounds are those of the estimate where one of them has a single run, whose spread is unknown.
        """
        finals = self.finals(ours, environments), self.finals(theirs, environments)
        p = statistics.probability_of_improvement(*finals)
        alone = any(len(scores) == 1 for of_each in finals for scores in of_each)
        return Interval(p.estimate, p.estimate, p.estimate) if alone else p

    def are_comparable(self, ours: str, theirs: str, environments: Sequence[str]) -> bool:
        """Whether both have enough runs for a significant difference."""
        return statistics.are_comparable(self.finals(ours, environments), self.finals(theirs, environments))

    def num_planned(self, name: str, env: str) -> int:
        """The number of runs of an algorithm in an environment, unfinished, failed and missing ones included."""
        algorithm = self.algorithms[name]
        return sum(key[:2] == (algorithm.label, env) for key in self.folders[algorithm.folder].keys)

    def common_environments(self, ours: str, theirs: str) -> list[str]:
        """The environments in which both algorithms have runs."""
        return [env for env in self.environments if (ours, env) in self.groups and (theirs, env) in self.groups]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(counterpart, peer) pairs, and pairs with the same label in two folders, that share an environment."""
        algorithms = self.algorithms.values()
        peers = [(x.counterpart, x.name) for x in algorithms if x.counterpart is not None]
        namesakes = [(x.name, y.name) for x, y in itertools.combinations(algorithms, 2) if x.label == y.label]
        return [pair for pair in (*peers, *namesakes) if self.common_environments(*pair)]


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as make them unique."""
    parts = [path.resolve().parts for path in paths]
    require(len(set(parts)) == len(parts), "a folder of results is given twice")
    names = [["/".join(x[-depth:]) for x in parts] for depth in range(1, max(map(len, parts)) + 1)]
    return next(x for x in names if len(set(x)) == len(x))


def _algorithms(folders: dict[str, Results]) -> dict[str, Label]:
    labels = [label for folder in folders.values() for label in folder.labels]
    apart = bool(unequal_versions({name: folder.record for name, folder in folders.items()}))

    def name(label: str, folder: str) -> str:
        return f"{label} ({folder})" if apart or labels.count(label) > 1 else label

    def counterpart(label: str | None, folder: str) -> str | None:
        """Name of the counterpart in the peer's own folder if it is there, else in the first folder that has it."""
        homes = [x for x in (folder, *folders) if label in set(folders[x].labels) - set(folders[x].counterparts)]
        return name(label, homes[0]) if label is not None and homes else None

    algorithms = [
        Label(name(label, folder), label, folder, counterpart(results.counterparts.get(label), folder))
        for folder, results in folders.items()
        for label in results.labels
    ]
    return {x.name: x for x in algorithms}


def _averages(runs: Sequence[Mapping[str, float]], average: Callable[[Any], Any]) -> dict[str, float]:
    """The average of each name over the runs that have it."""
    names = dict.fromkeys(itertools.chain.from_iterable(runs))
    return {name: float(average([run[name] for run in runs if name in run])) for name in names}


def _floats(values: Any) -> Array:
    """An array of floats, with NaN for None."""
    return np.array(values, dtype=float)
