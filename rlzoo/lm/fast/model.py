"""Faster forms of a language model's parts. A part becomes one by its class alone: its parameters and names stay."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache
from transformers.pytorch_utils import Conv1D

from rlzoo.core.distributions import Categorical
from rlzoo.lm.fast.attention import new_cache, use_fastest_attention, uses_fastest_attention
from rlzoo.lm.fast.layers import native_layers, use_classes
from rlzoo.lm.fast.packed import Packed
from rlzoo.lm.fast.recorded import Recorded
from rlzoo.lm.fast.unpadded import Unpadded, unique_rows
from rlzoo.lm.fast.vocabulary import BlockedTokenDistribution
from rlzoo.lm.fast.weights import use_faster_layers
from rlzoo.lm.model.language_model import LanguageModel, Memory, Reference, TokenHead, Trunk
from rlzoo.lm.model.precision import equal_but_for_rounding, kind_of
from rlzoo.lm.model.tokens import Tokens

_RECORDING = frozenset({"cuda"})
"""Kinds of devices whose passes can be recorded."""
_WORTH = {"cpu": 1.0, "other": 0.55}
"""Share of the tokens, padding included, up to which a pass over an `Unpadded` is faster, by kind of device.

On an H200 a token of an `Unpadded` took 1.7 times as long as one of padded rows.
"""


class FastTrunk(Trunk):
    """Computes what matters alone, without a mask where nothing is padding."""

    unpads = False
    """Whether the transformer gives the same hidden states for an `Unpadded`, with the attention that can read one."""
    records = False
    """Whether it gives the same hidden states in a `Recorded` pass, on a device that can record it."""

    def states(self, tokens: Tokens) -> Float[Tensor, "R T H"]:
        """Reads no padding and each prompt once, if that saves enough.

        Otherwise leaves out the columns before the first token of any row and after the last acting step.
        """
        given = torch.stack([tokens.token, tokens.attention, tokens.acts])
        token, attention, acts = given.cpu().numpy()  # the only time that the host waits for the device
        attention, acts = attention.astype(np.bool_), acts.astype(np.bool_)
        started, acting = attention.any(0), acts.any(0)
        first = int(started.argmax())
        last = max(len(acting) - int(acting[::-1].argmax()), first + 1) if acting.any() else first + 1
        device = next(self.base.parameters()).device
        most = _WORTH[kind_of(device)] * len(token) * (last - first)
        unpads = self.unpads and uses_fastest_attention(self.base)
        if unpads and 0 < acts.sum() <= most + len(token):  # rows of a group share one of their acting steps
            unpadded = Unpadded.of(token, attention, acts, device)
            if unpadded.token.shape[1] <= most:
                return self.unpadded_states(unpadded)
        cut, mask = tokens.columns(first, last), {"attention_mask": None} if attention[:, first:last].all() else {}
        hidden = self.run(cut.token, cut.attention, **mask).last_hidden_state
        hidden = hidden.masked_fill(~cut.acts.unsqueeze(-1), 0)
        return nn.functional.pad(hidden, (0, 0, first, len(acting) - last))

    def unpadded_states(self, unpadded: Unpadded) -> Float[Tensor, "R T H"]:
        """The hidden states, from a pass over the tokens of an `Unpadded`."""
        whole = unpadded.token.new_ones(1, 1, 1, 1)  # of four dimensions, so that no other mask is made
        more: dict[str, Any] = {"position_ids": unpadded.position, "attention_mask": whole, "unpadded": unpadded}
        out = self.run(unpadded.token, torch.ones_like(unpadded.token, dtype=torch.bool), **more)
        return unpadded.states(out.last_hidden_state)

    def run(
        self, token: Int[Tensor, "R T"], attention: Bool[Tensor, "R C"], cache: Cache | None = None, **more: Any
    ) -> Any:
        """Without padding there is no mask. It is looked for on the host alone, which would wait for the device."""
        if attention.device.type == "cpu" and bool(attention.all()):
            more.setdefault("attention_mask", None)
        return super().run(token, attention, cache, **more)

    def new_cache(self) -> Cache:
        return new_cache(self.base)


class FastTokenHead(TokenHead):
    """Gives distributions that are computed in blocks of the vocabulary."""

    def forward(self, hidden: Tensor, tokens: Tokens) -> BlockedTokenDistribution:  # type: ignore[override]
        return BlockedTokenDistribution(hidden, tokens.acts, self.functional, tokens.allowed)


class PackedMemory(NamedTuple):
    """What acting keeps: the model's memory, and its packed weights, which must not change in the meantime."""

    memory: Memory | Recorded
    packed: Packed

    def rows(self, rows: Int[Tensor, "R"]) -> PackedMemory:
        """See `Memory.rows`."""
        return self._replace(memory=self.memory.rows(rows))


