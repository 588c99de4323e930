"""Supervised fine-tuning: raising the likelihood of texts, and the fitting loop that reward models share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlzoo.core.errors import NonFiniteError, require
from rlzoo.core.fields import Count, NonNegative, NonNegativeInt, Positive, Range, UnitInterval, check_fields
from rlzoo.lm.finetune.data import check_output, held_out, read_texts
from rlzoo.lm.model.padding import micro_batches, pad, summed_nll
from rlzoo.lm.model.pretrained import (
    check_vocabulary,
    encode,
    initialise_from,
    is_config,
    load_tokenizer,
    max_positions,
    save,
    use_tokens,
)

Metrics = dict[str, float]


@dataclass(frozen=True)
class FitSettings:
    """AdamW over batches of rows, its step size raised linearly at first and then lowered linearly to 0."""

    epochs: Count = 3
    """Passes over the training rows."""
    batch_size: Count = 32
    """Rows of a gradient step."""
    learning_rate: Positive = 5e-5
    """Highest step size. Small models of random weights do well with 1e-3."""
    warmup: UnitInterval = 0.05
    """Share of the steps over which the step size rises to that."""
    weight_decay: NonNegative = 0.01
    """AdamW's decay of weight matrices; biases and normalisations do not decay."""
    max_grad_norm: Positive | None = 1.0
    """Clip the global norm of gradients."""
    max_tokens: Annotated[int, Range(2)] | None = None
    """Tokens of a row at most, longer ones are cut; none for as many as the model takes."""
    micro_batch_tokens: Count = 2048
    """Tokens that a gradient may hold in memory at once. Changes speed and memory, not results."""
    held_out: Annotated[float, Range(0, 1, below=True)] = 0.1
    """Share of the data to measure on instead of training on it."""
    tokenizer: str | None = None
    """Directory or hub name of the tokenizer; none for the model's own."""
    device: str = "cpu"
    """PyTorch device of the model."""
    seed: NonNegativeInt = 0
    """Of the split, the order of rows, and random weights."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SFTSettings(FitSettings):
    """`sft`: next-token loss on texts."""

    vocab_size: Annotated[int, Range(258)] = 1024
    """Tokens at most of a tokenizer trained on the texts, for random weights that bring none."""


def sft(
    texts: Sequence[str],
    settings: SFTSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    on_epoch: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Trains `model` to predict each next token of the texts, and the end of sequence after the last.

    The loss of a batch is the mean over its predicted tokens, whatever rows they are in; padding never counts. A
    text that is cut has no end to predict. The first token of a row has nothing to be predicted from.

    Args:
        on_epoch: is given the metrics after each epoch.

    Returns:
        The last epoch's metrics: `loss` (over the epoch, while it was falling), of the texts held out
        `held_out_loss` and `held_out_perplexity` = e^loss, all per token, and how many texts were `cut`.

    Raises:
        ConfigError: the tokenizer has no end of sequence or does not fit the model, or there are too few texts.
        NonFiniteError: loss or gradient became NaN or infinite; the weights are those of the step before.
    """
    require(tokenizer.eos_token_id is not None, "the tokenizer has no end-of-sequence token to end a text with")
    check_vocabulary(model, len(tokenizer), "to train")
    out = held_out(texts, settings.held_out, settings.seed)
    rows = _rows(texts, tokenizer)
    longest = settings.max_tokens or max_positions(model)
    cut = sum(longest is not None and len(row) > longest for row in rows)
    rows = [row[:longest] for row in rows]
    widths = [len(row) for row in rows]
    terms = [len(row) - 1 for row in rows]
    train, measured = ([i for i, held in enumerate(out) if held is side] for side in (False, True))

    def loss(part: Sequence[int]) -> Tensor:
        ids, attention = pad([rows[i] for i in part], int(tokenizer.pad_token_id or 0), "right")
        return summed_nll(model, ids.to(model.device), attention.to(model.device))

    metrics: Metrics = {"cut": cut}

    def report(epoch: int, mean_loss: float) -> None:
        metrics.update(epoch=epoch, loss=mean_loss)
        if measured:
            nll = mean_of(loss, measured, widths, terms, settings.micro_batch_tokens)
            metrics.update(held_out_loss=nll, held_out_perplexity=math.exp(min(nll, 700.0)))
        on_epoch(dict(metrics))

    fit(model, train, widths, terms, loss, settings, report)
    return metrics


