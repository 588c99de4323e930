"""Adam on one flat parameter vector, and the regression of a critic: all first-order gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from rlzoo.buffer import Buffer
from rlzoo.errors import NonFiniteError
from rlzoo.models import ActorCritic, flatten_parameters
from rlzoo.networks import Tape

Loss = Callable[..., Tensor]
"""`(model, batch, *scalars) -> scalar`, pure but for the model's parameters."""


class Adam:
    """Adam (Kingma & Ba 2015) with global gradient-norm clipping, in a handful of operations.

    The parameters become views of one flat vector, so that a step costs the same however many there are.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], eps: float = 1e-5, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters = list(parameters)
        self.theta = flatten_parameters(self.parameters)
        self.m = torch.zeros_like(self.theta)
        self.v = torch.zeros_like(self.theta)
        self.count = 0
        self.eps = eps
        self.betas = betas

    def minimize(
        self,
        loss: Loss,
        model: ActorCritic,
        batch: Buffer,
        *scalars: float,
        learning_rate: float,
        max_grad_norm: float | None = None,
    ) -> float:
        """One step down the gradient of `loss(model, batch, *scalars)`; returns the gradient's norm before
        clipping.

        Raises:
            NonFiniteError: the gradient is not finite; nothing was changed.
        """
        with Tape() as tape:
            grads = tape.gradients(loss(model, batch, *scalars), self.parameters)
        g = torch.cat([grad.reshape(-1) for grad in grads])
        norm = float(torch.linalg.vector_norm(g))
        if not math.isfinite(norm):
            raise NonFiniteError(f"gradient of {loss.__qualname__} is not finite")
        if max_grad_norm is not None and norm > max_grad_norm:
            g.mul_(max_grad_norm / norm)
        self._step(g, learning_rate)
        return norm

    def _step(self, g: Tensor, learning_rate: float) -> None:
        beta1, beta2 = self.betas
        self.count += 1
        self.m.lerp_(g, 1 - beta1)
        self.v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        scale = math.sqrt(1 - beta2**self.count)
        denominator = self.v.sqrt().add_(self.eps * scale)
        self.theta.addcdiv_(self.m, denominator, value=-learning_rate * scale / (1 - beta1**self.count))

    def state_dict(self) -> dict[str, Any]:
        return {"m": self.m, "v": self.v, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        self.count = int(state["count"])


def value_loss(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[½(V(s) − G)²]."""
    value = model.value(model.features(batch.obs))
    return 0.5 * batch.mean(mse_loss(value, batch.return_, reduction="none"))


def fit_value(
    model: ActorCritic,
    optimizer: Adam,
    batch: Buffer,
    epochs: int,
    minibatch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
) -> None:
    """Regresses the value on the returns: `epochs` passes of Adam over minibatches of `value_loss`."""
    for _ in range(epochs):
        for minibatch in batch.minibatches(minibatch_size, rng):
            optimizer.minimize(value_loss, model, minibatch, learning_rate=learning_rate)
