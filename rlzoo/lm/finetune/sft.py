"""Supervised fine-tuning (SFT), and the training loop that it shares with reward models."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlzoo.core.system.errors import NonFiniteError, require
from rlzoo.core.system.fields import Advanced, Checked, Count, NonNegative, Positive, Range, UnitInterval
from rlzoo.core.system.progress import operation, track
from rlzoo.lm.finetune.chat import Row
from rlzoo.lm.finetune.data import Example, read_examples, split
from rlzoo.lm.finetune.records import Source
from rlzoo.lm.model.padding import micro_batches, pad, summed_nll
from rlzoo.lm.model.pretrained import check_vocabulary, encode, max_positions

Metrics = dict[str, float]
OnEpoch = Callable[[Metrics], None]
"""Takes the metrics after each epoch."""
Loss = Callable[[Sequence[int]], Tensor]
"""The sum of a loss over the rows of these indices."""


def no_report(metrics: Metrics) -> None:
    """An `OnEpoch` that does nothing."""


@dataclass(frozen=True)
class FitSettings(Checked):
    """Settings of AdamW over batches of rows, with linear warm-up and linear decay of the learning rate to 0."""

    title: ClassVar[str] = "Training"
    groups: ClassVar[Mapping[str, tuple[str, ...]]] = {"Memory and speed": ("device", "micro_batch_tokens")}

    epochs: Count = 3
    """Passes over the training rows."""
    batch_size: Count = 32
    """Rows of a gradient step."""
    learning_rate: Positive = 5e-5
    """Peak learning rate. 1e-3 suits small models with random weights."""
    warmup: Advanced[UnitInterval] = 0.05
    """Share of the steps over which the learning rate rises to its peak."""
    weight_decay: Advanced[NonNegative] = 0.01
    """Weight decay of AdamW for weight matrices. Biases and normalisation layers are not decayed."""
    max_grad_norm: Advanced[Positive | None] = 1.0
    """Bound on the global norm of the gradient."""
    max_tokens: Annotated[int, Range(2)] | None = None
    """Largest number of tokens in a row, longer ones are cut; none for the model's context."""
    micro_batch_tokens: Advanced[Count] = 2048
    """Tokens of a micro-batch, which changes speed and memory but not results."""
    held_out: Annotated[float, Range(0, 1, below=True)] = 0.1
    """Share of the data that is held out to measure the loss."""
    tokenizer: str | None = None
    """Directory or Hub name of the tokenizer; none for the model's own."""
    device: str | None = None
    """PyTorch device of the model; none for the CPU, or in Python for that of a loaded model."""
    seed: Annotated[int, Range(0, 2**64 - 1)] = 0
    """Seed of the split, the order of rows and random weights."""


@dataclass(frozen=True)
class SFTSettings(FitSettings):
    """Settings of `rlzoo sft`. The loss is the negative log-likelihood of each next token."""

    vocab_size: Annotated[int, Range(258)] = 1024
    """Largest vocabulary of a tokenizer trained on the texts, for a configuration without a tokenizer."""


def sft(
    texts: Source,
    settings: SFTSettings,
    model: transformers.PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    on_epoch: OnEpoch = no_report,
) -> Metrics:
    """Trains `model` to predict each next token of the texts, and the end of sequence after each text.

    Of a conversation only the assistant's turns are predicted, and of a prompt with its completion only the completion.
    The loss of a batch is the mean over all its predicted tokens, without padding. The first token of a row is not
    predicted, and a text that is cut has no end of sequence. `read_examples` says what texts may be.

    Returns:
        The last epoch's metrics: `loss` (mean over the epoch), `held_out_loss` and `held_out_perplexity` = e^loss of
        the held-out texts, if these have predicted tokens, all per token, and `cut`, the number of texts that were cut.

    Raises:
        ConfigError: the tokenizer has no end of sequence or does not fit the model, or there are too few texts.
        NonFiniteError: the loss or gradient is not finite; the weights are those of the step before.
    """
    require(tokenizer.eos_token_id is not None, "the tokenizer has no end-of-sequence token to end a text with")
    check_vocabulary(model, len(tokenizer), "to train")
    examples = read_examples(texts)
    train, held_out = split([x.key for x in examples], settings.held_out, settings.seed)
    whole, longest = _rows(examples, tokenizer), longest_row(model, settings)
    metrics: Metrics = {"cut": sum(len(row.ids) > longest for row in whole)}
    rows = [Row(row.ids[:longest], row.trains[:longest]) for row in whole]
    widths = [len(row.ids) for row in rows]
    counts = [sum(row.trains[1:]) for row in rows]
    fault = f"no token is left to train on: rows are cut after {longest} tokens; shorten the prompts"
    require(any(counts[i] for i in train), fault if settings.max_tokens is None else f"{fault}, or raise max_tokens")

    def loss(batch: Sequence[int]) -> Tensor:
        ids, attention = pad([rows[i].ids for i in batch], int(tokenizer.pad_token_id or 0), "right")
        trains = pad([rows[i].trains for i in batch], 0, "right")[0].bool()
        return summed_nll(model, *(x.to(model.device) for x in (ids, attention, trains)))

    def report(epoch: int, mean_loss: float) -> None:
        metrics.update(epoch=epoch, loss=mean_loss)
        if any(counts[i] for i in held_out):
            nll = mean_of(loss, held_out, widths, counts, settings.micro_batch_tokens)
            metrics.update(held_out_loss=nll, held_out_perplexity=math.exp(min(nll, 700.0)))
        on_epoch(dict(metrics))

    fit(model, train, widths, counts, loss, settings, report)
    return metrics


