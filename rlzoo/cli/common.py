"""What the commands have in common: options, the import of PyTorch, a display."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlzoo.cli.options import Switch
from rlzoo.core.errors import ConfigError
from rlzoo.runs.registry import cores, uses_all_cores

if TYPE_CHECKING:
    from rlzoo.runs.display import Display


@dataclass(frozen=True, kw_only=True)
class Threads:
    threads: int | None = None
    """Of PyTorch and NumPy; 1 for control environments and all cores for language models if not given."""


@dataclass(frozen=True, kw_only=True)
class Output(Threads):
    quiet: Switch = False
    """Print nothing but the final evaluation."""
    json: Switch = False
    """Print the final evaluation as one JSON object."""


@contextlib.contextmanager
def importing(threads: int) -> Iterator[None]:
    """Around the imports of PyTorch and what needs it.

    NumPy's libraries read the variables when they are imported. Collecting garbage among the modules of PyTorch
    finds none and takes 0.2 s.
    """
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    gc.disable()
    try:
        import torch

        torch.set_num_threads(threads)
        yield
    finally:
        gc.freeze()
        gc.enable()


def threads_for(options: Threads, all_cores: bool) -> int:
    """As the user asked, else what is fastest for the task."""
    if options.threads is not None:
        return options.threads
    return cores() if all_cores else 1


def task_of(run: str) -> str:
    """Name of a run's task, read before PyTorch is imported; "" if it cannot be read."""
    try:
        return str(json.loads(Path(run, "config.json").read_bytes())["env"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def all_cores_for(run: str) -> bool:
    """Whether a run's task is fastest on all cores."""
    return uses_all_cores(task_of(run))


def display(options: Output) -> Display:
    from rlzoo.runs.display import Display, make_display

    return Display() if options.quiet else make_display(sys.stderr if options.json else sys.stdout)
