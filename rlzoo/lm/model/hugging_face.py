"""Calls into the Hugging Face libraries: silent, and with errors of one line."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from transformers.utils import logging as transformers_logging

from rlzoo.core.system.errors import ConfigError, first_line, require
from rlzoo.core.system.files import LARGE, check_regular, most_in_memory, read_bytes
from rlzoo.core.system.progress import operation

_PATIENCE = 1.5
"""Seconds to wait for the Hub's first answer."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the progress bars, log lines and warnings of the libraries."""
    bars: Any = transformers_logging
    with contextlib.ExitStack() as restored, warnings.catch_warnings(action="ignore"):
        for library in (transformers_logging, huggingface_hub.logging):
            restored.callback(library.set_verbosity, library.get_verbosity())
            library.set_verbosity(logging.CRITICAL)
        if bars.is_progress_bar_enabled():  # and with them those of the Hub
            restored.callback(bars.enable_progress_bar)
            bars.disable_progress_bar()
        yield


_one_thread = threading.RLock()


@contextlib.contextmanager
def loading(name: str, what: str) -> Iterator[None]:
    """Context for loading: silent, with the global generators restored, and any error as a `ConfigError` of one line.

    Damaged files make the libraries raise nearly any exception. Threads take turns: in two at once, transformers would
    untie the embeddings of all models.
    """
    try:
        with _one_thread, operation(f"loading {what} {name}"), quiet(), torch.random.fork_rng(devices=[]):
            yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the {what} of {name} cannot be loaded: {first_line(error)}") from error


def location(name: str, what: str) -> dict[str, Any]:
    """Arguments of `from_pretrained` for a directory or a model on the Hub; `ConfigError` if it is neither.

    The Hub is asked once with a short timeout, because transformers retries for a minute.
    """
    if Path(name).is_dir():
        _check_files(Path(name), what)
        return {"local_files_only": True}
    require(not Path(name).exists(), f"{name} is a file; a {what} is a directory")
    hub: Any = huggingface_hub.utils
    try:
        hub.validate_repo_id(name)
    except ValueError:
        raise ConfigError(f"no such directory: {name}") from None
    try:
        _info(name)
    except Exception as error:
        if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str):
            return {"local_files_only": True}
        reason = first_line(error)
        raise ConfigError(f"no such directory: {name}; nor is it on the Hugging Face Hub: {reason}") from None
    return {}


@functools.cache
def _info(name: str) -> Any:
    """What the Hub says of a model."""
    return huggingface_hub.HfApi().model_info(name, timeout=_PATIENCE)


def on_hub(name: str) -> bool:
    """Whether a name is that of a model on the Hub, or of one that was loaded from there."""
    with contextlib.suppress(Exception):
        return isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str) or bool(_info(name))
    return False


def license_of(name: str) -> str | None:
    """Licence of a model, from the card in its directory or on the Hub; None if there is none that can be read."""
    with contextlib.suppress(Exception):
        file = Path(name, "README.md")
        card = huggingface_hub.ModelCard(read_bytes(file).decode()).data if file.exists() else None
        return as_license(getattr(card if Path(name).is_dir() else _info(name).card_data, "license", None))
    return None


def as_license(value: Any) -> str | None:
    """The name of a licence, at most 200 characters of it; None for what is no text."""
    return value[:200] if isinstance(value, str) else None


def _check_files(folder: Path, what: str) -> None:
    """Raises `ConfigError` unless all files that transformers may open are regular and of a sensible size."""
    for path in (*folder.iterdir(), *folder.glob("*/*.jinja")):
        weights = path.suffix in (".safetensors", ".bin")
        if weights or path.suffix in (".json", ".txt", ".model", ".jinja"):
            try:
                check_regular(path, most_in_memory() if weights else LARGE)
            except OSError as error:
                raise ConfigError(f"the {what} of {folder} cannot be loaded: {path.name}: {error.strerror}") from None
    for path in folder.glob("*.index.json"):
        for name in json.loads(read_bytes(path))["weight_map"].values():
            require(Path(name).name == name, f"{path} names {name}, which is not in its directory")
