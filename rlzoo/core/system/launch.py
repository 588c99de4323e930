"""How this process was started. Reads the environment alone, without PyTorch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from rlzoo.core.system.errors import require

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that `torchrun` sets in the processes that it starts."""


def rank_and_size() -> tuple[int, int]:
    """Number of this process, from 0, and the number of processes that torchrun started; (0, 1) without it."""
    if any(name not in os.environ for name in VARIABLES):
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_alone(name: str) -> None:
    """Raises `ConfigError` if torchrun started several processes. `name` is what they cannot do together."""
    require(rank_and_size()[1] == 1, f"{name} uses one process: start it without torchrun")


def end_with_parent(parent: int | None = None, end: Callable[[], None] = lambda: os._exit(1)) -> None:
    """Ends this process within a second of the end of the process that started it.

    Args:
        parent: process id of the starter, which may be gone already; by default the id of the present parent.
        end: called to end this process.
    """
    parent = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        end()

    threading.Thread(target=watch, daemon=True).start()
