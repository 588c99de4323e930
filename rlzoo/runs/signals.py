"""Ctrl-C and SIGTERM: when they take effect."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from rlzoo.core.system.errors import Interrupted

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Signals(contextlib.ExitStack):
    """Records the first Ctrl-C or SIGTERM, which ends training after the iteration. A second one ends it at once."""

    received: int = 0
    """Number of the signal; 0 before it arrives."""

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            if (before := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                self.enter_context(handling(number, partial(self._record, before)))
        return self

    def _record(self, before: Any, number: int, _: FrameType | None) -> None:
        self.received = number
        signal.signal(number, before)


@contextlib.contextmanager
def interruptible(stopped: Callable[[], str]) -> Iterator[None]:
    """Turns a Ctrl-C or SIGTERM in the block into `Interrupted` with the message that `stopped` returns."""
    number: int = signal.SIGINT

    def interrupt(received: int, _: FrameType | None) -> None:
        nonlocal number
        number = received
        raise KeyboardInterrupt

    with handling(signal.SIGTERM, interrupt):
        try:
            yield
        except KeyboardInterrupt as error:
            raise Interrupted(stopped(), number) from error


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Delays the effect of a Ctrl-C to the end of the block.

    An import that is interrupted leaves half a module behind, and often raises another error than `KeyboardInterrupt`.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        yield
        return
    received: list[int] = []
    with handling(signal.SIGINT, lambda number, _: received.append(number)):
        yield
    if received:
        handler(signal.SIGINT, None)


@contextlib.contextmanager
def handling(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Context in which a signal has another handler. Python has handlers in the main thread only."""
    main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(number, handler) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(number, before)


def interrupt_once() -> None:
    """Lets only the first Ctrl-C raise `KeyboardInterrupt`, so that a second one does not stop the cleanup.

    The process ends if the exception is raised where Python cannot pass it on, such as in a destructor.
    """
    raised = False

    def interrupt(number: int, _: FrameType | None) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise KeyboardInterrupt

    def unraisable(arguments: Any) -> None:
        if not issubclass(arguments.exc_type, KeyboardInterrupt):
            return sys.__unraisablehook__(arguments)
        print("rlzoo: interrupted", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = unraisable
