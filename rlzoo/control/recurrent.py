"""Recurrent networks: a GRU or an LSTM below an MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.control.networks import MLP, Network
from rlzoo.core.models import ActorCritic
from rlzoo.core.recurrent import Cell, GRUCell, LSTMCell, Recurrent
from rlzoo.core.seen import Seen
from rlzoo.core.system.fields import Advanced, Count


class RecurrentMLP(nn.Module):
    """A recurrent network, and an MLP on its outputs."""

    def __init__(self, cell: Cell, mlp: MLP) -> None:
        super().__init__()
        self.recurrent = Recurrent(cell)
        self.mlp = mlp
        self.outputs = mlp.outputs

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        return self.mlp(self.recurrent(seen))


@dataclass(frozen=True)
class GRU(Network):
    """How to build a recurrent `ActorCritic`. Policy and value each have a memory, unless they share the trunk."""

    cell: ClassVar[Callable[..., Cell]] = GRUCell

    hidden: tuple[int, ...] = (64,)
    """Sizes of the layers above the memory."""
    cell_size: Count = 64
    """Outputs of the recurrent cell."""
    unroll: Advanced[Count] = 32
    """Steps of a training row, through which gradients flow. A row starts with the memory that acting had there."""

    def build(
        self, observation_space: Any, action_space: gymnasium.Space[Any], generator: torch.Generator | None = None
    ) -> ActorCritic:
        model = super().build(observation_space, action_space, generator)
        model.context = self.unroll
        return model

    def body(
        self, inputs: int, outputs: int | None = None, gain: float = 1.0, generator: torch.Generator | None = None
    ) -> RecurrentMLP:
        mlp = MLP(self.cell_size, self.hidden, self.activation, outputs, gain, generator)
        return RecurrentMLP(type(self).cell(inputs, self.cell_size, generator), mlp)


@dataclass(frozen=True)
class LSTM(GRU):
    """The same with an LSTM."""

    cell: ClassVar[Callable[..., Cell]] = LSTMCell
