"""Supervised fine-tuning and reward-model training of a model that is loaded and saved: the two commands in Python."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import transformers
from torch import nn
from transformers import PreTrainedTokenizerBase

from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.launch import check_alone
from rlzoo.core.system.threads import fit_to
from rlzoo.lm.finetune import reward_model as rewards
from rlzoo.lm.finetune import sft as texts_fit
from rlzoo.lm.finetune.data import read_examples, read_pairs
from rlzoo.lm.finetune.records import Source
from rlzoo.lm.finetune.reward_model import RewardModelSettings
from rlzoo.lm.finetune.sft import FitSettings, Metrics, OnEpoch, SFTSettings, describe, no_report
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.saving import check_output, save, use_tokens
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.lm.tasks.settings import NO_TOKENIZER, misfit
from rlzoo.runs.configuration.settings import unknown_name
from rlzoo.runs.files import lock
from rlzoo.runs.logs.display import Display, display_for
from rlzoo.runs.loop import check_context
from rlzoo.runs.train import check_device

S = TypeVar("S", bound=FitSettings)
M = TypeVar("M")
Model: TypeAlias = "transformers.PreTrainedModel | Path | str"
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
    on_epoch: OnEpoch = no_report,
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
        settings, changes: an `SFTSettings`, and changes of its fields by name.

    Returns:
        The last epoch's metrics (see `rlzoo.lm.finetune.sft.sft`), and `seconds`.

    Raises:
        ConfigError: a setting, an object or a file is wrong, or torchrun has started several processes.
        RunError: another process trains a model in `out`.
        NonFiniteError: training failed; nothing is saved.
    """
    check_alone("sft")
    settings = _settings(SFTSettings, settings, changes, model)
    start = time.perf_counter()
    require(not isinstance(model, RewardModel), "model is a reward model; give a language model")
    with _session(settings, model, out, overwrite, progress, on_epoch) as (model, display, report):
        examples = read_examples(texts)
        tokenizer = tokenizer or settings.tokenizer
        bare = isinstance(model, (Path, str)) and pretrained.is_config(model)
        if bare and not (tokenizer or any(Path(str(model)).glob("tokenizer*"))):
            tokenizer = texts_fit.train_tokenizer([x.plain() for x in examples], settings.vocab_size)
        else:
            fault = "vocab_size is for a configuration without a tokenizer, which gets one of the texts; leave it out"
            require(settings.vocab_size == SFTSettings.vocab_size, fault)
        words = _tokenizer(tokenizer, model)
        if isinstance(model, transformers.PreTrainedModel):
            given: Any = model
            fault = f"the given {type(model).__name__} is no causal language model"
            require(given.get_output_embeddings() is not None, fault)
            actor = pretrained.check_given(model)
        elif bare:
            actor = pretrained.new_causal_lm(model, len(words), settings.seed)
        else:
            actor = pretrained.load_causal_lm(model)
        fit = partial(texts_fit.sft, examples, settings, actor, words, report)
        metrics = _fit(fit, f"{len(examples):,} texts", actor, words, settings, out, display)
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
    on_epoch: OnEpoch = no_report,
    **changes: Any,
) -> Metrics:
    """Trains a reward model on pairs of responses, one of which was preferred. It is `rlzoo reward-model` in Python.

    Args:
        pairs: a file (.jsonl, .parquet), the directory of a dataset, a list, or a `datasets.Dataset`. A record has
            "prompt", "chosen" and "rejected", texts or messages.
        model: directory or Hub name of a causal language model, which gets a new head, or of a reward model; or a
            loaded one. An `rlzoo.RewardModel` or a sequence classifier is trained in place, a language model is not.
        settings, changes: a `RewardModelSettings`, and changes of its fields by name.
        out, tokenizer, overwrite, progress, on_epoch: as for `sft`.

    Returns:
        The metrics (see `rlzoo.lm.finetune.reward_model.train_reward_model`), and `seconds`.

    Raises:
        ConfigError, RunError, NonFiniteError: as for `sft`.
    """
    check_alone("train_reward_model")
    settings = _settings(RewardModelSettings, settings, changes, model)
    start = time.perf_counter()
    with _session(settings, model, out, overwrite, progress, on_epoch) as (model, display, report):
        scorer = _reward_model(model, tokenizer or settings.tokenizer, settings.seed, out)
        preferences = read_pairs(pairs, scorer.tokenizer)
        fit = partial(rewards.train_reward_model, preferences, settings, scorer, report)
        metrics = _fit(fit, f"{len(preferences):,} pairs", scorer.model, scorer.tokenizer, settings, out, display)
    return {**metrics, "seconds": time.perf_counter() - start}


