"""Recurrent networks: a GRU or an LSTM below an MLP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor, nn

from rlzoo.control.networks import MLP, Network
from rlzoo.core.fields import Advanced, Count
from rlzoo.core.models import ActorCritic
from rlzoo.core.recurrent import Cell, GRUCell, LSTMCell, Recurrent
from rlzoo.optim.fast.mlp import evaluate, pull_back
from rlzoo.optim.fast.recurrent import is_written, unrolled
from rlzoo.optim.fast.tape import Tape


class RecurrentMLP(nn.Module):
    """A recurrent network, and an MLP on its outputs."""

    def __init__(self, cell: Cell, mlp: MLP) -> None:
        super().__init__()
        self.recurrent = Recurrent(cell)
        self.mlp = mlp
        self.outputs = mlp.outputs

    def forward(self, packed: Tensor) -> Tensor:
        recurrent, mlp = self.recurrent, self.mlp
        if Tape.current is None or packed.requires_grad or not is_written(recurrent):
            return mlp(recurrent(packed))
        hidden, into_cell = unrolled(recurrent, packed)
        layers = evaluate(mlp, hidden.reshape(-1, hidden.shape[-1]))

        def into_parameters(grad: Tensor) -> list[tuple[Tensor, Tensor]]:
            grads, into_hidden = pull_back(mlp, layers, grad.reshape(-1, mlp.outputs), to_input=True)
            return [*grads, *into_cell(into_hidden.view(hidden.shape))]

        return Tape.current.record(layers[-1].view(*hidden.shape[:-1], mlp.outputs), into_parameters)


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
