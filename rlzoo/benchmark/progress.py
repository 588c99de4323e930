"""Progress of a suite on the screen."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from rlzoo.benchmark.job import Failure, Outcome
from rlzoo.benchmark.suite import Job
from rlzoo.core.screen import printable, show
from rlzoo.runs.logs.display import duration


class Progress:
    """Progress callback of a suite; this one shows nothing."""

    def start(self, jobs: Sequence[Job], done: int) -> None:
        """Called first; `done` of the jobs have finished in earlier sessions."""

    def update(self, outcome: Outcome | Failure) -> None:
        """Called after each job."""

    def say(self, line: str) -> None:
        """Called with warnings."""

    def close(self) -> None:
        """Called at the end of the session."""


class LineProgress(Progress):
    """Prints a line per job, with the estimated time left for the suite."""

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
        if isinstance(outcome, Failure):
            self._failed += 1
            result = f"failed: {outcome.error}"
        else:
            result = f"return {outcome.final_stochastic:9,.2f}  in {outcome.seconds[-1]:5.1f} s"
        pair = f"{f'{outcome.label} {outcome.env}':{self._width}}  seed {outcome.seed:<3}"
        seconds = (time.monotonic() - self._start) / (self._done - self._before) * (self._total - self._done)
        count = f"{self._done:{len(str(self._total))}}/{self._total}"
        self.say(f"{count}  {pair}  {result}  {duration(seconds)} left")

    def say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            show(line, self._file)


class LiveProgress(LineProgress):
    """Prints a line per job above a progress bar, on a terminal."""

    def start(self, jobs: Sequence[Job], done: int) -> None:
        columns = (
            BarColumn(bar_width=32),
            TextColumn("{task.completed}/{task.total} jobs  {task.fields[failed]} failed"),
        )
        self._bar = Bar(*columns, console=Console(file=self._file, highlight=False))
        self._task = self._bar.add_task("", total=len(jobs), completed=done, failed=0)
        super().start(jobs, done)
        self._bar.start()

    def update(self, outcome: Outcome | Failure) -> None:
        super().update(outcome)
        self._bar.update(self._task, completed=self._done, failed=self._failed, refresh=True)

    def say(self, line: str) -> None:
        self._bar.console.out(printable(line), highlight=False)

    def close(self) -> None:
        self._bar.stop()


def make_progress(file: TextIO | None = None) -> Progress:
    """A progress bar on a terminal, else lines; on standard output by default."""
    file = file or sys.stdout
    live = file.isatty() and os.environ.get("TERM") != "dumb"
    return LiveProgress(file) if live else LineProgress(file)
