"""The Fisher information matrix of a policy, as products with vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.autograd import forward_ad

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Distribution
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, first_line
from rlzoo.core.system.progress import track
from rlzoo.optim.natural_gradient import FlatPolicy, T, add_gradients, leaves_of
from rlzoo.optim.objective import micro_batches
from rlzoo.optim.vectors import Vector, inner


class Jacobian:
    """J = ∂y/∂θ of a policy at θ, where y are the tensors of its distribution in the states of a micro-batch.

    The graph of Jᵀ is built once, and the graph of J with the first `push`.
    """

    def __init__(self, policy: FlatPolicy, theta: Vector, part: Buffer) -> None:
        self.policy, self.leaves = policy, leaves_of(policy, theta)
        distribution = policy(self.leaves, lambda model: model.distribution(part.obs))
        self.distribution = distribution.detach()
        self._outputs = distribution.tensors()
        self.moving = self.of_moving(self._outputs)
        """The outputs that depend on θ."""
        self.inputs = self.leaves
        """The tensors that the graph of `moving` begins with."""

    def of_moving(self, xs: Sequence[T]) -> list[T]:
        """The elements for the outputs in `moving`, from a sequence with one element for each output."""
        return [x for x, y in zip(xs, self._outputs, strict=True) if y.requires_grad]

    def directions(self, v: Vector) -> list[Tensor]:
        """The derivatives of `inputs` in the direction v."""
        return self.policy.unflatten(v)

    @cached_property
    def _transpose(self) -> tuple[list[Tensor], list[Tensor]]:
        """Cotangents u of `moving`, and their product with its Jacobian by `inputs` as a function of u."""
        us = [torch.zeros_like(y, requires_grad=True) for y in self.moving]
        with torch.enable_grad():
            pulled = torch.autograd.grad(self.moving, self.inputs, us, create_graph=True, materialize_grads=True)
        return us, list(pulled)

    def push(self, v: Vector) -> list[Tensor]:
        """J·v, without a pass through the policy: the gradient of ⟨Jᵀu, v⟩ in u."""
        us, pulled = self._transpose
        pairs = [(x, w) for x, w in zip(pulled, self.directions(v), strict=True) if x.requires_grad]
        gradients, directions = zip(*pairs, strict=True)
        try:
            tangents = iter(torch.autograd.grad(gradients, us, directions, retain_graph=True))
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            fault = "the policy has no second derivatives, which Fisher products need"
            remedy = "attention has them inside torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
            raise ConfigError(f"{fault}: {first_line(error)}; {remedy}") from error
        return [next(tangents) if y.requires_grad else torch.zeros_like(y) for y in self._outputs]

    def pull(self, cotangents: list[Tensor], total: Vector, keep: bool) -> None:
        """total ← total + Jᵀ·cotangents. With `keep`, there may be another product."""
        add_gradients(total, self.moving, self.leaves, self.of_moving(cotangents), retain_graph=keep)


def jacobian(policy: FlatPolicy, theta: Vector, part: Buffer) -> Jacobian:
    """The `Jacobian` of a policy, of the kind that its model asks for."""
    return (policy.model.jacobian or Jacobian)(policy, theta, part)


class FisherProduct:
    """v ↦ (F + damping·I)·v (see `fisher_vector_product`)."""

    def __init__(self, policy: FlatPolicy, theta: Vector, batch: Buffer, damping: float) -> None:
        self.policy, self.theta, self.batch, self.damping = policy, theta, batch, damping
        self._parts = list(micro_batches(policy.model, batch))

    @cached_property
    def _shared(self) -> Jacobian | None:
        """The Jacobian that all products use, if the batch is one micro-batch."""
        with torch.enable_grad():
            return jacobian(self.policy, self.theta, self._parts[0]) if len(self._parts) == 1 else None

    def pushed(self, v: Vector) -> Iterator[tuple[Buffer, list[Tensor], list[Tensor]]]:
        """Each micro-batch with J·v and M·J·v.

        If the policy sees single steps, there is no forward-mode pass: even one `push` is faster, since the first such
        pass imports PyTorch's compiler.
        """
        for part in track("micro-batch", self._parts):
            kept = self._shared if self.policy.model.context == 1 else None
            if kept is not None:
                distribution, tangents = kept.distribution, kept.push(v)
            else:
                distribution, tangents = _moving(self.policy, self.theta, v, part)
            yield part, tangents, distribution.fisher(tangents, part.weight)

    def __call__(self, v: Vector) -> Vector:
        kept, total = self._shared, torch.zeros_like(v)
        for part, _, cotangents in self.pushed(v):
            (kept or Jacobian(self.policy, self.theta, part)).pull(cotangents, total, keep=kept is not None)
        processes.all_reduce_(total)
        return total.add_(v, alpha=self.damping) if self.damping else total


def fisher_vector_product(policy: FlatPolicy, theta: Vector, batch: Buffer, damping: float = 0.0) -> FisherProduct:
    """v ↦ (F + damping·I)·v, where F is the Fisher information matrix at θ, averaged over the states of the batch.

    F is averaged in closed form over actions, and equals the Hessian of the mean KL(π_θ ‖ π_θ') in θ' at θ (Schulman et
    al. 2015, App. C.1). F·v = E[Jᵀ·M·J·v] (Schraudolph 2002): J is the Jacobian of the distribution's tensors, M their
    Fisher matrix in each state. J·v takes a forward-mode pass, Jᵀ a backward pass. If the batch is one micro-batch, the
    graph of the backward passes is built once and kept; and if the policy sees single steps, so is that of J·v.
    """
    return FisherProduct(policy, theta, batch, damping)


@torch.no_grad()
def fisher_curvature(policy: FlatPolicy, theta: Vector, batch: Buffer, x: Vector) -> float:
    """xᵀFx (see `fisher_vector_product`), without the backward pass Jᵀ.

    It is a mean over all rows, even if F·v in conjugate gradient is one over some of them: it gives the length of the
    step, and F from few rows makes the step too long.
    """
    total = 0.0
    for _, tangents, cotangents in FisherProduct(policy, theta, batch, damping=0.0).pushed(x):
        total += sum(inner(u.reshape(-1), y.reshape(-1)) for u, y in zip(tangents, cotangents, strict=True))
    return processes.all_reduce(total)


@torch.no_grad()
def _moving(policy: FlatPolicy, theta: Vector, v: Vector, part: Buffer) -> tuple[Distribution, list[Tensor]]:
    """π_θ in the states of a micro-batch, and J·v (see `Jacobian`), by a forward-mode pass."""
    with forward_ad.dual_level():
        moving = forward_ad.make_dual(theta.detach(), v)  # type: ignore[no-untyped-call]
        try:
            dual = policy(moving, lambda model: model.distribution(part.obs))
        except NotImplementedError as error:
            fault = "the policy has no forward-mode derivatives, which Fisher products need"
            raise ConfigError(f"{fault}: {first_line(error)}") from error
        pairs = [forward_ad.unpack_dual(x) for x in dual.tensors()]  # type: ignore[no-untyped-call]
        tangents = [torch.zeros_like(x) if u is None else u for x, u in pairs]
        return dual.with_tensors([x for x, _ in pairs]), tangents
