"""Adam on one flat parameter vector, and the regression of a value function."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import increment_version

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic, Term, flatten_parameters
from rlzoo.core.system import processes
from rlzoo.core.system.errors import require
from rlzoo.core.system.progress import operation, track
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.objective import KLStop, Loss, loss_terms, value_loss
from rlzoo.optim.vectors import Vector, clip_norm

_SMALL = 2**20
"""Parameters whose step takes less time in each process than sending them."""
_TINY = 2**14
"""Parameters of a value that takes less time to fit in each process than the messages of its gradients."""


class Adam:
    """Adam (Kingma & Ba 2015) with clipping of the gradient's global norm.

    The parameters become views of one flat vector θ (P,). Of several processes, each keeps the moments of its share of
    θ, makes the step of that share, and gets the others' (Rajbhandari et al. 2020). Of a small θ, each keeps all.

    The parameters in `value` may have a learning rate of their own. They are the last part of θ.
    """

    eps, betas = 1e-5, (0.9, 0.999)

    def __init__(self, parameters: Sequence[nn.Parameter], value: Sequence[nn.Parameter] = ()) -> None:
        last = {id(p) for p in value}
        self.parameters = [p for p in [*(p for p in parameters if id(p) not in last), *value] if p.requires_grad]
        fault = "the policy or the value is frozen or has none; unfreeze it with requires_grad_(True)"
        require(bool(self.parameters), f"there is no parameter to train: {fault}")
        self.theta = flatten_parameters(self.parameters)
        self.sharded = processes.size() > 1 and len(self.theta) > _SMALL
        self.share = processes.share(len(self.theta)) if self.sharded else slice(0, len(self.theta))
        self.m, self.v = (torch.zeros_like(self.theta[self.share]) for _ in range(2))
        self.count = 0
        before_value = len(self.theta) - sum(p.numel() for p in value if p.requires_grad)
        self.value_start = min(max(before_value - self.share.start, 0), len(self.m))  # in this process's share

    def minimize(
        self,
        loss: Loss,
        model: ActorCritic,
        batch: Buffer,
        *scalars: float,
        learning_rate: float,
        vf_learning_rate: float | None = None,
        max_grad_norm: float | None = None,
        auxiliary: bool = True,
        stop: KLStop | None = None,
    ) -> float:
        """One step down the gradient of `loss(model, batch, *scalars)`; returns its norm before clipping.

        With `auxiliary`, the model's auxiliary loss is added. `vf_learning_rate` is the learning rate of the `value`
        parameters. The loss gets `stop` and adds its minibatch's KL to it. If this KL is too large, there is no step.

        Raises:
            NonFiniteError: the gradient is not finite; nothing was changed.
        """
        self.theta = flatten_parameters(self.parameters, self.theta)
        watched = loss if stop is None else functools.partial(loss, stop=stop)
        g = self.gradient(loss_terms(watched, model, batch, *scalars, auxiliary=auxiliary), model)
        if stop is not None and stop.check():
            return 0.0
        grad_norm = clip_norm(processes.all_reduce_(g), max_grad_norm, getattr(loss, "__qualname__", "the loss"))
        theta, g = self.theta[self.share], g[self.share]
        parts = [(slice(None), learning_rate)]
        if vf_learning_rate is not None:
            parts = [(slice(self.value_start), learning_rate), (slice(self.value_start, None), vf_learning_rate)]
        for part, rate in parts:
            self.step(theta[part], self.m[part], self.v[part], g[part], *self.bias_corrected(rate))
        self.finish_step()
        return grad_norm

    def minimize_each(
        self, loss: Loss, model: ActorCritic, minibatches: Iterable[Buffer], *scalars: float,
        stop: KLStop | None = None, **options: Any,
    ) -> tuple[int, float]:  # fmt: skip
        """A step of `minimize` for each minibatch, until a `stop` ends the update.

        Returns the number of steps, and the norm of the last one's gradient.
        """
        steps, grad_norm = 0, 0.0
        for minibatch in minibatches:
            norm = self.minimize(loss, model, minibatch, *scalars, stop=stop, **options)
            if stop is not None and stop.reached:
                break
            steps, grad_norm = steps + 1, norm
        return steps, grad_norm

    def gradient(self, terms: Sequence[Term], model: ActorCritic) -> Vector:
        """The gradient of a sum of terms. Only one term is in memory at a time."""
        g = torch.zeros_like(self.theta)
        for term in track("micro-batch", terms):
            grads = torch.autograd.grad(term(model), self.parameters, allow_unused=True, materialize_grads=True)
            g += torch.cat([x.reshape(-1) for x in grads])
        return g

    def step(self, theta: Vector, m: Vector, v: Vector, g: Vector, step_size: float, eps: float) -> None:
        """One step of θ and its moments, in place."""
        m.lerp_(g, 1 - self.betas[0])  # m ← β₁m + (1 − β₁)g
        v.mul_(self.betas[1]).addcmul_(g, g, value=1 - self.betas[1])  # v ← β₂v + (1 − β₂)g²
        theta.addcdiv_(m, v.sqrt().add_(eps), value=-step_size)  # θ ← θ − η·m̂/(√v̂ + ε)

    def finish_step(self) -> None:
        """After a step of θ's share: gets the other shares, and marks the parameters as changed, which θ does not."""
        if self.sharded:
            processes.all_gather_shares_(self.theta)
        self.count += 1
        increment_version(self.parameters)

    def bias_corrected(self, learning_rate: float, ahead: int = 0) -> tuple[float, float]:
        """Step size and ε of the next step, or of one further ahead, with the bias corrections of both moments."""
        t, (beta1, beta2) = self.count + ahead + 1, self.betas
        root = math.sqrt(1 - beta2**t)
        return learning_rate * root / (1 - beta1**t), self.eps * root

    def state_dict(self) -> dict[str, Any]:
        m, v = (processes.gather_shares(x, len(self.theta)) if self.sharded else x for x in (self.m, self.v))
        return {"m": m, "v": v, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, own in (("m", self.m), ("v", self.v)):
            if state[name].shape != self.theta.shape:
                raise ValueError(f"{name} of shape {tuple(state[name].shape)} given, {len(self.theta)} needed")
            own.copy_(state[name][self.share])
        self.count = int(state["count"])
        if not 0 <= self.count < 2**63:
            raise ValueError(f"{self.count} steps were taken")


def fit_value(
    model: ActorCritic,
    optimizer: Adam,
    batch: Buffer,
    epochs: int,
    minibatch_size: int | Literal["all"],
    learning_rate: float,
    rng: np.random.Generator,
) -> None:
    """Fits the value to the returns: `epochs` passes of Adam over minibatches of `value_loss`.

    The value's features do not depend on its own parameters and are computed once, by each process for its own rows.
    """
    with torch.no_grad():
        features = processes.rowwise(lambda rows: model.value_features(rows.obs), batch)
    batch = batch.replace(obs=features, old=None)
    tiny = sum(p.numel() for p in model.value_parameters()) <= _TINY
    with operation("value"), processes.apart() if tiny else contextlib.nullcontext():
        minibatches = Epochs(batch, epochs, minibatch_size, rng)
        optimizer.minimize_each(value_loss, model, minibatches, learning_rate=learning_rate, auxiliary=False)
