"""One job of a suite: a training run with evaluations at fixed intervals, which do not affect the training."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlzoo.benchmark.peer import Evaluate, Watch, load_peer
from rlzoo.benchmark.suite import Job, Labelled
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer


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
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return Failure(job.label, job.env, job.seed, what, traceback.format_exc())


def _train(job: Job, watch: Watch) -> None:
    settings = dict(job.settings)
    trainer = Trainer(make_config(settings.pop("algorithm"), job.env, seed=job.seed, **settings))
    try:
        watch(0, trainer.task.evaluate)
        while not trainer.done:
            trainer.iterate()
            watch(trainer.step, trainer.task.evaluate)
    finally:
        trainer.task.close()


class _Recorder:
    """Evaluates a policy before training, after each interval of steps, and at the end.

    The k-th evaluation of a seed has the same episodes for every algorithm, and does not use the run's generators.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.total = int(job.settings["total_steps"])
        self.steps: list[int] = []
        self.returns: dict[bool, list[float]] = {False: [], True: []}
        self.final: dict[bool, float] = {}
        self.further: dict[str, float] = {}
        self.seconds: list[float] = []
        self._elapsed = 0.0
        self._since = time.perf_counter()

    def __call__(self, step: int, evaluate: Evaluate) -> None:
        job, now = self.job, time.perf_counter()
        if self.steps:
            self._elapsed += now - self._since
        intervals, end = step // job.eval_interval, step >= self.total
        if not self.steps or intervals > self.steps[-1] // job.eval_interval or end:
            self.steps.append(step)
            self.seconds.append(round(self._elapsed, 3))
            for deterministic, returns in self.returns.items():
                returns.append(self._mean_return(evaluate, job.eval_episodes, intervals, deterministic))
                if end:
                    self.final[deterministic] = self._mean_return(evaluate, job.final_episodes, -1, deterministic)
        self._since = time.perf_counter()

    def _mean_return(self, evaluate: Evaluate, episodes: int, number: int, deterministic: bool) -> float:
        stream = np.random.SeedSequence(self.job.seed, spawn_key=(5, number + 1))
        seed = int(stream.generate_state(1)[0])
        evaluation = evaluate(episodes, seed=seed, deterministic=deterministic)
        if number == -1 and not deterministic:
            numbers = {name: x for name, x in evaluation.further.items() if type(x) in (int, float)}
            self.further = {name: round(float(x), 6) for name, x in numbers.items() if math.isfinite(x)}
        return round(evaluation.mean_return, 6)

    def outcome(self) -> Outcome:
        if not self.final:
            raise RuntimeError(f"training ended before step {self.total}")
        return Outcome(
            *self.job.key, self.job.settings, self.steps, self.returns[False], self.returns[True], self.final[False],
            self.final[True], self.further, self.seconds,
        )  # fmt: skip
