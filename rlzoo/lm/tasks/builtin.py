"""The built-in language tasks: prompts, score, and a supervised start that is made here and kept for later runs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlzoo.core.task import Say
from rlzoo.lm.finetune import sft
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.model import padding, pretrained
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks import reviews
from rlzoo.lm.tasks.random_walks import RandomWalks
from rlzoo.optim.fast.compilation import cache_directory


@dataclass(frozen=True)
class BuiltIn:
    """A language task that brings everything along."""

    name: str
    prompts: list[str]
    eval_prompts: list[str]
    score: Score
    texts: list[str] = field(repr=False)
    """What the supervised start is trained on."""
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    config: dict[str, Any]
    """Of the actor, as `config.json` has it."""
    fit: SFTSettings
    walks: RandomWalks | None = None
    """The graph, where a policy's expected score can be computed exactly."""

    def start(self, say: Say) -> Path:
        """A directory with the supervised start, from the cache if it was made before.

        It lies in `$RLZOO_CACHE`, or else `$XDG_CACHE_HOME/rlzoo`, or else `~/.cache/rlzoo`.
        """
        source = "".join(inspect.getsource(module) for module in (padding, pretrained, sft))
        versions = [importlib.metadata.version(name) for name in ("torch", "transformers", "tokenizers")]
        parts = self.texts, self.config, self.fit, versions, source
        folder = cache_directory() / f"{self.name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"
        if not folder.is_dir():
            say(f"{self.name}: supervised start on {len(self.texts):,} texts, once; kept in {folder}")
            tokenizer = self.tokenizer()
            model = pretrained.new_causal_lm(self.config, len(tokenizer), self.fit.seed)
            pretrained.use_tokens(model, tokenizer)
            metrics = sft.sft(self.texts, self.fit, model, tokenizer)
            say(f"{self.name}: loss {metrics['held_out_loss']:.3f} a token on texts held out")
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".start-") as workshop:
                made = Path(workshop, "model")
                pretrained.save(model, tokenizer, made)
                try:
                    made.rename(folder)
                except OSError:  # another process was first, and its start is the one that all take
                    if not folder.is_dir():
                        raise
        return folder


def built_in(name: str) -> BuiltIn | None:
    """The task of that name; None if it brings nothing of its own."""
    if name == "RandomWalks":
        walks = RandomWalks.make()
        return BuiltIn(
            name,
            prompts=walks.prompts,
            eval_prompts=walks.prompts,
            score=walks.optimality,
            texts=list(walks.walks),
            tokenizer=walks.tokenizer,
            config=_gpt2(layers=2, width=64, heads=2, positions=16),
            fit=SFTSettings(epochs=20, batch_size=50, learning_rate=1e-3, held_out=0.1),
            walks=walks,
        )
    if name == "Reviews":
        texts = reviews.texts(4000, seed=0)
        return BuiltIn(
            name,
            prompts=reviews.prompts(256, seed=1),
            eval_prompts=reviews.prompts(64, seed=2),
            score=reviews.sentiment,
            texts=texts,
            tokenizer=lambda: sft.train_tokenizer(texts, vocab_size=384),
            config=_gpt2(layers=4, width=128, heads=4, positions=96),
            fit=SFTSettings(epochs=4, batch_size=32, learning_rate=1e-3, held_out=0.05),
        )
    return None


def _gpt2(layers: int, width: int, heads: int, positions: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": positions}
