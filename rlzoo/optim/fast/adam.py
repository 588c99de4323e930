"""A faster Adam: the backward pass of MLPs is written out, or the step is compiled to native code."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic, Term, unflatten
from rlzoo.core.system.progress import track
from rlzoo.optim.adam import Adam, clip_norm
from rlzoo.optim.fast.compilation import compiled
from rlzoo.optim.fast.tape import Tape
from rlzoo.optim.objective import Loss
from rlzoo.optim.vectors import Vector

_BLOCK = 2**20
"""Components of θ that are updated together, so that the intermediate results stay in the processor's cache."""


class FastAdam(Adam):
    """An `Adam` whose gradients and steps are computed faster. It takes over the parameters and moments of `adam`.

    Args:
        compile: run steps as native code, which is compiled for each shape of batch (see
            `rlzoo.optim.fast.compilation`). Steps with an auxiliary loss or two learning rates are not compiled.
    """

    def __init__(self, adam: Adam, compile: bool = False) -> None:
        vars(self).update(vars(adam))
        self.compile = compile
        self._gradient = torch.empty_like(adam.theta)
        self._pieces = list(unflatten(self._gradient, adam.parameters))
        self._programs: dict[tuple[Any, ...], tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]] = {}

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
    ) -> float:
        if self.compile and vf_learning_rate is None and not (auxiliary and model.auxiliary):
            return self._compiled_step(loss, model, batch, scalars, learning_rate, max_grad_norm)
        rates: Any = {"learning_rate": learning_rate, "vf_learning_rate": vf_learning_rate}
        limits: Any = {"max_grad_norm": max_grad_norm, "auxiliary": auxiliary}
        return super().minimize(loss, model, batch, *scalars, **rates, **limits)

    def step(self, theta: Vector, m: Vector, v: Vector, g: Vector, step_size: float, eps: float) -> None:
        if len(m) <= _BLOCK:
            super().step(theta, m, v, g, step_size, eps)
            return
        for start in range(0, len(m), _BLOCK):
            block = slice(start, start + _BLOCK)
            super().step(theta[block], m[block], v[block], g[block], step_size, eps)

    def gradient(self, terms: Sequence[Term], model: ActorCritic) -> Vector:
        """See `Adam.gradient`. The memory of the result is used again for the next."""
        g = self._gradient.zero_()
        for term in track("micro-batch", terms):
            with Tape() as tape:
                total = term(model)
                if tape.used:
                    g.add_(torch.cat([x.reshape(-1) for x in tape.gradients(total, self.parameters)]))
                    continue
            self._accumulate(total)
        return g

    def _accumulate(self, total: Tensor) -> None:
        """Adds the gradient of a scalar. Autograd adds into `.grad`, so these are pieces of the vector."""
        for p, piece in zip(self.parameters, self._pieces, strict=True):
            p.grad = piece
        try:
            torch.autograd.backward(total, inputs=self.parameters)
        finally:
            for p in self.parameters:
                p.grad = None

    def _compiled_step(
        self,
        loss: Loss,
        model: ActorCritic,
        batch: Buffer,
        scalars: tuple[float, ...],
        learning_rate: float,
        max_grad_norm: float | None,
    ) -> float:
        """`minimize` as one call of native code."""
        fields = batch.tensors()
        shapes = loss.__qualname__, *(x.shape for x in fields)
        knobs = torch.tensor([*self.bias_corrected(learning_rate), *scalars], dtype=self.theta.dtype)
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
        clip_norm(norm.reshape(1), None, loss.__qualname__)
        self.theta.copy_(theta)
        self.m, self.v = m, v
        self.stepped()
        return float(norm)

    def _pure_step(
        self, loss: Loss, model: ActorCritic, like: Buffer, rest: list[str], max_grad_norm: float | None
    ) -> Callable[..., tuple[Tensor, ...]]:
        """(θ, m, v, knobs, the model's other tensors, the batch's tensors) -> (θ, m, v, gradient norm)."""
        names = {id(p): name for name, p in model.named_parameters()}
        view, parameters, betas = _LossView(model, loss), self.parameters, self.betas

        def step(theta: Tensor, m: Tensor, v: Tensor, knobs: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                theta = theta.detach().requires_grad_()
                parts = zip(parameters, unflatten(theta, parameters), strict=True)
                values = {names[id(p)]: part for p, part in parts} | dict(zip(rest, tensors, strict=False))
                batch = like.with_tensors(tensors[len(rest) :])
                inputs = {f"model.{name}": x for name, x in values.items()}
                total = torch.func.functional_call(view, inputs, (batch, *knobs[2:].unbind()))
                (g,) = torch.autograd.grad(total, theta)
            norm = torch.linalg.vector_norm(g)
            if max_grad_norm is not None:
                g = g * (max_grad_norm / norm).clamp(max=1)
            m = torch.lerp(m, g, 1 - betas[0])
            v = betas[1] * v + (1 - betas[1]) * g * g
            return theta.detach() - knobs[0] * m / (v.sqrt() + knobs[1]), m, v, norm

        return step


class _LossView(nn.Module):
    def __init__(self, model: ActorCritic, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Buffer, *scalars: Tensor) -> Tensor:
        return self.loss(self.model, batch, *scalars)


def _key(loss: Loss, model: ActorCritic, adam: Adam, max_grad_norm: float | None) -> str:
    """Identifies what a compiled step depends on besides its inputs: settings, attributes of modules, source code."""
    plain = (bool, int, float, str, tuple, list, type(None))
    modules = [
        (name, type(module), {k: x for k, x in vars(module).items() if k[0] != "_" and isinstance(x, plain)})
        for name, module in model.named_modules()
    ]
    files = {Path(inspect.getfile(inspect.unwrap(loss))), *Path(__file__).parents[2].rglob("*.py")}
    files |= {Path(inspect.getfile(type(module))) for module in model.modules()}
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()
    settings = loss.__qualname__, getattr(loss, "__self__", None), adam.betas, max_grad_norm
    return repr((settings, [name for name, _ in model.named_parameters()], modules, source))
