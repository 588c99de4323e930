"""What a run reports: `metrics.jsonl`, `evaluations.jsonl`, TensorBoard, and a display on the terminal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

    from rlzoo.core.collector import Episode
    from rlzoo.runs.evaluate import Evaluation

_WINDOW = 100
_POINTS = 1000
_TAGS = {
    "seconds": "time/seconds",
    "steps_per_second": "time/steps_per_second",
    "mean_return": "episode/return",
    "mean_length": "episode/length",
    "score": "lm/score",
    "score_std": "lm/score_std",
    "kl_reference": "lm/kl_reference",
    "beta": "lm/beta",
    "ended": "lm/ended",
}


class Logger:
    """Writes an iteration's record in well under 0.1 ms; files are brought up to date about once a second.

    A line of `metrics.jsonl` holds `step`; `seconds` and `steps_per_second` of training alone, without
    evaluations and checkpoints; `mean_return` and `mean_length` of the last 100 episodes (null before the
    first); and the algorithm's metrics, to 6 digits (null if not finite). TensorBoard gets the same, thinned
    to about 1000 points a run.
    """

    def __init__(
        self,
        folder: Path,
        total_steps: int,
        settings: Mapping[str, Any],
        display: Display,
        resumed_at: int | None = None,
    ) -> None:
        self.display = display
        self._metrics = _Lines(folder / "metrics.jsonl")
        self._evaluations = _Lines(folder / "evaluations.jsonl")
        self._events = _Events(folder, _table(["setting", "value"], settings.items()), resumed_at)
        self._stride = max(1, total_steps // _POINTS)
        self._step = resumed_at or 0
        self._seconds = 0.0
        self._returns: deque[float] = deque(maxlen=_WINDOW)
        self._lengths: deque[int] = deque(maxlen=_WINDOW)
        self._flushed = time.monotonic()

    def iteration(
        self, step: int, seconds: float, metrics: Mapping[str, float], episodes: Sequence[Episode]
    ) -> dict[str, Any]:
        """Records an iteration that took `seconds` and ended at `step`."""
        before, self._step = self._step, step
        self._seconds += seconds
        self._returns.extend(episode.return_ for episode in episodes)
        self._lengths.extend(episode.length for episode in episodes)
        record = {
            "step": step,
            "seconds": round(self._seconds, 4),
            "steps_per_second": round((step - before) / seconds, 1),
            "mean_return": _mean(self._returns),
            "mean_length": _mean(self._lengths),
        }
        record |= {name: _six_digits(x) for name, x in metrics.items()}
        self._metrics.add(record)
        if step // self._stride > before // self._stride:
            scalars = {_TAGS.get(name) or f"train/{name}": x for name, x in record.items()}
            del scalars["train/step"]
            self._events.scalars(step, scalars)
        self.display.update(record)
        if time.monotonic() - self._flushed > 1:
            self.flush()
        return record

    def evaluation(self, step: int, seconds: float, evaluation: Evaluation, final: bool = False) -> None:
        """Records an evaluation of the model at `step` that took `seconds`."""
        summary = evaluation.summary()
        self._evaluations.add({"step": step, "final": final, **summary, "seconds": round(seconds, 4)})
        mode = "_deterministic" if evaluation.deterministic else ""
        scalars = {"return": summary["mean_return"], "length": summary["mean_length"]}
        scalars |= {name: x for name, x in evaluation.further.items() if type(x) in (int, float)}
        self._events.scalars(step, {f"eval/{name}{mode}": x for name, x in scalars.items()})
        samples = evaluation.further.get("samples")
        if samples:
            rows = [[_six_digits(x) if isinstance(x, float) else x for x in sample.values()] for sample in samples]
            self._events.text(step, f"eval/samples{mode}", _table(list(samples[0]), rows))

    def flush(self) -> None:
        """Brings the files up to date.

        Raises:
            OSError: a file cannot be written.
        """
        self._flushed = time.monotonic()
        self._metrics.flush()
        self._evaluations.flush()
        self._events.flush()

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds, "returns": list(self._returns), "lengths": list(self._lengths)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seconds = float(state["seconds"])
        self._returns.extend(state["returns"])
        self._lengths.extend(state["lengths"])


class _Lines:
    """A JSON-lines file that is open only while it is appended to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[dict[str, Any]] = []

    def add(self, record: dict[str, Any]) -> None:
        self._pending.append(record)

    def flush(self) -> None:
        if self._pending:
            text = "".join([json.dumps(record) + "\n" for record in self._pending])
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
            self._pending.clear()


