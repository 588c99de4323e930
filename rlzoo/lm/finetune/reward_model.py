"""Training of reward models on pairs of responses, one of which was preferred."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlzoo.core.system.fields import Count, NonNegative, Positive, Range
from rlzoo.lm.finetune.data import Pair, split
from rlzoo.lm.finetune.sft import FitSettings, Metrics, OnEpoch, fit, longest_row, mean_of, no_report
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.pretrained import encode
from rlzoo.lm.reward.reward_model import RewardModel, last_scores


@dataclass(frozen=True)
class RewardModelSettings(FitSettings):
    """Settings of `rlzoo reward-model`. The loss is −log σ(r_c − r_r − margin) + centring·(r_c + r_r)²."""

    epochs: Count = 1
    """Passes over the training pairs."""
    learning_rate: Positive = 1e-5
    """Peak learning rate. 1e-3 suits small models."""
    centring: NonNegative = 0.0
    """Weight of (r_chosen + r_rejected)², which keeps scores near 0 (Eisenstein et al. 2023 use 0.01)."""
    held_out: Annotated[float, Range(0, 1, below=True)] = 0.1
    """Share of the prompts that are held out, with all their pairs, to measure accuracy."""


def preference_loss(
    chosen: Float[Tensor, "N"], rejected: Float[Tensor, "N"], margin: Float[Tensor, "N"], centring: float = 0.0
) -> Float[Tensor, "N"]:
    """−log σ(r_c − r_r − margin) + centring·(r_c + r_r)² (Bradley & Terry 1952; Touvron et al. 2023, eq. 2)."""
    return centring * (chosen + rejected).square() - logsigmoid(chosen - rejected - margin)


def train_reward_model(
    pairs: Sequence[Pair], settings: RewardModelSettings, model: RewardModel, on_epoch: OnEpoch = no_report
) -> Metrics:
    """Trains `model` on pairs by `preference_loss`, averaged over the pairs of a batch, and calibrates it.

    No prompt is both trained on and held out. Gain and bias are calibrated on the held-out pairs, or on all pairs if
    none are held out.

    Returns:
        The last epoch's metrics: `loss` (mean over the epoch), `held_out_loss` and `held_out_accuracy` of the held-out
        pairs (accuracy is the share whose chosen response has the higher score), `gain`, `bias`, and `cut`, the number
        of texts that were too long.

    Raises:
        ConfigError: there are too few prompts, or all scores are equal.
        NonFiniteError: the loss or gradient is not finite; the weights are those of the step before.
    """
    train, held_out = split([pair.prompt for pair in pairs], settings.held_out, settings.seed)
    whole, longest = encode(model.tokenizer, _texts(pairs)), longest_row(model.model, settings)
    rows = [ids[-longest:] for ids in whole]
    both = list(zip(rows[::2], rows[1::2], strict=True))
    widths = [2 * max(len(chosen), len(rejected)) for chosen, rejected in both]
    margins = torch.tensor([pair.margin for pair in pairs], device=model.model.device)

    def scores(batch: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The head's outputs for the chosen texts, and for the rejected ones."""
        padded = pad([both[i][k] for k in (0, 1) for i in batch], int(model.tokenizer.pad_token_id or 0), "right")
        chosen, rejected = last_scores(model.model, *(x.to(model.model.device) for x in padded)).chunk(2)
        return chosen, rejected

    def loss(batch: Sequence[int]) -> Tensor:
        return preference_loss(*scores(batch), margins[batch], settings.centring).sum()

    def right(batch: Sequence[int]) -> Tensor:
        differ = torch.tensor([both[i][0] != both[i][1] for i in batch], device=model.model.device)
        return (differ & torch.gt(*scores(batch))).sum()

    metrics: Metrics = {}
    counts = [1] * len(pairs)

    def report(epoch: int, mean_loss: float) -> None:
        metrics.update(epoch=epoch, loss=mean_loss)
        if held_out:
            batches = held_out, widths, counts, settings.micro_batch_tokens
            metrics.update(held_out_loss=mean_of(loss, *batches), held_out_accuracy=mean_of(right, *batches))
        on_epoch(dict(metrics))

    fit(model.model, train, widths, counts, loss, settings, report)
    gain, bias = model.calibrate(_texts([pairs[i] for i in held_out or train]))
    return {**metrics, "gain": gain, "bias": bias, "cut": sum(len(ids) > longest for ids in whole)}


def _texts(pairs: Sequence[Pair]) -> list[str]:
    """The chosen and the rejected text of each pair, in turn."""
    return [pair.prompt + response for pair in pairs for response in (pair.chosen, pair.rejected)]