def longest_row(model: transformers.PreTrainedModel, settings: FitSettings) -> int:
    """Tokens of the longest row that is not cut."""
    return min(filter(None, (settings.max_tokens, max_positions(model))), default=sys.maxsize)


def _rows(examples: Sequence[Example], tokenizer: PreTrainedTokenizerBase) -> list[Row]:
    """Tokens of each example, with end of sequence. Texts alone are encoded all at once, which is quicker."""
    end = int(tokenizer.eos_token_id)
    plain = iter(encode(tokenizer, [x.text for x in examples if x.prompt is None and isinstance(x.text, str)]))
    rows = []
    for example in track("texts to tokens", examples):
        if example.prompt is None and isinstance(example.text, str):
            ids = next(plain)
            ids = ids if ids[-1:] == [end] else [*ids, end]
            rows.append(Row(ids, [True] * len(ids)))
        else:
            rows.append(example.row(tokenizer))
    return rows


def fit(
    model: nn.Module,
    rows: Sequence[int],
    widths: Sequence[int],
    counts: Sequence[int],
    loss: Loss,
    settings: FitSettings,
    on_epoch: Callable[[int, float], None],
) -> None:
    """Minimises the mean loss of rows by AdamW.

    Args:
        rows: indices into `widths` and `counts`.
        widths: tokens of each row, without padding.
        counts: what each row counts in a mean: the loss of a batch is its sum divided by the counts of its rows.
        on_epoch: called with the number of the epoch, from 1, and its mean loss.

    Raises:
        ConfigError: all parameters are frozen.
        NonFiniteError: a loss or gradient is not finite; the step was not taken.
    """
    rng = np.random.default_rng(settings.seed)
    optimizer = _adamw(model, settings)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    require(bool(parameters), "the model has no parameter to train; unfreeze it, such as model.requires_grad_(True)")
    optimizer.zero_grad()  # a loaded model may have gradients
    steps = settings.epochs * math.ceil(len(rows) / settings.batch_size)
    step = 0
    with operation("step", steps) as fitting:
        for epoch in range(1, settings.epochs + 1):
            total, seen = torch.zeros((), dtype=torch.float64, device=parameters[0].device), 0
            for batch in batches_by_length(rows, widths, settings.batch_size, rng):
                count = max(1, sum(counts[i] for i in batch))
                for micro_batch in micro_batches(batch, widths, settings.micro_batch_tokens):
                    summed = loss(micro_batch)
                    (summed / count).backward()  # type: ignore[no-untyped-call]
                    total += summed.detach()
                norm = nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm or math.inf)
                for name, x in (("loss", total), ("gradient of the loss", norm)):
                    if not bool(x.isfinite()):
                        raise NonFiniteError(f"the {name} in epoch {epoch} is not finite; lower learning_rate")
                for group in optimizer.param_groups:
                    group["lr"] = settings.learning_rate * schedule(step, steps, settings.warmup)
                optimizer.step()
                optimizer.zero_grad()
                step, seen = step + 1, seen + count
                fitting.done, fitting.note = step, f"loss {float(total) / seen:.4g}"
            on_epoch(epoch, float(total) / max(1, sum(counts[i] for i in rows)))


def _adamw(model: nn.Module, settings: FitSettings) -> torch.optim.AdamW:
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def schedule(step: int, steps: int, warmup: float) -> float:
    """Factor of the learning rate: it rises to 1 over the share `warmup` of the steps, then falls towards 0."""
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
def mean_of(loss: Loss, rows: Sequence[int], widths: Sequence[int], counts: Sequence[int], tokens: int) -> float:
    """The sum of the loss over the rows, divided by their counts, in micro-batches of `tokens` tokens."""
    parts = track("held-out loss", list(micro_batches(rows, widths, tokens)))
    return sum(float(loss(part)) for part in parts) / sum(counts[i] for i in rows)


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
    return fast_tokenizer(tokenizer)


def fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer of transformers, with the special tokens "<eos>" and "<pad>"."""
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", clean_up_tokenization_spaces=False)


def describe(metrics: Metrics, epochs: int) -> str:
    """'epoch 1/3: loss 3.142, held-out loss 3.21'."""
    values = {name: x for name, x in metrics.items() if name not in ("epoch", "cut")}
    words = (f"{name.replace('held_out', 'held-out').replace('_', ' ')} {x:.4g}" for name, x in values.items())
    return f"epoch {metrics['epoch']:.0f}/{epochs}: {', '.join(words)}"
