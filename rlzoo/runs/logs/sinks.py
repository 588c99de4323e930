"""Where the scalars and texts of a run go besides its JSON lines: TensorBoard, and trackers (`trackers.py`)."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Sink(abc.ABC):
    """Receives scalars and texts by tag."""

    @abc.abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars of the step, by tag."""

    def text(self, step: int, tag: str, markdown: str) -> None:
        """A text in Markdown."""

    def flush(self) -> None:
        """Writes everything received. Called about once a second."""

    def close(self) -> None:
        """Called at the end of a session, also of one that failed."""


class TensorBoard(Sink):
    """A new event file, by TensorBoard's own writer, which other programs watch. It is imported at the first flush."""

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        self._folder = folder
        self._writer: Any = None
        self._pending: list[dict[str, Any]] = []
        if resumed_at is not None:  # TensorBoard then drops later steps of earlier files
            self._add(resumed_at + 1, session_log={"status": "START"})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._add(step, summary={"value": [{"tag": tag, "simple_value": x} for tag, x in values.items()]})

    def text(self, step: int, tag: str, markdown: str) -> None:
        tensor = {"dtype": "DT_STRING", "string_val": [markdown.encode(errors="replace")]}
        metadata = {"plugin_data": {"plugin_name": "text"}}
        self._add(step, summary={"value": [{"tag": tag, "metadata": metadata, "tensor": tensor}]})

    def _add(self, step: int, **what: Any) -> None:
        self._pending.append({"wall_time": time.time(), "step": step, **what})

    def flush(self) -> None:
        if not self._pending:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer import event_file_writer

        if self._writer is None:
            self._wait_for_a_later_name()
            # An attribute of its module: Weights & Biases puts its own in its place to find the file.
            self._writer = event_file_writer.EventFileWriter(str(self._folder), max_queue_size=1000)
        for event in self._pending:
            self._writer.add_event(Event(**event))
        self._pending.clear()
        self._writer.flush()

    def _wait_for_a_later_name(self) -> None:
        """TensorBoard reads the files of a folder in the order of their names, which begin with the second.

        A file from a clock that was ahead is not waited for.
        """
        names, deadline = [path.name for path in self._folder.glob("events.out.tfevents.*")], time.monotonic() + 1.5
        while names and max(names) > f"events.out.tfevents.{int(time.time())}" and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
