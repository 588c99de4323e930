"""The network of the suite `details` without orthogonal initialisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlzoo.control.networks import Network


@dataclass(frozen=True)
class Xavier(Network):
    """MLPs with the uniform initialisation of Glorot and Bengio 2010 in all layers."""

    def body(
        self, inputs: int, outputs: int | None = None, gain: float = 1.0, generator: torch.Generator | None = None
    ) -> Any:
        mlp = super().body(inputs, outputs, gain, generator)
        for layer in mlp.layers:
            nn.init.xavier_uniform_(layer.weight, generator=generator)
        return mlp
