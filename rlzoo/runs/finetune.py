"""Supervised fine-tuning and reward-model training of a model that is loaded and saved: the two commands in Python."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlzoo.core.errors import ConfigError, require
from rlzoo.core.launch import check_alone
from rlzoo.core.threads import fit_to
from rlzoo.lm.finetune import reward_model as rewards
from rlzoo.lm.finetune import sft as texts_fit
from rlzoo.lm.finetune.data import Example, read_examples, read_pairs
from rlzoo.lm.finetune.records import Source
from rlzoo.lm.finetune.reward_model import RewardModelSettings
from rlzoo.lm.finetune.sft import FitSettings, Metrics, SFTSettings, describe
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.saving import check_output, save, use_tokens
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.runs.configuration.settings import unknown_name
from rlzoo.runs.files import lock
from rlzoo.runs.logs.display import Display, display_for
from rlzoo.runs.train import check_device

S = TypeVar("S", bound=FitSettings)
Model = PreTrainedModel | Path | str
Tokenizer = PreTrainedTokenizerBase | Path | str


def sft(
    texts: Source,
    model: Model,
    out: Path | str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    settings: SFTSettings | None = None,
    overwrite: bool = False,
    progress: bool | Display = False,
    on_epoch: Callable[[Metrics], None] = lambda metrics: None,
    **changes: Any,
) -> Metrics:
    """Fine-tunes a language model on texts, conversations, or prompts with completions. It is `rlzoo sft` in Python.

    Args:
        texts: a file (.txt with one text in each line, .jsonl, .parquet), the directory of a dataset, a list, or a
            `datasets.Dataset`. A record has "text", "messages", or "prompt" and "completion".
        model: directory or Hub name of a model or run, or a configuration, which gets random weights; or a loaded
            model, which is trained in place. A configuration without a tokenizer gets one that is trained on the texts.
        out: folder to save model and tokenizer in.
        tokenizer: directory or Hub name, or a loaded one; by default the model's own.
        overwrite: replace the model in `out`.
        progress: show progress on standard output, or on your own display.
        on_epoch: called with the metrics after each epoch.
        settings, changes: an `SFTSettings`, or its fields by name.

    Returns:
        The last epoch's metrics (see `rlzoo.lm.finetune.sft.sft`), and `seconds`.

    Raises:
        ConfigError: a setting, an object or a file is wrong, or torchrun has started several processes.
        RunError: another process trains a model in `out`.
        NonFiniteError: training failed; nothing is saved.
    """
    check_alone("sft")
    settings = _settings(SFTSettings, settings, changes)
    with _output(model, out, overwrite):
        examples = read_examples(texts)
        start, display = time.perf_counter(), display_for(progress)
        known = _tokenizer(tokenizer or settings.tokenizer, model, lambda: _new_tokenizer(examples, model, settings))
        if isinstance(model, PreTrainedModel):
            actor = pretrained.check_given(model, len(known))
        else:
            actor = pretrained.initialise_from(model, len(known), settings.seed)
        nn.Module.to(actor, settings.device)
        use_tokens(actor, known)
        size = sum(p.numel() for p in actor.parameters())
        display.say(f"{len(examples):,} texts; {type(actor).__name__} of {size:,} parameters, {len(known):,} tokens")
        fit_to(size, display.say)
        metrics = _shown(
            display, settings, on_epoch, lambda report: texts_fit.sft(examples, settings, actor, known, report, display)
        )
        if out is not None:
            save(actor, known, out)
            display.say(_saved(out, metrics))
        return {**metrics, "seconds": time.perf_counter() - start}


def train_reward_model(
    pairs: Source,
    model: Model | RewardModel,
    out: Path | str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    settings: RewardModelSettings | None = None,
    overwrite: bool = False,
    progress: bool | Display = False,
    on_epoch: Callable[[Metrics], None] = lambda metrics: None,
    **changes: Any,
) -> Metrics:
    """Trains a reward model on pairs of responses, one of which was preferred. It is `rlzoo reward-model` in Python.

    Args:
        pairs: a file (.jsonl, .parquet), the directory of a dataset, a list, or a `datasets.Dataset`. A record has
            "prompt", "chosen" and "rejected", texts or messages.
        model: directory or Hub name of a causal language model, which gets a new head, or of a reward model; or a
            loaded one. An `rlzoo.RewardModel` or a sequence classifier is trained in place, a language model is not.
        settings, changes: a `RewardModelSettings`, or its fields by name.
        out, tokenizer, overwrite, progress, on_epoch: as for `sft`.

    Returns:
        The metrics (see `rlzoo.lm.finetune.reward_model.train_reward_model`), and `seconds`.

    Raises:
        ConfigError: a setting, an object or a file is wrong, or torchrun has started several processes.
        RunError: another process trains a model in `out`.
        NonFiniteError: training failed; nothing is saved.
    """
    check_alone("train_reward_model")
    settings = _settings(RewardModelSettings, settings, changes)
    with _output(model, out, overwrite):
        start, display = time.perf_counter(), display_for(progress)
        made = model if isinstance(model, RewardModel) else _reward_model(model, tokenizer, settings, out)
        known = read_pairs(pairs, made.tokenizer)
        nn.Module.to(made.model, settings.device)
        use_tokens(made.model, made.tokenizer)
        size = sum(p.numel() for p in made.model.parameters())
        display.say(f"{len(known):,} pairs; {type(made.model).__name__} of {size:,} parameters")
        fit_to(size, display.say)
        metrics = _shown(
            display,
            settings,
            on_epoch,
            lambda report: rewards.train_reward_model(known, settings, made, report, display),
        )
        if out is not None:
            made.save(out)
            display.say(_saved(out, metrics))
        return {**metrics, "seconds": time.perf_counter() - start}


def _shown(
    display: Display,
    settings: FitSettings,
    on_epoch: Callable[[Metrics], None],
    fit: Callable[[Callable[[Metrics], None]], Metrics],
) -> Metrics:
    """`fit`, with a line for each epoch on the display."""

    def report(metrics: Metrics) -> None:
        display.say(describe(metrics, settings.epochs))
        on_epoch(metrics)

    try:
        return fit(report)
    finally:
        display.close()


def _settings(cls: type[S], settings: S | None, changes: dict[str, Any]) -> S:
    """The settings, or an instance made from its fields."""
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = changes.keys() - {*known}
    if unknown:
        raise ConfigError(unknown_name("setting", min(unknown), known))
    require(settings is None or not changes, "give either settings or single settings, not both")
    require(settings is None or isinstance(settings, cls), f"settings must be {cls.__name__}, got {settings!r}")
    settings = settings or cls(**changes)
    check_device(settings.device)
    return settings


@contextlib.contextmanager
def _output(model: object, out: Path | str | None, overwrite: bool) -> Iterator[None]:
    """Checks `model` and `out`, and locks the latter against other processes by a file beside it."""
    named = isinstance(model, (Path, str))
    require(
        named or isinstance(model, (PreTrainedModel, RewardModel)),
        f'model must be a directory, a Hub name or a loaded model, such as model="gpt2", got {type(model).__name__}',
    )
    require(out is not None or not named, 'out is missing: the folder to save the model in, such as out="models/sft"')
    if out is None:
        yield
        return
    check_output(out, overwrite)
    path = Path(out).resolve()
    with lock(Path(out), path.with_name(f".{path.name}.lock")):
        check_output(out, overwrite)  # another process may have been first
        yield


def _tokenizer(
    given: Tokenizer | None, model: Model, new: Callable[[], PreTrainedTokenizerBase | None]
) -> PreTrainedTokenizerBase:
    if isinstance(given, PreTrainedTokenizerBase):
        return pretrained.with_padding(given, "given")
    if given is None and isinstance(model, PreTrainedModel):
        raise ConfigError("tokenizer is missing: a loaded model needs one, such as tokenizer=tokenizer")
    require(
        given is None or isinstance(given, (Path, str)),
        f'tokenizer must be a directory, a Hub name or a loaded one, such as tokenizer="gpt2", '
        f"got {type(given).__name__}",
    )
    return (new() if given is None else None) or pretrained.load_tokenizer(given or str(model))


def _new_tokenizer(examples: Sequence[Example], model: Model, settings: SFTSettings) -> PreTrainedTokenizerBase | None:
    """A tokenizer that is trained on the texts, for a configuration without one."""
    bare = isinstance(model, (Path, str)) and pretrained.is_config(model)
    if not bare or (Path(str(model)) / "tokenizer.json").exists():
        return None
    return texts_fit.train_tokenizer([x.plain() for x in examples], settings.vocab_size)


def _reward_model(
    model: Model, tokenizer: Tokenizer | None, settings: RewardModelSettings, out: Path | str | None
) -> RewardModel:
    known = _tokenizer(tokenizer or settings.tokenizer, model, lambda: None)
    if not isinstance(model, PreTrainedModel):
        return RewardModel(pretrained.load_reward_model(model, head_seed=settings.seed), known)
    if isinstance(getattr(model, pretrained.HEAD, None), nn.Linear):
        return RewardModel(pretrained.check_given(model, len(known)), known)
    require(out is not None, "out is missing: a language model gets a new head in a copy, which must be saved")
    with tempfile.TemporaryDirectory() as folder:
        save(model, known, folder)
        return RewardModel(pretrained.load_reward_model(folder, head_seed=settings.seed), known)


def _saved(out: Path | str, metrics: Metrics) -> str:
    return f"saved in {out}" + (f"; {metrics['cut']:.0f} texts were too long and were cut" if metrics["cut"] else "")
