"""The natural gradient's tools on flat vectors: Fisher products, conjugate gradient, line search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Distribution
from rlzoo.core.errors import NonFiniteError
from rlzoo.core.models import ActorCritic, unflatten

Vector = Float[Tensor, "P"]


Objective = Callable[[Vector, Buffer], Float[Tensor, ""]]
"""f(θ, batch), a mean over the batch that its parts add up to (`Buffer.parts`)."""


class FlatPolicy:
    """(θ, obs) ↦ π_θ(·|s): a pure function of one flat vector, whatever the model holds."""

    def __init__(self, model: ActorCritic) -> None:
        self._view = _PolicyView(model)
        wanted = {id(p) for p in model.policy_parameters()}
        self._named = {name: p for name, p in self._view.named_parameters() if id(p) in wanted}

    @property
    def theta(self) -> Vector:
        """A copy of the model's policy parameters."""
        return torch.cat([p.detach().reshape(-1) for p in self._named.values()])

    def __call__(self, theta: Vector, obs: Tensor) -> Distribution:
        values = dict(zip(self._named, unflatten(theta, list(self._named.values())), strict=True))
        return torch.func.functional_call(self._view, values, (obs,))

    @torch.no_grad()
    def assign(self, theta: Vector) -> None:
        """Writes θ into the model."""
        for p, value in zip(self._named.values(), unflatten(theta, list(self._named.values())), strict=True):
            p.copy_(value)


class _PolicyView(nn.Module):
    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, obs: Tensor) -> Distribution:
        return self.model.distribution(obs)


def gradient(f: Objective, theta: Vector, parts: Sequence[Buffer]) -> Vector:
    """∇f(θ) over the batch that `parts` make up.

    Raises:
        NonFiniteError: it is not finite.
    """
    theta = theta.detach().requires_grad_()
    g = torch.zeros_like(theta)
    for part in parts:
        g += torch.autograd.grad(f(theta, part), theta)[0]
    if not bool(torch.isfinite(g).all()):
        raise NonFiniteError(f"gradient of the {getattr(f, '__name__', 'objective')} is not finite")
    return g


@torch.no_grad()
def total(f: Objective, theta: Vector, parts: Sequence[Buffer]) -> float:
    """f(θ) over the batch that `parts` make up."""
    return sum(float(f(theta, part)) for part in parts)


def fisher_vector_product(
    kl: Objective, theta: Vector, parts: Sequence[Buffer], damping: float = 0.0
) -> Callable[[Vector], Vector]:
    """v ↦ (F + damping·I)v, where F = ∇²KL(π_old ‖ π_θ) at θ = θ_old.

    There the Hessian of the mean KL is the Fisher information averaged over states, in closed form over
    actions (Schulman et al. 2015, App. C.1). By double backward. The first backward is done once and kept if
    there is one part, and again for each product if there are more: then only one part is in memory.
    """
    theta = theta.detach().requires_grad_()

    def kl_gradient(part: Buffer) -> Vector:
        return torch.autograd.grad(kl(theta, part), theta, create_graph=True)[0]

    kept = kl_gradient(parts[0]) if len(parts) == 1 else None

    def product(v: Vector) -> Vector:
        if kept is not None:
            return torch.autograd.grad(kept, theta, v, retain_graph=True)[0] + damping * v
        total = damping * v
        for part in parts:
            total += torch.autograd.grad(kl_gradient(part), theta, v)[0]
        return total

    return product


def conjugate_gradient(product: Callable[[Vector], Vector], b: Vector, iters: int, tolerance: float = 1e-10) -> Vector:
    """x with A·x ≈ b for a symmetric positive A given as `product`, starting from x = 0.

    Stops after `iters` steps, when ‖r‖² < `tolerance`·‖b‖², or at a direction without positive curvature,
    where it returns what it has (Hestenes & Stiefel 1952).
    """
    x = torch.zeros_like(b)
    r, p = b.clone(), b.clone()
    rr = torch.dot(r, r)
    goal = tolerance * float(rr)
    for _ in range(iters):
        if float(rr) <= goal:
            break
        ap = product(p)
        curvature = torch.dot(p, ap)
        if not float(curvature) > 0:
            break
        alpha = rr / curvature
        x = x + alpha * p
        r = r - alpha * ap
        rr, previous = torch.dot(r, r), rr
        p = r + rr / previous * p
    return x


class Step(NamedTuple):
    """A step in parameter space; all zero where there is none to take."""

    step: Vector
    scale: float
    """√(2δ/xᵀFx), or 0 if x has no positive curvature."""


def trust_region_step(product: Callable[[Vector], Vector], x: Vector, max_kl: float) -> Step:
    """x scaled so that the quadratic model of the KL, ½sᵀFs, equals `max_kl`: s = √(2δ/xᵀFx)·x."""
    curvature = float(torch.dot(x, product(x)))
    if not curvature > torch.finfo(x.dtype).tiny:
        return Step(torch.zeros_like(x), 0.0)
    scale = (2 * max_kl / curvature) ** 0.5
    return Step(scale * x, scale)


def line_search(
    accept: Callable[[Vector], bool], theta: Vector, step: Vector, backtrack_coef: float, iters: int
) -> tuple[Vector, int]:
    """The first accepted of θ + step·coefᵏ, k = 0 … iters − 1, and k; θ itself and `iters` if there is none."""
    for k in range(iters):
        candidate = theta + backtrack_coef**k * step
        if accept(candidate):
            return candidate, k
    return theta, iters
