"""Advantage and return estimators: pure functions of (N, T) tensors, and their `Buffer -> Buffer` forms.

Time convention: step t observes s_t, takes a_t, receives r_t = `reward[:, t]` and leads to s_{t+1};
`value[:, t]` is V(s_t), so `value` has T + 1 columns. Masked (forced) steps get 0 and do not affect other steps: in the
middle of an episode they take no time, and the next state of a step is that of the next unmasked one.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import Advanced, Checked, UnitInterval
from rlzoo.core.tensors import discounted_sum


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

    Termination stops bootstrapping; termination and truncation stop the recursion. A row whose last episode has not
    ended bootstraps from V(s_T), like a truncation.
    """
    later = _next_value(value, terminated | truncated, mask)
    delta = torch.where(mask, reward + gamma * later * ~terminated - value[:, :-1], 0.0)
    carry = torch.where(mask, gamma * gae_lambda * (~terminated & ~truncated).to(delta.dtype), 1.0)
    return torch.where(mask, discounted_sum(delta, carry), 0.0)


def monte_carlo(
    reward: Float[Tensor, "N T"],
    value: Float[Tensor, "N T+1"],
    terminated: Bool[Tensor, "N T"],
    truncated: Bool[Tensor, "N T"],
    mask: Bool[Tensor, "N T"],
    gamma: float,
) -> Float[Tensor, "N T"]:
    """Discounted return to the end of the episode, G_t = r_t + γ·G_{t+1} (Williams 1992).

    At a truncation G continues with V(s_{t+1}). Steps of an episode that does not end within the row have no return
    yet: their G is NaN, and the caller must mask them (see `complete_episodes`).
    """
    last = torch.where(truncated & ~terminated, gamma * value[:, 1:], 0.0)
    carry = torch.where(mask, gamma * (~terminated & ~truncated).to(reward.dtype), 1.0)
    returns = discounted_sum(torch.where(mask, reward + last, 0.0), carry)
    unknown = mask & ~complete_episodes(terminated, truncated, mask)
    return torch.where(unknown, torch.nan, torch.where(mask, returns, 0.0))


def complete_episodes(
    terminated: Bool[Tensor, "N T"], truncated: Bool[Tensor, "N T"], mask: Bool[Tensor, "N T"]
) -> Bool[Tensor, "N T"]:
    """The unmasked steps whose episode ends within the row."""
    ended = (terminated | truncated) & mask
    return mask & ended.int().flip(1).cummax(1).values.flip(1).bool()


def leave_one_out(
    reward: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], group: int, gamma: float = 1.0
) -> Float[Tensor, "N T"]:
    """REINFORCE leave-one-out advantages (Kool et al. 2019; Ahmadian et al. 2024).

    R_i = Σ_t γ^t·r_t over the unmasked steps of row i, t counted from the first of them
    A_i = R_i − mean of R_j over the other rows j of the group, on every unmasked step of row i

    A row is one episode, and a group is `group` consecutive rows. Rows without an unmasked step are not samples: they
    do not enter the means, and an incomplete last group may consist of them. A single sample in a group gets 0.

    Raises:
        ConfigError: `group` is below 2, or the rows cannot be divided into groups.
    """
    centred, count = _centred_returns(reward, mask, group, gamma)
    return _over_steps(centred * count / (count - 1).clamp(min=1), mask)  # R − mean of others = n/(n−1)·(R − mean)


def group_mean(
    reward: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], group: int, gamma: float = 1.0
) -> Float[Tensor, "N T"]:
    """Returns minus the mean of their group, as in Dr. GRPO (Liu et al. 2025).

    A_i = R_i − mean of R_j over all n rows j of the group, including i: (n − 1)/n of the leave-one-out advantages

    Returns, groups and errors are those of `leave_one_out`.
    """
    return _over_steps(_centred_returns(reward, mask, group, gamma)[0], mask)


def group_norm(
    reward: Float[Tensor, "N T"], mask: Bool[Tensor, "N T"], group: int, gamma: float = 1.0
) -> Float[Tensor, "N T"]:
    """Returns normalised over their group, as in GRPO with outcome rewards (Shao et al. 2024).

    A_i = (R_i − mean of R_j) / (std of R_j + 1e-8), over all rows j of the group, including i

    The standard deviation is the biased one (divided by n), as in `Buffer.whiten`: the advantages of a group have mean
    square 1. If all returns are equal but for rounding, they are 0: the log-probabilities of equal responses may be
    rounded differently in each row. Returns, groups and errors are those of `leave_one_out`.
    """
    centred, count = _centred_returns(reward, mask, group, gamma)
    std = (centred.square().sum(1, keepdim=True) / count.clamp(min=1)).sqrt()
    size = _as_groups(torch.where(mask, reward.abs(), 0.0).sum(1), group).amax(1, keepdim=True)
    equal = std <= 8 * torch.finfo(std.dtype).eps * size
    return _over_steps(torch.where(equal, 0.0, centred / (std + 1e-8)), mask)


def _centred_returns(reward: Tensor, mask: Tensor, group: int, gamma: float) -> tuple[Tensor, Tensor]:
    """R_i − mean of the group (G, group), 0 for rows that are not samples, and the number of samples (G, 1)."""
    rows = len(mask)
    require(group >= 2, f"advantages relative to a group need at least 2 rows with the same start, got {group}")
    require(not mask[rows - rows % group :].any(), f"{rows} rows cannot be divided into groups of {group}")
    discount = gamma ** (mask.cumsum(1) - 1).clamp(min=0).to(reward.dtype)
    returns = _as_groups(torch.where(mask, discount * reward, 0.0).sum(1), group)
    sample = _as_groups(mask.any(1), group)
    # Relative to the smallest return of its group, so that equal returns are exactly 0 despite rounding.
    least = torch.where(sample, returns, torch.inf).amin(1, keepdim=True)
    returns = torch.where(sample, returns - least, 0.0)
    count = sample.sum(1, keepdim=True)
    mean = returns.sum(1, keepdim=True) / count.clamp(min=1)
    return torch.where(sample, returns - mean, 0.0), count


