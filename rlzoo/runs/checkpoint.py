"""The files of a checkpoint: tensors as safetensors, everything else as JSON, and a manifest of checksums.

Loading never unpickles.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from rlzoo.core.system.errors import ConfigError, RunError, require
from rlzoo.core.system.files import LARGE, check_regular, checksum, most_in_memory, read_bytes, sync
from rlzoo.runs.files import write_and_sync

FORMAT = 3
"""Version of the files in a run directory."""

FILES = ("model.safetensors", "state.safetensors", "state.json", "manifest.json")


class Checkpoint(NamedTuple):
    """What training needs to continue."""

    model: dict[str, Tensor]
    state: dict[str, Any]


def write_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, run: Mapping[str, Any] | None = None) -> None:
    """Writes the files of a checkpoint into an empty folder, and flushes them to disk.

    Args:
        run: what identifies the run (see `Run.identity`).

    Raises:
        OSError: a file cannot be written, for example because the disk is full.
    """
    arrays, rest = _split(checkpoint.state)
    record = {"format": FORMAT, "step": step, "run": run or {}, "state": rest}
    write_and_sync(folder / "state.json", json.dumps(record, default=_refuse).encode())
    for name, tensors in (("model.safetensors", checkpoint.model), ("state.safetensors", arrays)):
        _write_tensors(folder / name, _apart(tensors))
        shutil.copymode(folder / "state.json", folder / name)  # safetensors makes files for their owner alone
        sync(folder / name)
    manifest = {name: checksum(folder / name) for name in FILES[:-1]}
    write_and_sync(folder / "manifest.json", json.dumps(manifest).encode())


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes tensors without a copy in memory. Its errors are those of Python."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code), str(path)) from error


def read_checkpoint(folder: Path, step: int, run: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint that `write_checkpoint` has written. Its tensors stay in their files until they are read.

    Raises:
        ConfigError: it is the checkpoint of another step.
        RunError: it is that of another run than `run`.
        OSError, ValueError, KeyError, TypeError, SafetensorError: the files are damaged or have another format.
    """
    for name in FILES:
        check_regular(folder / name, most_in_memory() if name.endswith(".safetensors") else LARGE)
    manifest = json.loads(read_bytes(folder / "manifest.json", LARGE))
    for name in FILES[:-1]:
        if checksum(folder / name) != manifest[name]:
            raise ValueError(f"{name} is damaged")
    record = json.loads(read_bytes(folder / "state.json", LARGE))
    if record["format"] != FORMAT:
        raise ValueError(f"format {record['format']}; this rlzoo reads {FORMAT}")
    require(record["step"] == step, f"it is that of step {record['step']}")
    for name, own in record.get("run", {}).items():  # rlzoo 0.1.0 wrote none
        there = run.get(name, own)
        if own != there:
            raise RunError(f"it is that of another run: {name} was {own!r} there, and is {there!r} here")
    state = _join(record["state"], load_file(folder / "state.safetensors"))
    return Checkpoint(load_file(folder / "model.safetensors"), state)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU. Of two that overlap one is a copy, which safetensors asks for."""
    apart = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    end = 0
    for name, x in sorted(apart.items(), key=lambda item: item[1].data_ptr()):
        apart[name] = x.clone() if x.data_ptr() < end else x
        end = max(end, x.data_ptr() + x.nbytes)
    return apart


def _refuse(x: object) -> NoReturn:
    raise ConfigError(f"a state_dict must hold arrays, numbers, texts, lists and dicts; it holds a {type(x).__name__}")


def _split(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Separates the tensors of nested dicts and lists: tensors by path, and the structure with paths in their place."""
    arrays: dict[str, Tensor] = {}

    def walk(x: Any, path: str) -> Any:
        if isinstance(x, dict):
            other = next((key for key in x if not isinstance(key, str)), None)
            fault = f"a state_dict must have texts as keys; it has {other!r}, as that of a torch.optim optimizer"
            require(other is None, fault)
            if set(x) < {"numpy", "tensor"} and any(isinstance(value, str) for value in x.values()):
                raise ConfigError(f"a state_dict must not hold {x}, which stands for an array: rename the key")
            return {key: walk(value, f"{path}/{key}") for key, value in x.items()}
        if isinstance(x, (list, tuple)):
            return [walk(value, f"{path}/{i}") for i, value in enumerate(x)]
        if isinstance(x, (np.ndarray, Tensor)):
            while path in arrays:  # of the keys "a/b", and "a" with "b" in it
                path += "/"
            try:
                arrays[path] = x if isinstance(x, Tensor) else torch.from_numpy(np.asarray(x, order="C"))
                save({"": torch.empty(0, dtype=arrays[path].dtype)})  # complex128 is no type of the file
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(f"a state_dict must hold arrays of numbers; it holds one of {x.dtype}") from error
            return {"tensor" if isinstance(x, Tensor) else "numpy": path}
        return x.item() if isinstance(x, np.generic) else x

    return arrays, walk(state, "")


def _join(structure: Any, arrays: dict[str, Tensor]) -> Any:
    """The inverse of `_split`."""
    if isinstance(structure, dict):
        path = next(iter(structure.values()), None)
        if set(structure) == {"numpy"} and isinstance(path, str):
            return arrays[path].numpy().copy()  # which an environment may keep longer than the file
        if set(structure) == {"tensor"} and isinstance(path, str):
            return arrays[path]
        return {key: _join(value, arrays) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_join(value, arrays) for value in structure]
    return structure
