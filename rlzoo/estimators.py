"""Advantage and return estimators: pure functions of (N, T) tensors, and their `Buffer -> Buffer` forms.

Time convention: step t observes s_t, takes a_t, receives r_t = `reward[:, t]` and leads to s_{t+1};
`value[:, t]` is V(s_t), so `value` has T + 1 columns. Masked (forced) steps give 0 and pass nothing on.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlzoo.buffer import Buffer
from rlzoo.fields import UnitInterval, check_fields


def gae(
    reward: Float[Tensor, "N T"],
    value: Float[Tensor, "N T+1"],
    terminated: Bool[Tensor, "N T"],
    truncated: Bool[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    gamma: float,
    gae_lambda: float,
) -> Float[Tensor, "N T"]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    δ_t = r_t + γ·V(s_{t+1})·(1 − terminated_t) − V(s_t)
    A_t = δ_t + γλ·(1 − (terminated_t or truncated_t))·A_{t+1}

    Termination cuts the bootstrap; either end cuts the recursion. A row that goes on past T bootstraps
    V(s_T), as at a truncation.
    """
    delta = torch.where(mask, reward + gamma * value[:, 1:] * ~terminated - value[:, :-1], 0.0)
    carry = gamma * gae_lambda * (mask & ~terminated & ~truncated)
    return _discounted_sum(delta, carry)


def monte_carlo(
    reward: Float[Tensor, "N T"],
    value: Float[Tensor, "N T+1"],
    terminated: Bool[Tensor, "N T"],
    truncated: Bool[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    gamma: float,
) -> Float[Tensor, "N T"]:
    """Discounted return to the end of the episode, G_t = r_t + γ·G_{t+1} (Williams 1992).

    At a truncation G continues with V(s_{t+1}). Steps of an episode that does not end within the row have no
    return yet: their G is NaN, and a caller must mask them (see `complete_episodes`).
    """
    last = torch.where(truncated & ~terminated, gamma * value[:, 1:], 0.0)
    carry = gamma * (mask & ~terminated & ~truncated)
    returns = _discounted_sum(torch.where(mask, reward + last, 0.0), carry)
    return torch.where(mask & ~complete_episodes(terminated, truncated, mask), torch.nan, returns)


def complete_episodes(
    terminated: Bool[Tensor, "N T"], truncated: Bool[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Bool[Tensor, "N T"]:
    """The unmasked steps whose episode ends within the row."""
    ended = (terminated | truncated) & mask
    return mask & ended.int().flip(1).cummax(1).values.flip(1).bool()


def _discounted_sum(x: Tensor, carry: Tensor) -> Tensor:
    """y_t = x_t + carry_t · y_{t+1}, y_T = 0. NumPy's columns cost a tenth of PyTorch's at these sizes."""
    if x.device.type != "cpu":
        return _discounted_sum(x.cpu(), carry.cpu()).to(x.device)
    columns = x.t().clone(memory_format=torch.contiguous_format).numpy()
    factors = carry.t().to(x.dtype).contiguous().numpy()
    for t in range(len(columns) - 2, -1, -1):
        columns[t] += factors[t] * columns[t + 1]
    return torch.from_numpy(columns).t().contiguous()


class Estimator(abc.ABC):
    """`Buffer -> Buffer`: fills `advantage` and `return_`, and may shrink `mask`."""

    gamma: float
    whole_episodes: bool = False
    """Whether rows must hold complete episodes."""

    def __post_init__(self) -> None:
        check_fields(self)

    @abc.abstractmethod
    def __call__(self, buffer: Buffer) -> Buffer: ...


@dataclass(frozen=True)
class GAE(Estimator):
    """`gae`, with return_ = advantage + value: the λ-return."""

    gamma: UnitInterval = 0.99
    """Discount factor, in [0, 1]."""
    gae_lambda: UnitInterval = 0.95
    """λ, in [0, 1]: 0 is one-step TD, 1 is Monte Carlo minus the value."""

    def __call__(self, buffer: Buffer) -> Buffer:
        advantage = gae(
            buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask,
            self.gamma, self.gae_lambda,
        )  # fmt: skip
        return buffer.replace(advantage=advantage, return_=advantage + buffer.value[:, :-1])


@dataclass(frozen=True)
class MonteCarlo(Estimator):
    """`monte_carlo`, with advantage = return_ − value. Needs rows of complete episodes."""

    gamma: UnitInterval = 0.99
    """Discount factor, in [0, 1]."""

    whole_episodes = True

    def __call__(self, buffer: Buffer) -> Buffer:
        ends = buffer.terminated, buffer.truncated, buffer.mask
        returns = monte_carlo(buffer.reward, buffer.value, *ends, self.gamma)
        complete = complete_episodes(*ends)
        returns = torch.where(complete, returns, 0.0)
        advantage = torch.where(complete, returns - buffer.value[:, :-1], 0.0)
        return buffer.replace(advantage=advantage, return_=returns, mask=complete)


ESTIMATORS: dict[str, type[Estimator]] = {"gae": GAE, "monte-carlo": MonteCarlo}
