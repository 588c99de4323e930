"""The Fisher information matrix of a policy, as products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import compress

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Distribution
from rlzoo.core.system import processes
from rlzoo.core.system.progress import track
from rlzoo.optim.natural_gradient import FlatPolicy, add_gradients, leaves_of
from rlzoo.optim.objective import micro_batches
from rlzoo.optim.vectors import Vector

_Moving = Callable[[Vector, Buffer], tuple[Distribution, list[Tensor]]]
"""(v, micro-batch) ↦ π_θ in its states, and the derivative of its tensors in the direction v."""


def fisher_vector_product(
    policy: FlatPolicy, theta: Vector, batch: Buffer, damping: float = 0.0
) -> Callable[[Vector], Vector]:
    """v ↦ (F + damping·I)·v, where F is the Fisher information matrix at θ, averaged over the states of the batch.

    F is averaged in closed form over actions, and equals the Hessian of the mean KL(π_θ ‖ π_θ') in θ' at θ (Schulman et
    al. 2015, App. C.1). F·v = E[Jᵀ·M·J·v] (Schraudolph 2002): J is the Jacobian of the distribution's tensors, M their
    Fisher matrix in each state. J·v takes a forward-mode pass, Jᵀ a backward pass. If the batch is one micro-batch, the
    graph of the backward passes is built once and kept; and if the policy sees single steps, so is that of J·v.
    """
    leaves = leaves_of(policy, theta)
    parts = list(micro_batches(policy.model, batch))
    kept = _at(policy, leaves, parts[0]) if len(parts) == 1 else None
    moving: _Moving = partial(_moving, policy, theta)
    if kept is not None and policy.model.context == 1:
        moving = _moving_by_kept_graph(policy, leaves, kept)

    def product(v: Vector) -> Vector:
        total = torch.zeros_like(v)
        for part in track("micro-batch", parts):
            distribution, tangents = moving(v, part)
            forces = distribution.fisher(tangents, part.weight)
            outputs = (kept or _at(policy, leaves, part)).tensors()
            add_gradients(total, outputs, leaves, forces, retain_graph=kept is not None)
        processes.all_reduce_(total)
        return total.add_(v, alpha=damping) if damping else total

    return product


def _at(policy: FlatPolicy, leaves: list[Tensor], part: Buffer) -> Distribution:
    """π_θ in the states of a micro-batch, with its graph."""
    return policy(leaves, lambda model: model.distribution(part.obs))


def _moving_by_kept_graph(policy: FlatPolicy, leaves: list[Tensor], distribution: Distribution) -> _Moving:
    """`_moving` of one micro-batch, without a pass through the policy: J·v is the gradient of ⟨Jᵀu, v⟩ in u."""
    outputs, constant = distribution.tensors(), distribution.detach()
    moving = [y for y in outputs if y.requires_grad]
    us = [torch.zeros_like(y, requires_grad=True) for y in moving]
    pulled = torch.autograd.grad(moving, leaves, us, create_graph=True, materialize_grads=True)
    depend = [x.requires_grad for x in pulled]

    def moved(v: Vector, _: Buffer) -> tuple[Distribution, list[Tensor]]:
        gradients, directions = (list(compress(xs, depend)) for xs in (pulled, policy.unflatten(v)))
        tangents = iter(torch.autograd.grad(gradients, us, directions, retain_graph=True))
        return constant, [next(tangents) if y.requires_grad else torch.zeros_like(y) for y in outputs]

    return moved


@torch.no_grad()
def fisher_curvature(policy: FlatPolicy, theta: Vector, batch: Buffer, x: Vector) -> float:
    """xᵀFx (see `fisher_vector_product`), without the backward pass Jᵀ.

    Over all rows, even where F·v in conjugate gradient is over some of them: it gives the length of the step, and F of
    few rows makes the step too long.
    """
    parts = list(micro_batches(policy.model, batch))
    moving: _Moving = partial(_moving, policy, theta)
    if len(parts) == 1 and policy.model.context == 1:
        # Not for the time of a product: PyTorch's forward mode imports its compiler for an operation with a constant.
        with torch.enable_grad():
            leaves = leaves_of(policy, theta)
            moving = _moving_by_kept_graph(policy, leaves, _at(policy, leaves, parts[0]))
    total = 0.0
    for part in track("micro-batch", parts):
        distribution, tangents = moving(x, part)
        forces = distribution.fisher(tangents, part.weight)
        total += sum(float((u * force).sum()) for u, force in zip(tangents, forces, strict=True))
    return processes.all_reduce(total)


@torch.no_grad()
def _moving(policy: FlatPolicy, theta: Vector, v: Vector, part: Buffer) -> tuple[Distribution, list[Tensor]]:
    """See `_Moving`. By a forward-mode pass."""
    with forward_ad.dual_level():
        moving = forward_ad.make_dual(theta.detach(), v)  # type: ignore[no-untyped-call]
        dual = policy(moving, lambda model: model.distribution(part.obs))
        pairs = [forward_ad.unpack_dual(x) for x in dual.tensors()]  # type: ignore[no-untyped-call]
        tangents = [torch.zeros_like(x) if u is None else u for x, u in pairs]
        return dual.with_tensors([x for x, _ in pairs]), tangents
