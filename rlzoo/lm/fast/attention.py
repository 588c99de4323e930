"""Attention by plain matrix products where they are faster than the fused kernel, and a key-value cache with room."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlzoo.lm.fast import kernels
from rlzoo.lm.fast.kernels import takes
from rlzoo.lm.fast.unpadded import Unpadded

NAMES = {"sdpa": "sdpa_or_products", "eager": "products"}
"""Names of this attention among those of Hugging Face, in place of others: fused or not, and never fused."""
_LONGEST = {torch.bfloat16: 512, torch.float32: 128}
"""Number of keys up to which plain products are faster on a CPU, by precision."""
_PLAIN = frozenset({"dropout", "scaling", "is_causal", "position_ids", "use_cache", "cache_position"})
"""Arguments that plain products take into account, or that do not matter to them."""


def check_interfaces() -> None:
    """Raises `AttributeError` unless the parts of transformers used here, which may change, are as they should be."""
    arguments: list[tuple[Any, str]] = [
        (sdpa_mask, "attention_mask"),
        (sdpa_mask, "allow_is_causal_skip"),
        (Cache, "layer_class_to_replicate"),
    ]
    for function, name in arguments:
        if name not in inspect.signature(function).parameters:
            raise AttributeError(f"{function.__name__} has no argument {name}")


def use_fastest_attention(model: Any) -> None:
    """Makes a Hugging Face model that uses "sdpa" choose between that and plain products for each forward pass.

    One that uses "eager" gets the same plain products, which can read an `Unpadded`.
    """
    name = NAMES.get(model.config._attn_implementation)
    if name is not None:
        ALL_ATTENTION_FUNCTIONS.register(name, partial(attention, fused=name == NAMES["sdpa"]))
        ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask)
        model.config._attn_implementation = name


def uses_fastest_attention(model: Any) -> bool:
    """Whether a Hugging Face model has this attention. Hugging Face's `set_attn_implementation` replaces it."""
    return model.config._attn_implementation in NAMES.values()


def mask(
    attention_mask: Bool[Tensor, "N C"] | None = None, allow_is_causal_skip: bool = True, **more: Any
) -> Bool[Tensor, "N 1 T C"] | None:
    """Hugging Face's `sdpa_mask`, which is not left out if there is an `attention_mask`.

    To find out that no token is masked, the host would have to wait for the device. A caller who knows it gives none.
    """
    skip = allow_is_causal_skip and attention_mask is None
    return sdpa_mask(attention_mask=attention_mask, allow_is_causal_skip=skip, **more)


def attention(
    module: nn.Module,
    query: Float[Tensor, "N h T d"],
    key: Float[Tensor, "N g C d"],
    value: Float[Tensor, "N g C e"],
    attention_mask: Bool[Tensor, "N 1 T C"] | None,
    unpadded: Unpadded | None = None,
    fused: bool = True,
    **more: Any,
) -> tuple[Float[Tensor, "N T h e"], None]:
    """softmax(q·kᵀ·scaling)·v, in the form that Hugging Face's attention functions have.

    On a CPU, the fused kernel computes in float32 even for bfloat16, and its backward pass is slow. On a GPU,
    plain products of one more token read the keys that several heads share once.

    Args:
        unpadded: the rows of the tokens, if they are in one row without padding.
        fused: whether the fused kernel may be used.

    Raises:
        ValueError: plain products are needed, and there is an argument that they do not take into account.
    """
    others = [name for name, x in more.items() if name not in _PLAIN and x is not None]
    if others and (unpadded is not None or not fused):
        raise ValueError(f"attention with {', '.join(others)} is none by plain products")
    one, on_cpu = query.shape[2] == 1, query.device.type == "cpu"
    scaling, causal = more.get("scaling"), more.get("is_causal")
    scaling = query.shape[3] ** -0.5 if scaling is None else float(scaling)
    if takes(value) and not others and query.shape[3] == key.shape[3] == value.shape[3]:
        heads = query.to(value.dtype), key.to(value.dtype), value
        if unpadded is not None:
            return kernels.attention(*heads, unpadded.segments, scaling, None), None
        for_all_heads = attention_mask is None or (attention_mask.dtype == torch.bool and attention_mask.shape[1] == 1)
        if one and not torch.is_grad_enabled() and for_all_heads:
            return kernels.attention_step(*heads, attention_mask, scaling), None
    if unpadded is not None:
        of_rows = partial(attention, module, fused=fused, **more)
        return unpadded.attend(query, key, value, lambda *x: of_rows(*x)[0]), None
    faster = key.shape[2] <= _LONGEST.get(value.dtype, 0) and not one if on_cpu else one
    plain = faster and not others and not more.get("dropout")
    if fused and not plain:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    causal = getattr(module, "is_causal", True) if causal is None else causal
    return _products(query * scaling, key, value, attention_mask, causal), None


