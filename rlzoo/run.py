"""The run directory: configuration, metrics, evaluations, and checkpoints that survive anything.

    config.json          what was asked for, with versions and git commit
    metrics.jsonl        one line an iteration
    evaluations.jsonl    one line an evaluation
    events.out.tfevents* TensorBoard
    checkpoints/<step>/  model.safetensors, state.safetensors, state.json, manifest.json
    checkpoints/best.json

Nothing here is ever unpickled. A checkpoint is written under a temporary name, flushed to disk and renamed,
and its manifest holds the SHA-256 of every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

import rlzoo
from rlzoo.config import Config, make_config
from rlzoo.errors import ConfigError, RunError

FORMAT = 1
"""Version of the directory's layout."""


class Checkpoint(NamedTuple):
    """What training needs to go on."""

    model: dict[str, Tensor]
    state: dict[str, Any]


class Run:
    """A run directory, new or old."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | str, config: Config, overwrite: bool = False) -> Run:
        """A new run directory.

        Raises:
            RunError: there is one already, and `overwrite` is False.
        """
        run = cls(path)
        if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
            if not overwrite:
                raise RunError(
                    f"{run.path} is not empty; give --overwrite to replace it"
                    + (f", or go on with: rlzoo resume {run.path}" if run._config.exists() else "")
                )
            if run.path.is_dir() and not run._config.exists():
                raise RunError(f"{run.path} holds something other than a run; remove it yourself")
            run._clear()
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_config(config)
        return run

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """An existing run directory.

        Raises:
            RunError: there is none.
        """
        run = cls(path)
        if not run._config.is_file():
            raise RunError(f"{run.path} holds no run (no config.json)")
        return run

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _clear(self) -> None:
        for name in ("config.json", "metrics.jsonl", "evaluations.jsonl"):
            (self.path / name).unlink(missing_ok=True)
        for events in self.path.glob("events.out.tfevents.*"):
            events.unlink()
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def write_config(self, config: Config) -> None:
        record = {
            "format": FORMAT,
            **config.to_dict(),
            "versions": {
                "rlzoo": rlzoo.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
            "git_commit": _git_commit(),
        }
        _write_atomically(self._config, (json.dumps(record, indent=2) + "\n").encode())

    def read_config(self) -> Config:
        """The configuration of the run.

        Raises:
            RunError: the file is damaged, or of another version.
        """
        try:
            record = json.loads(self._config.read_text())
            version = record.pop("format")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{self._config} is not a run's configuration: {error}") from error
        if version != FORMAT:
            raise RunError(f"{self._config} has format {version}; this rlzoo reads format {FORMAT}")
        for name in ("versions", "git_commit"):
            record.pop(name, None)
        try:
            return make_config(record.pop("algorithm"), record.pop("env"), **record)
        except (ConfigError, KeyError, TypeError) as error:
            raise RunError(f"{self._config}: {error}") from error

    # Checkpoints

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, oldest first."""
        return sorted(int(p.name) for p in self.checkpoints.glob("*") if p.name.isdecimal())

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint; then lets go of all but the last two and the best.

        Raises:
            OSError: it could not be written (a full disk); the older ones are intact.
        """
        target = self.checkpoints / str(step)
        if target.exists():
            return
        arrays, rest = _split(checkpoint.state)
        files = {
            "model.safetensors": save({k: v.detach().cpu().contiguous() for k, v in checkpoint.model.items()}),
            "state.safetensors": save(arrays),
            "state.json": json.dumps({"format": FORMAT, "step": step, "state": rest}).encode(),
        }
        manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        files["manifest.json"] = json.dumps(manifest).encode()
        temporary = self.checkpoints / f".{step}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            for name, data in files.items():
                _write_and_sync(temporary / name, data)
            _sync_directory(temporary)
            temporary.rename(target)
            _sync_directory(self.checkpoints)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        best = self.best_step()
        for old in self.steps()[:-2]:
            if old != best:
                shutil.rmtree(self.checkpoints / str(old), ignore_errors=True)

    def load(self, step: int | None = None) -> Checkpoint:
        """The checkpoint at `step`, the last one if None.

        Raises:
            RunError: there is none, or it is damaged or foreign; names the next older one.
        """
        steps = self.steps()
        if not steps:
            raise RunError(f"{self.path} has no checkpoint yet")
        step = steps[-1] if step is None else step
        if step not in steps:
            raise RunError(f"{self.path} has no checkpoint at step {step}; it has {', '.join(map(str, steps))}")
        folder = self.checkpoints / str(step)
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            files = {name: (folder / name).read_bytes() for name in _FILES}
            for name, data in files.items():
                if hashlib.sha256(data).hexdigest() != manifest[name]:
                    raise ValueError(f"{name} is damaged")
            record = json.loads(files["state.json"])
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']}; this rlzoo reads format {FORMAT}")
            state = _join(record["state"], load(files["state.safetensors"]))
            return Checkpoint(load(files["model.safetensors"]), state)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            older = [s for s in steps if s < step]
            remedy = f"; an older one is at step {older[-1]}: give --checkpoint {older[-1]}" if older else ""
            raise RunError(f"cannot read checkpoint {folder}: {error}{remedy}") from error

    def best_step(self) -> int | None:
        """Step of the checkpoint with the best evaluation, if there was one."""
        try:
            return int(json.loads((self.checkpoints / "best.json").read_text())["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def mark_best(self, step: int, mean_return: float) -> None:
        """Keeps the checkpoint at `step` whatever comes later."""
        data = json.dumps({"step": step, "mean_return": mean_return}).encode()
        _write_atomically(self.checkpoints / "best.json", data)

    def forget_after(self, step: int) -> None:
        """Cuts metrics and evaluations back to `step`, where a run goes on from."""
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            path = self.path / name
            if path.exists():
                kept = [line for line, record in read_jsonl(path) if record["step"] <= step]
                _write_atomically(path, "".join(kept).encode())


_FILES = ("model.safetensors", "state.safetensors", "state.json")


def read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of a JSON-lines file and what they hold; a half-written last line is left out."""
    with path.open() as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if line.endswith("\n") and isinstance(record, dict) and "step" in record:
                yield line, record


def _split(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Nested dicts and lists -> (tensors by path, the same structure with paths in their place)."""
    arrays: dict[str, Tensor] = {}

    def walk(x: Any, path: str) -> Any:
        if isinstance(x, dict):
            return {key: walk(value, f"{path}/{key}") for key, value in x.items()}
        if isinstance(x, (list, tuple)):
            return [walk(value, f"{path}/{i}") for i, value in enumerate(x)]
        if isinstance(x, np.ndarray):
            arrays[path] = torch.from_numpy(np.ascontiguousarray(x))
            return {"numpy": path}
        if isinstance(x, Tensor):
            arrays[path] = x.detach().cpu().contiguous()
            return {"tensor": path}
        return x.item() if isinstance(x, np.generic) else x

    return arrays, walk(state, "")


def _join(structure: Any, arrays: dict[str, Tensor]) -> Any:
    if isinstance(structure, dict):
        if set(structure) == {"numpy"}:
            return arrays[structure["numpy"]].numpy()
        if set(structure) == {"tensor"}:
            return arrays[structure["tensor"]]
        return {key: _join(value, arrays) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_join(value, arrays) for value in structure]
    return structure


def _write_and_sync(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write_and_sync(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _git_commit() -> str | None:
    """Commit of the checkout that rlzoo runs from, if it runs from one."""
    root = Path(rlzoo.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        git = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return git.stdout.strip()
