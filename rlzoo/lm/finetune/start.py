"""The SFT checkpoint of a task, made on first use and kept for later runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlzoo.core.cache import cache_directory
from rlzoo.core.task import Say
from rlzoo.lm.finetune import sft
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.model import padding, pretrained


@dataclass(frozen=True)
class SupervisedStart:
    """How an SFT checkpoint is made."""

    texts: Sequence[str]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    config: dict[str, Any]
    """The model's configuration, as `config.json` has it."""
    fit: SFTSettings

    def path(self, name: str, say: Say) -> Path:
        """The directory of the checkpoint in the cache. It is made if it is not there yet.

        Args:
            name: of the task.
            say: progress callback.
        """
        source = "".join(inspect.getsource(module) for module in (padding, pretrained, sft))
        versions = [importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")]
        parts = list(self.texts), self.config, self.fit, versions, source
        folder = cache_directory() / f"{name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            say(f"{name}: SFT on {len(self.texts):,} texts, once; kept in {folder}")
            tokenizer = self.tokenizer()
            model = pretrained.new_causal_lm(self.config, len(tokenizer), self.fit.seed)
            pretrained.use_tokens(model, tokenizer)
            metrics = sft.sft(self.texts, self.fit, model, tokenizer)
            say(f"{name}: held-out loss {metrics['held_out_loss']:.3f} per token")
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".start-") as scratch:
                made = Path(scratch, "model")
                pretrained.save(model, tokenizer, made)
                try:
                    made.rename(folder)
                except OSError:  # another process was first; every process uses its checkpoint
                    if not folder.is_dir():
                        raise
        return folder


def small_gpt2(layers: int, width: int, heads: int, positions: int) -> dict[str, Any]:
    """The configuration of a small GPT-2."""
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": positions}
