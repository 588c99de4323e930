"""The run directory: configuration, metrics, evaluations and checkpoints.

    config.json          the settings, with versions and git commit
    metrics.jsonl        one line for each iteration
    evaluations.jsonl    one line for each evaluation
    events.out.tfevents* TensorBoard
    checkpoints/<step>/  model.safetensors, state.safetensors, state.json, manifest.json
    checkpoints/best.json
    tracker.json         the run's id at a tracker, if there is one
    start/, actor/       initial and final model of a language task, and adapter/ if it trains one

Loading never unpickles. A checkpoint is written under a temporary name, flushed to disk and renamed, and its manifest
holds the SHA-256 of every file. So the process can be killed at any instant: a file with its final name is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError

from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import RunError
from rlzoo.core.system.files import LARGE, MANIFEST, check_regular, checksum, read_bytes, sync
from rlzoo.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rlzoo.runs.configuration.config import Config, make_config
from rlzoo.runs.configuration.objects import as_json, describe_object, first_description, may_name_code, names_code
from rlzoo.runs.configuration.record import new_record, read_record, read_settings, reason
from rlzoo.runs.configuration.settings import unknown_name
from rlzoo.runs.files import lock, parse_line, read_jsonl, read_object, remove, remove_report, write_atomically
from rlzoo.runs.publish import hub

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TAIL = 16_384
"""Bytes at the end of a file that hold at least one line."""

_FINAL = ("actor", "adapter")
_FOLDERS = ("checkpoints", "start", *_FINAL)
"""Directories in it: the checkpoints, and those that a task may write its models in."""

_READ_BACK = ("prompts.jsonl", "eval_prompts.jsonl", f"start/{MANIFEST}")
_FREE = ("total_steps", "device", "fast", "compile", "micro_batch_tokens", "gradient_checkpointing")
"""Settings that may change from session to session of a run: how long, where, and with how much memory it trains."""

_NUMBERS = {"mean_return": float | int, "std_return": float | int, "episodes": int}
_RECORDS: Mapping[str, Mapping[str, Any]] = {
    "metrics.jsonl": {},
    "evaluations.jsonl": {**_NUMBERS, "deterministic": bool, "final": bool},
}
"""Files of records, and what each record has beside its step."""


class Run:
    """A run directory."""

    def __init__(self, path: Path | str | Run) -> None:
        self._given = Path(path)
        self._absolute = self._given.absolute()

    @property
    def path(self) -> Path:
        """The directory: the path that was given, or an absolute one if it no longer leads there."""
        return self._given if self._given.absolute() == self._absolute else self._absolute

    def __fspath__(self) -> str:
        return str(self.path)

    @classmethod
    def create(cls, path: Path | str, config: Config, overwrite: bool = False) -> Run:
        """Makes a new run directory, as `creating` does, without a lock on it."""
        with cls.creating(path, config, overwrite) as run:
            return run

    @classmethod
    @contextlib.contextmanager
    def creating(
        cls,
        path: Path | str,
        config: Config,
        overwrite: bool = False,
        model: ActorCritic | None = None,
        spaces: Mapping[str, str] | None = None,
    ) -> Iterator[Run]:
        """Context that makes a new run directory, and holds its lock.

        Args:
            overwrite: replace an existing run.
            model: the model, if `config` does not describe it.
            spaces: of the task (see `Task.described_spaces`).

        Raises:
            RunError: the directory holds a run and `overwrite` is False, or other files, or its name is not UTF-8.
        """
        run, name = cls(path), str(Path(path).absolute())
        if name.encode(errors="ignore").decode() != name:
            raise RunError(f"the name of the run directory is not UTF-8, {name!a}: give another --out")
        run.check_free(overwrite)  # before a lock is left among files of something else
        with run.lock():
            run.check_free(overwrite)  # another process may have been first
            run._clear()
            run.write_config(config, model, spaces)
            yield run

    @classmethod
    def open(cls, path: Path | str | Run) -> Run:
        """Opens an existing run directory, or downloads the run of a policy on the Hugging Face hub, `hf:user/name`.

        Raises:
            RunError: there is no run, or the hub cannot be reached, or a setting of its run names code.
        """
        name = str(path).removeprefix(hub.PREFIX) if hub.is_name(path) else None
        run = cls(path if name is None else hub.download(name))
        if not run._config.is_file():
            seeds = sorted(run.path.glob("seed-*/config.json"))
            remedy = f"; it holds the runs of several seeds: name one, such as {seeds[0].parent}" if seeds else ""
            raise RunError(f"{run.path} holds no run (no config.json){remedy}")
        if "model_type" in read_object(run._config):
            command = f"rlzoo chat {quote(str(run.path))}"
            raise RunError(f"{run.path} is a language model and no run: talk to it with {command}")
        for setting, x in {} if name is None else read_settings(run._config).items():
            if may_name_code(x):
                remedy = f"hf download {name} --local-dir FOLDER, look at its config.json, and give the folder"
                raise RunError(f"{path}: {setting}={x!r} names code, which is not run from the hub: {remedy}")
        return run

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    def plot(self) -> Figure:
        """The learning curves so far, a Matplotlib figure that a notebook displays (see `notebook.plot`)."""
        from rlzoo.runs.publish.notebook import plot  # imports Matplotlib

        return plot(self.metrics(), self.evaluations())

    def _repr_html_(self) -> str:
        from rlzoo.runs.publish.notebook import page

        return page(self.record, str(self.path), self.metrics(), self.evaluations())

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / "checkpoints"

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Locks the run against other processes.

        Raises:
            RunError: another process uses it, or a directory in it is a link, through which a run does not write.
        """
        for folder in map(self.path.joinpath, _FOLDERS):
            if folder.is_symlink():
                raise RunError(f"{folder} is a link, and a run writes in its own directory only: put the files there")
        return lock(self.path)

    def check_free(self, overwrite: bool) -> None:
        """Raises `RunError` if the directory holds a run and `overwrite` is False, or it holds other files."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file")
        if self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            if not self._config.exists() or self._is_foreign():
                raise RunError(f"{self.path} is not empty, and its files are not those of a run")
            if not overwrite:
                raise RunError(
                    f"{self.path} already holds a run: continue it with rlzoo resume {quote(str(self.path))}, "
                    "or replace it with --overwrite"
                )

    def _is_foreign(self) -> bool:
        """Whether `config.json` is that of something else, such as a language model. A damaged one is the run's."""
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            return "algorithm" not in json.loads(read_bytes(self._config))
        return False

    def _clear(self) -> None:
        """Deletes the run, its configuration last, so that a half-deleted directory is still recognised as a run."""
        remove_report(self.path)
        for path in (
            *map(self.path.joinpath, (*_FOLDERS, *_RECORDS, *_READ_BACK, "tracker.json")),
            *self.path.glob("events.out.tfevents.*"),
            self._config,
        ):
            remove(path)

    def discard(self, before: Collection[Path]) -> None:
        """Deletes a run that has not begun, what was not there `before`, and its directory if that is empty then."""
        self._clear()
        for path in {*self.path.iterdir()} - {*before} | {self.path / ".lock"}:
            remove(path)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def write_config(
        self,
        config: Config,
        model: ActorCritic | None = None,
        spaces: Mapping[str, str] | None = None,
        extended_at: int | None = None,
    ) -> None:
        """Writes `config.json`.

        Args:
            model, spaces: as for `creating`.
            extended_at: the step at which the run was last taken on with another number of steps.
        """
        objects = config.objects | ({} if model is None else {"model": describe_object(model)})
        before = self.record if self.steps() else {}
        record = new_record(config, objects, spaces or {}, extended_at, before)
        write_atomically(self._config, (json.dumps(record, indent=2) + "\n").encode())

    def read_config(self, **objects: Any) -> Config:
        """The configuration of the run.

        Args:
            objects: settings that are objects, by name, and `model` if the run was trained with one. Those in
                `self.objects` are needed. None means not given.

        Raises:
            RunError: the file is damaged, or has an unknown format; an object is missing, or one is given for a setting
                that was no object.
        """
        settings, needed = read_settings(self._config), self.objects
        objects = {name: x for name, x in objects.items() if x is not None}
        if "estimator" in needed and hasattr(objects.get("algorithm"), "estimator"):
            objects.setdefault("estimator", objects["algorithm"].estimator)
        missing = [text.removeprefix("pass ") for name, text in needed.items() if name not in objects]
        if missing:
            raise RunError(f"{self.path} was made from objects that config.json cannot hold: pass {', '.join(missing)}")
        objects.pop("model", None)
        for name, x in objects.items():
            if name not in settings:
                raise RunError(f"{self.path}: {unknown_name('setting', name, settings)}")
            was_object = first_description(settings[name]) is not None
            if not (was_object or (names_code(settings[name]) and as_json(x) == settings[name])):
                raise RunError(f"{self.path} was made with {name}={settings[name]!r}: leave {name} out")
            settings[name] = x
        try:
            return make_config(settings.pop("algorithm"), settings.pop("env"), **settings)
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
            what = f"{', '.join(objects)} for {self.path}" if objects else str(self._config)
            raise RunError(f"{what} cannot be used: {reason(error)}") from error

    @property
    def record(self) -> dict[str, Any]:
        """The content of `config.json`."""
        return read_record(self._config)

    def identity(self) -> dict[str, Any]:
        """What a run keeps while it trains: settings except `_FREE`, and checksums of the files that it reads back."""
        settings = read_settings(self._config).items()
        files = {name: self.path / name for name in _READ_BACK if (self.path / name.partition("/")[0]).exists()}
        checksums = {name: checksum(path) if path.is_file() else None for name, path in files.items()}
        return {name: x for name, x in settings if name not in _FREE and first_description(x) is None} | checksums

    @property
    def objects(self) -> dict[str, str]:
        """What `config.json` cannot hold and a loaded run needs: `{"env": "pass env=... (<description>)"}`."""
        objects = self.record.get("objects")
        return {str(name): str(text) for name, text in objects.items()} if isinstance(objects, dict) else {}

    def check_spaces(self, spaces: Mapping[str, str]) -> None:
        """Raises `RunError` if a task has other spaces than the run was trained with (see `Task.described_spaces`)."""
        trained = self.record.get("spaces") or {}
        for kind, space in spaces.items():
            before = trained.get(kind, space)
            if before != space:
                raise RunError(f"{self.path}: the {kind} space is now {space}, but the run was trained with {before}")

    @property
    def extended_at(self) -> int | None:
        """The step at which the run was last taken on with another number of steps; an end there counts no longer."""
        step = self.record.get("extended_at")
        return step if isinstance(step, int) else None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, one for each iteration, oldest first."""
        return [record for _, record in self._read("metrics.jsonl")]

    def last_metrics(self) -> dict[str, Any] | None:
        """The last line of `metrics.jsonl`, read from the end of the file; None if there is none."""
        path = self.path / "metrics.jsonl"
        try:
            check_regular(path, LARGE)
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
                lines = file.read().decode(errors="replace").splitlines(keepends=True)
        except OSError:
            return None
        records = map(parse_line, reversed(lines))
        return next((record for record in records if record is not None and _is_record(record, {})), None)

    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of `evaluations.jsonl`, oldest first."""
        return [record for _, record in self._read("evaluations.jsonl")]

    def _read(self, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The complete lines of a file of records, with their records."""
        for line, record in read_jsonl(self.path / name):
            if record is not None and _is_record(record, _RECORDS[name]):
                yield line, record

    @property
    def finished(self) -> bool:
        """Whether both final evaluations were made, and the number of steps was not raised since."""
        final = [e["step"] for e in self.evaluations() if e["final"] and e["deterministic"]]
        last = max(self.steps(), default=None)
        return last in final and last != self.extended_at

    def steps(self) -> list[int]:
        """Steps of the checkpoints, oldest first."""
        return sorted(int(p.name) for p in self.checkpoints.glob("*") if p.name.isdecimal())

    def save(
        self, step: int, checkpoint: Checkpoint, identity: Mapping[str, Any] | None = None, replace: bool = False
    ) -> None:
        """Writes a checkpoint, then deletes all checkpoints but the last two and the best.

        Args:
            identity: that of the run (see `identity`), which a loaded checkpoint must have.
            replace: write it in the place of one that there is of this step.

        Raises:
            OSError: it could not be written, for example because the disk is full. Older checkpoints are intact.
        """
        target = self.checkpoints / str(step)
        if target.exists() and not replace:
            return
        temporary = self.checkpoints / f".{step}.tmp"
        remove(temporary)
        self.checkpoints.mkdir(exist_ok=True)  # not with parents: an error if the run directory was deleted
        temporary.mkdir()
        try:
            write_checkpoint(temporary, step, checkpoint, identity)
            sync(temporary)
            for log in filter(Path.is_file, map(self.path.joinpath, _RECORDS)):
                sync(log)  # so that no power failure leaves a checkpoint without the lines before it
            if replace:
                self._remove({step}.intersection(self.steps()))
            temporary.rename(target)
            sync(self.checkpoints)
        except OSError:
            remove(temporary)
            raise
        self._prune()

    def _prune(self) -> None:
        best = self.best_step()
        self._remove(old for old in self.steps()[:-2] if old != best)

    def _remove(self, steps: Iterable[int]) -> None:
        """Deletes checkpoints. Renames each one first, because a directory with a step as its name must be complete."""
        for step in steps:
            doomed = self.checkpoints / f".{step}.old.tmp"
            remove(doomed)
            (self.checkpoints / str(step)).rename(doomed)
            remove(doomed)

    def load(self, step: int | Literal["best"] | None = None) -> Checkpoint:
        """The checkpoint at `step`, or the best one; by default the last one.

        Raises:
            RunError: there is none, or it is another run's, or damaged; then the message names the next older one.
        """
        step = self.step_of(step)
        folder = self.checkpoints / str(step)
        try:
            return read_checkpoint(folder, step, self.identity())
        except RunError as error:  # if config.json was changed, no other checkpoint can be read either
            raise RunError(f"cannot read checkpoint {folder}: {error}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
            older = [s for s in self.steps() if s < step]
            remedy = f"; the one before it is at step {older[-1]}: use --checkpoint {older[-1]}" if older else ""
            raise RunError(f"cannot read checkpoint {folder}: {reason(error)}{remedy}") from error

    def step_of(self, checkpoint: int | Literal["best"] | None = None) -> int:
        """The step of a checkpoint, which is given as its step, as "best", or as None for the last one.

        Raises:
            RunError: there is no such checkpoint.
        """
        steps = self.steps()
        if not steps:
            raise RunError(f"{self.path} has no checkpoint yet")
        step = self.best_step() if checkpoint == "best" else steps[-1] if checkpoint is None else checkpoint
        if step not in steps:
            name = "best checkpoint" if checkpoint == "best" else f"checkpoint {checkpoint}"
            raise RunError(f"{self.path} has no {name}; it has {', '.join(map(str, steps))}")
        return step

    def best_step(self) -> int | None:
        """The step of the checkpoint with the best evaluation; None if there is none."""
        step = read_object(self.checkpoints / "best.json").get("step")
        return step if isinstance(step, int) else None

    def mark_best(self, step: int, mean_return: float) -> None:
        """Protects the checkpoint at `step` from deletion, instead of the one that was best before."""
        data = json.dumps({"step": step, "mean_return": mean_return}).encode()
        write_atomically(self.checkpoints / "best.json", data)
        self._prune()

    def forget_after(self, step: int) -> None:
        """Deletes metrics, evaluations and checkpoints later than `step`, so that the run can continue there.

        Also deletes the final model, which `chat` and `--model` would take for the present one.
        """
        for leftover in (*self.checkpoints.glob(".*.tmp"), *map(self.path.joinpath, _FINAL)):
            remove(leftover)
        self._remove(s for s in self.steps() if s > step)
        for name in _RECORDS:
            path = self.path / name
            if path.exists() or path.is_symlink():
                lines = [line for line, record in self._read(name) if record["step"] <= step]
                write_atomically(path, "".join(lines).encode())
        best = self.best_step()
        if best is not None and best > step:
            (self.checkpoints / "best.json").unlink()
        self._prune()


def _is_record(record: Mapping[str, Any], kinds: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a record of a step, with values of these kinds, and without integers beyond a float."""
    return (
        type(record.get("step")) is int
        and record["step"] >= 0
        and all(isinstance(record.get(name), kind) for name, kind in kinds.items())
        and ("episodes" not in kinds or record["episodes"] > 0)
        and not any(isinstance(x, int) and x.bit_length() > 1000 for x in record.values())
    )
