"""Ctrl-C and SIGTERM: when they take effect."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Signals:
    """Records the first Ctrl-C or SIGTERM, so that training stops after the iteration. A second one acts at once."""

    received: int = 0
    """Number of the signal; 0 before it arrives."""

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._record)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, _: FrameType | None) -> None:
        self.received = number
        signal.signal(number, self._handlers[number])


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delays the `KeyboardInterrupt` of a Ctrl-C to the end of the block.

    An import that is interrupted leaves half a module behind, and often another error than `KeyboardInterrupt`.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    received = False

    def record(number: int, _: FrameType | None) -> None:
        nonlocal received
        received = True

    signal.signal(signal.SIGINT, record)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if received:
        raise KeyboardInterrupt


def exit_on_lost_interrupts() -> None:
    """Ends the process if a `KeyboardInterrupt` is raised where Python cannot pass it on, such as in a destructor."""
    show = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            return show(unraisable)
        print("rlzoo: interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    sys.unraisablehook = hook


def exit_on_signals(code: int) -> None:
    """Lets a signal end the process at once with an exit code, for the time in which the interpreter shuts down."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(code))
