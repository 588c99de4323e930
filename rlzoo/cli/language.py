"""`rlzoo sft` and `rlzoo reward-model`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rlzoo.cli.common import Threads, display, importing, threads_for
from rlzoo.cli.options import Positional, Switch, parse, parse_settings
from rlzoo.core.screen import show
from rlzoo.runs.configuration.settings import settings_of

if TYPE_CHECKING:
    from rlzoo.lm.finetune.sft import FitSettings

F = TypeVar("F", bound="_Fit")
S = TypeVar("S", bound="FitSettings")


@dataclass(frozen=True, kw_only=True)
class _Fit(Threads):
    model: str
    """Initial model: a directory, a run, or a name on the hub."""
    out: str
    """Directory for the model and its tokenizer."""
    overwrite: Switch = False
    """Replace an existing model."""
    quiet: Switch = False
    """Print only the metrics of the last epoch."""
    json: Switch = False
    """Print the metrics of the last epoch as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _SFT(_Fit):
    texts: Positional[str]
    """A .txt file with one text in each line, a .jsonl or .parquet file, or the directory of a dataset: "text",
    "messages", or "prompt" and "completion" in each record."""
    model: str
    """Initial model: a directory, a run, a name on the hub, or a configuration for a model with random weights."""


@dataclass(frozen=True, kw_only=True)
class _RewardModel(_Fit):
    pairs: Positional[str]
    """A .jsonl or .parquet file, or the directory of a dataset: "prompt", "chosen" and "rejected" in each record."""


def sft_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.sft import SFTSettings
        from rlzoo.runs.finetune import sft

    description = "Fine-tune a language model on texts."
    options, settings = _fit_options("sft", description, _SFT, SFTSettings, arguments)
    metrics = sft(options.texts, **_arguments(options, settings))
    return _report_fit(metrics, options, settings.epochs)


def reward_model_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.reward_model import RewardModelSettings
        from rlzoo.runs.finetune import train_reward_model

    description = "Train a reward model on pairs of responses with a preference."
    options, settings = _fit_options("reward-model", description, _RewardModel, RewardModelSettings, arguments)
    metrics = train_reward_model(options.pairs, **_arguments(options, settings))
    return _report_fit(metrics, options, settings.epochs)


def _fit_options(name: str, description: str, options: type[F], settings: type[S], arguments: list[str]) -> tuple[F, S]:
    """The options of the command and the settings of the fit."""
    command, given = parse_settings(options, settings_of(settings()), arguments, f"rlzoo {name}", description)
    return command, settings(**given)


def _arguments(options: _Fit, settings: FitSettings) -> dict[str, Any]:
    """Arguments of `sft` and `train_reward_model`."""
    chosen = {name: getattr(options, name) for name in ("model", "out", "overwrite")}
    return {**chosen, "settings": settings, "progress": display(options)}


def _report_fit(metrics: dict[str, float], options: _Fit, epochs: int) -> int:
    """Prints the metrics of the last epoch, unless they were shown already."""
    if options.json:
        show(json.dumps({"model": options.out, **metrics}))
    elif options.quiet:
        from rlzoo.lm.finetune.sft import describe

        show(describe(metrics, epochs))
    return 0
