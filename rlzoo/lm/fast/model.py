"""Faster forms of a language model's parts. A part becomes one by its class alone: its parameters and names stay."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache
from transformers.pytorch_utils import Conv1D

from rlzoo.core.distributions import Categorical
from rlzoo.lm.fast.attention import new_cache, use_fastest_attention
from rlzoo.lm.fast.packed import Packed
from rlzoo.lm.fast.vocabulary import BlockedTokenDistribution
from rlzoo.lm.fast.weights import Casts, use_faster_layers
from rlzoo.lm.model.language_model import LanguageModel, Memory, Reference, TokenHead, Trunk
from rlzoo.lm.model.tokens import Tokens


class FastTrunk(Trunk):
    """Computes the columns that matter, without a mask where nothing is padding, with weights that are cast once."""

    casts: Casts | None = None

    def states(self, tokens: Tokens) -> Float[Tensor, "R T H"]:
        """Leaves out the columns before the first token of any row and after the last acting step."""
        columns = torch.stack([tokens.attention.any(0), tokens.attention.all(0), tokens.acts.any(0)])
        started, full, acting = columns.cpu().numpy()  # the only time that the host waits for the device
        first = int(started.argmax())
        last = max(len(acting) - int(acting[::-1].argmax()), first + 1) if acting.any() else first + 1
        cut, mask = tokens.columns(first, last), {} if not full[first:last].all() else {"attention_mask": None}
        hidden = self.run(cut.token, cut.attention, use_cache=False, **mask).last_hidden_state
        hidden = hidden.masked_fill(~cut.acts.unsqueeze(-1), 0)
        return nn.functional.pad(hidden, (0, 0, first, len(acting) - last))

    def run(self, token: Int[Tensor, "R T"], attention: Bool[Tensor, "R C"], **more: Any) -> Any:
        """Without padding there is no mask. It is looked for on the host alone, which would wait for the device."""
        if attention.device.type == "cpu" and bool(attention.all()):
            more["attention_mask"] = None
        return super().run(token, attention, **more)

    def call(self, **inputs: Any) -> Any:
        casts = {} if self.casts is None else self.casts.weights()
        return torch.func.functional_call(self.base, casts, kwargs=inputs) if casts else super().call(**inputs)

    def new_cache(self) -> Cache:
        return new_cache(self.base)


class FastTokenHead(TokenHead):
    """Gives distributions that are computed in blocks of the vocabulary."""

    def forward(self, hidden: Tensor, tokens: Tokens) -> BlockedTokenDistribution:  # type: ignore[override]
        return BlockedTokenDistribution(hidden, tokens.acts, self.functional, tokens.allowed)


class PackedMemory(NamedTuple):
    """What acting keeps: the model's memory, and its packed weights, which must not change in the meantime."""

    memory: Memory
    packed: Packed


class FastLanguageModel(LanguageModel):
    """Acts with packed weights."""

    def act(self, tokens: Tokens, memory: PackedMemory | None = None) -> tuple[Categorical, PackedMemory]:  # type: ignore[override]
        """See `LanguageModel.act`. The weights must not change before the last step of an episode."""
        if memory is None:
            packed = Packed(self.trunk, self.policy, rows=len(tokens.token), precision=self.trunk.precision)
        else:
            packed = memory.packed
        with packed:
            policy, rest = super().act(tokens, None if memory is None else memory.memory)
        return policy, PackedMemory(rest, packed)


def accelerate_model(model: LanguageModel) -> None:
    """Makes the parts of a model fast ones. A subclass keeps its own way of acting."""
    if type(model) is LanguageModel:
        model.__class__ = FastLanguageModel
    for trunk in (model.trunk, model.value.trunk):
        if trunk is not None:
            fast = _accelerate_trunk(trunk)
            if fast.precision is not None and not fast.gradient_checkpointing:  # which casts again in backward passes
                fast.casts = Casts(fast.base, fast.precision)
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
    use_faster_layers(trunk.base)
    use_fastest_attention(trunk.base)
    trunk.base.warn_if_padding_and_no_attention_mask = _trust  # it would look at every token
    trunk.__class__ = FastTrunk
    return cast(FastTrunk, trunk)


def _trust(*_: object) -> None:
    """Instead of Hugging Face's check that tokens without a mask are no padding."""
