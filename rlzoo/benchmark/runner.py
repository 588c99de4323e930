"""Runs the unfinished jobs of a suite in parallel processes."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from rlzoo.benchmark import worker
from rlzoo.benchmark.job import Failure, Outcome, run_job
from rlzoo.benchmark.progress import Progress
from rlzoo.benchmark.results import Results, Writer, check_folder, finished
from rlzoo.benchmark.suite import Job, Suite
from rlzoo.core.errors import ConfigError, require
from rlzoo.runs.files import lock
from rlzoo.runs.signals import interruptible

T = TypeVar("T")
R = TypeVar("R")


def run_suite(
    suite: Suite,
    out: Path | str,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Runs the jobs of a suite that a result folder does not have yet.

    Args:
        jobs: number of parallel processes, each with one thread; the number of cores by default.
        backend: `loky` for joblib's processes on this machine; `ray` for the Ray cluster that RAY_ADDRESS names, which
            ignores `jobs`, or for a local one.
        overwrite: delete the results that the folder has.
        progress: progress callback; none by default.

    Raises:
        ConfigError: there is no such backend.
        RunError: the folder is in use, has other files, or has results of other versions.
        Interrupted: a signal was received; finished jobs are kept.
    """
    require(backend in BACKENDS, f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    workers = jobs if jobs is not None else os.cpu_count() or 1
    require(workers >= 1, f"jobs must be at least 1, got {workers}")
    out, progress = Path(out), progress or Progress()
    check_folder(out, overwrite)
    with lock(out):
        kept = {} if overwrite else finished(out, suite, progress.say)
        writer = Writer(out, suite, f"rlzoo benchmark {suite.name} --jobs {workers}", kept)
        writer.begin(overwrite)
        todo = [job for job in suite.jobs if job.key not in kept]
        start = time.monotonic()
        progress.start(suite.jobs, len(kept))

        def stopped() -> str:
            return f"stopped with {len(writer.outcomes)} of {len(suite.jobs)} jobs done; the same command resumes"

        try:
            with interruptible(stopped), contextlib.closing(BACKENDS[backend](todo, workers)) as outcomes:
                for outcome in outcomes:
                    writer.add(outcome)
                    progress.update(outcome)
        finally:
            progress.close()
            writer.end(time.monotonic() - start)
    return Results.read(out)


def _on_loky(jobs: Sequence[Job], workers: int) -> Generator[Outcome | Failure]:
    """Outcomes of the jobs in the order in which they finish, from joblib's processes.

    If a process is killed, its pool ends. Then the jobs that may have been running, the first unfinished ones, run one
    at a time, so that the failure is that of a single job.
    """
    left = {job.key: job for job in jobs}
    while left:
        try:
            for outcome in parallel(run_job, list(left.values()), workers):
                del left[outcome.key]
                yield outcome
        except TerminatedWorkerError:
            for job in list(left.values())[:workers]:
                try:
                    (outcome,) = parallel(run_job, [job], workers)
                except TerminatedWorkerError:
                    outcome = Failure(*job.key, "its process was killed; memory may have run out")
                del left[job.key]
                yield outcome


def parallel(work: Callable[[T], R], items: Iterable[T], workers: int) -> Iterator[R]:
    """Results of `work` in the order in which they are ready, from processes with one thread each.

    An item is drawn when a process is free for it.
    """
    with joblib.parallel_config("loky", inner_max_num_threads=1, initializer=worker.begin, initargs=(os.getpid(),)):
        # With n_jobs=1 joblib would run the jobs in this process: with 2, one of them stays idle.
        pool = joblib.Parallel(max(workers, 2), return_as="generator_unordered", pre_dispatch=workers, batch_size=1)
        outcomes = pool(joblib.delayed(work)(item) for item in items)
    try:
        for outcome in outcomes:  # noqa: UP028 - closing `yield from` would close joblib's generator first
            yield outcome
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about cancelled jobs
            outcomes.close()


def _on_ray(jobs: Sequence[Job], workers: int) -> Generator[Outcome | Failure]:
    """Outcomes of the jobs in the order in which they finish, from Ray: joblib's own Ray backend returns them last."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("backend 'ray' needs Ray: pip install 'rlzoo[ray]'") from error
    here: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(run_job)
        running = {remote.remote(job): job for job in jobs}
        while running:
            (done,), _ = ray.wait(list(running))
            job = running.pop(done)
            try:
                outcome = ray.get(done)
            except ray.exceptions.RayError as error:
                outcome = Failure(*job.key, " ".join(str(error).split())[:200])
            yield outcome
    finally:
        ray.shutdown()


BACKENDS = {"loky": _on_loky, "ray": _on_ray}
