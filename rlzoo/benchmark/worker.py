"""How a worker process begins. It imports no PyTorch, so that the process watches its parent from its first second."""

from __future__ import annotations

import signal

from rlzoo.core.system.launch import end_with_parent


def begin(parent: int) -> None:
    """Prepares a worker process, which leaves Ctrl-C to its parent, and ends within a second of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)
