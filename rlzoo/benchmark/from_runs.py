"""Run directories as the results of a suite, for a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlzoo.benchmark.job import Outcome
from rlzoo.benchmark.results import Key, Results, holds_results
from rlzoo.benchmark.suite import Environment
from rlzoo.core.errors import RunError
from rlzoo.runs.configuration.record import read_record, read_settings
from rlzoo.runs.registry import reward_threshold
from rlzoo.runs.run import Run

_STANDARD = ("step", "final", "mean_return", "std_return", "min_return", "max_return", "mean_length", "episodes")
_NOT_FURTHER = {*_STANDARD, "deterministic", "seed", "seconds", "exact"}
"""Values of an evaluation that are not metrics of the task."""
_MOST_DIFFERENCES = 3
"""Settings that a label names; a run with more has the name of its directory."""


@dataclass(frozen=True)
class _Found:
    """A run and its settings without the seed."""

    run: Run
    algorithm: str
    env: str
    seed: int
    settings: dict[str, Any]

    @property
    def group(self) -> str:
        return repr(sorted(self.settings.items(), key=lambda item: item[0]))


def find_results(paths: Sequence[Path | str], warn: Callable[[str], None]) -> list[Results]:
    """The results that paths name: folders of suites, run directories, and directories that hold any of these.

    All runs together are one of the results.

    Raises:
        RunError: a path holds neither results nor runs, or what it holds is damaged.
    """
    suites: list[Results] = []
    runs: dict[Path, Run] = {}
    for path in map(Path, paths):
        found = list(_walk(path))
        if not found:
            raise RunError(f"{path} holds neither runs nor results of a suite")
        for folder in found:
            if holds_results(folder):
                suites.append(Results.read(folder, warn))
            else:
                runs.setdefault(folder.resolve(), Run(folder))
    return [*suites, *([from_runs(list(runs.values()), warn)] if runs else [])]


def from_runs(runs: Sequence[Run], warn: Callable[[str], None]) -> Results:
    """Runs as the results of a suite. Runs that differ in their seeds alone have one label.

    A run that has not ended counts as far as it was evaluated. Without any evaluation it is missing.

    Args:
        warn: called with a line for each run that is left out because it repeats another.
    """
    found = [_read(run) for run in runs]
    labels = _labels(found)
    outcomes: dict[Key, Outcome] = {}
    unfinished: dict[Key, int] = {}
    missing: list[Key] = []
    homes: dict[Key, Run] = {}
    for x in found:
        key = labels[x.run.path], x.env, x.seed
        if key in homes:
            warn(f"{x.run.path} is left out: it has the settings and the seed of {homes[key].path}")
            continue
        homes[key] = x.run
        outcome = _outcome(key, x)
        if outcome is None:
            missing.append(key)
            continue
        outcomes[key] = outcome
        if not x.run.finished:
            unfinished[key] = (x.run.last_metrics() or {"step": 0})["step"]
    environments = {
        env: _environment([x for x in found if x.env == env]) for env in dict.fromkeys(x.env for x in found)
    }
    names = list(dict.fromkeys(labels.values()))
    order = sorted(homes, key=lambda key: (list(environments).index(key[1]), names.index(key[0]), key[2]))
    episodes = [x.settings.get("eval_episodes") for x in found]
    return Results(
        path=_home([run.path for run in runs]),
        title=f"{found[0].algorithm} on {found[0].env}" if len(names) == len(environments) == 1 else "Runs",
        description="",
        labels=names,
        counterparts={},
        environments=environments,
        seeds=sorted({x.seed for x in found}),
        eval_episodes=max(n for n in episodes if isinstance(n, int)),
        final_episodes=max([int(run.evaluations()[-1]["episodes"]) for run in runs if run.finished], default=0),
        record=_record(runs),
        outcomes=[outcomes[key] for key in order if key in outcomes],
        failures=[],
        missing=[key for key in order if key in missing],
        unfinished=unfinished,
    )


def _walk(path: Path) -> Iterator[Path]:
    """Result folders and run directories in a directory, in the order of their names."""
    if holds_results(path) or _is_run(path):
        yield path
    elif path.is_dir():
        for below in sorted(path.iterdir()):
            if below.is_dir() and not below.name.startswith("."):
                yield from _walk(below)


def _is_run(path: Path) -> bool:
    """Whether a directory holds a run. A language model's directory also has a `config.json`."""
    try:
        return {"algorithm", "env"} <= read_record(path / "config.json").keys()
    except RunError:
        return False


