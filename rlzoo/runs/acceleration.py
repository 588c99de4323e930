"""The one place that puts faster implementations in place: packages named `fast`, which change no result."""

from __future__ import annotations

import importlib

from rlzoo.algorithms import State
from rlzoo.core.fast.library import compilers
from rlzoo.core.system import processes
from rlzoo.core.task import Task
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.fast.natural_gradient import NativeConjugateGradient
from rlzoo.runs.configuration.config import Config
from rlzoo.runs.registry import ALGORITHMS, algorithm_class, task_class

_WARM_UP = 0.02
"""Share of a run that trains without native code. It is fixed, so that the same settings give the same results."""
_LONG = 200_000
"""Steps of a run in which native code gains more time than its compilation takes."""


def gains_by_compiling(config: Config) -> bool:
    """Whether a run is long enough to gain by native code and can have it, by its settings and the compiler alone."""
    return (
        config.total_steps >= _LONG
        and config.fast
        and config.device == "cpu"
        and processes.size() == 1
        and type(config.algorithm) in map(algorithm_class, ALGORITHMS)
        and task_class(config.env).compiles(config.task)
        and not config.algorithm.estimator.whole_episodes
        and getattr(config.algorithm, "stop_kl", None) is None
        and bool(compilers())
    )


def accelerate(task: Task, state: State | None = None, compile: bool = False) -> None:
    """Puts the faster implementations in place, for a task and for the state of an algorithm that trains its model.

    Without this call, everything is plain PyTorch and transformers, with the same results up to rounding.

    Args:
        compile: run the steps of Adam and of conjugate gradient as native code, compiled while the first fiftieth of
            the run goes on.
    """
    origins = [cls.__module__ for cls in (*type(task).__mro__, *map(type, task.model.modules()))]
    for room in ("control", "lm"):
        if any(origin.startswith(f"rlzoo.{room}.") for origin in origins):
            importlib.import_module(f"rlzoo.{room}.fast").accelerate(task)
    if state is not None:

        def waits() -> bool:
            return state.progress >= _WARM_UP

        for name, adam in state.optimizers.items():
            if type(adam) is Adam:
                state.optimizers[name] = FastAdam(adam, compile, waits)
        if compile:
            state.conjugate_gradient = NativeConjugateGradient(waits)
