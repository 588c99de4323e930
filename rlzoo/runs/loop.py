"""The training loop of every algorithm: collect, evaluate, score, update."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlzoo.algorithms import Metrics, State
from rlzoo.core.collector import evaluate, score
from rlzoo.core.env import Episode
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.models import ActorCritic
from rlzoo.core.seen import Seen
from rlzoo.core.system import processes
from rlzoo.core.system.errors import require
from rlzoo.core.system.progress import SILENT, Progress, operation
from rlzoo.core.system.streams import number, stream
from rlzoo.runs.acceleration import accelerate
from rlzoo.runs.checkpoint import Checkpoint
from rlzoo.runs.configuration.config import Config, check, check_schedules
from rlzoo.runs.registry import task_class
from rlzoo.runs.run import Run


@dataclass(frozen=True)
class Iteration:
    """The result of one iteration of the loop."""

    step: int
    """Environment steps so far."""
    metrics: Metrics
    """Metrics of the environment and of the algorithm. A hook may add some."""
    episodes: list[Episode]
    """Episodes that ended in this iteration."""
    environment_metrics: frozenset[str] = frozenset()
    """Names of the metrics that come from the environment."""
    seconds: float = field(default=0.0, compare=False)
    """Time that it took."""


def check_context() -> None:
    """Raises `ConfigError` in a context of PyTorch in which training fails or goes wrong."""
    require(torch.is_grad_enabled(), "training needs gradients: leave torch.no_grad() or torch.inference_mode() first")
    fault = "torch.autocast keeps old weights in its cache: leave it first; precision=bfloat16 is for language models"
    require(not any(map(torch.is_autocast_enabled, ("cpu", "cuda"))), fault)


class Trainer:
    """Model, task and algorithm state of a run. Iterating over it trains the model.

        for iteration in Trainer(config):
            print(iteration.step, iteration.metrics["entropy"])

    Args:
        model: train this model instead of a new one.
        folder: the run directory, if it exists already. A run that has a checkpoint does not need its start.
        progress: progress of long operations.

    Raises:
        ConfigError: the settings do not work together.
        RunError: there is no run that the task could start from.
    """

    def __init__(
        self, config: Config, model: ActorCritic | None = None, folder: Path | None = None, progress: Progress = SILENT
    ) -> None:
        check(config)
        check_schedules(config)
        processes.check_same(config.to_dict())
        if config.compile and processes.size() > 1:
            fault = "compile is for one process: it cannot exchange gradients"
            require(folder is not None, f"{fault}; leave it out")
            progress.say(f"{fault}, so this session does without it")
            config = replace(config, compile=False)
        self.config = config
        self.task = task_class(config.env)(config.task, config.setup(folder, progress), model)
        self.model = self.task.model
        self.algorithm = config.algorithm
        if folder is None or not Run(folder).steps():
            self._warm_start()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(number(stream(config.seed, "init", 2)))  # for parameters of its own
            self.state = self.algorithm.init(self.model, np.random.default_rng(stream(config.seed, "minibatch")))
        self._check_type("init", self.state, State)
        if config.fast:
            accelerate(self.task, self.state, config.compile)
        self.step = 0
        for x in (*self.model.state_dict().values(), *self._own_parameters()):
            processes.broadcast_(x)

    def _warm_start(self) -> None:
        """Gives the model the weights of the run that its task starts from, if it starts from one.

        Raises:
            RunError: there is no such run or checkpoint.
            ConfigError: its weights, activation or actions do not fit.
        """
        source, own = self.task.starts_from, self.model.state_dict()
        if source is None:
            return
        run = Run.open(source)
        # The scale of rewards belongs to a run's own environments.
        weights = {name: x for name, x in run.load().model.items() if not name.startswith("reward_scale.")}
        weights |= {name: x for name, x in own.items() if name.startswith("reward_scale.")}
        record, settings = run.record, self.config.to_dict()
        actions = (record.get("spaces") or {}).get("action"), self.task.described_spaces().get("action")
        parts: dict[str, tuple[Any, Any]] = {"the action space": actions}
        parts["activation"] = record.get("activation"), settings.get("activation")
        for name in {**own, **weights}:
            there, here = (tuple(part[name].shape) if name in part else "missing" for part in (weights, own))
            parts[name] = there, here
        for name, (there, here) in parts.items():
            fault = f"{name} is {there} there and {here} here; config={str(source)!r} (--config {source}) gives both"
            fits = there == here or None in (there, here)  # an own network or an old run may not tell
            require(fits, f"model: give the network and environment of {source}: {fault}")
        self.model.load_state_dict(weights)

    def follow(self) -> None:
        """In a process that is not the first: takes part in what the first one does, until that ends."""
        while method := processes.next_name():
            getattr(self, method)()

    @property
    def done(self) -> bool:
        """Whether the run has reached its number of steps."""
        return self.step >= self.config.total_steps

    def __iter__(self) -> Iterator[Iteration]:
        """Trains to the end of the run."""
        while not self.done:
            yield self.iterate()

    @processes.together("iterate")
    def iterate(self) -> Iteration:
        """One iteration: a buffer of experience, and the algorithm's update on it."""
        check_context()
        model, start = self.model, time.perf_counter()
        experience = self.task.collect()
        buffer = evaluate(model, experience.buffer.map(lambda x: x.to(self.config.device)))
        buffer, episodes, environment = score(self.task.env, experience._replace(buffer=buffer))

        self.state.progress = min(1.0, self.step / self.config.total_steps)
        scaled = buffer if model.reward_scale is None else model.reward_scale(buffer)
        with operation("update"):
            metrics = self.algorithm.update(model, self.state, scaled)
        self._check_type("update", metrics, dict)
        if model.normalizer is not None:
            model.normalizer.update(Seen.of(buffer.obs).obs[:, :-1], buffer.mask)
        self.step += buffer.num_steps
        seconds = time.perf_counter() - start
        return Iteration(self.step, environment | metrics, episodes, frozenset(environment), seconds)

    def _check_type(self, method: str, result: Any, kind: type) -> None:
        fault = f"{method} of {type(self.algorithm).__name__} must return a {kind.__name__}, got {result!r}"
        require(isinstance(result, kind), fault)

    @processes.together("set_attr")
    def set_attr(self, name: str = "", value: Any = None) -> None:
        """Sets an attribute of each copy of the environment, in all processes, from its next step on.

        Evaluations are in the environment as it was made. A resumed run has the attribute too.

        Args:
            value: numbers, texts, lists and dicts.

        Raises:
            ConfigError: the environment is none of Gymnasium's, or has no such attribute.
        """
        self.task.env.set_attr(*processes.broadcast((name, value)))

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """An evaluation by the task: in the first process, or in all if it takes the environment of the training."""
        if self.task.evaluates_in_training:
            return self._evaluate_together((episodes, seed, deterministic))
        return self.task.evaluate(episodes, seed=seed, deterministic=deterministic)

    @processes.together("_evaluate_together")
    def _evaluate_together(self, arguments: tuple[int, int, bool] | None = None) -> Evaluation:
        episodes, seed, deterministic = processes.broadcast(arguments)
        return self.task.evaluate(episodes, seed=seed, deterministic=deterministic)

    @processes.together("checkpoint")
    def checkpoint(self) -> Checkpoint:
        """Everything that the rest of the run depends on. Its tensors are those in use: copy what is to be kept."""
        state = {"step": self.step, "algorithm": self.state.state_dict(), "task": self.task.state_dict()}
        if own := self._own_parameters():
            state["own_parameters"] = own
        return Checkpoint(self.model.state_dict(), state)

    def _own_parameters(self) -> list[torch.Tensor]:
        """What the algorithm trains besides the model, such as a temperature."""
        of_model = {id(p) for p in self.model.parameters()}
        trained = (p for x in self.state.optimizers.values() for p in getattr(x, "parameters", ()))
        return [p.detach() for p in trained if id(p) not in of_model]

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues from a checkpoint. Starts new episodes if the environment could not save its state."""
        self.model.load_state_dict(checkpoint.model)
        self.state.load_state_dict(checkpoint.state["algorithm"])
        for x, saved in zip(self._own_parameters(), checkpoint.state.get("own_parameters", ()), strict=True):
            x.copy_(saved)
        self.step = int(checkpoint.state["step"])
        self.task.load_state_dict(checkpoint.state["task"], self.step)
