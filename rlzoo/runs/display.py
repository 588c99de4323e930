"""Display of a run's progress on the terminal."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress


class Display:
    """A display that shows nothing. Subclasses show progress."""

    def start(self, step: int, total_steps: int) -> None:
        """Called when training starts at `step`."""

    def update(self, record: Mapping[str, Any]) -> None:
        """Called after each iteration with its line of `metrics.jsonl`."""

    def evaluating(self, name: str, done: int, episodes: int) -> None:
        """Called between the steps of an evaluation, after `done` of its episodes."""

    def say(self, line: str) -> None:
        """Shows a line of text."""

    def close(self) -> None:
        """Called when training ends."""


def make_display(file: TextIO | None = None) -> Display:
    """A progress bar if `file`, by default standard output, is a terminal; else lines."""
    file = file or sys.stdout
    return LiveDisplay(file) if file.isatty() and os.environ.get("TERM") != "dumb" else LineDisplay(file)


_SILENCE = 5.0
"""Seconds without a line after which an evaluation shows one."""


class LineDisplay(Display):
    """A line for every tenth of the run, and every few seconds of an evaluation. A broken pipe stops nothing."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def start(self, step: int, total_steps: int) -> None:
        self._clock = _Clock(step, total_steps)
        self._next = _next_tenth(step, total_steps)
        self._shown = time.monotonic()

    def update(self, record: Mapping[str, Any]) -> None:
        step, total = record["step"], self._clock.total
        if step >= self._next:
            self._next = _next_tenth(step, total)
            width = len(f"{total:,}")
            self.say(f"{step:{width},}/{total:,} steps  {_summary(record)}  {self._clock.pace(step)}")

    def evaluating(self, name: str, done: int, episodes: int) -> None:
        if time.monotonic() - self._shown > _SILENCE:
            self.say(f"{name}: {done:,}/{episodes:,}")

    def say(self, line: str) -> None:
        self._shown = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._file, flush=True)


class LiveDisplay(Display):
    """A progress bar, redrawn at most four times a second."""

    _progress: Progress | None = None

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def start(self, step: int, total_steps: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._clock = _Clock(step, total_steps)
        self._drawn = -math.inf
        self._progress = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}  {task.fields[summary]}"),
            console=Console(file=self._file, highlight=False),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=step, summary="")
        self._progress.start()

    def update(self, record: Mapping[str, Any]) -> None:
        now = time.monotonic()
        done = record["step"] >= self._clock.total
        if self._progress is not None and (done or now - self._drawn > 0.25):
            self._drawn = now
            summary = f"{_summary(record)}  {self._clock.pace(record['step'])}"
            self._progress.update(self._task, completed=record["step"], summary=summary, refresh=True)

    def evaluating(self, name: str, done: int, episodes: int) -> None:
        now = time.monotonic()
        if self._progress is not None and now - self._drawn > 0.25:
            self._drawn = now
            self._progress.update(self._task, summary=f"{name} {done:,}/{episodes:,}", refresh=True)

    def say(self, line: str) -> None:
        if self._progress is None:
            print(line, file=self._file)
        else:
            self._progress.console.print(line, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class _Clock:
    """Steps per second and remaining time, measured since the session started."""

    def __init__(self, step: int, total: int) -> None:
        self.total = total
        self._first = step
        self._start = time.monotonic()

    def pace(self, step: int) -> str:
        rate = max(step - self._first, 1) / max(time.monotonic() - self._start, 1e-9)
        left = max(self.total - step, 0) / rate
        return f"{rate:>7,.0f} steps/s" + (f"  {duration(left)} left" if left else "")


def _next_tenth(step: int, total: int) -> int:
    """The first step after `step` that ends a tenth of the run."""
    tenths = step * 10 // total + 1
    return -(-tenths * total // 10)


def _summary(record: Mapping[str, Any]) -> str:
    """The mean return, the share of successes, and the KL: to the reference, or of the update if there is none."""
    success, kl, kl_ref = (record.get(name) for name in ("success_rate", "kl", "kl_reference"))
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
