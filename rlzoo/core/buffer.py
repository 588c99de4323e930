"""Experience: N rows of T steps, and the few operations that every algorithm needs of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlzoo.core.distributions import Distribution

_ABSENT = torch.empty(0)


@dataclass(frozen=True)
class Buffer:
    """One iteration of experience. Knows no discount factor: estimators live in `rlzoo.core.estimators`.

    A step is *forced* when its action was ignored by the environment (the step after an episode's end,
    prompt tokens, padding); `mask` is False there, and nothing in a masked step may change a result. A forced
    step still observes: after an episode's end it sees the final state, so `value[:, t + 1]` is always the
    value of what step t led to.

    `obs` and `value` carry one column more than the rest as collected, for what was seen after the last step.
    """

    obs: Tensor
    """(N, T + 1, *obs) as collected; (R, context, *obs) after `rows`."""
    action: Tensor
    """(N, T) integers for Discrete, (N, T, A) else. Box actions are stored as sampled, not clipped."""
    reward: Float[Tensor, "N T"]
    terminated: Bool[Tensor, "N T"]
    truncated: Bool[Tensor, "N T"]
    mask: Bool[Tensor, "N T"]
    logp: Tensor = _ABSENT
    """(N, T) log π(a|s) of the policy that acted, from the training forward."""
    value: Tensor = _ABSENT
    """(N, T + 1) as evaluated, (R, context) after `rows`."""
    advantage: Tensor = _ABSENT
    """(N, T)."""
    return_: Tensor = _ABSENT
    """(N, T), the critic's target."""
    old: Distribution | None = None
    """π_old(·|s) over the steps, for the algorithms whose KL is exact."""
    demo: Tensor = _ABSENT
    """(N, T) γ at the steps of a demonstration, whose log π(a|s) is to rise; 0 elsewhere. Such steps are masked."""
    group_size: int = 0
    """Rows that began in the same state, one after the other; 0 stands for all rows."""
    part_of: tuple[Buffer, slice] | None = field(default=None, repr=False)
    """The buffer that this one is a part of, and its rows there (see `parts`)."""

    def replace(self, **changes: Any) -> Buffer:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Buffer:
        """`fn` applied to every tensor that is present. What comes out is a whole, not a part."""
        changes: dict[str, Any] = {}
        for name in _FIELDS:
            x = getattr(self, name)
            if isinstance(x, Tensor):
                changes[name] = x if x is _ABSENT else fn(x)
            else:
                changes[name] = None if x is None else x.map(fn)
        return Buffer(**changes, group_size=self.group_size)

    def tensors(self) -> list[Tensor]:
        """Every tensor that is present."""
        found: list[Tensor] = []

        def keep(x: Tensor) -> Tensor:
            found.append(x)
            return x

        self.map(keep)
        return found

    def with_tensors(self, tensors: Iterable[Tensor]) -> Buffer:
        """A buffer with `tensors` in the places that `tensors()` lists."""
        rest = iter(tensors)
        return self.map(lambda _: next(rest))

    @property
    def num_rows(self) -> int:
        return self.mask.shape[0]

    @property
    def num_steps(self) -> int:
        """Steps that count: T·N less the forced ones."""
        return int(self.mask.sum())

    def rows(self, context: int) -> Buffer:
        """The same steps as rows of `context` steps, R = N·T / context, ready to be shuffled.

        `context` is how many steps a policy must see together: 1 for a network without memory. 0 stands for
        the whole row. The extra last column of `obs` and `value` is dropped. Forced steps stay, masked, so
        that every buffer of a run has the same shape.
        """
        steps = self.mask.shape[1]
        context = context or steps
        if steps % context:
            raise ValueError(f"rows of {steps} steps cannot be cut into rows of {context}")

        def cut(x: Tensor) -> Tensor:
            return x[:, :steps].reshape(-1, context, *x.shape[2:])

        return self.map(cut)

    def minibatches(self, steps: int, rng: np.random.Generator) -> Iterator[Buffer]:
        """One epoch: the rows in random order, cut into minibatches of about `steps` steps.

        The rows that are left over form a last, smaller minibatch. A minibatch without a single unmasked step
        is left out. A minibatch that would hold every row is the buffer itself. Rows of demonstrations come on
        top, dealt out evenly.
        """
        rows = max(1, steps // self.mask.shape[1])
        shown = self.demo.any(1).cpu().numpy() if self.has_demonstrations else None
        if shown is not None:
            rows = -(-rows * self.num_rows // max(self.num_rows - int(shown.sum()), 1))
        if rows >= self.num_rows:
            if self.mask.any():
                yield self
            return
        permutation = rng.permutation(self.num_rows)
        if shown is not None:
            permutation = _deal(permutation, shown[permutation])
        order = torch.from_numpy(permutation).to(self.mask.device)
        shuffled = self.map(lambda x: x[order])
        has_steps = shuffled.mask.any(1)
        for start in range(0, self.num_rows, rows):
            if has_steps[start : start + rows].any():
                yield shuffled.map(lambda x, s=start: x[s : s + rows])  # type: ignore[misc]

    def parts(self, steps: int | None) -> Iterator[Buffer]:
        """The rows in parts of at most `steps` steps (one row at least), in order; in one part if None.

        `mean` weighs a step of a part as the whole does, so that the means of the parts add up to the mean of
        the whole, and `whitened_advantage` is the whole's: gradients accumulate over parts, however they are cut.
        """
        rows = self.num_rows if steps is None else max(1, steps // self.mask.shape[1])
        if rows >= self.num_rows:
            yield self
            return
        for start in range(0, self.num_rows, rows):
            cut = slice(start, start + rows)
            yield self.map(lambda x, cut=cut: x[cut]).replace(part_of=(self, cut))  # type: ignore[misc]

    @cached_property
    def weight(self) -> Float[Tensor, "N T"]:
        """1 / (number of unmasked steps) where the mask is True, 0 elsewhere; all 0 for an empty mask."""
        if self.part_of is not None:
            whole, rows = self.part_of
            return whole.weight[rows]
        return self.mask.to(self.reward.dtype) / self.mask.sum().clamp(min=1)

    def mean(self, x: Float[Tensor, "N T"]) -> Float[Tensor, ""]:
        """Mean of `x` over the unmasked steps; 0 if there are none. `x` must be finite everywhere."""
        return torch.dot(x.reshape(-1), self.weight.reshape(-1))

    @cached_property
    def demo_weight(self) -> Float[Tensor, "N T"]:
        """`demo` / (number of demonstrated steps)."""
        if self.part_of is not None:
            whole, rows = self.part_of
            return whole.demo_weight[rows]
        return self.demo / self.demo.count_nonzero().clamp(min=1)

    @property
    def has_demonstrations(self) -> bool:
        return self.demo is not _ABSENT

    def demonstrated(self, logp: Float[Tensor, "N T"]) -> Float[Tensor, ""]:
        """γ·E[log π(a|s)] over the demonstrated steps."""
        return torch.dot(logp.reshape(-1), self.demo_weight.reshape(-1))

    def whiten(self, x: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """`x` shifted and scaled to mean 0 and (biased) standard deviation 1 over the unmasked steps.

        A constant `x` gives zeros.
        """
        centred = x - self.mean(x)
        centred = centred - self.mean(centred)  # rounding leaves a constant a mean that is not quite 0
        return centred / (self.mean(centred.square()).sqrt() + 1e-8)

    @cached_property
    def whitened_advantage(self) -> Float[Tensor, "N T"]:
        """`advantage`, whitened over this buffer, or over the one that it is a part of."""
        if self.part_of is not None:
            whole, rows = self.part_of
            return whole.whitened_advantage[rows]
        return self.whiten(self.advantage)


_FIELDS = tuple(f.name for f in dataclasses.fields(Buffer) if f.name not in ("group_size", "part_of"))


def _deal(order: np.ndarray[Any, Any], shown: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`order`, rearranged so that the entries where `shown` holds lie evenly among the others."""
    rank = np.where(shown, np.cumsum(shown) / max(shown.sum(), 1), np.cumsum(~shown) / max((~shown).sum(), 1))
    return order[np.argsort(rank, kind="stable")]
