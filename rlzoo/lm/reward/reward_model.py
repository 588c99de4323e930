"""Reward models: learned scores of responses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rlzoo.core.system.errors import require
from rlzoo.lm.model.padding import micro_batches, pack_right, pad
from rlzoo.lm.model.pretrained import (
    HEAD,
    check_vocabulary,
    encode,
    load_reward_model,
    load_tokenizer,
    max_positions,
    without_dropout,
)
from rlzoo.lm.model.saving import save
from rlzoo.lm.reward.shaping import Moments


class RewardModel:
    """Scores responses by gain·r + bias, where r is the head's output at the last token that is not padding.

    Gain and bias are stored in the model's configuration as `rlzoo_gain` and `rlzoo_bias` (see `calibrate`). Their
    defaults are 1 and 0. Prompt and response are joined to one text and scored without end of sequence. The beginning
    of a text that is too long for the model is cut off. The given model loses its dropout.
    """

    micro_batch_tokens = 8192
    """Tokens of a micro-batch, padding included."""

    def __init__(self, model: transformers.PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        check_vocabulary(model, len(tokenizer), "of rewards")
        head = getattr(model, HEAD, None)
        single = isinstance(head, nn.Linear) and head.out_features == 1
        require(single, f"the given {type(model).__name__} is no sequence classifier with one label")
        nn.Module.eval(model)
        without_dropout(model)
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path | str, device: str = "cpu") -> RewardModel:
        """Loads what `rlzoo reward-model` saved, or any sequence classifier with one label and a head called `score`.

        Raises:
            ConfigError: there is none, or it is damaged.
        """
        model = load_reward_model(folder)
        nn.Module.to(model, device)
        return cls(model, load_tokenizer(folder))

    @property
    def gain(self) -> float:
        return float(getattr(self.model.config, "rlzoo_gain", 1.0))

    @property
    def bias(self) -> float:
        return float(getattr(self.model.config, "rlzoo_bias", 0.0))

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """One score for each prompt and response. Raises `ConfigError` if a prompt and its response are empty.

        Equal texts are scored once, since rounding depends on the row.
        """
        texts = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
        different = list(dict.fromkeys(texts))
        scores = dict(zip(different, self.score_ids(*self._pad(different)).tolist(), strict=True))
        return [scores[text] for text in texts]

    def score_ids(self, ids: Int[Tensor, "N T"], attention: Bool[Tensor, "N T"]) -> Float[Tensor, "N"]:
        """One score for each row of tokens, padded on either side. Raises `ConfigError` if a row is all padding."""
        return self.gain * self._raw(ids, attention) + self.bias

    @torch.no_grad()
    def _raw(self, ids: Tensor, attention: Tensor) -> Float[Tensor, "N"]:
        """r of each row."""
        widths = attention.sum(1).tolist()
        require(0 not in widths, f"row {(*widths, 0).index(0)} has no token to score")
        scores = torch.empty(len(ids), device=ids.device)
        for batch in micro_batches(range(len(ids)), widths, self.micro_batch_tokens):
            rows = (x[batch].to(self.model.device) for x in (ids, attention))
            scores[batch] = last_scores(self.model, *rows).to(scores)
        return scores

    def calibrate(self, texts: Sequence[str]) -> tuple[float, float]:
        """Sets gain and bias so that the scores of `texts` (prompt and response joined) have mean 0 and std 1.

        Returns:
            The new gain and bias.

        Raises:
            ConfigError: all their scores are equal.
        """
        scores = self._raw(*self._pad(texts))
        differ = len(scores) > 1 and float(scores.max() - scores.min()) > 1e-5 * max(1.0, float(scores.abs().max()))
        require(differ, f"the reward model gives the same score to all {len(scores)} texts of its calibration")
        config = self.model.config
        config.rlzoo_gain, config.rlzoo_bias = Moments.of(scores).gain_and_bias()
        return self.gain, self.bias

    def save(self, folder: Path | str) -> None:
        """See `rlzoo.lm.model.saving.save`."""
        save(self.model, self.tokenizer, folder)

    def _pad(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        rows = encode(self.tokenizer, texts)
        longest = max_positions(self.model) or 0
        return pad([row[-longest:] for row in rows], int(self.tokenizer.pad_token_id or 0), "right")


def last_scores(
    model: transformers.PreTrainedModel, ids: Int[Tensor, "N T"], attention: Bool[Tensor, "N T"]
) -> Float[Tensor, "N"]:
    """The head's output at the last token of each row that is not padding. Token ids do not matter."""
    ids, attention = pack_right(ids, attention)
    hidden = model.base_model(input_ids=ids, attention_mask=attention.long(), use_cache=False)[0]
    last = hidden[torch.arange(len(ids), device=ids.device), attention.sum(1) - 1]
    return model.get_submodule(HEAD)(last).squeeze(1)