def _as_groups(x: Tensor, group: int) -> Tensor:
    """(N,) as (G, group), the last group padded with zeros."""
    return torch.nn.functional.pad(x, (0, -len(x) % group)).view(-1, group)


def _over_steps(x: Tensor, mask: Tensor) -> Tensor:
    """(G, group) as (N, T): each row's value on its unmasked steps."""
    return torch.where(mask, x.reshape(-1, 1)[: len(mask)], 0.0)


def _next_value(value: Tensor, done: Tensor, mask: Tensor) -> Float[Tensor, "N T"]:
    """V of the next state: the next unmasked one, or s_{t+1} where an episode ends or the row has no unmasked one."""
    steps = mask.shape[1]
    column = torch.arange(1, steps + 1, device=mask.device).expand(mask.shape)
    unmasked = torch.nn.functional.pad(torch.where(mask, column - 1, steps)[:, 1:], (0, 1), value=steps)
    following = unmasked.flip(1).cummin(1).values.flip(1)
    return value.gather(1, torch.where(done | (following == steps), column, following))


class Estimator(Checked, abc.ABC):
    """`Buffer -> Buffer`: fills `advantage` and `return_`, and may mask more steps."""

    gamma: float
    whole_episodes: ClassVar[bool] = False
    """Whether rows must hold complete episodes."""
    grouped: ClassVar[bool] = False
    """Whether the estimator compares rows that start in the same state."""
    needs_value: ClassVar[bool] = True
    """Whether advantages depend on the critic. If they do not, the critic need not be fitted."""

    @abc.abstractmethod
    def __call__(self, buffer: Buffer) -> Buffer: ...


@dataclass(frozen=True)
class GAE(Estimator):
    """Generalised advantage estimation (see `gae`). The critic's target is the λ-return, advantage + value."""

    gamma: UnitInterval = 0.99
    """Discount factor, in [0, 1]."""
    gae_lambda: UnitInterval = 0.95
    """λ, in [0, 1]: 0 is one-step TD, 1 is Monte Carlo minus the value."""
    vf_lambda: Advanced[UnitInterval | None] = None
    """λ of the critic's target (Yuan et al. 2025, decoupled GAE); none for the λ of the advantages."""

    def __call__(self, buffer: Buffer) -> Buffer:
        steps = buffer.reward, buffer.value, buffer.terminated, buffer.truncated, buffer.mask
        advantage = gae(*steps, self.gamma, self.gae_lambda)
        error = advantage if self.vf_lambda is None else gae(*steps, self.gamma, self.vf_lambda)
        return buffer.replace(advantage=advantage, return_=error + buffer.value[:, :-1])


@dataclass(frozen=True)
class MonteCarlo(Estimator):
    """Monte-Carlo returns (see `monte_carlo`); advantage = return − value. Needs rows of complete episodes."""

    gamma: UnitInterval = 0.99
    """Discount factor, in [0, 1]."""

    whole_episodes: ClassVar[bool] = True

    def __call__(self, buffer: Buffer) -> Buffer:
        ends = buffer.terminated, buffer.truncated, buffer.mask
        returns = monte_carlo(buffer.reward, buffer.value, *ends, self.gamma)
        complete = complete_episodes(*ends)
        returns = torch.where(complete, returns, 0.0)
        advantage = torch.where(complete, returns - buffer.value[:, :-1], 0.0)
        return buffer.replace(advantage=advantage, return_=returns, mask=complete)


@dataclass(frozen=True)
class _Grouped(Estimator):
    """Advantages from the returns of rows that start in the same state."""

    gamma: UnitInterval = 1.0
    """Discount factor, in [0, 1]."""

    whole_episodes: ClassVar[bool] = True
    grouped: ClassVar[bool] = True
    needs_value: ClassVar[bool] = False
    advantage: ClassVar[Callable[..., Tensor]]
    """`(reward, mask, rows of a group, gamma) -> advantages`, (N, T) each."""

    def __call__(self, buffer: Buffer) -> Buffer:
        filled = MonteCarlo(self.gamma)(buffer)
        group = buffer.group_size or buffer.num_rows
        return filled.replace(advantage=self.advantage(filled.reward, filled.mask, group, self.gamma))


@dataclass(frozen=True)
class LeaveOneOut(_Grouped):
    """The return minus the mean of the others in its group (see `leave_one_out`). Needs rows of complete episodes.

    The critic's target is the Monte-Carlo return. The advantage does not use the critic, so it does not bootstrap at a
    truncation, and only PPO with `vf_coef` above 0 fits the critic.
    """

    advantage = staticmethod(leave_one_out)


@dataclass(frozen=True)
class GroupMean(_Grouped):
    """The return minus the mean of its group (see `group_mean`); otherwise like `LeaveOneOut`."""

    advantage = staticmethod(group_mean)


@dataclass(frozen=True)
class GroupNorm(_Grouped):
    """The normalised return of its group (see `group_norm`); otherwise like `LeaveOneOut`."""

    advantage = staticmethod(group_norm)


ESTIMATORS: dict[str, type[Estimator]] = {
    "gae": GAE,
    "monte-carlo": MonteCarlo,
    "leave-one-out": LeaveOneOut,
    "group-mean": GroupMean,
    "group-norm": GroupNorm,
}
ALIASES = {"grpo": "group-norm", "dr-grpo": "group-mean", "rloo": "leave-one-out"}
"""Names of the algorithms that the estimators are known from."""
