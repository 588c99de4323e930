"""The result folder of a suite.

suite.json      the suite, the machine, versions
results.jsonl   one line per finished job; its bytes do not depend on when or in which order the jobs ran
timings.jsonl   seconds of training of each finished job, which differ from run to run
failures.jsonl  jobs that failed in the last session
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlzoo.benchmark.job import Failure, Key, Outcome
from rlzoo.benchmark.suite import Environment, Suite
from rlzoo.core.system.errors import RunError, require
from rlzoo.core.system.files import memory, sync
from rlzoo.runs.configuration.record import git_commit, read_record, unequal_versions, versions
from rlzoo.runs.files import append_jsonl, read_jsonl, write_atomically

FORMAT = 1
_SUITE, _RESULTS, _TIMINGS, _FAILURES = "suite.json", "results.jsonl", "timings.jsonl", "failures.jsonl"


@dataclass(frozen=True)
class Results:
    """The contents of a result folder."""

    path: Path
    title: str
    description: str
    labels: list[str]
    """Algorithms, in the order of the suite."""
    counterparts: dict[str, str]
    """The label that each peer is compared with."""
    environments: dict[str, Environment]
    seeds: list[int]
    eval_episodes: int
    final_episodes: int
    record: dict[str, Any]
    """Command, machine, versions and commit."""
    outcomes: list[Outcome]
    failures: list[Failure]
    missing: list[Key]
    """Jobs that have neither finished nor failed."""
    unfinished: dict[Key, int] = field(default_factory=dict)
    """Step of each outcome whose training has not ended."""
    against: str | None = None
    """Metric of the task that the score is drawn against, or none."""

    @property
    def keys(self) -> list[Key]:
        """All jobs: finished, failed and missing ones."""
        return [*(x.key for x in (*self.outcomes, *self.failures)), *self.missing]

    @property
    def complete_grid(self) -> bool:
        """Whether there is a job for each algorithm, environment and seed."""
        return len(self.keys) == len(self.labels) * len(self.environments) * len(self.seeds)

    @classmethod
    def read(cls, path: Path | str, warn: Callable[[str], None] = lambda line: None) -> Results:
        """Reads a result folder.

        Args:
            warn: called with a message for each line that cannot be read.

        Raises:
            RunError: the folder has no results, or they are damaged or of another format.
        """
        path = Path(path)
        record = read_record(path / _SUITE, FORMAT)
        outcomes = read_outcomes(path, warn)
        with _reading(path / _FAILURES):
            failures = [Failure(**line) for _, line in read_jsonl(path / _FAILURES) if line is not None]
            failed = {failure.key: failure for failure in failures if failure.key not in outcomes}
        with _reading(path / _SUITE):
            suite = record.pop("suite")
            environments = {env: Environment(**fields) for env, fields in suite["environments"].items()}
            order = [(label, env, seed) for env in environments for label in suite["labels"] for seed in suite["seeds"]]
            return cls(
                path=path,
                **{key: value for key, value in suite.items() if key not in ("name", "environments")},
                environments=environments,
                record=record,
                outcomes=[outcomes[key] for key in order if key in outcomes],
                failures=[failed[key] for key in order if key in failed],
                missing=[key for key in order if key not in outcomes and key not in failed],
            )


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turns the errors of a file with other content into a `RunError` that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{file} is damaged: {type(error).__name__}: {error}") from error


def read_outcomes(path: Path, warn: Callable[[str], None] = lambda line: None) -> dict[Key, Outcome]:
    """The finished jobs of a folder, without those whose line is damaged or that have no timing."""
    seconds: dict[Any, list[float]] = {}
    for _, line in read_jsonl(path / _TIMINGS):
        with contextlib.suppress(KeyError, TypeError):  # its job will run again
            seconds[line["label"], line["env"], line["seed"]] = line["seconds"]  # type: ignore[index]
    outcomes: dict[Key, Outcome] = {}
    for number, (_, line) in enumerate(read_jsonl(path / _RESULTS), 1):
        try:
            require(line is not None, "it is not complete")
            outcome = Outcome(**dict(line or {}))
            require(outcome.key in seconds, "it has no timing")
            outcomes[outcome.key] = replace(outcome, seconds=seconds[outcome.key])
        except (ValueError, TypeError) as error:
            warn(f"{path / _RESULTS}, line {number}: skipped, {error}; its job will run again")
    return outcomes


def finished_jobs(path: Path, suite: Suite, warn: Callable[[str], None]) -> dict[Key, Outcome]:
    """The jobs of a suite that a folder has finished with the same settings, evaluations and measurements.

    Their device may be another: like the processor, it changes results by rounding alone.

    Raises:
        RunError: the folder has results of another suite, or of jobs that the suite no longer has.
    """
    outcomes = read_outcomes(path, warn)
    if not outcomes:
        return {}
    with _reading(path / _SUITE):
        before = read_record(path / _SUITE, FORMAT)["suite"]
        name, episodes = before["name"], (before["eval_episodes"], before["final_episodes"])
        evaluations = {env: (x["eval_interval"], *episodes) for env, x in before["environments"].items()}
    if name != suite.name:
        raise RunError(f"{path} holds results of the suite {name}: give another --out, or --overwrite")
    if others := len(outcomes.keys() - {job.key for job in suite.jobs}):
        raise RunError(f"{path} holds {others} results that the suite lacks: give another --out, or --overwrite")
    kept = {
        job.key: outcome
        for job in suite.jobs
        if (outcome := outcomes.get(job.key)) is not None
        and {**outcome.settings, "device": job.settings.get("device")} == {"device": None, **job.settings}
        and evaluations.get(job.env) == (job.eval_interval, job.eval_episodes, job.final_episodes)
        and (outcome.updates or not job.measure_updates)
    }
    if len(kept) < len(outcomes):
        warn(f"{len(outcomes) - len(kept)} results have other settings or were not measured: they are run again")
    return kept


class Writer:
    """Adds finished jobs to a result folder.

    The timing of a job is written before its result, so that a job with a result is complete even after a kill.
    """

    def __init__(self, path: Path, suite: Suite, command: str, outcomes: Mapping[Key, Outcome]) -> None:
        self.path = path
        self.outcomes = dict(outcomes)
        self.failures: list[Failure] = []
        self._order = [job.key for job in suite.jobs]
        machine, commit = _machine(), git_commit()
        if outcomes and holds_results(path):
            before = read_record(path / _SUITE, FORMAT)
            earlier, remain = dict(before.get("machine") or {}), len(outcomes) < len(suite.jobs)
            machine = {name: _both(earlier.get(name), x) for name, x in machine.items()} if remain else earlier
            commit = _both(before.get("git_commit"), commit) if remain else before.get("git_commit")
        self._record: dict[str, Any] = {
            "format": FORMAT,
            "suite": _suite_record(suite),
            "command": command,
            "machine": machine,
            "versions": versions(),
            "git_commit": commit,
        }

    def add(self, outcome: Outcome | Failure) -> None:
        """Appends a job."""
        if isinstance(outcome, Failure):
            self.failures.append(outcome)
            lines = {_FAILURES: dataclasses.asdict(outcome)}
        else:
            self.outcomes[outcome.key] = outcome
            lines = _split(outcome)
        for name, line in lines.items():
            append_jsonl(self.path / name, [line])
            sync(self.path / name)

    def rewrite(self) -> None:
        """Rewrites the folder in the order of the suite, without damaged lines and results that are not kept."""
        lines = [_split(self.outcomes[key]) for key in self._order if key in self.outcomes]
        record = {_SUITE: (json.dumps(self._record, indent=2) + "\n").encode()}
        files = {name: _lines(of_job[name] for of_job in lines) for name in (_RESULTS, _TIMINGS)}
        files[_FAILURES] = _lines(map(dataclasses.asdict, self.failures))
        # After a kill or a full disk no result may stand beside a suite.json that is not its own.
        for name, data in (files | record if holds_results(self.path) else record | files).items():
            write_atomically(self.path / name, data)


def check_folder(path: Path, overwrite: bool = False) -> None:
    """Raises `RunError` if a folder holds other files, or results of other versions that are not to be overwritten."""
    if not (path / _SUITE).exists():
        if path.is_file() or (path.is_dir() and any(not p.name.startswith(".") for p in path.iterdir())):
            raise RunError(f"{path} holds something other than results of a suite")
    elif not overwrite:
        records = {"then": read_record(path / _SUITE, FORMAT), "now": {"versions": versions()}}
        unequal = unequal_versions(records).items()
        changed = "; ".join(f"{name} {x['then']} then, {x['now']} now" for name, x in unequal)
        if changed:
            raise RunError(f"{path} holds results of other versions ({changed}): give another --out, or --overwrite")


def holds_results(path: Path) -> bool:
    """Whether a directory is a result folder."""
    return (path / _SUITE).is_file()


def _suite_record(suite: Suite) -> dict[str, Any]:
    """Fields of `Results`, and the name."""
    copied = ("name", "title", "description", "eval_episodes", "final_episodes", "against")
    return {name: getattr(suite, name) for name in copied} | {
        "labels": list(suite.algorithms),
        "counterparts": {label: x.counterpart for label, x in suite.algorithms.items() if x.counterpart is not None},
        "environments": {env: dataclasses.asdict(x) for env, x in suite.environments.items()},
        "seeds": list(suite.seeds),
    }


def _machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    machine: dict[str, Any] = {
        "processor": model[1] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if hasattr(os, "sysconf"):
        machine["memory_gib"] = round(memory() / 2**30, 1)
    return machine


def _both(before: Any, now: Any) -> Any:
    """A value of this session, after those of the sessions before if they had others: 'A; B'."""
    if None in (before, now) or before == now:
        return now if before is None else before
    return "; ".join(dict.fromkeys([*str(before).split("; "), str(now)]))


def _split(outcome: Outcome) -> dict[str, dict[str, Any]]:
    """The lines of a job, by their files."""
    result = dataclasses.asdict(outcome)
    seconds = result.pop("seconds")
    for name in ("course", "samples", "updates"):
        if not result[name]:
            del result[name]
    timing = {"label": outcome.label, "env": outcome.env, "seed": outcome.seed, "seconds": seconds}
    return {_TIMINGS: timing, _RESULTS: result}


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records).encode()
