"""Where the scalars and texts of a run go besides its JSON lines: TensorBoard, Weights & Biases, and MLflow.

A run directory is one run of a tracker, also when it is resumed.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.functions import optional_module
from rlzoo.runs.files import read_object, write_atomically

_PROJECT = "rlzoo"
_BATCH = 1000
"""Most metrics that MLflow takes at once."""
_FILE = "tracker.json"


class Sink(abc.ABC):
    """Receives scalars and texts by tag."""

    @abc.abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars of the step, by tag."""

    def text(self, step: int, tag: str, markdown: str) -> None:
        """A text in Markdown."""

    def flush(self) -> None:
        """Writes everything received. Called about once a second."""

    def close(self, ended: bool = True) -> None:
        """Called at the end of a session. Unless it `ended`, it failed or was interrupted."""


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

    def close(self, ended: bool = True) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandB(Sink):
    """A run of Weights & Biases, with the name of the run directory. The project is WANDB_PROJECT, or rlzoo.

    `id` is the tracker's, if the run was tracked before. Raises `ConfigError` if the tracker cannot be reached.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], id: str | None = None) -> None:
        wandb = _package("wandb", "wandb")
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", _PROJECT),
                name=folder.name,
                id=id,
                resume="allow",
                config=dict(settings),
                dir=str(folder),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise ConfigError(f"track: {' '.join(str(error).split())}") from error
        self.id = str(self._run.id)
        self._run.define_metric("*", step_metric="step")

    @staticmethod
    def check() -> None:
        """Raises `ConfigError` if the package is missing or nobody is logged in."""
        wandb = _package("wandb", "wandb")
        offline = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
        remedy = "run wandb login, or set WANDB_MODE=offline"
        require(offline or bool(wandb.api.api_key), f"track: nobody is logged in to Weights & Biases: {remedy}")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self, ended: bool = True) -> None:
        self._run.finish(exit_code=0 if ended else 1)


class MLflow(Sink):
    """A run of MLflow, at MLFLOW_TRACKING_URI. The experiment is MLFLOW_EXPERIMENT_NAME, or rlzoo.

    The arguments and errors are those of `WandB`.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], id: str | None = None) -> None:
        mlflow = _package("mlflow", "mlflow-skinny")
        self._pending: list[Any] = []
        try:
            self._client = mlflow.MlflowClient()
            self._metric = mlflow.entities.Metric
            if not id:
                title = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
                experiment = self._client.get_experiment_by_name(title)
                number = self._client.create_experiment(title) if experiment is None else experiment.experiment_id
                id = self._client.create_run(number, run_name=folder.name).info.run_id
            self.id = str(id)
            for setting, x in settings.items():
                with contextlib.suppress(mlflow.MlflowException):  # a changed parameter, such as total_steps
                    self._client.log_param(self.id, setting, x)
            self._client.update_run(self.id, status="RUNNING")
        except Exception as error:
            raise ConfigError(f"track: MLflow: {' '.join(str(error).split())}") from error

    @staticmethod
    def check() -> None:
        """Raises `ConfigError` if the package is missing."""
        _package("mlflow", "mlflow-skinny")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        now = round(1000 * time.time())
        self._pending += [self._metric(tag, x, now, step) for tag, x in values.items()]

    def flush(self) -> None:
        """Sends everything received. Raises `OSError` if the tracker cannot be reached."""
        while self._pending:
            try:
                self._client.log_batch(self.id, metrics=self._pending[:_BATCH])
            except Exception as error:
                raise OSError(f"track: MLflow: {' '.join(str(error).split())}") from error
            del self._pending[:_BATCH]

    def close(self, ended: bool = True) -> None:
        with contextlib.suppress(Exception):  # flushing has already raised what the session must know
            self.flush()
        with contextlib.suppress(Exception):
            self._client.set_terminated(self.id, "FINISHED" if ended else "FAILED")


TRACKERS: dict[str, type[WandB] | type[MLflow]] = {"wandb": WandB, "mlflow": MLflow}


def check_tracker(name: str) -> None:
    """Raises `ConfigError` if there is no such tracker, its package is missing, or nobody is logged in."""
    require(name in TRACKERS, f"track must be {' or '.join(TRACKERS)}, got {name!r}")
    TRACKERS[name].check()


def start_tracker(name: str, folder: Path, settings: Mapping[str, Any]) -> list[Sink]:
    """A new run of a tracker for a run directory, which records its id."""
    tracker = TRACKERS[name](folder, settings)
    write_atomically(folder / _FILE, json.dumps({"tracker": name, "id": tracker.id}).encode())
    return [tracker]


def continue_tracker(folder: Path, settings: Mapping[str, Any]) -> list[Sink]:
    """The tracker's run of a run directory again; none if it has none."""
    record = read_object(folder / _FILE)
    if not {"tracker", "id"} <= record.keys():
        return []
    check_tracker(record["tracker"])
    return [TRACKERS[record["tracker"]](folder, settings, str(record["id"]))]


def _package(name: str, distribution: str) -> Any:
    return optional_module(name, f"track: {name} is not installed: pip install {distribution}")
