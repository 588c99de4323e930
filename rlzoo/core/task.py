"""What is trained on: a control environment, or a language task. The loop around it is the same."""

from __future__ import annotations

import abc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from rlzoo.algorithms import Metrics
from rlzoo.control.evaluation import Evaluation
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import Episode
from rlzoo.core.models import ActorCritic

if TYPE_CHECKING:
    from rlzoo.runs.config import Config


Say = Callable[[str], None]
"""Shows a line to whoever is watching."""


def silent(line: str) -> None:
    """Shows nothing."""


class Streams(NamedTuple):
    """Seeds of everything random in a run, each a stream of its own: evaluating more often changes nothing."""

    env: np.random.SeedSequence
    action: np.random.SeedSequence
    batch: np.random.SeedSequence
    init: np.random.SeedSequence

    @classmethod
    def of(cls, seed: int) -> Streams:
        return cls(*np.random.SeedSequence(seed).spawn(4))


def torch_generator(stream: np.random.SeedSequence, device: str = "cpu") -> torch.Generator:
    """A generator of PyTorch's that starts from a stream."""
    return torch.Generator(device).manual_seed(int(stream.generate_state(1)[0]))


class Experience(NamedTuple):
    """What a turn of the loop trains on."""

    buffer: Buffer
    """Evaluated and settled."""
    episodes: list[Episode]
    """Those that ended in it."""
    metrics: Metrics
    """What the environment has to say of it."""


class TaskSettings(abc.ABC):
    """The settings of a task: a frozen dataclass, part of `Config`."""

    def check(self, config: Config) -> None:
        """Raises `ConfigError` if these settings cannot work with the others."""

    @abc.abstractmethod
    def make(
        self, config: Config, model: ActorCritic | None = None, folder: Path | None = None, say: Say = silent
    ) -> Task:
        """The task, with `model` or one of its own.

        Args:
            folder: the directory of a run, which may hold what the model started from.
            say: is told of what takes long.
        """


class Task(abc.ABC):
    """Collects experience with a model, and evaluates it."""

    model: ActorCritic
    evaluates_start: bool = False
    """Whether the model is worth an evaluation before it is trained."""

    @abc.abstractmethod
    def collect(self) -> Experience:
        """One buffer: collect, evaluate, settle."""

    @abc.abstractmethod
    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """Complete episodes that leave no trace in the training."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next buffer depends on but the model."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Goes on where `state` was taken, at `step`."""

    @abc.abstractmethod
    def close(self) -> None:
        """Releases what the task holds."""

    def begin(self, folder: Path) -> None:
        """Puts into the run's directory what `TaskSettings.make` will want from it, if it is not there yet."""

    def end(self, folder: Path) -> None:
        """Puts into the run's directory what a finished run leaves to others."""
