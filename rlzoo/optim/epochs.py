"""The minibatches of an update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.core.system.progress import track_iterator


@dataclass(frozen=True)
class Epochs:
    """The minibatches of several epochs over a buffer. They are drawn once: by an iterator, or by `draw`."""

    buffer: Buffer
    number: int
    size: int | Literal["all"]
    """Size of a minibatch, as for `Buffer.minibatches`."""
    rng: np.random.Generator
    whiten: bool = False
    """Whether each minibatch has whitened advantages."""

    @property
    def rows(self) -> int:
        """Rows in a minibatch. The last of an epoch may have fewer."""
        return self.buffer.rows_of(self.size)

    @property
    def max_minibatches(self) -> int:
        """An upper bound on the number of minibatches: those without an unmasked step are skipped."""
        return self.number * -(-self.buffer.num_rows // max(self.rows, 1))

    def __iter__(self) -> Iterator[Buffer]:
        each = (x for _ in range(self.number) for x in self.buffer.minibatches(self.size, self.rng))
        return track_iterator("minibatch", (x.whitened if self.whiten else x for x in each), self.max_minibatches)

    def draw(self) -> list[Tensor]:
        """The indices of the rows of each minibatch."""
        n, rows, has_steps = self.buffer.num_rows, self.rows, self.buffer.mask.any(1).cpu()
        if rows == n:
            return [torch.arange(n)] * (self.number if has_steps.any() else 0)
        all_have_steps = bool(has_steps.all())
        orders = (torch.from_numpy(self.rng.permutation(n)) for _ in range(self.number))
        return [x for order in orders for x in torch.split(order, rows) if all_have_steps or has_steps[x].any()]
