"""The interface of an algorithm, and its state between updates."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import Estimator
from rlzoo.core.kl import k3
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import Checked
from rlzoo.core.system.schedules import Schedule, at
from rlzoo.core.system.streams import restore_rng, rng_state
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.natural_gradient import Solution, conjugate_gradient
from rlzoo.optim.objective import PolicyStatistics, clipped_objective, policy_statistics

Metrics = dict[str, float]


@dataclass(slots=True)
class State:
    """The state of an algorithm between updates. All of it is saved in checkpoints; it takes no other attributes."""

    rng: np.random.Generator
    """Shuffles minibatches."""
    optimizers: dict[str, Adam] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    fisher_rng: np.random.Generator | None = None
    """Chooses the rows of Fisher products; None if all are taken."""
    progress: float = 0.0
    """Share of the training steps already taken, in [0, 1). The training loop sets it."""
    conjugate_gradient: Callable[..., Solution] = conjugate_gradient
    """Solves for natural gradients. Training may set a faster function with the same results."""

    def __post_init__(self) -> None:
        trained = [id(p) for optimizer in self.optimizers.values() for p in getattr(optimizer, "parameters", ())]
        require(len(trained) == len({*trained}), "a parameter is in two optimizers; an Adam must have it for itself")

    def at(self, schedule: Schedule) -> float:
        """The current value of a schedule. Raises `ConfigError` if it is no number."""
        value = at(schedule, self.progress)
        require(not math.isnan(value), f"the schedule {schedule} is {value} at the progress {self.progress}")
        return value

    def rates(self, learning_rate: Schedule, vf_learning_rate: Schedule | None) -> dict[str, Any]:
        """The learning rates of `Adam.minimize` for this update. While the value warms up, the policy's is 0."""
        rate, of_value = self.at(learning_rate), None if vf_learning_rate is None else self.at(vf_learning_rate)
        if self.scalars.get("vf_warmup", 0) > 0:
            self.scalars["vf_warmup"] -= 1
            rate, of_value = 0.0, rate if of_value is None else of_value
        return {"learning_rate": rate, "vf_learning_rate": of_value}

    def fit_value(
        self, model: ActorCritic, batch: Buffer, epochs: int, size: int | Literal["all"], learning_rate: Schedule
    ) -> None:
        """Fits the value by its own optimizer (see `rlzoo.optim.adam.fit_value`)."""
        fit_value(model, self.optimizers["value"], batch, epochs, size, self.at(learning_rate), self.rng)

    def state_dict(self) -> dict[str, Any]:
        return {
            "rng": rng_state(self.rng),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            "scalars": dict(self.scalars),
            **({} if self.fisher_rng is None else {"fisher_rng": self.fisher_rng.bit_generator.state}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restore_rng(self.rng, state["rng"])
        if self.fisher_rng is not None:
            self.fisher_rng.bit_generator.state = state["fisher_rng"]
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.scalars = {name: state["scalars"][name] for name in self.scalars | state["scalars"]}


def joint_state(
    model: ActorCritic, rng: np.random.Generator, warmup: int, vf_learning_rate: Schedule | None, **scalars: float
) -> State:
    """The state of an algorithm that trains policy and value by one Adam."""
    fault = "there is no parameter of the policy to train: unfreeze it with requires_grad_(True)"
    require(any(p.requires_grad for p in model.policy_parameters()), fault)
    scalars |= {"vf_warmup": warmup} if warmup else {}
    value = model.value_parameters() if warmup or vf_learning_rate is not None else []
    return State(rng, {"all": Adam(list(model.parameters()), value=value)}, scalars)


class Algorithm(Checked, abc.ABC):
    """A frozen dataclass of hyperparameters that turns a model and a buffer into a better model.

    A subclass is a `@dataclass(frozen=True)` with an `estimator` among its fields. The command line and the
    configuration file are derived from the fields.
    """

    name: ClassVar[str]
    renamed: ClassVar[Mapping[str, str]] = {}
    """Settings that had another name once: old -> present name. The old names are accepted too."""
    second_order: ClassVar[bool] = False
    """Whether the algorithm needs Fisher products, which take forward-mode derivatives."""
    estimator: Estimator

    @abc.abstractmethod
    def init(self, model: ActorCritic, rng: np.random.Generator) -> State:
        """The state before the first update."""

    @abc.abstractmethod
    def update(self, model: ActorCritic, state: State, buffer: Buffer) -> Metrics:
        """Improves `model` in place, given a buffer with `logp` and `value`. Returns metrics to log."""


@torch.no_grad()
def measure(
    model: ActorCritic, batch: Buffer, clip_coef: float | None = None, after: PolicyStatistics | None = None
) -> Metrics:
    """Metrics of an update: how far the policy moved, and how well the value predicted the returns.

    With r = π/π_old, `policy_loss` is −E[min(r·Â, clip(r, 1 ± clip_coef)·Â)], or −E[r·Â] without `clip_coef`.
    `clip_fraction` is the share of steps whose r is outside 1 ± `clip_coef`. `kl` is E[KL(π_old ‖ π)], exact, if the
    batch holds `old`; else `kl_k3` estimates it from the actions. `action_std` is the mean standard deviation of
    Gaussian actions. `value_loss` is E[½(V − G)²] and `explained_variance` is 1 − Var[G − V]/Var[G], both of the value
    that the advantages used.

    Args:
        after: the policy after the update; by default it is evaluated here.
    """
    after = policy_statistics(model, batch) if after is None else after
    ratio = torch.exp(after.log_prob - batch.logp)
    objective = ratio * batch.advantage
    metrics = {}
    if clip_coef is not None:
        objective = clipped_objective(ratio, batch.advantage, clip_coef)
        outside = ((after.log_prob - batch.logp).expm1().abs() > clip_coef).to(ratio.dtype)
        metrics["clip_fraction"] = float(batch.mean(outside))
    if after.kl is None:
        metrics["kl_k3"] = float(batch.mean(k3(batch.logp, after.log_prob)))
    else:
        metrics["kl"] = float(batch.mean(after.kl))
    if after.std is not None:
        metrics["action_std"] = float(batch.mean(after.std))

    def variance(x: torch.Tensor) -> torch.Tensor:
        return batch.mean((x - batch.mean(x)).square())

    error = batch.return_ - batch.value
    return metrics | {
        "entropy": float(batch.mean(after.entropy)),
        "policy_loss": -float(batch.mean(objective)),
        "value_loss": 0.5 * float(batch.mean(error.square())),
        "explained_variance": 1 - float(variance(error) / variance(batch.return_).clamp(min=1e-24)),
    }
