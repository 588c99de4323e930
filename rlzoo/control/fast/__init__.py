"""Faster implementations for control tasks: written-out backward passes of the networks, and acting through NumPy."""

from __future__ import annotations

from typing import Any

from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.fast.mlp import FastMLP, FastRecurrentMLP
from rlzoo.control.networks import MLP
from rlzoo.control.recurrent import RecurrentMLP
from rlzoo.optim.fast.tape import TapeJacobian

NETWORKS: dict[type, type] = {MLP: FastMLP, RecurrentMLP: FastRecurrentMLP}
"""Networks, and subclasses of them that compute the same faster."""


def accelerate(task: Any) -> None:
    """Puts the faster implementations in place in a task. Results stay the same up to rounding."""
    for module in task.model.modules():
        if type(module) in NETWORKS:
            module.__class__ = NETWORKS[type(module)]
    task.model.jacobian = TapeJacobian
    task.make_actor = make_numpy_actor
