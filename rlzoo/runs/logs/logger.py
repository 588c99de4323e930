"""The records of a run: `metrics.jsonl`, `evaluations.jsonl`, and scalars for TensorBoard and trackers."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.screen import one_line, printable
from rlzoo.runs.files import append_jsonl
from rlzoo.runs.logs.display import Display
from rlzoo.runs.logs.sinks import Sink, TensorBoard
from rlzoo.runs.loop import Iteration

_WINDOW = 100
"""Episodes that mean returns and lengths are over."""
_POINTS = 1000
"""Points of a curve in TensorBoard or a tracker."""
_TAGS = {
    "seconds": "time/seconds",
    "steps_per_second": "time/steps_per_second",
    "mean_return": "episode/return",
    "mean_length": "episode/length",
    "success_rate": "episode/success_rate",
}


class Logger:
    """Records iterations and evaluations. Files are written about once a second.

    A line of `metrics.jsonl` holds `step`; `seconds` and `steps_per_second` of training, without evaluations and
    checkpoints; `mean_return` and `mean_length` of the last 100 episodes (null before the first); `success_rate` of
    the last 100 that report it; and the metrics of environment, algorithm and hooks with 6 digits (null if not finite).
    A metric with a name that is already taken by one of the others is left out.
    TensorBoard and `trackers` get about 1000 points of each metric.
    """

    def __init__(
        self,
        folder: Path,
        total_steps: int,
        settings: Mapping[str, Any],
        display: Display,
        resumed_at: int | None = None,
        trackers: Sequence[Sink] = (),
    ) -> None:
        self.display, folder = display, folder.absolute()  # a hook may change the directory
        self._metrics: list[dict[str, Any]] = []
        self._evaluations: list[dict[str, Any]] = []
        self._files = {folder / "metrics.jsonl": self._metrics, folder / "evaluations.jsonl": self._evaluations}
        self._sinks = [TensorBoard(folder, resumed_at), *trackers]
        self._text(resumed_at or 0, "config", _table(["setting", "value"], settings.items()))
        self._stride = max(1, total_steps // _POINTS)
        self._step = resumed_at or 0
        self._first = self._step // self._stride
        self._points: dict[str, int] = {}  # the last one of each curve
        self._seconds = 0.0
        self._returns: deque[float] = deque(maxlen=_WINDOW)
        self._lengths: deque[int] = deque(maxlen=_WINDOW)
        self._successes: deque[bool] = deque(maxlen=_WINDOW)
        self._flushed = time.monotonic()

    def iteration(self, iteration: Iteration) -> dict[str, Any]:
        """Records an iteration. Returns its line of `metrics.jsonl`. Raises `ConfigError` if a metric is no number."""
        before, self._step = self._step, iteration.step
        step, seconds, episodes = iteration.step, iteration.seconds, iteration.episodes
        self._seconds += seconds
        self._returns.extend(episode.return_ for episode in episodes)
        self._lengths.extend(episode.length for episode in episodes)
        self._successes.extend(episode.success for episode in episodes if episode.success is not None)
        record = {
            "step": step,
            "seconds": round(self._seconds, 4),
            "steps_per_second": round((step - before) / seconds, 1),
            "mean_return": _mean(self._returns),
            "mean_length": _mean(self._lengths),
        }
        if self._successes:
            record["success_rate"] = _mean(self._successes)
        record |= {name: _number(name, x) for name, x in iteration.metrics.items() if name not in record}
        self._metrics.append(record)
        point = step // self._stride
        due = {name: x for name, x in record.items() if point > self._points.get(name, self._first) and name != "step"}
        if due:
            self._points |= dict.fromkeys(due, point)
            groups = {name: f"env/{name}" for name in iteration.environment_metrics} | _TAGS
            self._scalars(step, {groups.get(name) or f"train/{name}": x for name, x in due.items()})
        self.display.update(record)
        if time.monotonic() - self._flushed > 1:
            self.flush()
        return record

    def evaluation(self, step: int, seconds: float, evaluation: Evaluation, final: bool = False) -> dict[str, Any]:
        """Records an evaluation of the model at `step` that took `seconds`."""
        summary = evaluation.summary()
        record = {"step": step, "final": final, **summary, "seconds": round(seconds, 4)}
        self._evaluations.append(record)
        mode = "_deterministic" if evaluation.deterministic else ""
        scalars = {"return": summary["mean_return"], "length": summary["mean_length"]}
        scalars |= {name: x for name, x in evaluation.further.items() if type(x) in (int, float)}
        self._scalars(step, {f"eval/{name}{mode}": x for name, x in scalars.items()})
        samples = evaluation.further.get("samples")
        if samples:
            rows = [[_six_digits(x) if isinstance(x, float) else x for x in sample.values()] for sample in samples]
            self._text(step, f"eval/samples{mode}", _table(list(samples[0]), rows))
        return record

    def flush(self) -> None:
        """Writes everything that is recorded to the files. Raises `OSError` if one cannot be written."""
        self._flushed = time.monotonic()
        tensorboard, *trackers = self._sinks
        for tracker in trackers:  # first: what a file already has, a resumed run does not record again
            tracker.flush()
        for path, records in self._files.items():
            if records:
                append_jsonl(path, records)
                records.clear()
        tensorboard.flush()

    def close(self, ended: bool = True) -> None:
        """See `Sink.close`."""
        for sink in self._sinks:
            sink.close(ended)

    def _scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        for sink in self._sinks:
            sink.scalars(step, {tag: x for tag, x in values.items() if x is not None})

    def _text(self, step: int, tag: str, markdown: str) -> None:
        for sink in self._sinks:
            sink.text(step, tag, markdown)

    def state_dict(self) -> dict[str, Any]:
        successes = {"successes": list(self._successes)} if self._successes else {}
        return {"seconds": self._seconds, "returns": list(self._returns), "lengths": list(self._lengths), **successes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seconds = float(state["seconds"])
        self._returns.extend(map(float, state["returns"]))
        self._lengths.extend(map(int, state["lengths"]))
        self._successes.extend(map(bool, state.get("successes", ())))


def _mean(values: deque[Any]) -> float | None:
    return _six_digits(sum(values) / len(values)) if values else None


def _number(name: str, x: Any) -> float | None:
    try:
        return _six_digits(x)
    except (TypeError, ValueError) as error:
        source = "of on_iteration, of the task or of the algorithm"
        raise ConfigError(f"metric {name!r} {source} must be a number, got {one_line(repr(x))}") from error


def _six_digits(x: float) -> float | None:
    if isinstance(x, Integral):  # also NumPy's
        return int(x)
    return float(f"{x:.6g}") if math.isfinite(x) else None


def _table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *([_cell(x) for x in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(x: Any) -> str:
    """Text on one line with Markdown's characters escaped."""
    text = re.sub(r"[&<>\\`*_\[\]|]", lambda match: f"&#{ord(match[0])};", printable(str(x)))
    return "<br>".join(text.splitlines())
