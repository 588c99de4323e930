"""Display of a run's progress on the terminal."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from rlzoo.core.system.progress import Progress
from rlzoo.core.system.screen import printable, show

if TYPE_CHECKING:
    import rich.progress

_SILENCE = 5.0
"""Seconds without a line after which a long operation shows one."""


class Display(Progress):
    """A display that shows nothing. Subclasses show progress."""

    def start(self, step: int, total_steps: int) -> None:
        """Called when training starts at `step`."""

    def update(self, record: Mapping[str, Any]) -> None:
        """Called after each iteration with its line of `metrics.jsonl`."""

    def evaluating(self, name: str, done: int, episodes: int) -> None:
        """Called between the steps of an evaluation, after `done` of its episodes."""

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


class LineDisplay(Display):
    """A line for every tenth of the run and after every silence. A broken pipe stops nothing."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._operation = _Operation()
        self._said = time.monotonic()

    def start(self, step: int, total_steps: int) -> None:
        self._clock = _Clock(step, total_steps)
        self._next = _next_tenth(step, total_steps)

    def update(self, record: Mapping[str, Any]) -> None:
        step, total = record["step"], self._clock.total
        if step >= self._next or time.monotonic() - self._said >= _SILENCE:
            self._next = _next_tenth(step, total)
            width = len(f"{total:,}")
            self.say(f"{step:{width},}/{total:,} steps  {_summary(record)}  {self._clock.pace(step)}")

    def evaluating(self, name: str, done: int, episodes: int) -> None:
        if time.monotonic() - self._said >= _SILENCE:
            self.say(f"{name}: {done:,}/{episodes:,}")

    def advance(self, share: float, line: str) -> None:
        """Breaks a silence of `_SILENCE` seconds."""
        left = self._operation.left(share)
        if share < 1 and time.monotonic() - self._said >= _SILENCE:
            self.say(f"{share:4.0%}  {line}{left}")

    def say(self, line: str) -> None:
        self._said = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            show(line, self._file)


class LiveDisplay(Display):
    """A progress bar, redrawn at most four times a second."""

    _bar: rich.progress.Progress | None = None

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._operation = _Operation()

    def start(self, step: int, total_steps: int) -> None:
        self.close()
        self._clock = _Clock(step, total_steps)
        self._open("{task.completed:,.0f}/{task.total:,.0f}  {task.fields[summary]}", total_steps, step)

    def _open(self, text: str, total: int, completed: int = 0) -> rich.progress.Progress:
        """Starts a bar with a text beside it."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._drawn = -math.inf
        console = Console(file=self._file, highlight=False)
        self._bar = Progress(
            BarColumn(bar_width=24), TextColumn(text, markup=False), console=console, auto_refresh=False
        )
        self._task = self._bar.add_task("", total=total, completed=completed, summary="")
        self._bar.start()
        return self._bar

    def update(self, record: Mapping[str, Any]) -> None:
        now = time.monotonic()
        done = record["step"] >= self._clock.total
        if self._bar is not None and (done or now - self._drawn > 0.25):
            self._drawn = now
            summary = f"{_summary(record)}  {self._clock.pace(record['step'])}"
            self._bar.update(self._task, completed=record["step"], summary=summary, refresh=True)

    def advance(self, share: float, line: str) -> None:
        left = self._operation.left(share)
        bar = self._bar or self._open("{task.percentage:3.0f}%  {task.fields[summary]}", 1)
        if time.monotonic() - self._drawn > 0.25 or share == 1:
            self._drawn = time.monotonic()
            bar.update(self._task, completed=share, summary=printable(line) + left, refresh=True)

    def evaluating(self, name: str, done: int, episodes: int) -> None:
        now = time.monotonic()
        if self._bar is not None and now - self._drawn > 0.25:
            self._drawn = now
            self._bar.update(self._task, summary=f"{name} {done:,}/{episodes:,}", refresh=True)

    def say(self, line: str) -> None:
        if self._bar is None:
            show(line, self._file)
        else:
            self._bar.console.out(printable(line), highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class _Clock:
    """Speed and remaining time, measured since its start."""

    def __init__(self, first: float, total: int = 1) -> None:
        self.total = total
        self._first, self._start = first, time.monotonic()

    def left(self, done: float) -> str:
        """The remaining time, such as "  0:12 left"; nothing at the end or before anything is done."""
        seconds, share = time.monotonic() - self._start, done - self._first
        return f"  {duration(seconds / share * (self.total - done))} left" if share > 0 and done < self.total else ""

    def pace(self, step: int) -> str:
        rate = max(step - self._first, 1) / max(time.monotonic() - self._start, 1e-9)
        return f"{rate:>7,.0f} steps/s{self.left(step)}"


class _Operation:
    """The clock of a long operation. A smaller share than before begins another operation."""

    def __init__(self) -> None:
        self._share = math.inf

    def left(self, share: float) -> str:
        if share < self._share:
            self._clock = _Clock(share)
        self._share = share
        return self._clock.left(share)


def _next_tenth(step: int, total: int) -> int:
    """The first step after `step` that ends a tenth of the run."""
    tenths = step * 10 // total + 1
    return -(-tenths * total // 10)


def _summary(record: Mapping[str, Any]) -> str:
    """The mean return, the share of successes, and the KL: to the reference, or of the update if there is none."""
    success, kl_ref = record.get("success_rate"), record.get("kl_reference")
    kl = record.get("kl", record.get("kl_k3"))
    text = f"return {_short(record['mean_return']):>8}" + ("" if success is None else f"  success {success:.0%}")
    if kl_ref is not None:
        return f"{text}  kl_ref {kl_ref:.4g}"
    return text if kl is None else f"{text}  kl {kl:.4f}"


def _short(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:,.1f}" if abs(x) >= 10 else f"{x:.3g}"


def duration(seconds: float) -> str:
    """A time as M:SS or H:MM:SS."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
