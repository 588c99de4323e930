"""`rlzoo sft` and `rlzoo reward-model`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from rlzoo.cli.common import Threads, importing, threads_for
from rlzoo.cli.options import Positional, Switch, parse

if TYPE_CHECKING:
    from rlzoo.lm.finetune.sft import FitSettings

F = TypeVar("F", bound="_Fit")
S = TypeVar("S", bound="FitSettings")


@dataclass(frozen=True, kw_only=True)
class _Fit(Threads):
    model: str
    """What to start from: the directory of a model, or a name on the hub."""
    out: str
    """The directory to save model and tokenizer in."""
    overwrite: Switch = False
    """Replace a model that is there already."""
    quiet: Switch = False
    """Print nothing but the last epoch's numbers."""
    json: Switch = False
    """Print the last epoch's numbers as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _SFT(_Fit):
    texts: Positional[str]
    """A .txt file, a text a line, or a .jsonl file with "text" in each line."""
    model: str
    """What to start from: the directory of a model, a name on the hub, or a configuration to draw weights for."""


@dataclass(frozen=True, kw_only=True)
class _RewardModel(_Fit):
    pairs: Positional[str]
    """A .jsonl file with "prompt", "chosen" and "rejected" in each line."""


def sft_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True), all_cores=True)):
        from rlzoo.lm.finetune.sft import SFTSettings, run_sft

    description = "Fine-tune a language model: raise the likelihood of texts."
    options, settings = _fit_options("sft", description, _SFT, SFTSettings, arguments)
    metrics = run_sft(options.texts, options.model, options.out, settings, _say(options), options.overwrite)
    return _report_fit(metrics, options, settings.epochs)


def reward_model_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True), all_cores=True)):
        from rlzoo.lm.finetune.reward_model import RewardModelSettings, run_reward_model

    description = "Train a reward model on pairs of responses, one of which was preferred."
    options, settings = _fit_options("reward-model", description, _RewardModel, RewardModelSettings, arguments)
    metrics = run_reward_model(options.pairs, options.model, options.out, settings, _say(options), options.overwrite)
    return _report_fit(metrics, options, settings.epochs)


def _fit_options(name: str, description: str, options: type[F], settings: type[S], arguments: list[str]) -> tuple[F, S]:
    """The command's options, and the settings of the fit."""
    from rlzoo.runs.train import check_device

    both: Any = dataclasses.make_dataclass("Fit", [("command", options), ("fit", settings)])
    made = parse(both, arguments, f"rlzoo {name}", description)
    check_device(made.fit.device)
    return made.command, made.fit


def _say(options: _Fit) -> Callable[[str], None]:
    file = sys.stderr if options.json else sys.stdout
    return lambda line: None if options.quiet else print(line, file=file, flush=True)


def _report_fit(metrics: dict[str, float], options: _Fit, epochs: int) -> int:
    """The last epoch's metrics, where they have not been shown."""
    if options.json:
        print(json.dumps({"model": options.out, **metrics}))
    elif options.quiet:
        from rlzoo.lm.finetune.sft import describe

        print(describe(metrics, epochs))
    return 0
