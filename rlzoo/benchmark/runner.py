"""Runs the jobs of a suite in parallel processes, each finished job once."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from rlzoo.benchmark.job import Failure, Outcome, run_job
from rlzoo.benchmark.progress import Progress
from rlzoo.benchmark.results import Results, Writer, check_folder, finished
from rlzoo.benchmark.suite import Job, Suite
from rlzoo.core.errors import ConfigError, Interrupted, require
from rlzoo.runs.files import lock


def run_suite(
    suite: Suite,
    out: Path | str,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Results:
    """Runs what a folder does not hold yet.

    Args:
        jobs: processes at a time, each with one thread; as many as there are cores if not given.
        backend: `loky` for processes here, by joblib; `ray` for the Ray cluster that RAY_ADDRESS names, which takes no
            heed of `jobs`, or for one that is started here.
        overwrite: begin anew where the folder holds results already.
        progress: where jobs are shown; nowhere by default.

    Raises:
        ConfigError: there is no such backend.
        RunError: the folder is in use, or holds something else or results of other versions.
        Interrupted: a signal came; what is finished is kept.
    """
    require(backend in BACKENDS, f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    workers = jobs if jobs is not None else os.cpu_count() or 1
    require(workers >= 1, f"jobs must be at least 1, got {workers}")
    out, progress = Path(out), progress or Progress()
    check_folder(out, overwrite)
    with lock(out), _interruptible() as interrupted:
        kept = {} if overwrite else finished(out, suite, progress.say)
        writer = Writer(out, suite, f"rlzoo benchmark {suite.name} --jobs {workers}", kept)
        writer.begin(anew=overwrite)
        todo = [job for job in suite.jobs if job.key not in kept]
        start = time.monotonic()
        progress.start(suite.jobs, len(kept))
        try:
            with contextlib.closing(BACKENDS[backend](todo, workers)) as outcomes:
                for outcome in outcomes:
                    writer.add(outcome)
                    progress.update(outcome)
        except KeyboardInterrupt as error:
            number = interrupted[0] if interrupted else signal.SIGINT
            message = f"stopped with {len(writer.outcomes)} of {len(suite.jobs)} jobs done; the same command goes on"
            raise Interrupted(message, number) from error
        finally:
            progress.close()
            writer.end(time.monotonic() - start)
    return Results.read(out)


def _on_loky(jobs: Sequence[Job], workers: int) -> Generator[Outcome | Failure]:
    """What became of the jobs, as they finish.

    A process that is killed takes its pool with it. Then the jobs that may have been the cause, the first unfinished
    ones, run alone, so that the one whose process dies again is known and the others go on.
    """
    left = {job.key: job for job in jobs}
    while left:
        try:
            for outcome in _parallel(list(left.values()), workers):
                del left[outcome.key]
                yield outcome
        except TerminatedWorkerError:
            for job in list(left.values())[:workers]:
                try:
                    (outcome,) = _parallel([job], workers)
                except TerminatedWorkerError:
                    outcome = Failure(*job.key, "its process was killed; memory may have run out")
                del left[job.key]
                yield outcome


def _parallel(jobs: Sequence[Job], workers: int) -> Iterator[Outcome | Failure]:
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        # Of one process joblib would make none, and run the jobs in this one: two, of which one always waits.
        pool = joblib.Parallel(max(workers, 2), return_as="generator_unordered", pre_dispatch=workers, batch_size=1)
        outcomes = pool(joblib.delayed(_work)(job) for job in jobs)
    try:
        for outcome in outcomes:  # noqa: UP028 - closing `yield from` would close joblib's generator first
            yield outcome
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of jobs that are cancelled
            outcomes.close()


def _work(job: Job) -> Outcome | Failure:
    """In a process of its own. Ctrl-C is for the one that waits for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return run_job(job)


def _on_ray(jobs: Sequence[Job], workers: int) -> Generator[Outcome | Failure]:
    """`_on_loky`, where Ray sees to it: joblib's Ray backend gives its results when all are there, too late for us."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError("backend 'ray' needs Ray: pip install 'rlzoo[ray]'") from error
    here: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(_work)
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


@contextlib.contextmanager
def _interruptible() -> Iterator[list[int]]:
    """SIGTERM is taken as Ctrl-C is; the list holds its number then."""
    received: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    try:
        before: Any = signal.signal(signal.SIGTERM, note)
    except ValueError:  # not the main thread
        yield received
        return
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)
