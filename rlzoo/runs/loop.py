"""The one loop that trains every algorithm: collect, evaluate, settle, update."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlzoo.algorithms import Metrics
from rlzoo.runs.checkpoint import Checkpoint
from rlzoo.core.collector import Episode
from rlzoo.runs.config import Config
from rlzoo.core.models import ActorCritic
from rlzoo.core.task import Say, Streams, silent


@dataclass(frozen=True)
class Iteration:
    """What one turn of the loop did."""

    step: int
    """Environment steps so far."""
    metrics: Metrics
    episodes: list[Episode]
    """Those that ended in this iteration."""


class Trainer:
    """The state of a run, and the turn that moves it on.

    Args:
        model: train this instead of building one.
        folder: the run's directory, if it has one already.
        say: is told of what takes long.
    """

    def __init__(
        self, config: Config, model: ActorCritic | None = None, folder: Path | None = None, say: Say = silent
    ) -> None:
        self.config = config
        self.task = config.task.make(config, model, folder, say)
        self.model = self.task.model
        self.algorithm = config.algorithm
        self.state = self.algorithm.init(self.model, np.random.default_rng(Streams.of(config.seed).batch))
        for optimizer in self.state.optimizers.values():
            optimizer.compile = config.compile
        self.step = 0

    @property
    def done(self) -> bool:
        return self.step >= self.config.total_steps

    def iterate(self) -> Iteration:
        """One turn: a buffer of experience, and the algorithm's update on it."""
        buffer, episodes, metrics = self.task.collect()
        self.state.progress = self.step / self.config.total_steps
        trained = buffer if self.model.reward_scale is None else self.model.reward_scale(buffer)
        metrics = metrics | self.algorithm.update(self.model, self.state, trained)
        if self.model.normalizer is not None:
            self.model.normalizer.update(buffer.obs[:, :-1], buffer.mask)
        self.step += buffer.num_steps
        return Iteration(self.step, metrics, episodes)

    def checkpoint(self) -> Checkpoint:
        """All that the rest of the run depends on."""
        state = {"step": self.step, "algorithm": self.state.state_dict(), "task": self.task.state_dict()}
        return Checkpoint(self.model.state_dict(), state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on where `checkpoint` was taken; with new episodes if the environment cannot give its state."""
        self.model.load_state_dict(checkpoint.model)
        self.state.load_state_dict(checkpoint.state["algorithm"])
        self.step = int(checkpoint.state["step"])
        self.task.load_state_dict(checkpoint.state["task"], self.step)