class _Events:
    """A new TensorBoard file, with the configuration on the text page. TensorBoard is imported at the first flush."""

    def __init__(self, folder: Path, config: str, resumed_at: int | None) -> None:
        # TensorBoard reads the files of a folder in the order of their names.
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._pending: list[dict[str, Any]] = []
        self._add(0, file_version="brain.Event:2")
        if resumed_at is not None:  # what earlier files say of later steps is dropped
            self._add(resumed_at + 1, session_log={"status": "START"})
        self.text(resumed_at or 0, "config", config)

    def text(self, step: int, tag: str, markdown: str) -> None:
        """One event with a page of text."""
        tensor = {"dtype": "DT_STRING", "string_val": [markdown.encode(errors="replace")]}
        metadata = {"plugin_data": {"plugin_name": "text"}}
        self._add(step, summary={"value": [{"tag": tag, "metadata": metadata, "tensor": tensor}]})

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """One event with a scalar for each tag; None is left out."""
        scalars = [{"tag": tag, "simple_value": x} for tag, x in values.items() if x is not None]
        self._add(step, summary={"value": scalars})

    def _add(self, step: int, **what: Any) -> None:
        self._pending.append({"wall_time": time.time(), "step": step, **what})

    def flush(self) -> None:
        if self._pending:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter

            with self._path.open("ab") as file:
                writer = RecordWriter(file)
                for event in self._pending:
                    writer.write(Event(**event).SerializeToString())
            self._pending.clear()


def _mean(values: deque[Any]) -> float | None:
    return _six_digits(sum(values) / len(values)) if values else None


def _six_digits(x: float) -> float | None:
    if isinstance(x, int):
        return x
    return float(f"{x:.6g}") if math.isfinite(x) else None


def _table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """In Markdown."""
    lines = [columns, ["---"] * len(columns), *([_cell(x) for x in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(x: Any) -> str:
    """Text that Markdown leaves as it is, on one line."""
    text = re.sub(r"[&<>\\`*_\[\]|]", lambda match: f"&#{ord(match[0])};", str(x))
    return "<br>".join(text.splitlines())


class Display:
    """Shows nothing; what a run without progress has."""

    def start(self, step: int, total_steps: int) -> None:
        """Training starts at `step`."""

    def update(self, record: Mapping[str, Any]) -> None:
        """An iteration's record, as `metrics.jsonl` has it."""

    def say(self, line: str) -> None:
        """Something worth a line of its own."""

    def close(self) -> None:
        """Training is over."""


def make_display(file: TextIO | None = None) -> Display:
    """A live display on a terminal, else a line for every tenth of the run; on standard output by default."""
    file = file or sys.stdout
    return LiveDisplay(file) if file.isatty() and os.environ.get("TERM") != "dumb" else LineDisplay(file)


class LineDisplay(Display):
    """A line for every tenth of the run. A reader that goes away does not stop the run."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def start(self, step: int, total_steps: int) -> None:
        self._clock = _Clock(step, total_steps)
        self._next = _next_tenth(step, total_steps)

    def update(self, record: Mapping[str, Any]) -> None:
        step, total = record["step"], self._clock.total
        if step >= self._next:
            self._next = _next_tenth(step, total)
            width = len(f"{total:,}")
            self.say(f"{step:{width},}/{total:,} steps  {_gist(record)}  {self._clock.pace(step)}")

    def say(self, line: str) -> None:
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
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}  {task.fields[gist]}"),
            console=Console(file=self._file, highlight=False),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=total_steps, completed=step, gist="")
        self._progress.start()

    def update(self, record: Mapping[str, Any]) -> None:
        now = time.monotonic()
        done = record["step"] >= self._clock.total
        if self._progress is not None and (done or now - self._drawn > 0.25):
            self._drawn = now
            gist = f"{_gist(record)}  {self._clock.pace(record['step'])}"
            self._progress.update(self._task, completed=record["step"], gist=gist, refresh=True)

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
    """Pace since training started, or went on."""

    def __init__(self, step: int, total: int) -> None:
        self.total = total
        self._first = step
        self._start = time.monotonic()

    def pace(self, step: int) -> str:
        rate = max(step - self._first, 1) / max(time.monotonic() - self._start, 1e-9)
        left = max(self.total - step, 0) / rate
        return f"{rate:>7,.0f} steps/s" + (f"  {duration(left)} left" if left else "")


def _next_tenth(step: int, total: int) -> int:
    """The first step after `step` at which another tenth of the run is over."""
    tenths = step * 10 // total + 1
    return -(-tenths * total // 10)


def _gist(record: Mapping[str, Any]) -> str:
    """The return, and the KL where the algorithm has one."""
    kl = record.get("kl")
    return f"return {_short(record['mean_return']):>8}" + ("" if kl is None else f"  kl {kl:.4f}")


def _short(x: float | None) -> str:
    if x is None:
        return "-"
    return f"{x:,.1f}" if abs(x) >= 10 else f"{x:.3g}"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
