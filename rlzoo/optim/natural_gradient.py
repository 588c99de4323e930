"""Natural gradients on flat vectors: Fisher-vector products, conjugate gradient, line search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.core import processes
from rlzoo.core.buffer import Buffer
from rlzoo.core.errors import NonFiniteError
from rlzoo.core.models import ActorCritic, Term, unflatten
from rlzoo.optim.objective import Loss, objective_terms

Vector = Float[Tensor, "P"]


class FlatPolicy:
    """The model as a function of its policy parameters, as one flat vector θ. Only `assign` changes the model."""

    def __init__(self, model: ActorCritic) -> None:
        self.model = model
        self._view = _TermView(model)
        wanted = {id(p) for p in model.policy_parameters()}
        self._named = {name: p for name, p in self._view.named_parameters() if id(p) in wanted}

    @property
    def theta(self) -> Vector:
        """A copy of the model's policy parameters."""
        return torch.cat([p.detach().reshape(-1) for p in self._named.values()])

    def __call__(self, theta: Vector, term: Term) -> Tensor:
        """`term(model)` with the policy parameters θ."""
        values = dict(zip(self._named, unflatten(theta, list(self._named.values())), strict=True))
        return torch.func.functional_call(self._view, values, (term,))

    @torch.no_grad()
    def assign(self, theta: Vector) -> None:
        """Writes θ into the model."""
        for p, value in zip(self._named.values(), unflatten(theta, list(self._named.values())), strict=True):
            p.copy_(value)

    def expectation(self, f: Loss, batch: Buffer) -> FlatFunction:
        """θ ↦ f(model, batch), a mean over the batch."""
        return FlatFunction(self, f.__name__, objective_terms(f, self.model, batch, auxiliary=False))

    def objective(self, surrogate: Loss, batch: Buffer) -> FlatFunction:
        """θ ↦ surrogate(model, batch) minus the model's auxiliary loss, which algorithms maximise."""

        def loss(model: ActorCritic, batch: Buffer) -> Tensor:
            return -surrogate(model, batch)

        return FlatFunction(self, surrogate.__name__, objective_terms(loss, self.model, batch), sign=-1)


class _TermView(nn.Module):
    def __init__(self, model: ActorCritic) -> None:
        super().__init__()
        self.model = model

    def forward(self, term: Term) -> Tensor:
        return term(self.model)


class FlatFunction:
    """A scalar function of θ with derivatives: sign·Σ terms, over the terms of all processes.

    Only one term is in memory at a time.
    """

    def __init__(self, policy: FlatPolicy, name: str, terms: Sequence[Term], sign: int = 1) -> None:
        self.policy, self.name, self.terms, self.sign = policy, name, terms, sign

    @torch.no_grad()
    def __call__(self, theta: Vector) -> float:
        own = sum(float(self.policy(theta, term)) for term in self.terms)
        return self.sign * processes.total(own)

    def gradient(self, theta: Vector) -> Vector:
        """∇f(θ).

        Raises:
            NonFiniteError: it is not finite.
        """
        theta = theta.detach().requires_grad_()
        g = torch.zeros_like(theta)
        for term in self.terms:
            g += torch.autograd.grad(self.policy(theta, term), theta)[0]
        g = processes.sum_(g)
        if not bool(torch.isfinite(g).all()):
            raise NonFiniteError(f"gradient of the {self.name} is not finite")
        return self.sign * g

    def hessian_vector_product(self, theta: Vector, damping: float = 0.0) -> Callable[[Vector], Vector]:
        """v ↦ (∇²f(θ) + damping·I)·v, by double backward.

        With one term, the graph of the gradient is built once. With more terms it is built again for each product, so
        that only one term is in memory.
        """
        theta = theta.detach().requires_grad_()

        def first_backward(term: Term) -> Vector:
            return torch.autograd.grad(self.policy(theta, term), theta, create_graph=True)[0]

        kept = first_backward(self.terms[0]) if len(self.terms) == 1 else None

        def product(v: Vector) -> Vector:
            if kept is not None:
                total = self.sign * torch.autograd.grad(kept, theta, v, retain_graph=True)[0]
                return processes.sum_(total) + damping * v
            total = torch.zeros_like(v)
            for term in self.terms:
                total += self.sign * torch.autograd.grad(first_backward(term), theta, v)[0]
            return processes.sum_(total) + damping * v

        return product


def fisher_vector_product(kl: FlatFunction, theta: Vector, damping: float = 0.0) -> Callable[[Vector], Vector]:
    """v ↦ (F + damping·I)·v, where F = ∇²KL(π_old ‖ π_θ) at θ = θ_old.

    There the Hessian of the mean KL is the Fisher information matrix averaged over states, in closed form over actions
    (Schulman et al. 2015, App. C.1).
    """
    return kl.hessian_vector_product(theta, damping)


def conjugate_gradient(product: Callable[[Vector], Vector], b: Vector, iters: int, tolerance: float = 1e-10) -> Vector:
    """x with A·x ≈ b for a symmetric positive A given as `product`, starting from x = 0.

    Stops after `iters` iterations, when ‖r‖² < `tolerance`·‖b‖², or at a direction without positive curvature, and
    returns the current x (Hestenes & Stiefel 1952).
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
    """A step in parameter space; zero if there is no direction of positive curvature."""

    step: Vector
    scale: float
    """√(2δ/xᵀFx), or 0 if x has no positive curvature."""
    fx: Vector
    """F·x."""


def trust_region_step(product: Callable[[Vector], Vector], x: Vector, max_kl: float) -> Step:
    """x scaled so that the quadratic model of the KL, ½sᵀFs, equals `max_kl`: s = √(2δ/xᵀFx)·x."""
    fx = product(x)
    curvature = float(torch.dot(x, fx))
    if not curvature > torch.finfo(x.dtype).tiny:
        return Step(torch.zeros_like(x), 0.0, fx)
    scale = (2 * max_kl / curvature) ** 0.5
    return Step(scale * x, scale, fx)


def relative_residual(ax: Vector, b: Vector) -> float:
    """‖A·x − b‖ / ‖b‖, given A·x: 0 where x solves A·x = b, 1 for x = 0. It is 0 if b is 0."""
    norm = float(b.norm())
    return float((ax - b).norm()) / norm if norm > 0 else 0.0


def line_search(
    accept: Callable[[Vector], bool], theta: Vector, step: Vector, backtrack_coef: float, iters: int
) -> tuple[Vector, int]:
    """The first accepted of θ + coefᵏ·step, k = 0 … iters − 1, and k. If none is accepted: θ itself, and `iters`."""
    for k in range(iters):
        candidate = theta + backtrack_coef**k * step
        if accept(candidate):
            return candidate, k
    return theta, iters
