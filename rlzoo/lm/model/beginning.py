"""What a text begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def begins(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether texts get the special tokens that the tokenizer adds, such as the beginning of sequence.

    They do not if it has a chat template that writes no beginning: `apply_chat_template` adds none either.
    """
    template, begin = str(tokenizer.chat_template or ""), tokenizer.bos_token
    return not template or "bos_token" in template or (begin is not None and str(begin) in template)
