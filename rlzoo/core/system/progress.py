"""Progress of long operations, for a display that may show it.

An operation that may take long gives its name and its progress:

    for minibatch in track("minibatch", minibatches):
        ...

This module knows no display, and costs only a counter. A display looks at `running` from its own thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """Lines about a run. This class shows nothing; a display overrides its method."""

    def say(self, line: str) -> None:
        """Shows a line of text."""


SILENT = Progress()
"""Shows nothing."""


@dataclass(eq=False)
class Operation:
    """Something that may take long."""

    name: str
    total: int | None = None
    """How much there is to do; None if that is not known."""
    unit: str = ""
    """What `done` and `total` count, such as tokens."""
    done: int = 0
    note: str = ""
    """The state of the work in words, such as "loss 3.14"."""
    start: float = field(default_factory=time.monotonic)

    def reach(self, done: int) -> None:
        """Says how much is done."""
        self.done = done


running: list[Operation] = []
"""The operations that are running, each inside of the one before."""


@contextlib.contextmanager
def operation(name: str, total: int | None = None) -> Iterator[Operation]:
    """Context in which an operation is running. It also decorates functions."""
    own = Operation(name, total)
    running.append(own)
    try:
        yield own
    finally:
        if own in running:  # with what an error left inside of it
            del running[running.index(own) :]


def track(name: str, items: Sequence[T]) -> Iterable[T]:
    """The items, one after another, as an operation if they are several."""
    return items if len(items) < 2 else track_iterator(name, items, len(items))


def track_iterator(name: str, items: Iterable[T], total: int) -> Iterator[T]:
    """`track` for any iterable, of about `total` items."""
    with operation(name, total) as own:
        for item in items:
            yield item
            own.done += 1


def reach(done: int, total: int, unit: str) -> None:
    """Says how far the innermost operation is."""
    if running:
        own = running[-1]
        own.done, own.total, own.unit = done, total, unit
