"""Runs the jobs of a suite on a cluster: Ray, Slurm or Dask."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from rlzoo.benchmark.job import Failure, Job, Key, Outcome, run_job
from rlzoo.core.system.cache import cache_directory
from rlzoo.core.system.errors import ConfigError, describe_error
from rlzoo.core.system.functions import optional_module

SLURM = "slurm"
"""The executor of submitit."""
Submitted = Future[Outcome | Failure]
"""A submitted job: what has `done` and `result`."""
Cluster = AbstractContextManager[tuple[Callable[[Job], Submitted], int]]
"""Gives a function that submits a job, and how many jobs are submitted at a time."""


def on_cluster(connect: Callable[[int], Cluster], jobs: Sequence[Job], workers: int) -> Generator[Outcome | Failure]:
    """Outcomes of the jobs in the order in which they finish. A job whose process is killed runs a second time."""
    waiting, killed = [*reversed(jobs)], set[Key]()
    running: dict[Key, tuple[Job, Submitted]] = {}
    with connect(workers) as (submit, room):
        while waiting or running:
            while waiting and len(running) < room:
                job = waiting.pop()
                running[job.key] = job, submit(job)
            time.sleep(0.1)
            for key in [key for key, (_, handle) in running.items() if handle.done()]:
                job, handle = running.pop(key)
                try:
                    yield handle.result()
                except Exception as error:
                    if key in killed:
                        yield Failure(*key, describe_error(error)[:200], traceback.format_exc())
                    else:
                        killed.add(key)
                        waiting.append(job)


@contextlib.contextmanager
def ray(workers: int) -> Iterator[tuple[Callable[[Job], Submitted], int]]:
    """The Ray cluster that RAY_ADDRESS names, or one on this machine."""
    ray = _package("ray", "ray")
    here = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": workers, "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **here)
    try:
        run = ray.remote(num_cpus=1, max_retries=0)(run_job)
        yield lambda job: run.remote(job).future(), sys.maxsize
    finally:
        ray.shutdown()


@contextlib.contextmanager
def dask(workers: int) -> Iterator[tuple[Callable[[Job], Submitted], int]]:
    """The Dask cluster that DASK_SCHEDULER_ADDRESS names, or one on this machine."""
    distributed, config = _package("distributed", "dask"), _package("dask", "dask").config
    here: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    here |= {"silence_logs": logging.CRITICAL}
    # A job that kills its process takes no other one with it, and `on_cluster` runs it again.
    alone = {"distributed.scheduler.allowed-failures": 0, "distributed.scheduler.worker-saturation": 1.0}
    with config.set(alone), distributed.Client(**{} if "DASK_SCHEDULER_ADDRESS" in os.environ else here) as client:
        yield lambda job: client.submit(run_job, job, pure=False), sys.maxsize


@contextlib.contextmanager
def slurm(workers: int) -> Iterator[tuple[Callable[[Job], Submitted], int]]:
    """Slurm, by submitit: jobs of one core and a day at most. `workers` of them are in the queue at a time."""
    submitit = _package("submitit", "slurm")
    cache_directory().mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="slurm-", ignore_cleanup_errors=True) as folder:
        try:
            executor = submitit.AutoExecutor(folder, SLURM)
        except RuntimeError as error:
            raise ConfigError(f"backend 'slurm' needs a machine with Slurm: {error}") from error
        executor.update_parameters(name="rlzoo", timeout_min=24 * 60, cpus_per_task=1)
        submitted = []

        def submit(job: Job) -> Submitted:
            submitted.append(executor.submit(run_job, job))
            return submitted[-1]

        try:
            yield submit, workers
        finally:
            for job in submitted:
                if not job.done():
                    job.cancel(check=False)


def _package(name: str, extra: str) -> Any:
    return optional_module(name, f"backend {extra!r} needs the package {name}: pip install 'rlzoo[{extra}]'")
