"""Training a reward model on pairs of responses, one of which was preferred."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from rlzoo.core.fields import Count, NonNegative, Positive, Range
from rlzoo.lm.finetune.data import Pair, check_output, held_out, read_pairs
from rlzoo.lm.finetune.sft import FitSettings, Metrics, describe, fit, mean_of
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.pretrained import (
    encode,
    load_reward_model,
    load_tokenizer,
    max_positions,
    use_tokens,
)
from rlzoo.lm.reward.reward_model import RewardModel, last_scores


@dataclass(frozen=True)
class RewardModelSettings(FitSettings):
    """`reward-model`: −log σ(r_chosen − r_rejected − margin) + centring·(r_chosen + r_rejected)²."""

    epochs: Count = 1
    """Passes over the training pairs."""
    learning_rate: Positive = 1e-5
    """Highest step size. Small models do well with 1e-3."""
    centring: NonNegative = 0.0
    """Weight of (r_chosen + r_rejected)², which keeps scores about 0 (Eisenstein et al. 2023 use 0.01)."""
    held_out: Annotated[float, Range(0, 1, below=True)] = 0.1
    """Share of the prompts to measure accuracy on, with all their pairs, instead of training on them."""


def preference_loss(
    chosen: Float[Tensor, "N"], rejected: Float[Tensor, "N"], margin: Float[Tensor, "N"], centring: float = 0.0
) -> Float[Tensor, "N"]:
    """−log σ(r_c − r_r − margin) + centring·(r_c + r_r)² (Bradley & Terry 1952; Touvron et al. 2023, eq. 2)."""
    return centring * (chosen + rejected).square() - logsigmoid(chosen - rejected - margin)


def train_reward_model(
    pairs: Sequence[Pair],
    settings: RewardModelSettings,
    model: RewardModel,
    on_epoch: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Fits `model` to the pairs by `preference_loss`, averaged over the pairs of a batch, and calibrates it.

    No prompt is both trained on and held out. Gain and bias are those of the texts held out, or of all if none is.

    Args:
        on_epoch: is given the metrics after each epoch.

    Returns:
        The last epoch's metrics: `loss` (over the epoch, while it was falling), and of the pairs held out
        `held_out_loss` and `held_out_accuracy`, the share of those whose chosen response has the higher score.
        Then `gain`, `bias` and how many texts were `cut`.

    Raises:
        ConfigError: there are too few prompts, or all scores are equal.
        NonFiniteError: loss or gradient became NaN or infinite; the weights are those of the step before.
    """
    out = held_out([pair.prompt for pair in pairs], settings.held_out, settings.seed)
    train, measured = ([i for i, held in enumerate(out) if held is side] for side in (False, True))
    net, tokenizer = model.model, model.tokenizer
    longest = settings.max_tokens or max_positions(net) or 0
    chosen = encode(tokenizer, [pair.prompt + pair.chosen for pair in pairs])
    rejected = encode(tokenizer, [pair.prompt + pair.rejected for pair in pairs])
    cut = sum(0 < longest < len(row) for row in (*chosen, *rejected))
    rows = [(c[-longest:], r[-longest:]) for c, r in zip(chosen, rejected, strict=True)]
    widths = [2 * max(map(len, both)) for both in rows]
    margins = torch.tensor([pair.margin for pair in pairs], device=net.device)

    def both_scores(part: Sequence[int]) -> tuple[Tensor, Tensor]:
        ids, attention = pad([rows[i][k] for k in (0, 1) for i in part], int(tokenizer.pad_token_id or 0), "right")
        chosen, rejected = last_scores(net, ids.to(net.device), attention.to(net.device)).chunk(2)
        return chosen, rejected

    def loss(part: Sequence[int]) -> Tensor:
        return preference_loss(*both_scores(part), margins[part], settings.centring).sum()

    def right(part: Sequence[int]) -> Tensor:
        chosen, rejected = both_scores(part)
        return (chosen > rejected).sum()

    metrics: Metrics = {}
    terms = [1] * len(pairs)

    def report(epoch: int, mean_loss: float) -> None:
        metrics.update(epoch=epoch, loss=mean_loss)
        if measured:
            known = measured, widths, terms, settings.micro_batch_tokens
            metrics.update(held_out_loss=mean_of(loss, *known), held_out_accuracy=mean_of(right, *known))
        on_epoch(dict(metrics))

    fit(net, train, widths, terms, loss, settings, report)
    reference = [pairs[i] for i in measured or train]
    gain, bias = model.calibrate([pair.prompt + text for pair in reference for text in (pair.chosen, pair.rejected)])
    return {**metrics, "gain": gain, "bias": bias, "cut": cut}


def run_reward_model(
    pairs_path: Path | str,
    model: Path | str,
    out: Path | str,
    settings: RewardModelSettings,
    say: Callable[[str], Any] = print,
    overwrite: bool = False,
) -> Metrics:
    """Loads, trains with `train_reward_model`, and saves model and tokenizer in `out`.

    Args:
        pairs_path: see `read_pairs`.
        model: directory or hub name of a causal language model, whose transformer is taken over under a new head; or
            of a reward model to go on with.
        say: is given a line of text now and then.
        overwrite: replace the model that is in `out`.

    Returns:
        The metrics, and `seconds`.

    Raises:
        ConfigError: anything that the user can mend; one line says what.
        NonFiniteError: see `train_reward_model`; nothing was saved.
    """
    check_output(out, overwrite)
    pairs = read_pairs(pairs_path)
    start = time.perf_counter()
    tokenizer = load_tokenizer(settings.tokenizer or model)
    net = load_reward_model(model, head_seed=settings.seed)
    nn.Module.to(net, settings.device)
    use_tokens(net, tokenizer)
    rewards = RewardModel(net, tokenizer)
    size = sum(p.numel() for p in net.parameters())
    say(f"{len(pairs):,} pairs; {type(net).__name__} of {size:,} parameters")
    metrics = train_reward_model(pairs, settings, rewards, lambda metrics: say(describe(metrics, settings.epochs)))
    rewards.save(out)
    say(f"saved in {out}" + (f"; {metrics['cut']:.0f} texts were too long and were cut" if metrics["cut"] else ""))
    return {**metrics, "seconds": time.perf_counter() - start}
