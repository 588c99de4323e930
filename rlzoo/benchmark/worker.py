"""How a worker process begins. It imports no PyTorch, so that the process watches its parent from its first second."""

from __future__ import annotations

import os
import signal

from rlzoo.core.system.launch import end_with_parent


def begin(parent: int, folder: str) -> None:
    """Prepares a worker process: it works in `folder`, leaves signals to its parent, and ends within a second after it.

    A run that takes SIGTERM first ends its iteration and writes a checkpoint.
    """

    def ignore(*_: object) -> None:
        """Unlike SIG_IGN, `Signals` replaces it."""

    def end() -> None:
        if signal.getsignal(signal.SIGTERM) is ignore:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)

    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ignore)
    end_with_parent(parent, end)
