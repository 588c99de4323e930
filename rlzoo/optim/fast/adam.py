"""A faster Adam: the backward pass of MLPs is written out, or the step is compiled to native code."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic, Term, unflatten
from rlzoo.core.system.progress import track
from rlzoo.optim.adam import Adam
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.fast.compilation import Compilation
from rlzoo.optim.fast.tape import Tape
from rlzoo.optim.natural_gradient import TermView
from rlzoo.optim.objective import Loss
from rlzoo.optim.vectors import Vector, clip_norm

_LATE = torch.tensor(torch.inf)
"""The number of a step at which Adam's bias corrections are 1: the caller's step size and ε have them already."""


class FastAdam(Adam):
    """An `Adam` whose gradients and steps are computed faster. It takes over the parameters and moments of `adam`.

    Args:
        compile: whether to run the steps of an update as native code, which is compiled for each shape of buffer (see
            `rlzoo.optim.fast.compilation`), with the number of rows rounded up to a power of two. Steps with an
            auxiliary loss or a `KLStop` are not, nor those of a loss that reads variables of an enclosing function:
            they may change, and would be constants of the code.
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
        auxiliary = options.get("auxiliary", True) and model.auxiliary
        closure = getattr(inspect.unwrap(loss), "__closure__", None)
        plain = options.get("stop") is None and not auxiliary and closure is None
        if self.compile and plain and isinstance(minibatches, Epochs) and minibatches.most:
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
        most, rows, fields = _padded(minibatches)
        mine, order = {id(p) for p in self.parameters}, torch.zeros(most, rows, dtype=torch.int64)
        state = [*model.named_parameters(), *model.named_buffers()]
        rest = {name: x.detach() for name, x in state if id(x) not in mine}
        of_value = learning_rate if vf_learning_rate is None else vf_learning_rate
        corrected = [self.bias_corrected(1.0, k) for k in range(most)]
        knobs = self.theta.new_tensor([(learning_rate * size, of_value * size, eps) for size, eps in corrected])
        carry = self.theta, self.m, self.v, self.theta.new_zeros(())
        inputs = order, order.bool(), knobs, self.theta.new_tensor(scalars), *rest.values(), *fields

        kind = loss.__qualname__, minibatches.whiten, max_grad_norm, *(x.shape for x in (order, *fields))
        if kind not in self._compilations:
            step = _pure_step(loss, model, self, minibatches, list(rest), max_grad_norm)
            key = partial(_key, loss, model, self, minibatches, max_grad_norm)
            self._compilations[kind] = Compilation(step, carry, inputs, key)
        loop = self._compilations[kind].loop() if self._waits() else None
        if loop is None:
            return None
        drawn = minibatches.drawn()
        for row, counts, indices in zip(*inputs[:2], drawn, strict=False):
            row[: len(indices)], counts[: len(indices)] = indices, True
        theta, m, v, norm = loop(torch.tensor(len(drawn)), *carry, *inputs)
        clip_norm(norm.reshape(1), None, loss.__qualname__)
        self.theta.copy_(theta)
        self.m, self.v = m, v
        self.count += len(drawn)
        increment_version(self.parameters)
        return len(drawn), float(norm)


