"""Rows of unequal length in one tensor: padding, positions, likelihood, micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def pad(
    rows: Sequence[Sequence[int]], pad_id: int, side: Literal["left", "right"] = "left"
) -> tuple[Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """Pads rows of tokens. Returns the ids, and a mask that is False at padding."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long).unsqueeze(1)
    longest = int(lengths.max()) if len(rows) else 0
    column = torch.arange(longest)
    attention = column >= longest - lengths if side == "left" else column < lengths
    ids = torch.full(attention.shape, pad_id)
    ids[attention] = torch.tensor([token for row in rows for token in row], dtype=torch.long)
    return ids, attention


def pack_right(
    ids: Int[Tensor, "N T"], attention: Bool[Tensor, "N T"]
) -> tuple[Int[Tensor, "N L"], Bool[Tensor, "N L"]]:
    """Moves all padding to the right, and cuts the rows to the longest of them.

    So positions are right in every architecture, whether or not it takes position ids.
    """
    order = torch.argsort(~attention, dim=1, stable=True)[:, : int(attention.sum(1).max())]
    return ids.gather(1, order), attention.gather(1, order)


def position_ids(attention: Bool[Tensor, "N T"]) -> Int[Tensor, "N T"]:
    """Position of each token in its row, padding not counted; 0 in padding before the first token."""
    return (attention.long().cumsum(1) - 1).clamp(min=0)


def summed_nll(
    model: nn.Module,
    ids: Int[Tensor, "N T"],
    attention: Bool[Tensor, "N T"],
    counts: Bool[Tensor, "N T"] | None = None,
) -> Float[Tensor, ""]:
    """−Σ log π(x_t | x_<t) over the tokens that count, without the first of each row and padding on either side."""
    counts = attention if counts is None else attention & counts
    counts = pack_right(counts.long(), attention)[0].bool()
    ids, attention = pack_right(ids, attention)
    logits = model(input_ids=ids, attention_mask=attention.long(), use_cache=False).logits
    targets = torch.full_like(ids, -100)
    targets[:, :-1] = ids[:, 1:].masked_fill(~counts[:, 1:], -100)
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def micro_batches(rows: Sequence[int], widths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The rows, widest first, in micro-batches of at most `tokens` tokens with padding, or of a single row."""
    batch: list[int] = []
    for i in sorted(rows, key=lambda i: -widths[i]):
        if batch and (len(batch) + 1) * widths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