def _read(run: Run) -> _Found:
    file = run.path / "config.json"
    settings = read_settings(file)
    seed = settings.pop("seed", 0)
    wholes = {"seed": seed, "total_steps": settings.get("total_steps")}
    if settings.get("eval_interval") is not None:
        wholes["eval_interval"] = settings["eval_interval"]
    for name, x in wholes.items():
        if type(x) is not int:
            raise RunError(f"{file} cannot be used: {name} must be an integer, got {repr(x)[:80]}")
    return _Found(run, str(settings["algorithm"]), str(settings["env"]), seed, settings)


def _labels(found: Sequence[_Found]) -> dict[Path, str]:
    """A label for each run: its algorithm, and the settings in which its runs in that environment differ."""
    labels = {}
    for x in found:
        rivals = [y for y in found if (y.algorithm, y.env) == (x.algorithm, x.env)]
        names = dict.fromkeys(name for y in rivals for name in y.settings)
        differing = [name for name in names if len({repr(y.settings.get(name)) for y in rivals}) > 1]
        described = ", ".join(f"{name}={x.settings.get(name)}" for name in differing)
        if len(differing) > _MOST_DIFFERENCES:
            first = next(y for y in rivals if y.group == x.group)
            described = first.run.path.parent.name if first.run.path.name.startswith("seed-") else first.run.path.name
        labels[x.run.path] = f"{x.algorithm}, {described}" if described else x.algorithm
    return labels


def _outcome(key: Key, found: _Found) -> Outcome | None:
    """The evaluations of a run; None if there is none yet."""
    evaluations = found.run.evaluations()
    stochastic = [e for e in evaluations if not e["deterministic"]]
    if not stochastic:
        return None
    curve = {e["step"]: e for e in stochastic}  # a final evaluation replaces that of the same step
    timed = [line for line in found.run.metrics() if type(line.get("seconds")) in (int, float)]
    seconds = {line["step"]: float(line["seconds"]) for line in timed}
    final = next((e for e in evaluations if e["final"] and e["deterministic"]), None)
    numbers = {name: x for name, x in stochastic[-1].items() if type(x) in (int, float) and name not in _NOT_FURTHER}
    return Outcome(
        *key,
        settings=found.settings,
        steps=list(curve),
        stochastic=[e["mean_return"] for e in curve.values()],
        deterministic=[],
        final_stochastic=stochastic[-1]["mean_return"],
        final_deterministic=math.nan if final is None else final["mean_return"],
        further={name: float(x) for name, x in numbers.items() if math.isfinite(x)},
        seconds=[seconds.get(step, 0.0) for step in curve],
    )


def _environment(found: Sequence[_Found]) -> Environment:
    """An environment with the largest budget and the shortest evaluation interval of its runs."""
    totals = [int(x.settings["total_steps"]) for x in found]
    intervals = [x.settings.get("eval_interval") or max(1, n // 10) for x, n in zip(found, totals, strict=True)]
    return Environment(found[0].env, max(totals), min(intervals), reward_threshold(found[0].env))


def _home(paths: Sequence[Path]) -> Path:
    """The directory that all runs are in; a single run's own."""
    if len(paths) == 1:
        return paths[0]
    parents = [path.resolve().parents for path in paths]
    return next(folder for folder in parents[0] if all(folder in others for others in parents[1:]))


def _record(runs: Sequence[Run]) -> dict[str, Any]:
    """Versions and commit, where all runs have the same."""
    records: list[Mapping[str, Any]] = [read_record(run.path / "config.json") for run in runs]
    same = {name: records[0].get(name) for name in ("versions", "git_commit")}
    return {name: x for name, x in same.items() if all(record.get(name) == x for record in records)}
