"""One job of a suite, in a process of its own: training, with evaluations at fixed steps that leave no trace in it."""

from __future__ import annotations

import math
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rlzoo.benchmark.peer import Evaluate, Watch, load_peer
from rlzoo.benchmark.suite import Job
from rlzoo.runs.config import make_config
from rlzoo.runs.loop import Trainer


@dataclass(frozen=True)
class Outcome:
    """A finished job."""

    label: str
    env: str
    seed: int
    settings: dict[str, Any]
    steps: list[int]
    """(K,) steps taken at each evaluation: none at the first, all at the last."""
    stochastic: list[float]
    """(K,) mean returns of sampled actions."""
    deterministic: list[float]
    """(K,) mean returns of the policy's modes."""
    final_stochastic: float
    final_deterministic: float
    further: dict[str, float] = field(default_factory=dict)
    """What else the task says of the policy at the end."""
    seconds: list[float] = field(default_factory=list)
    """(K,) seconds of training alone up to each evaluation."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.label, self.env, self.seed


@dataclass(frozen=True)
class Failure:
    """A job that broke off."""

    label: str
    env: str
    seed: int
    error: str
    """In one line."""
    details: str = ""
    """The traceback."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.label, self.env, self.seed


def run_job(job: Job) -> Outcome | Failure:
    """Trains and evaluates on one thread. What goes wrong in it is returned, not raised."""
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
    """Evaluates a policy whenever another interval of steps is over, and at the end.

    The k-th evaluation of a seed has the same episodes for every algorithm; none draws from the run's generators.
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
        job = self.job
        if not self.final:
            raise RuntimeError(f"training ended before step {self.total}")
        return Outcome(
            job.label,
            job.env,
            job.seed,
            job.settings,
            self.steps,
            self.returns[False],
            self.returns[True],
            self.final[False],
            self.final[True],
            self.further,
            self.seconds,
        )
