"""How a worker process begins. It imports no PyTorch, so that the process watches its parent from its first second."""

from __future__ import annotations

import os
import signal
import threading
import time


def begin(parent: int, folder: str) -> None:
    """Prepares a worker process: it works in a folder, leaves signals to its parent, and ends within a second of it.

    A run that takes SIGTERM first ends its iteration and writes a checkpoint.
    """

    def ignore(*_: object) -> None:
        """Unlike SIG_IGN, `Signals` replaces it."""

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        if signal.getsignal(signal.SIGTERM) is ignore:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)

    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, ignore)
    threading.Thread(target=end_with_parent, daemon=True).start()
