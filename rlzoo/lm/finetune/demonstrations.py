"""ptx: texts whose likelihood is raised beside the reward (Ouyang et al. 2022, eq. 2), as rows of the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad as widen

from rlzoo.core.buffer import Buffer
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.reward.shuffled import Shuffled


class Demonstrations:
    """Texts, of which every buffer gets a few rows more; their steps are masked and only `Buffer.demo` counts them.

    Args:
        texts: tokens of each text, two at least.
        coef: γ, the weight of E[log π] per token.
        rows: texts a buffer.
        seed: of their order.
    """

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        coef: float,
        rows: int,
        pad_token: int,
        seed: int | np.random.SeedSequence = 0,
    ) -> None:
        self.texts = [list(text) for text in texts]
        self.coef = coef
        self.rows = rows
        self.pad_token = pad_token
        self._order = Shuffled(len(self.texts), np.random.default_rng(seed))

    def add_to(self, buffer: Buffer) -> Buffer:
        """`buffer` with rows of the next texts under its own."""
        ids, attention = pad([self.texts[next(self._order)] for _ in range(self.rows)], self.pad_token, side="right")
        device = buffer.mask.device
        steps = max(buffer.mask.shape[1], ids.shape[1] - 1)
        lacking = steps + 1 - ids.shape[1]
        token, attends = widen(ids, (0, lacking), value=self.pad_token), widen(attention, (0, lacking))
        follows = widen(attends[:, 1:], (0, 1))
        rows = Rows(token.to(device), attends.to(device), follows.to(device))
        demo = self.coef * rows.acts[:, :-1].to(buffer.reward.dtype)
        no = torch.zeros_like(rows.acts[:, :-1])
        nothing = torch.zeros_like(demo)
        shown = Buffer(
            rows.obs,
            rows.token[:, 1:],
            nothing,
            no,
            no,
            no,
            nothing,
            torch.zeros_like(nothing[:, :1]).expand(-1, steps + 1),
        )
        more = steps - buffer.mask.shape[1]
        wide = [_widen(x, more) for x in buffer.tensors()]
        joined = buffer.with_tensors(torch.cat([x, y]) for x, y in zip(wide, shown.tensors(), strict=True))
        return joined.replace(demo=torch.cat([torch.zeros_like(joined.reward[: buffer.num_rows]), demo]))

    def state_dict(self) -> dict[str, Any]:
        return self._order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order.load_state_dict(state)


def _widen(x: torch.Tensor, columns: int) -> torch.Tensor:
    """(N, T, ...) with columns of zeros after it."""
    return torch.cat([x, x.new_zeros(len(x), columns, *x.shape[2:])], 1)