def _settings(cls: type[S], settings: S | None, changes: dict[str, Any], model: object) -> S:
    """The settings, with changes by name, and with the device of a loaded model if they name none."""
    names = [f.name for f in dataclasses.fields(cls)]
    for name in sorted(changes.keys() - {*names}):
        raise ConfigError(unknown_name("setting", name, names))
    require(settings is None or isinstance(settings, cls), f"settings must be {cls.__name__}, got {settings!r}")
    settings = dataclasses.replace(settings or cls(), **changes)
    loaded = model.model if isinstance(model, RewardModel) else model
    device = str(getattr(loaded, "device", "cpu")) if settings.device is None else settings.device
    check_device(device)
    check_context()
    return dataclasses.replace(settings, device=device)


@contextlib.contextmanager
def _session(
    settings: FitSettings,
    model: M,
    out: Path | str | None,
    overwrite: bool,
    progress: bool | Display,
    then: OnEpoch,
) -> Iterator[tuple[M | str, Display, OnEpoch]]:
    """Checks `model` and `out`, and locks the latter against other processes by a file beside it.

    Yields:
        The loaded model, or the directory or Hub name of one that is named; the display; and a callback that shows the
        metrics of an epoch and then calls `then`.
    """
    named = isinstance(model, (Path, str))
    require(named or isinstance(model, (transformers.PreTrainedModel, RewardModel)), misfit("model", model, "model"))
    require(out is not None or not named, 'out is missing: the folder to save the model in, such as out="models/sft"')
    with contextlib.ExitStack() as stack:
        if out is not None:
            path = Path(out).resolve()
            stack.enter_context(lock(Path(out), path.with_name(f".{path.name}.lock")))
            check_output(out, overwrite)
        display = stack.enter_context(display_for(progress))

        def report(metrics: Metrics) -> None:
            display.say(describe(metrics, settings.epochs))
            then(metrics)

        yield pretrained.located(str(model), display) if named else model, display, report


def _fit(
    fit: Callable[[], Metrics],
    data: str,
    model: transformers.PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: FitSettings,
    out: Path | str | None,
    display: Display,
) -> Metrics:
    """`fit` with the model on its device and the tokenizer's special tokens in it. Saves both in `out`, if given."""
    nn.Module.to(model, settings.device)
    use_tokens(model, tokenizer)
    size = sum(p.numel() for p in model.parameters())
    display.say(f"{data}; {type(model).__name__} of {size:,} parameters, {len(tokenizer):,} tokens")
    fit_to(size, display.say)
    metrics = fit()
    if out is not None:
        save(model, tokenizer, out)
        cut = f"; {metrics['cut']:.0f} texts were too long and were cut" if metrics["cut"] else ""
        display.say(f"saved in {out}{cut}")
    return metrics


def _tokenizer(tokenizer: Tokenizer | None, model: Model) -> PreTrainedTokenizerBase:
    """The tokenizer, loaded; that of the model if it is None."""
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return pretrained.with_padding(tokenizer, "given")
    require(tokenizer is not None or not isinstance(model, transformers.PreTrainedModel), NO_TOKENIZER)
    require(tokenizer is None or isinstance(tokenizer, (Path, str)), misfit("tokenizer", tokenizer))
    return pretrained.load_tokenizer(tokenizer or str(model))


def _reward_model(
    model: Model | RewardModel, tokenizer: Tokenizer | None, seed: int, out: Path | str | None
) -> RewardModel:
    if isinstance(model, RewardModel):
        require(tokenizer is None, "tokenizer does nothing with a RewardModel, which has its own; leave it out")
        pretrained.check_given(model.model)
        return model
    if isinstance(model, (Path, str)):
        fault = f"model {model} is a configuration without weights: train a model from it with rlzoo sft first"
        require(not pretrained.is_config(model), fault)
    words = _tokenizer(tokenizer, model)
    if not isinstance(model, transformers.PreTrainedModel):
        return RewardModel(pretrained.load_reward_model(model, head_seed=seed), words)
    head = getattr(model, pretrained.HEAD, None)
    if isinstance(head, nn.Linear):
        count, kind = head.out_features, type(model).__name__
        require(count == 1, f"the given {kind} has {count} labels; a reward model has one: num_labels=1")
        return RewardModel(pretrained.check_given(model), words)
    require(out is not None, "out is missing: a language model gets a new head in a copy, which must be saved")
    with tempfile.TemporaryDirectory() as folder:
        save(model, words, folder)
        return RewardModel(pretrained.load_reward_model(folder, head_seed=seed), words)
