"""The files of a checkpoint: tensors as safetensors, everything else as JSON, and a manifest of checksums.

Loading never unpickles.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from rlzoo.core.system.errors import ConfigError, RunError, require

FORMAT = 3
"""Version of the files in a run directory."""

FILES = ("model.safetensors", "state.safetensors", "state.json", "manifest.json")


class Checkpoint(NamedTuple):
    """What training needs to continue."""

    model: dict[str, Tensor]
    state: dict[str, Any]


def pack(step: int, checkpoint: Checkpoint, run: Mapping[str, Any] | None = None) -> dict[str, bytes]:
    """The contents of a checkpoint's files by name. Tensors are copied, so they may change afterwards.

    Args:
        run: what identifies the run (see `Run.identity`).
    """
    arrays, rest = _split(checkpoint.state)
    record = {"format": FORMAT, "step": step, "run": run or {}, "state": rest}
    files = {
        "model.safetensors": save(_apart(checkpoint.model)),
        "state.safetensors": save(arrays),
        "state.json": json.dumps(record, default=_refuse).encode(),
    }
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    return files | {"manifest.json": json.dumps(manifest).encode()}


def unpack(files: dict[str, bytes], step: int, run: Mapping[str, Any]) -> Checkpoint:
    """The inverse of `pack`.

    Raises:
        ConfigError: it is the checkpoint of another step.
        RunError: it is that of another run than `run`.
        ValueError, KeyError, TypeError, SafetensorError: the files are damaged or have another format.
    """
    manifest = json.loads(files["manifest.json"])
    for name in FILES[:-1]:
        if hashlib.sha256(files[name]).hexdigest() != manifest[name]:
            raise ValueError(f"{name} is damaged")
    record = json.loads(files["state.json"])
    if record["format"] != FORMAT:
        raise ValueError(f"format {record['format']}; this rlzoo reads {FORMAT}")
    require(record["step"] == step, f"it is that of step {record['step']}")
    for name, own in record.get("run", {}).items():  # rlzoo 0.1.0 wrote none
        there = run.get(name, own)
        if own != there:
            raise RunError(f"it is that of another run: {name} was {own!r} there, and is {there!r} here")
    state = _join(record["state"], load(files["state.safetensors"]))
    return Checkpoint(load(files["model.safetensors"]), state)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU. Of a layer with two names one is a copy, which safetensors asks for."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, x in tensors.items():
        own = x.detach().cpu().contiguous()
        apart[name] = own.clone() if own.data_ptr() in taken else own
        taken.add(own.data_ptr())
    return apart


def _refuse(x: object) -> NoReturn:
    raise ConfigError(f"a state_dict must hold arrays, numbers, texts, lists and dicts; it holds a {type(x).__name__}")


def _split(state: Any) -> tuple[dict[str, Tensor], Any]:
    """Separates the tensors of nested dicts and lists: tensors by path, and the structure with paths in their place."""
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
    """The inverse of `_split`."""
    if isinstance(structure, dict):
        if set(structure) == {"numpy"}:
            return arrays[structure["numpy"]].numpy()
        if set(structure) == {"tensor"}:
            return arrays[structure["tensor"]]
        return {key: _join(value, arrays) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_join(value, arrays) for value in structure]
    return structure
