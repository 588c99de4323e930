"""A faster Adam: the backward pass of MLPs is written out, or the step is compiled to native code."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic, Term, flatten_parameters, unflatten
from rlzoo.core.system.progress import track
from rlzoo.optim.adam import Adam
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.fast.compilation import Compilation, signature
from rlzoo.optim.fast.native import other_tensors, pad, pure
from rlzoo.optim.fast.tape import Tape
from rlzoo.optim.objective import Loss
from rlzoo.optim.vectors import Vector, clip_norm

_LATE = torch.tensor(torch.inf)
"""The number of a step at which Adam's bias corrections are 1: the caller's step size and ε have them already."""


class FastAdam(Adam):
    """An `Adam` whose gradients and steps are computed faster. It takes over the parameters and moments of `adam`.

    Args:
        compile: whether to run the steps of an update as native code, which is compiled for each shape of buffer (see
            `rlzoo.optim.fast.compilation`), with the number of rows rounded up to a power of two. Steps with an
            auxiliary loss, a `KLStop` or hooks on gradients are not, nor those of a loss that reads variables of an
            enclosing function, or has default arguments: they may change, and would be constants of the code.
        waits: whether to wait for the compilation. Until it says so, steps are not native.
    """

    def __init__(self, adam: Adam, compile: bool = False, waits: Callable[[], bool] = lambda: True) -> None:
        vars(self).update(vars(adam))
        self.compile, self._waits = compile, waits
        self._gradient = torch.empty_like(adam.theta)
        self._pieces = list(unflatten(self._gradient, adam.parameters))
        self._compilations: dict[tuple[Any, ...], Compilation] = {}

    def minimize_each(
        self, loss: Loss, model: ActorCritic, minibatches: Iterable[Buffer], *scalars: float, **options: Any
    ) -> tuple[int, float]:
        self.theta = flatten_parameters(self.parameters, self.theta)
        auxiliary = options.get("auxiliary", True) and model.auxiliary
        hooked = any(p._backward_hooks or p._post_accumulate_grad_hooks for p in self.parameters)
        plain = options.get("stop") is None and not auxiliary and not hooked and not _holds_values(loss)
        if self.compile and plain and isinstance(minibatches, Epochs) and minibatches.max_minibatches:
            result = self._native(loss, model, minibatches, scalars, **options)
            if result is not None:
                return result
        return super().minimize_each(loss, model, minibatches, *scalars, **options)

    def step(self, theta: Vector, m: Vector, v: Vector, g: Vector, step_size: float, eps: float) -> None:
        """See `Adam.step`. On a CPU it is PyTorch's kernel of one pass."""
        if theta.device.type != "cpu":
            super().step(theta, m, v, g, step_size, eps)
            return
        beta1, beta2 = self.betas
        torch._fused_adam_(
            [theta], [g], [m], [v], [], [_LATE], lr=step_size, beta1=beta1, beta2=beta2, eps=eps, weight_decay=0.0,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def gradient(self, terms: Sequence[Term], model: ActorCritic) -> Vector:
        """See `Adam.gradient`. Each part is added where it belongs, in memory that the next gradient takes again."""
        g = self._gradient.zero_()
        for p, piece in zip(self.parameters, self._pieces, strict=True):
            p.grad = piece
        try:
            for term in track("micro-batch", terms):
                with Tape() as tape:
                    total = term(model)
                tape.backward(total, self.parameters)
        finally:
            for p in self.parameters:
                p.grad = None
        return g

    def _native(
        self,
        loss: Loss,
        model: ActorCritic,
        minibatches: Epochs,
        scalars: tuple[float, ...],
        learning_rate: float,
        vf_learning_rate: float | None = None,
        max_grad_norm: float | None = None,
        **_: Any,
    ) -> tuple[int, float] | None:
        """`minimize_each` as one call of native code; None if the code is not there (yet)."""
        n, fields = minibatches.buffer.num_rows, pad(minibatches.buffer)
        rows = len(fields[0]) if minibatches.rows == n else minibatches.rows
        most = minibatches.number * -(-len(fields[0]) // rows)
        order, counts = np.zeros((most, rows), np.int64), np.zeros((most, rows), np.bool_)
        rest = other_tensors(model, self.parameters)
        of_value = learning_rate if vf_learning_rate is None else vf_learning_rate
        corrected = [self.bias_corrected(1.0, k) for k in range(most)]
        knobs = self.theta.new_tensor([(learning_rate * size, of_value * size, eps) for size, eps in corrected])
        carry = self.theta, self.m, self.v, self.theta.new_zeros(())
        indices = torch.from_numpy(order), torch.from_numpy(counts)
        inputs = *indices, knobs, self.theta.new_tensor(scalars), *rest.values(), *fields

        # A bound method is that of one object, and a function may be made anew for each update.
        own = loss if inspect.ismethod(loss) else (loss.__module__, loss.__code__)
        kind = own, self.betas, minibatches.whiten, max_grad_norm, *map(signature, inputs)
        if kind not in self._compilations:
            step = _pure_step(loss, model, self, minibatches, list(rest), max_grad_norm)
            self._compilations[kind] = Compilation(step, carry, inputs)
        loop = self._compilations[kind].loop() if self._waits() else None
        if loop is None:
            return None
        drawn = minibatches.draw()
        for row, counted, minibatch in zip(order, counts, drawn, strict=False):
            row[: minibatch.shape[0]], counted[: minibatch.shape[0]] = minibatch.numpy(), True
        theta, m, v, norm = loop(torch.tensor(len(drawn)), *carry, *inputs)
        clip_norm(norm.reshape(1), None, loss.__qualname__)
        self.theta.copy_(theta)
        self.m, self.v = m, v
        self.count += len(drawn)
        increment_version(self.parameters)
        return len(drawn), float(norm)


def _holds_values(loss: Any) -> bool:
    """Whether it has variables of an enclosing function or default arguments besides None, or is no plain function."""
    if not hasattr(loss, "__code__"):
        return True
    defaults = [*(loss.__defaults__ or ()), *(loss.__kwdefaults__ or {}).values()]
    return loss.__closure__ is not None or any(x is not None for x in defaults)


def _pure_step(
    loss: Loss, model: ActorCritic, adam: Adam, minibatches: Epochs, rest: list[str], max_grad_norm: float | None
) -> Callable[..., tuple[Tensor, ...]]:
    """A step of Adam on one minibatch, as a function of tensors.

    (i, θ, m, v, gradient norm, row indices, which of them count, both step sizes and ε, scalars, the model's other
    tensors, the buffer's tensors) -> (θ, m, v, gradient norm).
    """
    evaluated, betas, split = pure(model, adam.parameters, rest), adam.betas, adam.value_start
    like, whiten, others = minibatches.buffer, minibatches.whiten, len(rest)

    def step(
        i: Tensor, theta: Tensor, m: Tensor, v: Tensor, _: Tensor,
        order: Tensor, counts: Tensor, knobs: Tensor, scalars: Tensor, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        rows, counts, (step_size, of_value, eps) = (x.index_select(0, i.reshape(1))[0] for x in (order, counts, knobs))
        batch = like.with_tensors(x.index_select(0, rows) for x in tensors[others:])
        batch = batch.replace(mask=batch.mask & counts[:, None])
        batch = batch.whitened if whiten else batch
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            total = evaluated(theta, tensors[:others], lambda model: loss(model, batch, *scalars.unbind()))
            (g,) = torch.autograd.grad(total, theta)
        norm = torch.linalg.vector_norm(g)
        if max_grad_norm is not None:
            g = g * (max_grad_norm / norm).clamp(max=1)
        m = torch.lerp(m, g, 1 - betas[0])
        v = betas[1] * v + (1 - betas[1]) * g * g
        if split < len(g):
            step_size = torch.cat([step_size.expand(split), of_value.expand(len(g) - split)])
        return theta.detach() - step_size * m / (v.sqrt() + eps), m, v, norm

    return step
