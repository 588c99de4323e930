"""Parts that commands share: options, the import of PyTorch, the display."""

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
from rlzoo.core.errors import require
from rlzoo.runs.registry import cores, uses_all_cores
from rlzoo.runs.signals import deferred_interrupts

if TYPE_CHECKING:
    from rlzoo.runs.display import Display

_MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class Threads:
    threads: int | None = None
    """Threads of PyTorch and NumPy; none for 1 on control environments and all cores on language models."""


@dataclass(frozen=True, kw_only=True)
class Output(Threads):
    quiet: Switch = False
    """Print only the final evaluation."""
    json: Switch = False
    """Print the final evaluation as one JSON object."""


@contextlib.contextmanager
def importing(threads: int) -> Iterator[None]:
    """Context for the import of PyTorch and modules that need it, with a number of threads.

    NumPy's libraries read the environment variables when they are imported. Garbage collection is off because it finds
    nothing among the modules of PyTorch and takes 0.2 s.
    """
    require(threads >= 1, f"threads must be at least 1, got {threads}")
    require(threads <= _MOST_THREADS, f"threads must be at most {_MOST_THREADS}, got {threads}")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    gc.disable()
    try:
        with deferred_interrupts():
            import torch

            torch.set_num_threads(threads)
            yield
    finally:
        gc.freeze()
        gc.enable()


def threads_for(options: Threads, all_cores: bool) -> int:
    """The number of threads that the user asked for, else the fastest one for the task."""
    if options.threads is not None:
        return options.threads
    return cores() if all_cores else 1


def all_cores_for(run: str) -> bool:
    """Whether a run's task is fastest with all cores. Reads `config.json` before PyTorch is imported."""
    try:
        return uses_all_cores(json.loads(Path(run, "config.json").read_bytes())["env"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def pair_of(config: str) -> tuple[str, str] | None:
    """Algorithm and environment in a `config.json` or run directory, before PyTorch is imported; None if unreadable."""
    path = Path(config)
    try:
        record = json.loads((path / "config.json" if path.is_dir() else path).read_bytes())
        return str(record["algorithm"]), str(record["env"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def display(options: Output) -> Display:
    """The display that the options ask for."""
    from rlzoo.runs.display import Display, make_display

    return Display() if options.quiet else make_display(sys.stderr if options.json else sys.stdout)
