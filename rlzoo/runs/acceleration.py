"""The one place that puts faster implementations in place: packages named `fast`, which change no result."""

from __future__ import annotations

import importlib

from rlzoo.algorithms import State
from rlzoo.core.task import Task
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam

_ROOMS = ("control", "lm")


def accelerate(task: Task, state: State | None = None, compile: bool = False) -> None:
    """Puts the faster implementations in place, for a task and for the state of an algorithm that trains its model.

    Without this call, everything is plain PyTorch and transformers, with the same results up to rounding.

    Args:
        compile: run Adam's steps as native code.
    """
    origins = [cls.__module__ for cls in (*type(task).__mro__, *map(type, task.model.modules()))]
    for room in _ROOMS:
        if any(origin.startswith(f"rlzoo.{room}.") for origin in origins):
            importlib.import_module(f"rlzoo.{room}.fast").accelerate(task)
    if state is not None:
        for name, adam in state.optimizers.items():
            if isinstance(adam, Adam):
                state.optimizers[name] = FastAdam(adam, compile)
