"""Rows of tokens without padding, in which a prompt that several rows begin with stands once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding

from rlzoo.core.env import Array, Bools
from rlzoo.lm.fast.kernels import Segments

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""Queries (R, h, L, d), keys and values (R, g, C, d), and a mask (R, 1, L, C), to (R, L, h, d). None is causal."""


@dataclass(frozen=True)
class Part:
    """Tokens that see those of their own row: R rows of at most L queries and C keys.

    Tokens are given by their place among all S of an `Unpadded`. Rows are filled up with any place.
    """

    query: Tensor
    """(R, L)."""
    key: Tensor
    """(R, C)."""
    mask: Tensor | None
    """(R, 1, L, C) booleans; None where a query sees the keys up to its own place in the row."""
    token: Tensor
    """(n,): the places among R·L that are tokens."""


@dataclass(frozen=True)
class Unpadded:
    """S tokens of rows (R, T): each prompt once, and then what follows it in each row, up to the last action.

    A prompt ends with the first column that acts. Its hidden states are the same in all rows that begin with it, since
    a token sees no later one.
    """

    token: Tensor
    """(1, S)."""
    position: Tensor
    """(1, S)."""
    parts: tuple[Part, ...]
    step: Tensor
    """(A,): the places of the acting steps among R·T."""
    source: Tensor
    """(A,): the tokens whose hidden states belong to them."""
    shape: tuple[int, int]
    """(R, T)."""
    segments: Segments
    """Where the rows are among the tokens, for native code."""

    @classmethod
    def of(cls, token: Array, attention: Bools, acts: Bools, device: torch.device) -> Unpadded:
        """The tokens of rows (R, T) that have an acting step."""
        rows, end = np.arange(len(token)), int(acts.any(0).argmax()) + 1
        used = attention & acts[:, ::-1].cumsum(1)[:, ::-1].astype(np.bool_)
        first, which = unique_rows(token[:, :end], used[:, :end])
        if len(first) == len(token):
            first, which, end = rows, rows, token.shape[1]
        heads, tails = used[first, :end], used[:, end:]
        count = int(heads.sum())
        head, is_head = _places(heads, 0)
        tail, is_tail = _places(tails, count)

        def of_tokens(x: Array) -> Array:
            return np.concatenate([x[first, :end][heads], x[:, end:][tails]])[None]

        place = np.concatenate([_numbers(heads, 0)[which], _numbers(tails, count)], 1)

        def to(x: Array) -> Tensor:
            return torch.from_numpy(x).to(device, non_blocking=True)

        parts = [Part(to(head), to(head), None, to(np.flatnonzero(is_head)))]
        if tail.size:
            length = tail.shape[1]
            causal = np.tril(np.ones((length, length), np.bool_))
            seen = np.broadcast_to(is_head[which][:, None], (len(token), length, head.shape[1]))
            mask = np.concatenate([seen, np.broadcast_to(causal, (len(token), length, length))], 2)[:, None]
            key = np.concatenate([head[which], tail], 1)
            parts.append(Part(to(tail), to(key), to(mask), to(np.flatnonzero(is_tail))))
        position = (used.cumsum(1) - 1).clip(0)
        step, source = to(np.flatnonzero(acts)), to(place[acts])
        segments = _segments(heads.sum(1), tails.sum(1), which)
        return cls(to(of_tokens(token)), to(of_tokens(position)), tuple(parts), step, source, token.shape, segments)

    def attend(
        self, query: Float[Tensor, "1 h S d"], key: Float[Tensor, "1 g S d"], value: Float[Tensor, "1 g S d"],
        attention: Attention,
    ) -> Float[Tensor, "1 S h d"]:  # fmt: skip
        """Attention of each token to those of its row before it, and to itself."""
        out = []
        for part in self.parts:
            q, k, v = (_rows(x, places) for x, places in ((query, part.query), (key, part.key), (value, part.key)))
            out.append(embedding(part.token, attention(q, k, v, part.mask).flatten(0, 1).flatten(1)))
        return torch.cat(out).view(1, query.shape[2], query.shape[1], -1)

    def states(self, hidden: Float[Tensor, "1 S H"]) -> Float[Tensor, "R T H"]:
        """The hidden states of the rows, 0 at steps that do not act."""
        rows, steps = self.shape
        none = hidden.new_zeros(rows * steps, hidden.shape[2])
        return none.index_copy(0, self.step, embedding(self.source, hidden[0])).view(rows, steps, -1)


def unique_rows(token: Array, attention: Bools) -> tuple[Array, Array]:
    """(U,) the first of each kind of rows (N, T), and (N,) which of these each row equals. Padding is of one kind."""
    _, first, which = np.unique(np.where(attention, token, -1), axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def _segments(heads: Array, tails: Array, which: Array) -> Segments:
    """Segments of prompts (U,) and of what follows them in each row (R,), given their lengths and each row's prompt."""
    start = heads.cumsum() - heads
    after = heads.sum() + tails.cumsum() - tails
    prompts = np.stack([start, heads, 0 * heads, 0 * heads], 1)
    rows = np.stack([after, tails, start[which], heads[which]], 1)[tails > 0]
    tree = np.concatenate([np.arange(len(heads)), which[tails > 0]])
    order = tree.argsort(kind="stable")
    trees = tree[order].searchsorted(np.arange(len(heads) + 1))
    return Segments(torch.from_numpy(np.concatenate([prompts, rows])[order]), torch.from_numpy(trees))


def _places(used: Bools, start: int) -> tuple[Array, Bools]:
    """(R, L) places of each row's tokens, counted from `start`, and which of R·L are tokens."""
    counts = used.sum(1, keepdims=True)
    is_token = np.arange(counts.max()) < counts
    return _numbers(is_token, start), is_token


def _numbers(used: Bools, start: int) -> Array:
    """The numbers from `start` on, row by row, at the tokens; 0 elsewhere."""
    number = np.zeros(used.shape, np.int64)
    number[used] = start + np.arange(used.sum())
    return number


def _rows(x: Float[Tensor, "1 g S d"], places: Tensor) -> Float[Tensor, "R g L d"]:
    """What belongs to the tokens at these places (R, L). `embedding` has the fastest gradient for it."""
    groups, tokens, size = x.shape[1:]
    flat = x[0].transpose(0, 1).reshape(tokens, groups * size)
    return embedding(places, flat).view(*places.shape, groups, size).transpose(1, 2)
