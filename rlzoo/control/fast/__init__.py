"""Faster implementations for control tasks: written-out backward passes of the networks, and acting through NumPy."""

from __future__ import annotations

from typing import Any

from rlzoo.control.acting import make_actor
from rlzoo.control.fast.acting import is_built_in, make_numpy_actor
from rlzoo.control.fast.networks import FastMLP, FastRecurrentMLP
from rlzoo.control.networks import MLP, RecurrentMLP
from rlzoo.optim.fast.tape import TapeJacobian

NETWORKS: dict[type, type] = {MLP: FastMLP, RecurrentMLP: FastRecurrentMLP}
"""Networks, and subclasses of them that compute the same faster."""


def accelerate(task: Any) -> None:
    """Puts the faster implementations in place in a task. Results stay the same up to rounding."""
    for module in task.model.modules():
        if type(module) in NETWORKS and is_built_in(module):
            module.__class__ = NETWORKS[type(module)]
    task.model.jacobian = task.model.jacobian or TapeJacobian
    if getattr(task, "make_actor", make_actor) is make_actor:  # not one of the user's own
        task.make_actor = make_numpy_actor
