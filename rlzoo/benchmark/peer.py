"""Peers: adapters that train an algorithm of another library in a suite."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any, Protocol

from rlzoo.core.errors import ConfigError, no_such
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.files import check_regular


class Evaluate(Protocol):
    """Evaluates the current policy on complete episodes, as `rlzoo.control.evaluation.evaluate_actor` does."""

    def __call__(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation: ...


class Watch(Protocol):
    """Callback after `step` training steps, which evaluates if an evaluation is due. Its time is not counted."""

    def __call__(self, step: int, evaluate: Evaluate) -> None: ...


class Peer(Protocol):
    """Another library's algorithm."""

    def settings(self, env: str) -> dict[str, Any]:
        """JSON-serialisable settings for an environment.

        Raises:
            ConfigError: there are none for this environment.
        """

    def train(self, env: str, seed: int, settings: dict[str, Any], watch: Watch) -> None:
        """Trains for `settings["total_steps"]` steps, and calls `watch` before the first and after every update."""


def load_peer(spec: str) -> Peer:
    """Loads the peer `name` of `file.py:name`.

    Raises:
        ConfigError: the file or name does not exist, or a module that the file imports is not installed.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"peer {spec!r}: a peer is file.py:name, and there is no file {file or spec!r}")
    try:
        check_regular(path)
    except OSError as error:
        raise ConfigError(f"peer {spec!r}: {path} cannot be read: {error.strerror}") from error
    found = importlib.util.spec_from_file_location(f"_peer_{path.stem}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # needed by dataclasses
    try:
        found.loader.exec_module(module)
    except ImportError as error:
        raise ConfigError(f"peer {path.name}: {error}; peers need pip install -e '.[peers,more-peers]'") from error
    if not hasattr(module, name):
        raise ConfigError(f"peer {path.name}: {no_such('peer', name, vars(module))}")
    peer: Peer = getattr(module, name)
    return peer
