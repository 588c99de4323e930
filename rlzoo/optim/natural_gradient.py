"""Natural gradients on flat vectors: functions of θ, conjugate gradient, line search."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic, Term, TermView, unflatten
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, NonFiniteError, require
from rlzoo.core.system.progress import operation, track
from rlzoo.optim.objective import Surrogate, auxiliary_terms, micro_batches
from rlzoo.optim.vectors import Vector, inner

T = TypeVar("T")


class FlatPolicy:
    """The model as a function of its trained policy parameters, one flat vector θ. Only `assign` changes it."""

    def __init__(self, model: ActorCritic) -> None:
        self.model = model
        wanted = {id(p) for p in model.policy_parameters() if p.requires_grad}
        self.named = {f"model.{name}": p for name, p in model.named_parameters() if id(p) in wanted}
        """The policy parameters, in the order of θ."""
        self._view = TermView(model, list(self.named.values()))
        require(bool(self.named), "there is no parameter of the policy to train: unfreeze it with requires_grad_(True)")

    @property
    def theta(self) -> Vector:
        """A copy of the model's policy parameters."""
        return torch.cat([p.detach().reshape(-1) for p in self.named.values()])

    def unflatten(self, theta: Vector) -> list[Tensor]:
        """Views of θ in the shapes of the parameters."""
        return list(unflatten(theta, list(self.named.values())))

    def __call__(self, theta: Vector | Sequence[Tensor], term: Callable[[ActorCritic], T]) -> T:
        """`term(model)` with the policy parameters θ, given as one vector or as `unflatten` gives them."""
        values = self.unflatten(theta) if isinstance(theta, Tensor) else theta
        return self._view.at(values, term)

    @torch.no_grad()
    def assign(self, theta: Vector) -> None:
        """Writes θ into the model."""
        for p, value in zip(self.named.values(), self.unflatten(theta), strict=True):
            p.copy_(value)

    def objective(self, surrogate: Surrogate, batch: Buffer) -> Objective:
        """`Objective` of this model."""
        return Objective(self, surrogate, batch)


class Objective:
    """J(θ) = surrogate(π_θ, batch) − auxiliary loss, which NPG and TRPO maximise.

    Only one micro-batch is in memory at a time.
    """

    def __init__(self, policy: FlatPolicy, surrogate: Surrogate, batch: Buffer) -> None:
        self.policy, self.surrogate = policy, surrogate
        self.parts = list(micro_batches(policy.model, batch))
        self.auxiliary = auxiliary_terms(policy.model, batch)

    @operation("gradient")
    def value_and_gradient(self, theta: Vector) -> tuple[float, Vector]:
        """J(θ) and ∇J(θ).

        Raises:
            NonFiniteError: the gradient is not finite.
        """

        def gain(part: Buffer) -> Term:
            return lambda model: self.surrogate(model.distribution(part.obs), part)

        def cost(term: Term) -> Term:
            return lambda model: -term(model)

        leaves = leaves_of(self.policy, theta)
        value, g = 0.0, torch.zeros_like(theta)
        for term in track("micro-batch", [*map(gain, self.parts), *map(cost, self.auxiliary)]):
            y = self.policy(leaves, term)
            add_gradients(g, [y], leaves, [torch.ones_like(y)])
            value += float(y.detach())
        processes.all_reduce_(g)
        if not bool(torch.linalg.vector_norm(g, math.inf).isfinite()):
            raise NonFiniteError(f"gradient of the {getattr(self.surrogate, '__name__', 'objective')} is not finite")
        return processes.all_reduce(value), g

    @torch.no_grad()
    def value_and_kl(self, theta: Vector) -> tuple[float, float]:
        """J(θ) and the mean KL(π_old ‖ π_θ), from one forward pass for each micro-batch."""
        total = torch.zeros(2, dtype=torch.float64, device=theta.device)
        for part in track("micro-batch", self.parts):
            if part.old is None:
                raise ConfigError("the batch has no `old`, the policy before the update: use with_old(model, batch)")
            policy = self.policy(theta, lambda model, part=part: model.distribution(part.obs))  # type: ignore[misc]
            total += torch.stack([self.surrogate(policy, part), part.mean(part.old.kl(policy))])
        for term in self.auxiliary:
            total[0] -= self.policy(theta, term)
        value, kl = processes.all_reduce_(total).tolist()
        return value, kl


