"""What is seen of a suite while it runs."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rlzoo.benchmark.job import Failure, Outcome
from rlzoo.benchmark.suite import Job
from rlzoo.runs.display import duration


class Progress:
    """Shows nothing."""

    def start(self, jobs: Sequence[Job], done: int) -> None:
        """`done` of the jobs are finished already."""

    def update(self, outcome: Outcome | Failure) -> None:
        """One more job."""

    def say(self, line: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """The sitting is over."""


class LineProgress(Progress):
    """A line for each job, with the time that is left for all."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def start(self, jobs: Sequence[Job], done: int) -> None:
        self._total, self._done, self._failed = len(jobs), done, 0
        self._before, self._start = done, time.monotonic()
        self._width = max((len(f"{job.label} {job.env}") for job in jobs), default=0)
        if done:
            self.say(f"{done} of {len(jobs)} jobs are done already")

    def update(self, outcome: Outcome | Failure) -> None:
        self._done += 1
        self.say(f"{self._count()}  {self._describe(outcome)}  {self._left()}")

    def say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._file, flush=True)

    def _count(self) -> str:
        return f"{self._done:{len(str(self._total))}}/{self._total}"

    def _left(self) -> str:
        """The time that the other jobs will take at the pace so far; pairs come round in turn."""
        seconds = (time.monotonic() - self._start) / (self._done - self._before)
        return f"{duration(seconds * (self._total - self._done))} left"

    def _describe(self, outcome: Outcome | Failure) -> str:
        pair = f"{f'{outcome.label} {outcome.env}':{self._width}}  seed {outcome.seed:<3}"
        if isinstance(outcome, Failure):
            self._failed += 1
            return f"{pair}  failed: {outcome.error}"
        return f"{pair}  return {outcome.final_stochastic:9,.2f}  in {outcome.seconds[-1]:5.1f} s"


class LiveProgress(LineProgress):
    """A bar below the last jobs."""

    def start(self, jobs: Sequence[Job], done: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        super().start(jobs, done)
        columns = BarColumn(bar_width=32), TextColumn("{task.fields[gist]}")
        self._bar = Bar(*columns, console=Console(file=self._file, highlight=False))
        self._task = self._bar.add_task("", total=len(jobs), completed=done, gist=f"{self._count()} jobs")
        self._bar.start()

    def update(self, outcome: Outcome | Failure) -> None:
        self._done += 1
        style = "red" if isinstance(outcome, Failure) else ""
        line = self._describe(outcome)
        self._bar.console.print(line, markup=False, soft_wrap=True, style=style)
        failed = f"  {self._failed} failed" if self._failed else ""
        self._bar.update(
            self._task, completed=self._done, gist=f"{self._count()} jobs{failed}  {self._left()}", refresh=True
        )

    def close(self) -> None:
        self._bar.stop()


def make_progress(file: TextIO | None = None) -> Progress:
    """A bar on a terminal, else lines; on standard output by default."""
    file = file or sys.stdout
    live = file.isatty() and os.environ.get("TERM") != "dumb"
    return LiveProgress(file) if live else LineProgress(file)