def _rows(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Tokens of each text and the end of sequence."""
    end = int(tokenizer.eos_token_id)
    return [row if row[-1:] == [end] else [*row, end] for row in encode(tokenizer, texts)]


def fit(
    model: nn.Module,
    rows: Sequence[int],
    widths: Sequence[int],
    terms: Sequence[int],
    loss: Callable[[Sequence[int]], Tensor],
    settings: FitSettings,
    on_epoch: Callable[[int, float], None],
) -> None:
    """Minimises the mean loss of `rows`, which are numbers that `widths`, `terms` and `loss` know the rows by.

    Args:
        widths: tokens of each row, padding apart.
        terms: addends of each row in the loss; the loss of a batch is its sum over their number.
        loss: the sum of the loss over a few rows.
        on_epoch: is given the number of the epoch, from 1, and the mean loss over it.

    Raises:
        NonFiniteError: a loss or gradient is not finite; it has changed nothing.
    """
    rng = np.random.default_rng(settings.seed)
    optimizer = _adamw(model, settings)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
    step = 0
    for epoch in range(1, settings.epochs + 1):
        total = torch.zeros((), dtype=torch.float64)
        for batch in batches_by_length(rows, widths, settings.batch_size, rng):
            count = max(1, sum(terms[i] for i in batch))
            for part in micro_batches(batch, widths, settings.micro_batch_tokens):
                part_loss = loss(part)
                (part_loss / count).backward()  # type: ignore[no-untyped-call]
                total += part_loss.detach().cpu()
            norm = nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm or math.inf)
            for name, x in (("loss", total), ("gradient of the loss", norm)):
                if not bool(x.isfinite()):
                    raise NonFiniteError(f"the {name} in epoch {epoch} is not finite; lower learning_rate")
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * schedule(step, steps, settings.warmup)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        on_epoch(epoch, float(total) / max(1, sum(terms[i] for i in rows)))


def _adamw(model: nn.Module, settings: FitSettings) -> torch.optim.AdamW:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def schedule(step: int, steps: int, warmup: float) -> float:
    """Factor of the step size at one of `steps` steps: up to 1 over the first `warmup` of them, then down towards 0."""
    rising = math.ceil(warmup * steps)
    return (step + 1) / rising if step < rising else (steps - step) / (steps - rising)


def batches_by_length(
    rows: Sequence[int], widths: Sequence[int], batch_size: int, rng: np.random.Generator
) -> list[list[int]]:
    """All rows once, in batches of similar width, so that little is padding.

    Rows are shuffled, sorted within runs of 50 batches and cut; then the batches are shuffled.
    """
    order = [rows[i] for i in rng.permutation(len(rows))]
    run = 50 * batch_size
    order = [i for k in range(0, len(order), run) for i in sorted(order[k : k + run], key=lambda i: widths[i])]
    batches = [order[k : k + batch_size] for k in range(0, len(order), batch_size)]
    return [batches[k] for k in rng.permutation(len(batches))]


@torch.no_grad()
def mean_of(
    loss: Callable[[Sequence[int]], Tensor],
    rows: Sequence[int],
    widths: Sequence[int],
    terms: Sequence[int],
    tokens: int,
) -> float:
    """Σ loss over the rows, by their number of terms."""
    total = sum(float(loss(part)) for part in micro_batches(rows, widths, tokens))
    return total / max(1, sum(terms[i] for i in rows))


def train_tokenizer(texts: Sequence[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """Byte-level BPE (Radford et al. 2019) of the texts, with "<eos>" and "<pad>"; it gives back any string.

    Args:
        vocab_size: at most; 256 are the bytes.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", clean_up_tokenization_spaces=False)


def run_sft(
    texts_path: Path | str,
    model: Path | str,
    out: Path | str,
    settings: SFTSettings,
    say: Callable[[str], Any] = print,
    overwrite: bool = False,
) -> Metrics:
    """Loads, trains with `sft`, and saves model and tokenizer in `out`.

    Args:
        texts_path: see `read_texts`.
        model: a directory with weights, a hub name, or a configuration to draw random weights for; in the last
            case there is a tokenizer trained on the texts, unless settings or directory have one.
        say: is given a line of text now and then.
        overwrite: replace the model that is in `out`.

    Returns:
        The last epoch's metrics, and `seconds`.

    Raises:
        ConfigError: anything that the user can mend; one line says what.
        NonFiniteError: see `sft`; nothing was saved.
    """
    check_output(out, overwrite)
    texts = read_texts(texts_path)
    start = time.perf_counter()
    tokenizer = _tokenizer(texts, model, settings)
    actor = initialise_from(model, len(tokenizer), settings.seed)
    nn.Module.to(actor, settings.device)
    use_tokens(actor, tokenizer)
    size = sum(p.numel() for p in actor.parameters())
    say(f"{len(texts):,} texts; {type(actor).__name__} of {size:,} parameters, {len(tokenizer):,} tokens")
    metrics = sft(texts, settings, actor, tokenizer, lambda metrics: say(describe(metrics, settings.epochs)))
    save(actor, tokenizer, out)
    say(f"saved in {out}" + (f"; {metrics['cut']:.0f} texts were too long and were cut" if metrics["cut"] else ""))
    return {**metrics, "seconds": time.perf_counter() - start}


def _tokenizer(texts: Sequence[str], model: Path | str, settings: SFTSettings) -> PreTrainedTokenizerBase:
    if settings.tokenizer is not None:
        return load_tokenizer(settings.tokenizer)
    if is_config(model) and not (Path(model) / "tokenizer.json").exists():
        return train_tokenizer(texts, settings.vocab_size)
    return load_tokenizer(model)


def describe(metrics: Metrics, epochs: int) -> str:
    """'epoch 1/3: loss 3.142, held-out loss 3.21'."""
    rest = {name: x for name, x in metrics.items() if name not in ("epoch", "cut")}
    told = ", ".join(f"{name.replace('held_out', 'held-out').replace('_', ' ')} {x:.4g}" for name, x in rest.items())
    return f"epoch {metrics['epoch']:.0f}/{epochs}: {told}"
