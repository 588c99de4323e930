"""Reading one more token of each row on a GPU, recorded as a CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rlzoo.lm.fast.attention import CachedLayer
from rlzoo.lm.model.language_model import Memory, Trunk
from rlzoo.lm.model.tokens import Tokens

_ROOM = 128
"""Number of tokens for which a row has room at first; it doubles."""

Pass = Callable[[], Tensor]


class Recorded:
    """Passes of one more token of N rows through a transformer, recorded once and then repeated.

    Such a pass is hundreds of small kernels, and to launch them one by one takes longer than to compute them. A CUDA
    graph launches them by one call. Its tensors keep their places and sizes. So keys and values have room for more
    tokens than there are, all of the room is read, and a mask says what is there.

    The weights must not change while it is used.

    Args:
        memory: what was read before. Its cache changes in place.

    Raises:
        RuntimeError: the pass cannot be recorded (see `graph`).
    """

    def __init__(self, trunk: Trunk, memory: Memory) -> None:
        self._cache, self._attention = memory.cache, [memory.attention]
        rows, self._used = memory.attention.shape
        device = next(trunk.base.parameters()).device
        seen = memory.attention.to(device)
        room = _ROOM
        while room <= self._used:
            room *= 2
        self._seen = torch.zeros(rows, 1, 1, room, dtype=torch.bool, device=device)
        self._seen[:, 0, 0, : self._used] = seen
        self._count = seen.sum(1, keepdim=True)
        self._token, self._position = torch.zeros_like(self._count), self._count.clone()
        self._place = torch.full((1,), self._used, device=device)
        for layer in self._layers:
            layer.fix(room, self._place)

        def read() -> Tensor:
            more = {"position_ids": self._position, "attention_mask": self._seen}
            hidden: Tensor = trunk.run(self._token, self._seen[:, 0, 0], self._cache, **more).last_hidden_state
            return hidden[:, -1]

        try:
            self._read = graph(read, device)
        except RuntimeError:
            self._free()
            raise

    @property
    def _layers(self) -> list[CachedLayer]:
        return self._cache.layers  # type: ignore[return-value]

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another token."""
        return self._used == self._seen.shape[3]

    def __call__(self, tokens: Tokens) -> Float[Tensor, "N H"]:
        """The last hidden state of each row, after one more column (N, 1) of tokens."""
        given = torch.cat([tokens.token, tokens.attention.long()], 1).to(self._seen.device, non_blocking=True)
        self._attention.append(tokens.attention)
        self._token.copy_(given[:, :1])
        self._count += given[:, 1:]
        torch.sub(self._count, 1, out=self._position)
        self._position.clamp_(min=0)
        self._seen[:, 0, 0, self._used] = given[:, 1].bool()
        self._place.fill_(self._used)
        self._used += 1
        return self._read()

    def memory(self) -> Memory:
        """What was read so far, for other passes. This object must not be used any more."""
        self._free()
        return Memory(self._cache, torch.cat(self._attention, 1))

    def rows(self, rows: Int[Tensor, "R"]) -> Memory:
        """See `Memory.rows` and `memory`."""
        return self.memory().rows(rows)

    def _free(self) -> None:
        for layer in self._layers:
            layer.free(self._used)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def graph(read: Pass, device: torch.device) -> Pass:
    """A CUDA graph of a pass. Its result stays in its place, and is overwritten by the next call.

    Raises:
        RuntimeError: the pass cannot be recorded, for example because the host waits for the device in it.
    """
    recorded, stream, current = torch.cuda.CUDAGraph(), _stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        read()  # libraries set themselves up in a first call, which a graph must not hold
        recorded.capture_begin(capture_error_mode="thread_local")
        try:
            out = read()
        finally:
            recorded.capture_end()
    current.wait_stream(stream)

    def repeat() -> Tensor:
        recorded.replay()
        return out

    return repeat
