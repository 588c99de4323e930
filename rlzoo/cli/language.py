"""`rlzoo sft` and `rlzoo reward-model`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rlzoo.cli.common import Threads, importing, threads_for
from rlzoo.cli.options import Positional, Switch, parse, parse_settings
from rlzoo.runs.settings import settings_of

if TYPE_CHECKING:
    from rlzoo.lm.finetune.sft import FitSettings

F = TypeVar("F", bound="_Fit")
S = TypeVar("S", bound="FitSettings")


@dataclass(frozen=True, kw_only=True)
class _Fit(Threads):
    model: str
    """Initial model: a directory, or a name on the hub."""
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
    """A .txt file with one text in each line, or a .jsonl file with "text" in each line."""
    model: str
    """Initial model: a directory, a name on the hub, or a configuration for a model with random weights."""


@dataclass(frozen=True, kw_only=True)
class _RewardModel(_Fit):
    pairs: Positional[str]
    """A .jsonl file with "prompt", "chosen" and "rejected" in each line."""


def sft_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.sft import SFTSettings, run_sft

    description = "Fine-tune a language model on texts."
    options, settings = _fit_options("sft", description, _SFT, SFTSettings, arguments)
    metrics = run_sft(options.texts, options.model, options.out, settings, _say(options), options.overwrite)
    return _report_fit(metrics, options, settings.epochs)


def reward_model_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.reward_model import RewardModelSettings, run_reward_model

    description = "Train a reward model on pairs of responses with a preference."
    options, settings = _fit_options("reward-model", description, _RewardModel, RewardModelSettings, arguments)
    metrics = run_reward_model(options.pairs, options.model, options.out, settings, _say(options), options.overwrite)
    return _report_fit(metrics, options, settings.epochs)


def _fit_options(name: str, description: str, options: type[F], settings: type[S], arguments: list[str]) -> tuple[F, S]:
    """The options of the command and the settings of the fit."""
    from rlzoo.runs.train import check_device

    command, given = parse_settings(options, settings_of(settings()), arguments, f"rlzoo {name}", description)
    made = settings(**given)
    check_device(made.device)
    return command, made


def _say(options: _Fit) -> Callable[[str], None]:
    file = sys.stderr if options.json else sys.stdout
    return lambda line: None if options.quiet else print(line, file=file, flush=True)


def _report_fit(metrics: dict[str, float], options: _Fit, epochs: int) -> int:
    """Prints the metrics of the last epoch, unless they were shown already."""
    if options.json:
        print(json.dumps({"model": options.out, **metrics}))
    elif options.quiet:
        from rlzoo.lm.finetune.sft import describe

        print(describe(metrics, epochs))
    return 0
