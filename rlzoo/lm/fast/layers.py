"""Layers of a transformer whose work between matrix products is native code.

A layer becomes one by its class alone: its parameters, buffers and names stay.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from rlzoo.lm.fast.kernels import TYPES, attention, rms_norm, swiglu, takes
from rlzoo.lm.fast.unpadded import Unpadded

_HARMLESS = {"sliding_window", "config", "getattr"}
"""Names that a layer's code may have besides those of Llama: an `Unpadded` is not read with a window."""


class Native(nn.Module):
    """A layer whose own class stands after another one here, which has its own `forward`."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles, of which the second know a class by its name."""
        kind, own = type(self).__bases__
        return _empty, (kind, own), self.__dict__


class Norm(Native):
    """x / √(mean of x² + ε) · weight, in the precision of the matrix products that follow."""

    weight: Any
    variance_epsilon: Any

    def forward(self, x: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch H"]:
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        if x.dtype is not torch.float32 or dtype not in TYPES or not takes(x, self.weight):
            return super().forward(x)
        return rms_norm(x, self.weight, self.variance_epsilon, dtype)


class GatedMLP(Native):
    """W_down(silu(W_gate·x) ⊙ (W_up·x))."""

    gate_proj: Any
    up_proj: Any
    down_proj: Any
    act_fn: Any

    def forward(self, x: Float[Tensor, "*batch H"]) -> Float[Tensor, "*batch H"]:
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(swiglu(gate, up) if takes(gate, up) else self.act_fn(gate) * up)


class RotaryAttention(Native):
    """Attention that rotates queries and keys as it reads them, for an `Unpadded`."""

    q_proj: Any
    k_proj: Any
    v_proj: Any
    o_proj: Any
    head_dim: Any
    scaling: Any

    def forward(
        self,
        hidden_states: Float[Tensor, "N T H"],
        position_embeddings: Any = None,
        *args: Any,
        unpadded: Unpadded | None = None,
        **more: Any,
    ) -> Any:
        whole = position_embeddings is not None and position_embeddings[0].shape[-1] == self.head_dim
        if unpadded is None or not whole or not takes(hidden_states):
            return super().forward(hidden_states, position_embeddings, *args, unpadded=unpadded, **more)
        shape = *hidden_states.shape[:2], -1, self.head_dim
        projected = (project(hidden_states) for project in (self.q_proj, self.k_proj, self.v_proj))
        query, key, value = (x.view(shape).transpose(1, 2) for x in projected)
        if not takes(value):
            return super().forward(hidden_states, position_embeddings, *args, unpadded=unpadded, **more)
        heads = query.to(value.dtype), key.to(value.dtype), value  # some adapters give single precision
        return self.o_proj(attention(*heads, unpadded.segments, self.scaling, position_embeddings).flatten(2)), None


def native_layers(model: nn.Module) -> dict[nn.Module, type]:
    """The layers of a model that compute as those of Llama do, and the class here for each."""
    kinds: dict[nn.Module, type] = {}
    for module in model.modules():
        layer: Any = module
        if _is_like(layer, LlamaDecoderLayer) and _is_like(layer.mlp, LlamaMLP) and _is_silu(layer.mlp.act_fn):
            norms = layer.input_layernorm, layer.post_attention_layernorm
            kinds[layer.mlp] = GatedMLP
            kinds |= {norm: Norm for norm in norms if _is_like(norm, LlamaRMSNorm)}
            if _is_like(layer.self_attn, LlamaAttention) and _rotates_like_llama(layer.self_attn):
                kinds[layer.self_attn] = RotaryAttention
    return kinds


def use_classes(kinds: Mapping[nn.Module, type | None]) -> None:
    """Puts a class of this module in front of the own class of each layer; None leaves its own class alone."""
    for layer, kind in kinds.items():
        own = type(layer).__bases__[1] if isinstance(layer, Native) else type(layer)
        layer.__class__ = own if kind is None else _combined(kind, own)


def _is_like(module: nn.Module, known: type[nn.Module]) -> bool:
    """Whether the code of a module uses the same names, so the same functions and settings, as that of a known class.

    Examples alone do not tell: OLMo clips large queries, and Ministral scales those far into a text.
    """
    return _names(type(module)) == _names(known)


def _names(layer: type[nn.Module]) -> set[str]:
    """The names in the code of a layer's `forward`; none if it is not Python."""
    forward: Any = getattr(layer, "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return set() if code is None else {*code.co_names} - _HARMLESS


def _rotates_like_llama(attention: nn.Module) -> bool:
    """Whether the functions that rotate are copies of Llama's. Others rotate other pairs of numbers."""
    ours, theirs = (inspect.unwrap(x.forward).__globals__ for x in (type(attention), LlamaAttention))
    names = "apply_rotary_pos_emb", "rotate_half"
    codes = [[inspect.unwrap(some[x]).__code__.co_code for x in names if x in some] for some in (ours, theirs)]
    return codes[0] == codes[1]


def _is_silu(function: Any) -> bool:
    x = torch.linspace(-3, 3, 7)
    return torch.equal(function(x), nn.functional.silu(x))


@functools.cache
def _combined(kind: type, own: type) -> type:
    return type(own.__name__, (kind, own), {})


def _empty(kind: type, own: type) -> nn.Module:
    combined: Any = _combined(kind, own)
    return combined.__new__(combined)