def _padded(minibatches: Epochs) -> tuple[int, int, list[Tensor]]:
    """The number of minibatches, rows in each, and tensors of a buffer that ends with zeros which no minibatch has.

    With them its rows are a power of two, so that few loops serve whole episodes, of which no two buffers are equal.
    """
    n, tensors = minibatches.buffer.num_rows, minibatches.buffer.tensors()
    rounded = 1 << (n - 1).bit_length()
    rows = rounded if minibatches.rows == n else minibatches.rows
    fields = [torch.cat([x, x.new_zeros(rounded - n, *x.shape[1:])]) for x in tensors] if rounded > n else tensors
    return minibatches.number * -(-rounded // rows), rows, fields


def _pure_step(
    loss: Loss, model: ActorCritic, adam: Adam, minibatches: Epochs, rest: list[str], max_grad_norm: float | None
) -> Callable[..., tuple[Tensor, ...]]:
    """A step of Adam on one minibatch, as a function of tensors.

    (i, θ, m, v, gradient norm, row indices, which of them count, both step sizes and ε, scalars, the model's other
    tensors, the buffer's tensors) -> (θ, m, v, gradient norm).
    """
    by_id = {id(p): name for name, p in model.named_parameters()}
    parameters, names = adam.parameters, [by_id[id(p)] for p in adam.parameters]
    view, betas, split = TermView(model), adam.betas, adam.rest
    like, whiten = minibatches.buffer, minibatches.whiten

    def step(
        i: Tensor, theta: Tensor, m: Tensor, v: Tensor, _: Tensor,
        order: Tensor, counts: Tensor, knobs: Tensor, scalars: Tensor, *tensors: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        rows, counts, (step_size, of_value, eps) = (x.index_select(0, i.reshape(1))[0] for x in (order, counts, knobs))
        batch = like.with_tensors(x.index_select(0, rows) for x in tensors[len(rest) :])
        batch = batch.replace(mask=batch.mask & counts[:, None])
        batch = batch.whitened if whiten else batch
        with torch.enable_grad():
            theta = theta.detach().requires_grad_()
            own = zip(names, map(_laid_out, unflatten(theta, parameters)), strict=True)
            values = [*own, *zip(rest, tensors, strict=False)]
            inputs = {f"model.{name}": x for name, x in values}
            total = torch.func.functional_call(view, inputs, (lambda model: loss(model, batch, *scalars.unbind()),))
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


def _laid_out(x: Tensor) -> Tensor:
    """The same numbers; a matrix of few columns lies by columns, so that autograd's gradient for it has long rows.

    See `rlzoo.optim.fast.tape.add_affine`.
    """
    return x.t().contiguous().t() if x.dim() == 2 and x.shape[1] < x.shape[0] else x


def _key(loss: Loss, model: ActorCritic, adam: Adam, minibatches: Epochs, max_grad_norm: float | None) -> str:
    """Identifies what a step depends on besides its tensors: settings, attributes of modules, source code."""
    names = {id(x): name for name, x in [*model.named_parameters(), *model.named_buffers()]}
    code = [inspect.unwrap(loss), *(type(module) for module in model.modules())]
    of_user = [x for x in code if not x.__module__.startswith(("rlzoo.", "torch."))]
    common = vars(nn.Module()).keys()

    def held(module: nn.Module) -> dict[str, Any]:
        """What a module holds besides its tensors; of one of this package, what was given to it."""
        own = {k: x for k, x in vars(module).items() if k not in common}
        return {k: _as_text(x, names) for k, x in own.items() if k[0] != "_" or type(module) in of_user}

    modules = [(name, type(module), held(module)) for name, module in model.named_modules()]
    files = {Path(inspect.getfile(x)) for x in of_user if x.__module__ != "__main__"}
    files |= {*Path(__file__).parents[2].rglob("*.py"), *(_files_of_the_user() if of_user else [])}
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()
    interactive = not hasattr(sys.modules["__main__"], "__file__")
    if interactive and any(x.__module__ == "__main__" for x in of_user):  # of a notebook, in no file
        source += os.urandom(8).hex()
    settings = getattr(loss, "__self__", None), adam.betas, adam.rest, max_grad_norm, minibatches.whiten
    return repr((loss.__qualname__, settings, list(names.values()), modules, source))


def _as_text(x: Any, names: Mapping[int, str]) -> Any:
    """A module's attribute as something whose `repr` identifies it: of a tensor of the model its name."""
    if id(x) in names:
        return names[id(x)]
    if isinstance(x, Mapping):
        return [(key, _as_text(value, names)) for key, value in x.items()]
    if isinstance(x, list | tuple):
        return [_as_text(value, names) for value in x]
    by_value = callable(x) or isinstance(x, Tensor | np.ndarray)
    return hashlib.sha256(cloudpickle.dumps(x)).hexdigest() if by_value else x


def _files_of_the_user() -> set[Path]:
    """The source files that this process has imported from elsewhere than Python's own folders."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    return {Path(x) for x in files if x.endswith(".py") and not x.startswith(installed) and os.path.isfile(x)}
