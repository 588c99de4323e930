"""Display of a run's progress on the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from rlzoo.core.system.progress import Operation, Progress, running
from rlzoo.core.system.screen import printable, show

if TYPE_CHECKING:
    import rich.progress

_SILENCE = 5.0
"""Seconds after which an iteration has a line although it ends no tenth of the run."""


class Display(Progress):
    """A display that shows nothing. Subclasses show progress, and what runs for long while they are a context."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, step: int, total_steps: int) -> None:
        """Called when training starts at `step`."""

    def update(self, record: Mapping[str, Any]) -> None:
        """Called after each iteration with its line of `metrics.jsonl`."""

    def close(self) -> None:
        """Called when training ends."""


def make_display(file: TextIO | None = None) -> Display:
    """A progress bar if `file`, by default standard output, is a terminal; else lines."""
    file = file or sys.stdout
    return LiveDisplay(file) if file.isatty() and os.environ.get("TERM") != "dumb" else LineDisplay(file)


def display_for(progress: bool | Display) -> Display:
    """A display that is given, or one on standard output, or one that shows nothing."""
    if isinstance(progress, Display):
        return progress
    return make_display() if progress else Display()


class _Lasting:
    """A stream whose faults stop nothing: a broken pipe, a terminal that is gone, a full disk."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Watching(Display):
    """A display with a thread that looks at what runs."""

    patience: ClassVar[float]
    """Seconds without anything new after which it shows what runs."""
    interval: ClassVar[float]
    """Seconds between two looks."""
    tenths: ClassVar[bool] = False
    """Whether every tenth of the run has a line, however short its iterations were."""

    def __init__(self, file: TextIO) -> None:
        self._file: Any = _Lasting(file)
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._iterated = self._new = time.monotonic()

    def __enter__(self) -> Display:
        self._new = time.monotonic()
        self._ended.clear()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(self.interval):
            self.look()

    def close(self) -> None:
        if self._watcher is not None:
            self._ended.set()
            self._watcher.join()
            self._watcher = None

    def start(self, step: int, total_steps: int) -> None:
        self._first, self._total, self._tenth = step, total_steps, 10 * step // total_steps
        self._start = self._iterated = self._new = time.monotonic()

    def look(self) -> None:
        """Shows what runs, if nothing new was shown for long."""
        with self._lock:
            operations, now = running.copy(), time.monotonic()
            if operations and now - self._new >= self.patience and now - operations[0].start >= self.interval:
                self.show(operations)

    def show(self, operations: Sequence[Operation]) -> None:
        """Shows operations, each inside of the one before."""
        raise NotImplementedError

    def update(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            self._new = time.monotonic()
            step, total = record["step"], f"{self._total:,}"
            before, self._tenth = self._tenth, 10 * step // self._total
            if (self.tenths and self._tenth > before) or self._new - self._iterated >= _SILENCE:
                self.say(f"{step:{len(total)},}/{total} {_unit(record)}  {_summary(record)}  {self.pace(record)}")
                self._iterated = self._new

    def pace(self, record: Mapping[str, Any]) -> str:
        """Steps a second, and the remaining time, such as "  0:12 left"; not at the end or before anything is done."""
        step = record["step"]
        seconds, done, left = time.monotonic() - self._start, step - self._first, self._total - step
        text = f"{max(done, 1) / max(seconds, 1e-9):>7,.0f} {_unit(record)}/s"
        return f"{text}  {duration(seconds / done * left)} left" if done > 0 and left > 0 else text


class LineDisplay(_Watching):
    """A line for every tenth of the run, for iterations after a silence, and for what takes long."""

    patience, interval, tenths = 10.0, 1.0, True

    def show(self, operations: Sequence[Operation]) -> None:
        self.say(_describe(operations))

    def say(self, line: str) -> None:
        with self._lock:
            self._new = time.monotonic()
            show(line, self._file)


class LiveDisplay(_Watching):
    """A progress bar, which rich redraws four times a second, with what takes long beside it."""

    patience, interval = 2.0, 0.5
    _bar: rich.progress.Progress | None = None
    _is_run = False
    """Whether the bar is that of a run."""

    def start(self, step: int, total_steps: int) -> None:
        self.close()
        super().start(step, total_steps)
        self._is_run = True
        self._open("{task.completed:,.0f}/{task.total:,.0f}  {task.fields[summary]}", total_steps, step)

    def _open(self, text: str, total: int | None, completed: int = 0) -> rich.progress.Progress:
        """Starts a bar with a text beside it."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(file=self._file, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn(text, markup=False),
            console=console,
            refresh_per_second=4,
            transient=not self._is_run,
        )
        self._task = self._bar.add_task("", total=total, completed=completed, summary="")
        self._bar.start()
        return self._bar

    def update(self, record: Mapping[str, Any]) -> None:
        with self._lock:
            super().update(record)
            if self._bar is not None:
                summary = f"{_summary(record)}  {self.pace(record)}"
                self._bar.update(self._task, completed=record["step"], summary=summary)

    def show(self, operations: Sequence[Operation]) -> None:
        bar = self._bar or self._open("{task.fields[summary]}", None)
        if not self._is_run:
            timed = _outermost(operations) or Operation("")
            bar.update(self._task, total=timed.total, completed=timed.done)
        bar.update(self._task, summary=printable(_describe(operations)), refresh=True)

    def say(self, line: str) -> None:
        with self._lock:
            if self._bar is None:
                show(line, self._file)
            else:
                self._bar.console.out(printable(line), highlight=False)

    def close(self) -> None:
        super().close()
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._is_run = None, False


def _outermost(operations: Sequence[Operation]) -> Operation | None:
    """The outermost operation of which a part is done."""
    return next((x for x in operations if x.total and x.done), None)


def _describe(operations: Sequence[Operation]) -> str:
    """What runs, how fast it goes, and the time left: "update: minibatch 3/24  2 s each  0:42 left".

    The time so far, if nothing is known of the rest.
    """
    names = []
    for x in operations:
        count = "" if x.total is None else f" {x.done:,}/{x.total:,}{x.unit and ' '}{x.unit}"
        names.append(f"{x.name}{count}{x.note and ', '}{x.note}")
    timed, now = _outermost(operations), time.monotonic()
    if timed is None or timed.total is None:
        return f"{': '.join(names)}  {duration(now - operations[0].start)}"
    each = (now - timed.start) / timed.done
    pace = f"{each:.2g} s each" if each > 1 else f"{1 / max(each, 1e-9):.3g}{timed.unit and ' '}{timed.unit}/s"
    return f"{': '.join(names)}  {pace}  {duration(each * (timed.total - timed.done))} left"


def _unit(record: Mapping[str, Any]) -> str:
    """Of the steps of a run: tokens of a language model, whose metrics have a KL to the reference."""
    return "tokens" if "kl_reference" in record else "steps"


def _summary(record: Mapping[str, Any]) -> str:
    """The mean return or score, the share of successes, and the KL to the reference, or else of the update."""
    x, success, kl_ref = record["mean_return"], record.get("success_rate"), record.get("kl_reference")
    kl = record.get("kl", record.get("kl_k3"))
    short = "-" if x is None else f"{x:,.1f}" if abs(x) >= 10 else f"{x:.3g}"
    text = f"{'return' if kl_ref is None else 'score'} {short:>8}"
    text += "" if success is None else f"  success {success:.0%}"
    if kl_ref is not None:
        return f"{text}  kl_ref {kl_ref:.2g}"
    return text if kl is None else f"{text}  kl {kl:.2g}"


def duration(seconds: float) -> str:
    """A time as M:SS or H:MM:SS."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
