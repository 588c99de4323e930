"""Adam on one flat parameter vector, and the regression of a critic: all first-order gradients."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from rlzoo.control.networks import Tape
from rlzoo.core.buffer import Buffer
from rlzoo.core.errors import NonFiniteError
from rlzoo.core.models import ActorCritic, flatten_parameters, unflatten
from rlzoo.optim.fast.compilation import compiled

_BLOCK = 2**20
"""Components of θ that a step treats at a time, so that what it needs besides stays in the processor's cache."""

Loss = Callable[..., Tensor]
"""`(model, batch, *scalars) -> scalar`, pure but for the model's parameters."""


class Adam:
    """Adam (Kingma & Ba 2015) with global gradient-norm clipping, in a handful of operations.

    The parameters become views of one flat vector, so that a step costs the same however many there are.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], eps: float = 1e-5, betas: tuple[float, float] = (0.9, 0.999)
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        self.theta = flatten_parameters(self.parameters)
        self.m = torch.zeros_like(self.theta)
        self.v = torch.zeros_like(self.theta)
        self.count = 0
        self.eps = eps
        self.betas = betas
        self._grad: Tensor | None = None  # kept, because new memory of this size costs as much as the arithmetic
        self.compile = False
        """Run each step as native code, see `rlzoo.optim.fast.compilation`."""
        self._programs: dict[tuple[Any, ...], tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]] = {}

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
        if self.compile:
            return self._compiled_step(loss, model, batch, scalars, learning_rate, max_grad_norm)
        g = self._gradient(loss, model, batch, scalars)
        norm = float(torch.linalg.vector_norm(g))
        _check_finite(norm, loss)
        if max_grad_norm is not None and norm > max_grad_norm:
            g.mul_(max_grad_norm / norm)
        step, eps = self._bias_corrected(learning_rate)
        whole = self.theta, self.m, self.v, g
        blocks = [whole] if len(g) <= _BLOCK else zip(*(torch.split(x, _BLOCK) for x in whole), strict=True)
        for theta, m, v, grad in blocks:
            m.lerp_(grad, 1 - self.betas[0])
            v.mul_(self.betas[1]).addcmul_(grad, grad, value=1 - self.betas[1])
            theta.addcdiv_(m, v.sqrt().add_(eps), value=-step)
        self.count += 1
        return norm

    def _gradient(self, loss: Loss, model: ActorCritic, batch: Buffer, scalars: tuple[float, ...]) -> Tensor:
        """The gradient (P,) of the loss over the parts of the batch; only one part is in memory at a time."""
        g: Tensor | None = None
        for part in batch.parts(model.part_steps):
            with Tape() as tape:
                total = loss(model, part, *scalars)
                if tape.used:
                    flat = torch.cat([grad.reshape(-1) for grad in tape.gradients(total, self.parameters)])
                    g = flat if g is None else g.add_(flat)
                    continue
            if g is None:
                self._grad = torch.zeros_like(self.theta) if self._grad is None else self._grad.zero_()
                g = self._grad
            for p, view in zip(self.parameters, unflatten(g, self.parameters), strict=True):
                p.grad = view  # backward adds to it in place
            torch.autograd.backward(total, inputs=self.parameters)
            for p in self.parameters:
                p.grad = None
        assert g is not None
        return g

    def _bias_corrected(self, learning_rate: float) -> tuple[float, float]:
        """Step size and ε of the next step, with both moments' bias corrections moved into them."""
        t, (beta1, beta2) = self.count + 1, self.betas
        root = math.sqrt(1 - beta2**t)
        return learning_rate * root / (1 - beta1**t), self.eps * root

    def _compiled_step(
        self,
        loss: Loss,
        model: ActorCritic,
        batch: Buffer,
        scalars: tuple[float, ...],
        learning_rate: float,
        max_grad_norm: float | None,
    ) -> float:
        """`minimize` as one call into native code, compiled for each shape of batch."""
        fields = batch.tensors()
        shapes = loss.__qualname__, *(x.shape for x in fields)
        knobs = torch.tensor([*self._bias_corrected(learning_rate), *scalars], dtype=self.theta.dtype)
        if shapes not in self._programs:
            mine = {id(p) for p in self.parameters}
            state = [*model.named_parameters(), *model.named_buffers()]
            rest = {name: x.detach() for name, x in state if id(x) not in mine}
            step = self._pure_step(loss, model, batch, list(rest), max_grad_norm)
            example = (self.theta, self.m, self.v, knobs, *rest.values(), *fields)
            run = compiled(step, example, _key(loss, model, self, max_grad_norm))
            self._programs[shapes] = run, list(rest.values())
        run, others = self._programs[shapes]
        theta, m, v, norm = run(self.theta, self.m, self.v, knobs, *others, *fields)
        _check_finite(float(norm), loss)
        self.theta.copy_(theta)
        self.m, self.v = m, v
        self.count += 1
        return float(norm)

    def _pure_step(
        self, loss: Loss, model: ActorCritic, like: Buffer, rest: list[str], max_grad_norm: float | None
    ) -> Callable[..., tuple[Tensor, ...]]:
        """(θ, m, v, knobs, the model's other tensors, the batch's tensors) -> (θ, m, v, gradient norm)."""
        names = {id(p): name for name, p in model.named_parameters()}
        view = _LossView(model, loss)

        def step(theta: Tensor, m: Tensor, v: Tensor, knobs: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                theta = theta.detach().requires_grad_()
                parts = zip(self.parameters, unflatten(theta, self.parameters), strict=True)
                values = {names[id(p)]: part for p, part in parts} | dict(zip(rest, tensors, strict=False))
                batch = like.with_tensors(tensors[len(rest) :])
                inputs = {f"model.{name}": x for name, x in values.items()}
                total = torch.func.functional_call(view, inputs, (batch, *knobs[2:].unbind()))
                (g,) = torch.autograd.grad(total, theta)
            norm = torch.linalg.vector_norm(g)
            if max_grad_norm is not None:
                g = g * (max_grad_norm / norm).clamp(max=1)
            m = torch.lerp(m, g, 1 - self.betas[0])
            v = self.betas[1] * v + (1 - self.betas[1]) * g * g
            return theta.detach() - knobs[0] * m / (v.sqrt() + knobs[1]), m, v, norm

        return step

    def state_dict(self) -> dict[str, Any]:
        return {"m": self.m, "v": self.v, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.m.copy_(state["m"])
        self.v.copy_(state["v"])
        self.count = int(state["count"])


class _LossView(nn.Module):
    def __init__(self, model: ActorCritic, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Buffer, *scalars: Tensor) -> Tensor:
        return self.loss(self.model, batch, *scalars)


def _check_finite(norm: float, loss: Loss) -> None:
    if not math.isfinite(norm):
        raise NonFiniteError(f"gradient of {loss.__qualname__} is not finite")


def _key(loss: Loss, model: ActorCritic, adam: Adam, max_grad_norm: float | None) -> str:
    """All that a compiled step holds besides its inputs: settings, the modules' plain attributes, source."""
    plain = (bool, int, float, str, tuple, list, type(None))
    modules = [
        (name, type(module), {k: x for k, x in vars(module).items() if k[0] != "_" and isinstance(x, plain)})
        for name, module in model.named_modules()
    ]
    files = {Path(inspect.getfile(inspect.unwrap(loss))), *Path(__file__).parents[1].rglob("*.py")}
    files |= {Path(inspect.getfile(type(module))) for module in model.modules()}
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()
    settings = loss.__qualname__, getattr(loss, "__self__", None), adam.betas, max_grad_norm
    return repr((settings, [name for name, _ in model.named_parameters()], modules, source))


def value_loss(model: ActorCritic, batch: Buffer) -> Tensor:
    """E[½(V(s) − G)²], with what `model.value` takes in the place of the observations."""
    value = model.value(batch.obs)
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
    """Regresses the value on the returns: `epochs` passes of Adam over minibatches of `value_loss`.

    What does not depend on the value's own parameters is computed once.
    """
    with torch.no_grad():
        batch = batch.replace(obs=model.value_features(batch.obs), demo=Buffer.demo)
    for _ in range(epochs):
        for minibatch in batch.minibatches(minibatch_size, rng):
            optimizer.minimize(value_loss, model, minibatch, learning_rate=learning_rate)
