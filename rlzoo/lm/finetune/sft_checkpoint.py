"""The SFT checkpoint of a task: made on first use, and cached for later runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlzoo.core.system.cache import cache_directory, make_once
from rlzoo.core.system.progress import Progress
from rlzoo.lm.finetune import chat, data, sft
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.model import padding, pretrained, saving
from rlzoo.lm.reward.prompt import Prompt


@dataclass(frozen=True)
class SFTCheckpoint:
    """A recipe of an SFT checkpoint: a new model that is fine-tuned on texts."""

    texts: Sequence[str | Mapping[str, str]]
    """Texts, or records with "prompt" and "completion" (see `read_examples`)."""
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    config: dict[str, Any]
    """Configuration of the model: the content of `config.json`."""
    fit: SFTSettings

    def path(self, name: str, progress: Progress) -> Path:
        """Directory of the task's checkpoint in the cache. If it is missing, one process makes it, the others wait."""
        source = "".join(inspect.getsource(module) for module in (chat, data, padding, pretrained, saving, sft))
        versions = [importlib.metadata.version(package) for package in ("torch", "transformers", "tokenizers")]
        tokenizer = self.tokenizer()
        words = tokenizer.backend_tokenizer.to_str() + str(tokenizer.chat_template or "")
        parts = list(self.texts), words, self.config, self.fit, versions, source
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
        folder = cache_directory() / f"{name.rpartition(':')[2]}-{key}"
        return make_once(folder, lambda new: self._make(new, folder, name, progress))

    def _make(self, new: Path, folder: Path, name: str, progress: Progress) -> None:
        progress.say(f"{name}: SFT on {len(self.texts):,} texts, once; cached in {folder}")
        tokenizer = self.tokenizer()
        model = pretrained.new_causal_lm(self.config, len(tokenizer), self.fit.seed)
        saving.use_tokens(model, tokenizer)
        metrics = sft.sft(self.texts, self.fit, model, tokenizer)
        progress.say(f"{name}: {sft.describe(metrics, self.fit.epochs)}")
        saving.save(model, tokenizer, new, sealed=True)


def completed(prompts: Sequence[Prompt], n: int, complete: Callable[[Prompt, Random], str]) -> list[dict[str, str]]:
    """`n` records for SFT: prompts that are drawn with replacement, each with a completion."""
    rng = Random("texts 0")
    drawn = (rng.choice(prompts) for _ in range(n))
    return [{"prompt": str(prompt), "completion": complete(prompt, rng)} for prompt in drawn]


def small_gpt2(layers: int, width: int, heads: int, positions: int) -> dict[str, Any]:
    """The configuration of a small GPT-2."""
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": positions}


def character_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each character, `<eos>` and `<pad>`. Any other character is an error."""
    tokens = [*characters, "<eos>", "<pad>"]
    letters = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}))
    letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    letters.decoder = decoders.Fuse()
    return sft.fast_tokenizer(letters)
