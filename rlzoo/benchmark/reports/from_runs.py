"""Run directories as the results of a suite, for a report."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlzoo.benchmark.job import Key, Labelled, Outcome, finite_numbers
from rlzoo.benchmark.reports.study import unique_names
from rlzoo.benchmark.results import Results, holds_results
from rlzoo.benchmark.suite import Environment
from rlzoo.core.system.errors import RunError
from rlzoo.core.system.screen import one_line
from rlzoo.runs.configuration.record import read_record, read_settings, unequal_versions
from rlzoo.runs.registry import reward_threshold
from rlzoo.runs.run import Run

_STANDARD = ("step", "final", "mean_return", "std_return", "min_return", "max_return", "mean_length", "episodes")
_NOT_FURTHER = {*_STANDARD, "deterministic", "seed", "seconds", "exact"}
"""Values of an evaluation that are not metrics of the task."""
_LOGGED = ("log_info", "log_samples")
"""Settings that change nothing but what is logged."""
_MOST_DIFFERENCES = 3
"""Settings that a label names; a run with more has the name of its directory."""


@dataclass(frozen=True)
class _Trained(Labelled):
    """A run and its settings without the seed."""

    run: Run
    record: dict[str, Any]
    """The contents of its `config.json`."""
    settings: dict[str, Any]


def find_results(paths: Sequence[Path | str], warn: Callable[[str], None]) -> list[Results]:
    """The results that paths name: folders of suites, run directories, and directories that hold any of these.

    Raises `RunError` if a path holds neither results nor runs, or what it holds is damaged.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        faults: list[str] = []
        below = list(_walk(path, faults.append, set()))
        if not below:
            raise RunError("; ".join(faults) or f"{path} holds neither runs nor results of a suite")
        for fault in faults:
            warn(f"{fault}; the run is left out")
        for folder in below:
            folders.setdefault(folder.resolve(), folder)
    suites = [Results.read(folder, warn) for folder in folders.values() if holds_results(folder)]
    runs = [Run(folder) for folder in folders.values() if not holds_results(folder)]
    return [*suites, *(from_runs(runs, warn) if runs else [])]


def from_runs(runs: Sequence[Run], warn: Callable[[str], None]) -> list[Results]:
    """Runs as the results of suites, one for all with the same versions.

    Runs that differ in their seeds alone have one label. A run that has not ended counts as far as it was evaluated.
    Without any evaluation it is missing. `warn` gets a line for each run that is left out because it repeats another.
    """
    trained = [_read(run) for run in runs]
    trained = [replace(x, label=_label(x, [y for y in trained if y.key[:2] == x.key[:2]])) for x in trained]
    unequal = unequal_versions({str(x.run.path): x.record for x in trained})
    groups: dict[str, list[_Trained]] = {}
    for x in trained:
        versions = {library: by.get(str(x.run.path), "unknown") for library, by in unequal.items()}
        groups.setdefault(one_line(", ".join(map(" ".join, versions.items()))), []).append(x)
    home = runs[0].path if len(runs) == 1 else Path(os.path.commonpath([run.path.resolve().parent for run in runs]))
    return [_results(home / versions, group, warn) for versions, group in groups.items()]


def _results(path: Path, trained: Sequence[_Trained], warn: Callable[[str], None]) -> Results:
    """Runs with the same versions as the results of one suite."""
    jobs: dict[Key, _Trained] = {}
    for x in sorted(trained, key=lambda x: not x.run.finished):  # of repeats, the first that has finished
        first = jobs.setdefault(x.key, x)
        if first is not x:
            warn(f"{x.run.path} is left out: it has the settings and the seed of {first.run.path}")
    names, envs = list(dict.fromkeys(x.label for x in trained)), list(dict.fromkeys(x.env for x in trained))
    order = sorted(jobs.values(), key=lambda x: (envs.index(x.env), names.index(x.label), x.seed))
    outcomes = {x.key: outcome for x in order if (outcome := _outcome(x)) is not None}
    unfinished = [x for x in order if x.key in outcomes and not x.run.finished]
    commits = {x.record.get("git_commit") for x in trained}
    return Results(
        path=path,
        title=f"{trained[0].settings['algorithm']} on {envs[0]}" if len(names) == len(envs) == 1 else "Runs",
        description="",
        labels=names,
        counterparts={},
        environments={env: _environment([x for x in trained if x.env == env]) for env in envs},
        seeds=sorted({x.seed for x in trained}),
        eval_episodes=max(x.settings["eval_episodes"] for x in trained),
        final_episodes=max([int(x.run.evaluations()[-1]["episodes"]) for x in trained if x.run.finished], default=0),
        record={
            "versions": {name: v for x in trained for name, v in (x.record.get("versions") or {}).items()},
            "git_commit": commits.pop() if len(commits) == 1 else None,
        },
        outcomes=list(outcomes.values()),
        failures=[],
        missing=[x.key for x in order if x.key not in outcomes],
        unfinished={x.key: (x.run.last_metrics() or {"step": 0})["step"] for x in unfinished},
    )