class FastLanguageModel(LanguageModel):
    """Acts with packed weights, reads each prompt once, and reads on only where a row has not ended.

    On a GPU, one more token is read by a recorded pass.
    """

    trunk: FastTrunk

    @property
    def share_that_stays(self) -> float:
        """See `LanguageModel.share_that_stays`. The time of a recorded pass hardly depends on the number of rows."""
        return 0.25 if self.trunk.records else 0.875

    def act(self, tokens: Tokens, memory: PackedMemory | None = None) -> tuple[Categorical, PackedMemory]:  # type: ignore[override]
        """See `LanguageModel.act`. The weights must not change before the last step of an episode."""
        rest: Any = None
        if memory is None:
            packed = Packed(self.trunk, self.policy, rows=len(tokens.token), precision=self.trunk.precision)
        else:
            rest, packed = memory
        with packed:
            policy, rest = super().act(tokens, rest)
        return policy, PackedMemory(rest, packed)

    def read(  # type: ignore[override]
        self, tokens: Tokens, memory: Memory | Recorded | None
    ) -> tuple[Float[Tensor, "N H"], Memory | Recorded]:
        one = tokens.token.shape[1] == 1
        if isinstance(memory, Recorded) and (memory.is_full or not one):
            memory = memory.memory()
        if isinstance(memory, Memory) and one and self.trunk.records:
            try:
                memory = Recorded(self.trunk, memory)
            except RuntimeError:
                self.trunk.records = False
        if isinstance(memory, Recorded):
            return memory(tokens), memory
        if memory is not None or tokens.token.device.type != "cpu":
            return super().read(tokens, memory)
        first, which = (torch.from_numpy(x) for x in unique_rows(tokens.token.numpy(), tokens.attention.numpy()))
        if len(first) == len(which):
            return super().read(tokens, None)
        hidden, memory = super().read(tokens.map(lambda x: x[first]), None)
        return hidden[which.to(hidden.device, non_blocking=True)], memory.rows(which)


def accelerate_model(model: LanguageModel) -> None:
    """Makes the parts of a model fast ones. A subclass keeps its own way of acting."""
    if type(model) is LanguageModel:
        model.__class__ = FastLanguageModel
    for trunk in (model.trunk, model.value.trunk):
        if trunk is not None:
            _accelerate_trunk(trunk)
    model.policy.__class__ = FastTokenHead


def accelerate_reference(reference: Reference) -> None:
    """Makes the parts of a frozen copy fast ones, with linear layers in the precision of products."""
    if not reference.is_copy:
        return
    trunk, head = reference.trunk, reference.head
    _accelerate_trunk(trunk)
    head.__class__ = FastTokenHead
    if trunk.precision is not None:
        head.head = copy.deepcopy(head.head)  # an embedding that is tied to it stays
        for module in (*trunk.base.modules(), head.head):
            if isinstance(module, (nn.Linear, Conv1D)):
                module.to(trunk.precision)


def _accelerate_trunk(trunk: Trunk) -> FastTrunk:
    if isinstance(trunk, FastTrunk):
        if trunk.unpads:  # and may have been given another attention since
            use_fastest_attention(trunk.base)
        return trunk
    base, chosen = trunk.base, trunk.base.config._attn_implementation
    device = next(base.parameters()).device
    use_faster_layers(base)
    base.warn_if_padding_and_no_attention_mask = _nothing  # it would look at every token
    expected = _example_states(trunk)
    use_fastest_attention(base)
    trunk.__class__ = FastTrunk
    fast = cast(FastTrunk, trunk)
    native = native_layers(base)
    use_classes(native)
    same, fast.unpads = _computes(fast, expected)
    if not same and native:
        use_classes(dict.fromkeys(native))
        same, fast.unpads = _computes(fast, expected)
    with contextlib.suppress(TypeError, ValueError, AttributeError, RuntimeError):
        fast.records = fast.unpads and device.type in _RECORDING and _reads_by_records(fast)
    if not same or (chosen == "eager" and not fast.unpads):
        base.config._attn_implementation = chosen
    return fast


def _computes(fast: FastTrunk, expected: Tensor) -> tuple[bool, bool]:
    """Whether the transformer gives the expected `_example_states`, for padded rows and for an `Unpadded`."""
    same = unpads = False
    windows = any(getattr(fast.base.config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    with contextlib.suppress(TypeError, ValueError, AttributeError, RuntimeError):
        same = equal_but_for_rounding(_example_states(fast), expected)
        # A mask may hold a window that is longer than the rows of the check.
        unpads = same and not windows and equal_but_for_rounding(_example_states(fast, unpadded=True), expected)
    return same, unpads


def _nothing(*_: object) -> None: ...


@torch.no_grad()
def _example_states(trunk: Trunk, unpadded: bool = False) -> Tensor:
    """The hidden states of three rows, of which two share their prompt."""
    token = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0], [1, 1, 0, 0]])
    attention = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    acts = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 1]]).bool()
    whole: Any = copy.copy(trunk)
    whole.precision, device = None, next(trunk.base.parameters()).device
    if unpadded:
        parts = Unpadded.of(token.numpy(), attention.numpy(), acts.numpy(), device)
        states: Tensor = whole.unpadded_states(parts)
    else:
        states = Trunk.states(whole, Tokens(token, attention, acts).map(lambda x: x.to(device)))
    return states[acts.to(device)]


@torch.no_grad()
def _reads_by_records(trunk: FastTrunk) -> bool:
    """Whether recorded passes give the hidden states of a pass over whole rows, of which one begins with padding."""
    whole: Any = copy.copy(trunk)
    whole.precision = None
    token, attention = torch.tensor([[0, 1, 0, 1], [0, 1, 1, 0]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]).bool()
    expected = whole.run(token, attention).last_hidden_state
    cache = whole.new_cache()
    whole.run(token[:, :2], attention[:, :2], cache)
    reading = Recorded(whole, Memory(cache, attention[:, :2]))
    columns = [Tokens(token[:, t : t + 1], attention[:, t : t + 1], None) for t in (2, 3)]
    return all(equal_but_for_rounding(reading(x), expected[:, t]) for t, x in enumerate(columns, 2))
