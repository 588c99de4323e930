"""Supervised fine-tuning (SFT), and the training loop that it shares with reward models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlzoo.core.errors import NonFiniteError, require
from rlzoo.core.fields import Count, NonNegative, NonNegativeInt, Positive, Range, UnitInterval, check_fields
from rlzoo.core.threads import fit_to
from rlzoo.lm.finetune.data import held_out, read_texts
from rlzoo.lm.model.padding import micro_batches, pad, summed_nll
from rlzoo.lm.model.pretrained import (
    check_vocabulary,
    encode,
    initialise_from,
    is_config,
    load_tokenizer,
    max_positions,
)
from rlzoo.lm.model.saving import check_output, save, use_tokens

Metrics = dict[str, float]


@dataclass(frozen=True)
class FitSettings:
    """Settings of AdamW over batches of rows, with linear warm-up and linear decay of the learning rate to 0."""

    title: ClassVar[str] = "Training"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {"Memory and speed": ("device", "micro_batch_tokens")}
    advanced: ClassVar[tuple[str, ...]] = ("warmup", "weight_decay", "max_grad_norm", "micro_batch_tokens")

    epochs: Count = 3
    """Passes over the training rows."""
    batch_size: Count = 32
    """Rows of a gradient step."""
    learning_rate: Positive = 5e-5
    """Peak learning rate. 1e-3 suits small models with random weights."""
    warmup: UnitInterval = 0.05
    """Share of the steps over which the learning rate rises to its peak."""
    weight_decay: NonNegative = 0.01
    """Weight decay of AdamW for weight matrices. Biases and normalisation layers are not decayed."""
    max_grad_norm: Positive | None = 1.0
    """Bound on the global norm of the gradient."""
    max_tokens: Annotated[int, Range(2)] | None = None
    """Largest number of tokens in a row, longer ones are cut; none for the model's context."""
    micro_batch_tokens: Count = 2048
    """Tokens of a micro-batch, which changes speed and memory but not results."""
    held_out: Annotated[float, Range(0, 1, below=True)] = 0.1
    """Share of the data that is held out to measure the loss."""
    tokenizer: str | None = None
    """Directory or Hub name of the tokenizer; none for the model's own."""
    device: str = "cpu"
    """PyTorch device of the model."""
    seed: NonNegativeInt = 0
    """Seed of the split, the order of rows and random weights."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class SFTSettings(FitSettings):
    """Settings of `rlzoo sft`. The loss is the negative log-likelihood of each next token."""

    vocab_size: Annotated[int, Range(258)] = 1024
    """Largest vocabulary of a tokenizer trained on the texts, for a configuration without a tokenizer."""


def sft(
    texts: Sequence[str],
    settings: SFTSettings,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    on_epoch: Callable[[Metrics], None] = lambda metrics: None,
) -> Metrics:
    """Trains `model` to predict each next token of the texts, and the end of sequence after each text.

    The loss of a batch is the mean over all its predicted tokens, without padding. The first token of a row is not
    predicted, and a text that is cut has no end of sequence.

    Args:
        on_epoch: called with the metrics after each epoch.

    Returns:
        The last epoch's metrics: `loss` (mean over the epoch), `held_out_loss` and `held_out_perplexity` = e^loss of
        the held-out texts, all per token, and `cut`, the number of texts that were too long.

    Raises:
        ConfigError: the tokenizer has no end of sequence or does not fit the model, or there are too few texts.
        NonFiniteError: the loss or gradient is not finite; the weights are those of the step before.
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

    def loss(batch: Sequence[int]) -> Tensor:
        ids, attention = pad([rows[i] for i in batch], int(tokenizer.pad_token_id or 0), "right")
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
    """Tokens of each text, with end of sequence."""
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
    """Minimises the mean loss of rows by AdamW.

    Args:
        rows: indices into `widths` and `terms`, and what `loss` takes.
        widths: tokens of each row, without padding.
        terms: number of terms that each row adds to the loss. The loss of a batch is its sum divided by its terms.
        loss: the sum of the loss over some rows.
        on_epoch: called with the number of the epoch, from 1, and its mean loss.

    Raises:
        NonFiniteError: a loss or gradient is not finite; the step was not taken.
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
            for micro_batch in micro_batches(batch, widths, settings.micro_batch_tokens):
                summed = loss(micro_batch)
                (summed / count).backward()  # type: ignore[no-untyped-call]
                total += summed.detach().cpu()
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
    """Factor of the learning rate at a step: rises to 1 over the share `warmup` of the steps, then falls towards 0."""
    rising = math.ceil(warmup * steps)
    return (step + 1) / rising if step < rising else (steps - step) / (steps - rising)


def batches_by_length(
    rows: Sequence[int], widths: Sequence[int], batch_size: int, rng: np.random.Generator
) -> list[list[int]]:
    """One epoch of rows in batches of similar width, which need little padding.

    Rows are shuffled, sorted by width within groups of 50 batches, and cut into batches, which are shuffled.
    """
    order = [rows[i] for i in rng.permutation(len(rows))]
    group = 50 * batch_size
    order = [i for k in range(0, len(order), group) for i in sorted(order[k : k + group], key=lambda i: widths[i])]
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
    """The sum of the loss over the rows, divided by their terms, in micro-batches of `tokens` tokens."""
    total = sum(float(loss(batch)) for batch in micro_batches(rows, widths, tokens))
    return total / max(1, sum(terms[i] for i in rows))


def train_tokenizer(texts: Sequence[str], vocab_size: int = 1024) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer (Radford et al. 2019) of the texts, with "<eos>" and "<pad>". It encodes any string.

    Args:
        vocab_size: largest number of tokens, of which 256 are the bytes.
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
    """The command `rlzoo sft`: loads, trains with `sft`, and saves model and tokenizer.

    Args:
        texts_path: see `read_texts`.
        model: directory or Hub name of a model, or a configuration, which gets random weights. A configuration without
            a tokenizer in its directory or in the settings gets one that is trained on the texts.
        out: folder to save in.
        say: progress callback.
        overwrite: replace the model in `out`.

    Returns:
        The last epoch's metrics, and `seconds`.

    Raises:
        ConfigError: a setting or a file is wrong.
        NonFiniteError: see `sft`; nothing is saved.
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
    fit_to(size, say)
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
