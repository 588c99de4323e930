"""Experience: N rows of T steps, and the operations that every algorithm needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlzoo.core.distributions import Distribution
from rlzoo.core.system.errors import require
from rlzoo.core.tensors import ABSENT, Tensors


@dataclass(frozen=True)
class Buffer(Tensors):
    """One iteration of experience.

    A step is *forced* when the environment ignored its action (the step after an episode's end, prompt tokens,
    padding). `mask` is False there, and nothing in a masked step may change a result. A forced step still has an
    observation: after an episode's end it is the final state. So `value[:, t + 1]` is always the value of the state
    that step t led to.

    As collected, `obs` and `value` have one column more than the rest, for the state after the last step.
    """

    obs: Any
    """What the model sees at each step: a tensor of observations (N, T + 1, *obs) as collected, (R, context, *obs)
    after `rows`; or a structure of tensors with the same first axes, `Seen` or `Tokens`."""
    action: Tensor
    """(N, T) integers of one categorical, else (N, T, A). Box actions are stored as sampled, not clipped."""
    reward: Float[Tensor, "N T"]
    terminated: Bool[Tensor, "N T"]
    truncated: Bool[Tensor, "N T"]
    mask: Bool[Tensor, "N T"]
    logp: Tensor = ABSENT
    """(N, T) log π(a|s) of the policy that acted, computed by the training forward."""
    value: Tensor = ABSENT
    """(N, T + 1) as collected, (R, context) after `rows`."""
    advantage: Tensor = ABSENT
    """(N, T)."""
    return_: Tensor = ABSENT
    """(N, T), the critic's target."""
    old: Distribution | None = None
    """π_old(·|s) at each step, for algorithms with an exact KL."""
    group_size: int = 0
    """Number of consecutive rows that start in the same state; 0 means all rows."""
    row_size: int = 1
    """How much one row adds to the size of a minibatch: its steps, or 1 if sizes are counted in rows (see `rows`)."""
    part_weight: Tensor = ABSENT
    """For a part of a buffer: the rows of this part in the whole buffer's `weight` (see `part`)."""

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__match_args__}
        return partial(Buffer, **{name: x for name, x in fields.items() if x is not ABSENT}), ()

    @property
    def num_rows(self) -> int:
        return self.mask.shape[0]

    @property
    def num_steps(self) -> int:
        """Number of unmasked steps."""
        return int(self.mask.sum())

    def rows(self, context: int) -> Buffer:
        """The same steps as rows of `context` steps, R = N·⌈T / context⌉ (N with 0).

        The extra last column of `obs` and `value` is dropped. Forced steps stay, so all buffers of a run are alike.
        Rows that `context` does not divide end with masked steps, copies of the last one.

        Args:
            context: steps that a policy must see together. 0 keeps whole rows; minibatch sizes then count rows.
        """
        n, steps = self.mask.shape
        given, dtype = [x for x in (self.advantage, self.return_) if x is not ABSENT], self.reward.dtype
        shapes = [tuple(x.shape) for x in given]
        require({*shapes} <= {(n, steps)}, f"the estimator's advantage and return_ must be {(n, steps)}, not {shapes}")
        require({x.dtype for x in given} <= {dtype}, f"the estimator's advantage and return_ must be of {dtype}")
        context, row_size = min(context, steps) or steps, min(context, steps) or 1
        padding = -steps % context

        def cut(x: Tensor) -> Tensor:
            x = x[:, :steps]
            if padding:
                x = torch.cat([x, x[:, -1:].expand(-1, padding, *x.shape[2:])], 1)
            return x.reshape(-1, context, *x.shape[2:])

        rows = self.map(cut).replace(row_size=row_size)
        if padding:
            rows.mask.view(self.num_rows, -1)[:, steps:] = False
        return rows

    def minibatches(self, size: int | Literal["all"], rng: np.random.Generator) -> Iterator[Buffer]:
        """One epoch: the rows in random order, cut into minibatches.

        The remaining rows form a last, smaller minibatch. A minibatch without an unmasked step is skipped. A
        minibatch of all rows is the buffer itself.

        Args:
            size: steps in a minibatch, or rows after `rows(0)`; "all" for all rows. A minibatch has at least one row.
        """
        rows = self.rows_of(size)
        if rows == self.num_rows:
            if self.mask.any():
                yield self
            return
        order = torch.from_numpy(rng.permutation(self.num_rows)).to(self.mask.device)
        pieces = [torch.split(x.index_select(0, order), rows) for x in self.tensors()]
        has_steps = torch.split(self.mask[order].any(1).cpu(), rows)
        for some_steps, tensors in zip(has_steps, zip(*pieces, strict=True), strict=True):
            if some_steps.any():
                yield self.with_tensors(tensors)

    def rows_of(self, size: int | Literal["all"]) -> int:
        """Rows in a minibatch (see `minibatches`). The last of an epoch may have fewer."""
        return self.num_rows if size == "all" else min(max(1, size // self.row_size), self.num_rows)

    def sample(self, fraction: float, rng: np.random.Generator | None) -> Buffer:
        """A random part of the rows that have an unmasked step, in order: ⌊fraction · number⌋ of them, at least one.

        A fraction of 1 is the buffer itself, and draws nothing.
        """
        if fraction == 1 or rng is None:
            return self
        rows = self.mask.any(1).nonzero().squeeze(1)
        number = max(1, int(fraction * len(rows) + 1e-9))  # 0.29 · 100 is 28.999...
        order = np.sort(rng.permutation(len(rows))[:number])
        chosen = rows[torch.from_numpy(order).to(rows.device)]
        return self.map(lambda x: x[chosen])

    def part(self, rows: slice) -> Buffer:
        """Some of the rows, with their `weight`: the means over all parts add up to the mean over the whole."""
        return self.replace(part_weight=self.weight).map(lambda x: x[rows])

    def micro_batches(self, steps: int | None) -> Iterator[Buffer]:
        """The rows in order, in parts of at most `steps` steps (at least one row). With None, all rows are one part.

        A sum of gradients over the parts does not depend on their size.
        """
        rows = self.num_rows if steps is None else max(1, steps // self.mask.shape[1])
        if 0 < self.num_rows <= rows:
            yield self
            return
        for start in range(0, self.num_rows, rows or 1):
            yield self.part(slice(start, start + rows))

    @cached_property
    def weight(self) -> Float[Tensor, "N T"]:
        """1 / (number of unmasked steps) where the mask is True, 0 elsewhere; all 0 for an empty mask.

        In a part of a buffer, the unmasked steps of the whole buffer count.
        """
        if self.part_weight is not ABSENT:
            return self.part_weight
        return self.mask.to(self.reward.dtype) / self.mask.sum().clamp(min=1)

    def mean(self, x: Float[Tensor, "N T"]) -> Float[Tensor, ""]:
        """Mean of `x` over the unmasked steps; 0 if there are none. `x` must be finite everywhere."""
        return torch.dot(x.reshape(-1), self.weight.reshape(-1))

    def whiten(self, x: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """`x` shifted and scaled to mean 0 and (biased) standard deviation 1 over the unmasked steps.

        A constant `x` gives zeros.
        """
        if x.numel() == 0:
            return x
        unmasked = x.flatten().index_select(0, self.weight.argmax()[None])
        centred = x - unmasked  # 0 for a constant, whose mean has rounding
        centred = centred - self.mean(centred)
        return centred / (self.mean(centred.square()).sqrt() + 1e-8)

    @cached_property
    def whitened(self) -> Buffer:
        """A copy with whitened advantages."""
        return self.replace(advantage=self.whiten(self.advantage))