def _walk(path: Path, complain: Callable[[str], None], seen: set[Path]) -> Iterator[Path]:
    """Result folders and run directories in a directory, in the order of their names.

    `complain` gets a message for each run that cannot be read. Directories in `seen` are not entered again by a link.
    """
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    if holds_results(path) or _is_run(path, complain):
        yield path
    elif path.is_dir():
        for below in sorted(path.iterdir()):
            if below.is_dir() and not below.name.startswith("."):
                yield from _walk(below, complain, seen)


def _is_run(path: Path, complain: Callable[[str], None]) -> bool:
    """Whether a directory holds a run. A language model's directory also has a `config.json`."""
    try:
        return (path / "config.json").exists() and {"algorithm", "env"} <= read_record(path / "config.json").keys()
    except RunError as error:
        if not isinstance(error.__cause__, (KeyError, TypeError)):  # it is a file of something else
            complain(str(error))
        return False


def _read(run: Run) -> _Trained:
    """A run with its algorithm as the label."""
    file = run.path / "config.json"
    settings = {"seed": 0} | read_settings(file)
    for name in ("seed", "total_steps", "eval_episodes", "eval_interval"):
        x = settings.get(name)
        if type(x) is not int and not (name == "eval_interval" and x is None):
            raise RunError(f"{file} cannot be used: {name} must be an integer, got {repr(x)[:80]}")
    seed = settings.pop("seed")
    return _Trained(str(settings["algorithm"]), str(settings["env"]), seed, run, read_record(file), settings)


def _label(x: _Trained, rivals: Sequence[_Trained]) -> str:
    """A run's algorithm, and the settings in which its rivals, the runs of the same pair, differ."""
    names = dict.fromkeys(name for y in rivals for name in y.settings)
    values = {name: {repr(y.settings.get(name)) for y in rivals} for name in names if name not in _LOGGED}
    differing = [name for name in values if len(values[name]) > 1]
    suffix = ", ".join(f"{name}={x.settings.get(name)}" for name in differing)
    if len(differing) > _MOST_DIFFERENCES:
        paths = {repr(y.settings): y.run.path.resolve() for y in reversed(rivals)}
        homes = [path.parent if path.name.startswith("seed-") else path for path in paths.values()]
        unique = unique_names(homes if len({*homes}) == len(homes) else list(paths.values()))
        suffix = dict(zip(paths, unique, strict=True))[repr(x.settings)]
    return f"{x.label}, {suffix}" if suffix else x.label


def _outcome(trained: _Trained) -> Outcome | None:
    """The evaluations of a run; None if there is none yet."""
    evaluations = trained.run.evaluations()
    stochastic = [e for e in evaluations if not e["deterministic"]]
    if not stochastic:
        return None
    curve = {e["step"]: e for e in stochastic}  # a final evaluation replaces that of the same step
    seconds = {x["step"]: finite_numbers(x).get("seconds", 0.0) for x in trained.run.metrics()}
    last = evaluations[-1]  # before it there are those of the end before the run was extended
    return Outcome(
        *trained.key,
        settings=trained.settings,
        steps=list(curve),
        stochastic=[e["mean_return"] for e in curve.values()],
        deterministic=[],
        final_stochastic=stochastic[-1]["mean_return"],
        final_deterministic=last["mean_return"] if last["final"] and last["deterministic"] else math.nan,
        further=finite_numbers({name: x for name, x in stochastic[-1].items() if name not in _NOT_FURTHER}),
        seconds=[seconds.get(step, 0.0) for step in curve],
    )


def _environment(trained: Sequence[_Trained]) -> Environment:
    """An environment with the largest budget and the shortest evaluation interval of its runs."""
    totals = [x.settings["total_steps"] for x in trained]
    intervals = [x.settings.get("eval_interval") or max(1, n // 10) for x, n in zip(trained, totals, strict=True)]
    return Environment(trained[0].env, max(totals), min(intervals), reward_threshold(trained[0].env))