def _products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attention of scaled queries by plain products. `causal` counts where there is no mask."""
    rows, heads, tokens, size = query.shape
    groups = key.shape[1]
    scores = query.reshape(rows, groups, -1, size) @ key.transpose(-1, -2)  # the heads of a group share its keys
    scores = scores.view(rows, heads, tokens, -1)
    if mask is None and causal and tokens > 1:  # keys beyond the queries are those of a cache with room
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    elif mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    probs = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    out = (probs.view(rows, groups, -1, probs.shape[-1]) @ value).view(rows, heads, tokens, -1)
    return out.transpose(1, 2).contiguous()


class CachedLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keys and values of a layer in memory with room for more tokens, which Hugging Face's own copies for each token.

    They are in the precision of the values. Where matrix products are autocast, rotary embeddings give keys in float32,
    which would be cast again for each token.
    """

    keys: Any
    values: Any
    _keys: Tensor
    _values: Tensor
    _place: Tensor | None = None
    """(1,) the place of the next token, once the room is fixed."""

    def update(
        self, key_states: Float[Tensor, "N g T d"], value_states: Float[Tensor, "N g T d"], *args: Any, **kwargs: Any
    ) -> tuple[Float[Tensor, "N g C d"], Float[Tensor, "N g C d"]]:
        """Adds T tokens and returns all. With a fixed room, adds one and returns the room."""
        if self._place is not None:
            self._keys.index_copy_(2, self._place, key_states.to(self._keys.dtype))
            self._values.index_copy_(2, self._place, value_states)
            return self._keys, self._values
        if self.keys is None:
            self.is_initialized, self.dtype, self.device = True, value_states.dtype, value_states.device
            self.keys, self.values = key_states[:, :, :0].to(self.dtype), value_states[:, :, :0]
            self._keys, self._values = self.keys, self.values
        start, new = self.keys.shape[2], key_states.shape[2]
        self._keys = self._with_room(self._keys, start, key_states)
        self._values = self._with_room(self._values, start, value_states)
        self.keys, self.values = self._keys[:, :, : start + new], self._values[:, :, : start + new]
        return self.keys, self.values

    def batch_select_indices(self, indices: Int[Tensor, "R"]) -> None:
        """Keeps these rows."""
        super().batch_select_indices(indices)
        self._keys, self._values = self.keys, self.values

    def fix(self, room: int, place: Int[Tensor, "1"]) -> None:
        """Fixes the room, and adds each further token at `place`, until `free`. What is not used yet is zero."""
        used, self._place = self.keys.shape[2], place
        self._keys, self._values = (nn.functional.pad(x, (0, 0, 0, room - used)) for x in (self.keys, self.values))

    def free(self, used: int) -> None:
        """Ends a fixed room, of which so many tokens are used."""
        self._place = None
        self.keys, self.values = self._keys[:, :, :used], self._values[:, :, :used]

    @staticmethod
    def _with_room(kept: Tensor, start: int, added: Tensor) -> Tensor:
        """`kept`, or a copy twice as long if it is full, with the `added` tokens from `start` on."""
        end = start + added.shape[2]
        if end > kept.shape[2]:
            longer = kept.new_empty(*kept.shape[:2], 2 * end, kept.shape[3])
            longer[:, :, :start] = kept[:, :, :start]
            kept = longer
        kept[:, :, start:end] = added
        return kept


def new_cache(model: Any) -> Cache:
    """An empty key-value cache for the attention of `use_fastest_attention`, or Hugging Face's own for others."""
    return Cache(layer_class_to_replicate=CachedLayer if uses_fastest_attention(model) else DynamicLayer)
