"""Runs the unfinished jobs of a suite in parallel processes."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from rlzoo.benchmark import worker
from rlzoo.benchmark.clusters import dask, on_cluster, ray, slurm
from rlzoo.benchmark.job import Failure, Job, Outcome, run_job
from rlzoo.benchmark.results import Results, Writer, check_folder, finished_jobs
from rlzoo.benchmark.suite import Suite
from rlzoo.core.system.errors import require
from rlzoo.core.system.progress import SILENT, Progress, operation
from rlzoo.runs.files import lock, remove_report
from rlzoo.runs.logs.display import duration
from rlzoo.runs.signals import interruptible

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

KILLED = "its process was killed; memory may have run out"


def run_suite(
    suite: Suite,
    out: Path | str,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Results:
    """Runs the jobs of a suite that a result folder does not have yet.

    Args:
        jobs: number of parallel processes, each with one thread; the number of cores by default.
        backend: `loky` for joblib's processes on this machine; `slurm` for jobs of Slurm; `ray` or `dask` for the
            cluster that RAY_ADDRESS or DASK_SCHEDULER_ADDRESS names, which ignores `jobs`, or for a local one.
        overwrite: delete the results that the folder has, and their report.
        progress: gets a line for each job.

    Raises:
        ConfigError: there is no such backend, or its package is not installed.
        RunError: the folder is in use, has other files, or results of another suite or other versions.
        Interrupted: a signal was received; finished jobs are kept.
    """
    require(backend in BACKENDS, f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    workers = joblib.cpu_count() if jobs is None else jobs
    require(workers >= 1, f"jobs must be at least 1, got {workers}")
    out = Path(out)
    check_folder(out, overwrite)
    with lock(out):
        kept = {} if overwrite else finished_jobs(out, suite, progress.say)
        writer = Writer(out, suite, f"rlzoo benchmark {shlex.quote(suite.source)} --jobs {workers}", kept)
        if overwrite:
            remove_report(out)
        writer.rewrite()
        remaining = [job for job in suite.jobs if job.key not in kept]
        total = len(suite.jobs)
        if kept:
            progress.say(f"{len(kept)} of {total} jobs are done already")

        def stopped() -> str:
            return f"stopped with {len(writer.outcomes)} of {total} jobs done; the same command resumes"

        try:
            with interruptible(stopped), contextlib.closing(BACKENDS[backend](remaining, workers)) as outcomes:
                _collect(outcomes, writer, suite, len(remaining), progress)
        finally:
            writer.rewrite()
    return Results.read(out)


def _collect(
    outcomes: Iterable[Outcome | Failure], writer: Writer, suite: Suite, remaining: int, progress: Progress
) -> None:
    """Writes outcomes as they arrive, with a line of progress for each."""
    start, total = time.monotonic(), len(suite.jobs)
    width = max((len(f"{job.label} {job.env}") for job in suite.jobs), default=0)
    with operation("jobs", remaining) as running:
        for number, outcome in enumerate(outcomes, 1):
            writer.add(outcome)
            if isinstance(outcome, Failure):
                result = f"failed: {outcome.error}"
            else:
                result = f"return {outcome.final_stochastic:9,.2f}  in {outcome.seconds[-1]:5.1f} s"
            job = f"{f'{outcome.label} {outcome.env}':{width}}  seed {outcome.seed:<3}  {result}"
            count, left = total - remaining + number, (time.monotonic() - start) / number * (remaining - number)
            progress.say(f"{count:{len(str(total))}}/{total}  {job}  {duration(left)} left")
            running.done, running.note = number, f"{len(writer.failures)} failed"


def _on_loky(jobs: Sequence[Job], workers: int) -> Generator[Outcome | Failure]:
    """Outcomes of the jobs in the order in which they finish, from joblib's processes."""
    with contextlib.closing(each(run_job, {job.key: job for job in jobs}, workers)) as outcomes:
        for key, outcome in outcomes:
            yield outcome or Failure(*key, KILLED)


def each(
    work: Callable[[T], R],
    items: Mapping[K, T],
    workers: int,
    threads: int = 1,
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[tuple[K, R | None]]:
    """Keys of the items and the results of `work` in the order in which they are ready; None if its process was killed.

    If a process is killed, its pool ends. Then the items that may have been running, the first unfinished ones, run one
    at a time, so that only one of them has no result.

    Args:
        threads: threads of each process.
        stopped: whether no further item is to begin.
    """
    waiting, workers = dict(items), min(workers, len(items))  # joblib starts all processes at once
    while waiting and not stopped():
        try:
            unstopped = (item for item in list(waiting.items()) if not stopped())
            for key, result in _parallel(work, unstopped, workers, threads):
                del waiting[key]
                yield key, result
        except TerminatedWorkerError:
            for key, item in list(waiting.items())[:workers]:
                if stopped():
                    return
                del waiting[key]
                try:
                    yield from _parallel(work, [(key, item)], 1, threads)
                except TerminatedWorkerError:
                    yield key, None


def _parallel(
    work: Callable[[T], R], items: Iterable[tuple[K, T]], workers: int, threads: int
) -> Iterator[tuple[K, R]]:
    """`each` for items of which no process is killed. So many items as there are workers are drawn at a time."""
    start = {"initializer": worker.begin, "initargs": (os.getpid(), os.getcwd())}
    with joblib.parallel_config("loky", inner_max_num_threads=threads, **start):
        # With n_jobs=1 joblib would run the jobs in this process: with 2, one of them stays idle.
        pool = joblib.Parallel(max(workers, 2), return_as="generator_unordered", pre_dispatch=workers, batch_size=1)
        outcomes = pool(joblib.delayed(_with_key)(work, key, item) for key, item in items)
    try:
        for outcome in outcomes:  # noqa: UP028 - closing `yield from` would close joblib's generator first
            yield outcome
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about cancelled jobs
            outcomes.close()


def _with_key(work: Callable[[T], R], key: K, item: T) -> tuple[K, R]:
    return key, work(item)


BACKENDS: dict[str, Callable[[Sequence[Job], int], Generator[Outcome | Failure]]] = {
    "loky": _on_loky,
    **{cluster.__name__: partial(on_cluster, cluster) for cluster in (ray, slurm, dask)},
}
