"""One job of a suite: a training run, of rlzoo or of a peer, with evaluations that do not affect the training."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from rlzoo.benchmark.updates import Updates
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system import streams
from rlzoo.core.system.errors import ConfigError, describe_error
from rlzoo.core.system.functions import load_object
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.train import new_trainer


class Evaluate(Protocol):
    """Evaluates the current policy on complete episodes, as `rlzoo.control.evaluation.evaluate_actor` does."""

    def __call__(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation: ...


class Watch(Protocol):
    """Callback after `step` training steps, which evaluates if an evaluation is due. Its time is not counted."""

    def __call__(self, step: int, evaluate: Evaluate) -> None: ...


class Peer(Protocol):
    """An adapter that trains another library's algorithm."""

    def settings(self, env: str) -> dict[str, Any]:
        """JSON-serialisable settings for an environment.

        Raises:
            ConfigError: there are none for this environment.
        """

    def train(self, env: str, seed: int, settings: dict[str, Any], watch: Watch) -> None:
        """Trains for `settings["total_steps"]` steps, and calls `watch` before the first and after every update."""


Key = tuple[str, str, int]
"""Label, environment and seed of a job."""


@dataclass(frozen=True)
class Labelled:
    """What identifies a job in its suite."""

    label: str
    env: str
    seed: int

    @property
    def key(self) -> Key:
        return self.label, self.env, self.seed


@dataclass(frozen=True)
class Job(Labelled):
    """One run of a suite."""

    settings: dict[str, Any]
    """All settings that determine the outcome."""
    eval_interval: int
    eval_episodes: int
    final_episodes: int
    peer: str | None = None
    """Absolute `file.py:name` of a peer."""
    measure_updates: bool = False
    """Whether the outcome says what the updates did."""


@dataclass(frozen=True)
class Outcome(Labelled):
    """A finished job."""

    settings: dict[str, Any]
    steps: list[int]
    """(K,) training steps at each evaluation, from 0 to the end of training."""
    stochastic: list[float]
    """(K,) mean returns of the stochastic evaluations."""
    deterministic: list[float]
    """(K,) mean returns of the deterministic evaluations."""
    final_stochastic: float
    final_deterministic: float
    further: dict[str, float] = field(default_factory=dict)
    """The task's own metrics in the final stochastic evaluation."""
    seconds: list[float] = field(default_factory=list)
    """(K,) seconds of training before each evaluation, without those of evaluations."""
    updates: dict[str, float] = field(default_factory=dict)
    """What the updates did, if the suite measures them: `Updates.summary`."""
    course: dict[str, list[float]] = field(default_factory=dict)
    """(K,) the task's own metrics in the stochastic evaluations, of those that each of them has."""
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Responses of a language model `before` and `after` training, and the one `farthest` from the reference."""


@dataclass(frozen=True)
class Failure(Labelled):
    """A failed job."""

    error: str
    """Type and message of the exception, in one line."""
    details: str = ""
    """The traceback."""


def run_job(job: Job) -> Outcome | Failure:
    """Trains and evaluates on one thread. An exception is returned as a `Failure`."""
    torch.set_num_threads(1)
    recorder = _Recorder(job)
    try:
        if job.peer is None:
            _train(job, recorder)
        else:
            load_peer(job.peer).train(job.env, job.seed, job.settings, recorder)
        return recorder.outcome()
    except (Exception, SystemExit) as error:
        return Failure(*job.key, describe_error(error), traceback.format_exc())


def load_peer(spec: str) -> Peer:
    """The peer `name` of `file.py:name`. Raises `ConfigError` if it does not exist, or its library is not installed."""
    try:
        peer: Peer = load_object("peer", spec, "peer")
    except ConfigError as error:
        remedy = "; peers need pip install -e '.[peers,more-peers]'" if isinstance(error.__cause__, ImportError) else ""
        raise ConfigError(f"{error}{remedy}") from error
    return peer


def _train(job: Job, watch: _Recorder) -> None:
    settings = dict(job.settings)
    trainer = new_trainer(make_config(settings.pop("algorithm"), job.env, seed=job.seed, **settings))
    with contextlib.closing(trainer.task) as task:
        updates = Updates(trainer) if job.measure_updates else None
        watch(0, task.evaluate)
        for iteration in trainer:
            if updates is not None:
                updates.add(iteration)
            watch(trainer.step, task.evaluate)
        if updates is not None:
            watch.updates = finite_numbers(updates.summary())


class _Recorder:
    """Evaluates a policy before training, after each interval of steps, and at the end.

    The k-th evaluation of a seed has the same episodes for every algorithm, and does not use the run's generators.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps: list[int] = []
        self.seconds: list[float] = []
        self.evaluations: dict[bool, list[Evaluation]] = {False: [], True: []}
        """Stochastic and deterministic ones."""
        self.final: dict[bool, Evaluation] = {}
        self.updates: dict[str, float] = {}
        self._elapsed = 0.0
        self._since = time.perf_counter()

    def __call__(self, step: int, evaluate: Evaluate) -> None:
        job, now = self.job, time.perf_counter()
        if self.steps:
            self._elapsed += now - self._since
        intervals, end = step // job.eval_interval, step >= job.settings["total_steps"]
        if not self.steps or intervals > self.steps[-1] // job.eval_interval or end:
            self.steps.append(step)
            self.seconds.append(round(self._elapsed, 3))
            for deterministic, evaluations in self.evaluations.items():
                evaluations.append(self._evaluate(evaluate, job.eval_episodes, intervals, deterministic))
                if end:
                    self.final[deterministic] = self._evaluate(evaluate, job.final_episodes, -1, deterministic)
        self._since = time.perf_counter()

    def _evaluate(self, evaluate: Evaluate, episodes: int, turn: int, deterministic: bool) -> Evaluation:
        seed = streams.number(streams.stream(self.job.seed, "benchmark", turn + 1))
        return evaluate(episodes, seed=seed, deterministic=deterministic)

    def outcome(self) -> Outcome:
        if not self.final:
            raise RuntimeError(f"training ended before step {self.job.settings['total_steps']}")
        stochastic, deterministic = ([round(x.mean_return, 6) for x in kind] for kind in self.evaluations.values())
        final_stochastic, final_deterministic = (round(x.mean_return, 6) for x in self.final.values())
        first, last = self.evaluations[False][0].further, self.final[False].further
        samples = {}
        if last.get("samples"):
            samples = {"before": first["samples"], "after": last["samples"], "farthest": [last["farthest"]]}
        metrics = [_metrics(x) for x in self.evaluations[False]]
        shared = [name for name in metrics[0] if all(name in x for x in metrics)]
        course = {name: [x[name] for x in metrics] for name in shared}
        return Outcome(
            *self.job.key, self.job.settings, self.steps, stochastic, deterministic, final_stochastic,
            final_deterministic, _metrics(self.final[False]), self.seconds, self.updates, course, samples,
        )  # fmt: skip


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    """The task's own metrics, and for a language model the mean length of its responses."""
    metrics = finite_numbers(evaluation.further)
    if evaluation.further.get("samples"):
        metrics["mean_length"] = round(float(evaluation.lengths.mean()), 6)
    return metrics


def finite_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are finite numbers, with six digits after the point."""
    numbers = {name: x for name, x in values.items() if type(x) in (int, float) and math.isfinite(x)}
    return {name: round(float(x), 6) for name, x in numbers.items()}
