"""The number of PyTorch's threads. The command line sets it. As a library, rlzoo leaves it as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

PARAMETERS = 2_000_000
"""Parameters of a language model for each thread. With fewer, more threads make it slower."""
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class ThreadCount:
    """A number of threads, and where it comes from."""

    count: int | None
    """None for the number that fits the model: 1, and more for a large language model."""
    source: str = ""

    def __str__(self) -> str:
        return f"using {self.count} thread{'' if self.count == 1 else 's'} ({self.source})"


_chosen: ThreadCount | None = None
"""The number that the command line chose; None without the command line."""


def from_environment() -> int | None:
    """The number in the environment variable OMP_NUM_THREADS; None without one."""
    text = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) and int(text) > 0 else None


def set_variables(threads: ThreadCount) -> None:
    """Sets environment variables that libraries read when they are imported.

    A waiting thread then sleeps. If it spins instead, it takes the processor that the other threads need: on a busy
    machine two threads are then ten times as slow as one. And PyTorch asks for large pages of memory, which vectors as
    long as the parameters of a language model fill faster.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    for name in _VARIABLES:
        if threads.count is not None:
            os.environ[name] = str(threads.count)
        else:
            os.environ.setdefault(name, "1")


def start(threads: ThreadCount) -> None:
    """Sets PyTorch's number of threads, 1 where it depends on the model."""
    import torch

    global _chosen
    _chosen = threads
    torch.set_num_threads(threads.count or 1)


def fit_to(parameters: int, say: Callable[[str], None]) -> None:
    """Chooses the number of threads for a language model of so many parameters, if the command line left that open."""
    import torch
    from joblib import cpu_count  # of this process: its affinity and the quota of its cgroup

    if _chosen is None:
        return
    threads = _chosen
    if threads.count is None:
        count = min(cpu_count(), 1 + parameters // PARAMETERS)
        torch.set_num_threads(count)
        threads = ThreadCount(count, f"for {parameters:,} parameters; --threads N for another number")
    say(str(threads))


def announce(say: Callable[[str], None]) -> None:
    """Shows the number of threads of a control task, if it is not 1."""
    if _chosen is not None and _chosen.count not in (None, 1):
        say(str(_chosen))