def leaves_of(policy: FlatPolicy, theta: Vector) -> list[Tensor]:
    """The parameters as tensors of their own, so that a backward pass makes no further vector as long as θ."""
    return [x.requires_grad_() for x in policy.unflatten(theta.detach())]


def add_gradients(
    g: Vector, outputs: Sequence[Tensor], leaves: list[Tensor], cotangents: Sequence[Tensor], retain_graph: bool = False
) -> None:
    """g ← g + Jᵀ·cotangents, where J is the Jacobian of the outputs.

    Each part is added to g as soon as it is known, so there is no further vector as long as θ.
    """
    for leaf, piece in zip(leaves, unflatten(g, leaves), strict=True):
        leaf.grad = piece
    torch.autograd.backward(outputs, cotangents, retain_graph=retain_graph, inputs=leaves)
    for leaf in leaves:
        leaf.grad = None


class Solution(NamedTuple):
    """An approximate solution of A·x = b."""

    x: Vector
    residual: float
    """‖A·x − b‖ / ‖b‖: 0 where x solves A·x = b, 1 for x = 0. It is 0 if b is 0."""


def conjugate_gradient(
    product: Callable[[Vector], Vector], b: Vector, iters: int, tolerance: float = 1e-10
) -> Solution:
    """x with A·x ≈ b for a symmetric positive A given as `product`, starting from x = 0.

    Stops after `iters` iterations, when ‖r‖² ≤ `tolerance`·‖b‖², or at a direction without positive curvature, and
    returns the current x (Hestenes & Stiefel 1952).
    """
    x = torch.zeros_like(b)
    r, p = b.clone(), b.clone()
    rr = inner(r, r)
    start = rr
    for _ in track("Fisher product", range(iters)):
        if rr <= tolerance * start:
            break
        ap = product(p)
        curvature = inner(p, ap)
        if not curvature > 0:
            break
        alpha = rr / curvature
        x.add_(p, alpha=alpha)
        r.sub_(ap, alpha=alpha)
        del ap  # one vector less while the next is made
        rr, previous = inner(r, r), rr
        torch.add(r, p, alpha=rr / previous, out=p)
    return Solution(x, (rr / start) ** 0.5 if start else float(b.any()))  # ‖b‖² may underflow


class Step(NamedTuple):
    """A step in parameter space; zero if there is no direction of positive curvature."""

    step: Vector
    scale: float
    """√(2δ/xᵀFx), or 0 if x has no positive curvature."""


def trust_region_step(x: Vector, curvature: float, max_kl: float) -> Step:
    """x scaled so that the quadratic model of the KL, ½sᵀFs, equals `max_kl`: s = √(2δ/xᵀFx)·x, `curvature` = xᵀFx."""
    if not curvature > torch.finfo(x.dtype).tiny:
        return Step(torch.zeros_like(x), 0.0)
    scale = (2 * max_kl / curvature) ** 0.5
    return Step(scale * x, scale)


def line_search(
    accept: Callable[[Vector], bool], theta: Vector, step: Vector, backtrack_coef: float, iters: int
) -> tuple[Vector, int]:
    """The first accepted of θ + coefᵏ·step, k = 0 … iters − 1, and k. If none is accepted: θ itself, and `iters`."""
    for k in track("line search", range(iters)):
        candidate = torch.add(theta, step, alpha=backtrack_coef**k)
        if accept(candidate):
            return candidate, k
        del candidate  # one vector less while the next is made
    return theta, iters
