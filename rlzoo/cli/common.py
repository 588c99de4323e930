"""Parts that commands share: options, the import of PyTorch, the display."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlzoo.cli.options import Switch
from rlzoo.core.system.errors import require
from rlzoo.core.system.threads import ThreadCount, from_environment, set_variables, start
from rlzoo.runs.files import read_object
from rlzoo.runs.signals import deferred_interrupts

if TYPE_CHECKING:
    from rlzoo.runs.logs.display import Display

_MOST_THREADS = 1024
_ONE = ThreadCount(1)


@dataclass(frozen=True, kw_only=True)
class Threads:
    threads: int | None = None
    """Threads of PyTorch and NumPy; none for OMP_NUM_THREADS, else those of the run, else the fastest number."""


@dataclass(frozen=True, kw_only=True)
class Json:
    json: Switch = False
    """Print the result as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class Output(Threads, Json):
    quiet: Switch = False
    """Print only the result."""


@contextlib.contextmanager
def importing(threads: ThreadCount = _ONE) -> Iterator[None]:
    """Context for the import of PyTorch and modules that need it, with a number of threads.

    Garbage collection is off because it finds nothing among the modules of PyTorch and takes 0.2 s.
    """
    if threads.count is not None:
        require(threads.count >= 1, f"threads must be at least 1, got {threads.count}")
        require(threads.count <= _MOST_THREADS, f"threads must be at most {_MOST_THREADS}, got {threads.count}")
    set_variables(threads)
    gc.disable()
    try:
        with deferred_interrupts():
            start(threads)
            yield
    finally:
        gc.freeze()
        gc.enable()


def threads_for(options: Threads, run: str | None = None) -> ThreadCount:
    """The number of threads that the user asked for, else that of the run, else None.

    Reads `config.json` before PyTorch is imported.
    """
    in_environment = from_environment()
    if options.threads is not None:
        return ThreadCount(options.threads, "--threads")
    if in_environment is not None:
        return ThreadCount(in_environment, "OMP_NUM_THREADS")
    recorded = None if run is None else read_object(Path(run, "config.json")).get("threads")
    if isinstance(recorded, int) and 1 <= recorded <= _MOST_THREADS:
        return ThreadCount(recorded, "as before")
    return ThreadCount(None)


def is_run(path: str) -> bool:
    """Whether this is a run directory with a readable `config.json`, and not that of a model."""
    return {"algorithm", "env"} <= read_object(Path(path, "config.json")).keys()


def display(options: Any) -> Display:
    """The display that the options `quiet` and `json` ask for."""
    from rlzoo.runs.logs.display import Display, make_display

    return Display() if options.quiet else make_display(sys.stderr if options.json else sys.stdout)
