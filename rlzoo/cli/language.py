"""`rlzoo sft` and `rlzoo reward-model`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlzoo.cli.common import Threads, display, importing, threads_for
from rlzoo.cli.options import Positional, Switch, parse, parse_settings
from rlzoo.core.system.screen import show
from rlzoo.runs.configuration.settings import settings_of

if TYPE_CHECKING:
    from rlzoo.lm.finetune.sft import FitSettings


@dataclass(frozen=True, kw_only=True)
class _Fit(Threads):
    model: str
    """Initial model: a directory, a run, a GGUF file, or a name on the hub."""
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
    """Initial model: a directory, a run, a GGUF file, a name on the hub, or a configuration for a model with random
    weights."""


@dataclass(frozen=True, kw_only=True)
class _RewardModel(_Fit):
    pairs: Positional[str]
    """A .jsonl or .parquet file, or the directory of a dataset: "prompt", "chosen" and "rejected" in each record."""


def sft_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.sft import SFTSettings
        from rlzoo.runs.finetune import sft

    return _fit("sft", "Fine-tune a language model on texts.", _SFT, "texts", SFTSettings(), sft, arguments)


def reward_model_command(arguments: list[str]) -> int:
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.reward_model import RewardModelSettings
        from rlzoo.runs.finetune import train_reward_model

    description = "Train a reward model on pairs of responses with a preference."
    settings = RewardModelSettings()
    return _fit("reward-model", description, _RewardModel, "pairs", settings, train_reward_model, arguments)


def _fit(
    name: str,
    description: str,
    command: type[_Fit],
    data: str,
    settings: FitSettings,
    train: Callable[..., dict[str, float]],
    arguments: list[str],
) -> int:
    """Trains a model, and prints the metrics of the last epoch if nothing else was printed.

    Args:
        data: option with the name of the file.
        settings: the defaults.
    """
    options, changes = parse_settings(command, settings_of(settings), arguments, f"rlzoo {name}", description)
    settings = dataclasses.replace(settings, **changes)
    where = {option: getattr(options, option) for option in ("model", "out", "overwrite")}
    metrics = train(getattr(options, data), **where, settings=settings, progress=display(options))
    if options.json:
        show(json.dumps({"model": options.out, **metrics}))
    elif options.quiet:
        from rlzoo.lm.finetune.sft import describe

        show(describe(metrics, settings.epochs))
    return 0
