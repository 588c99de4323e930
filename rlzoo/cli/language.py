"""`rlzoo sft`, `reward-model` and `chat`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlzoo.cli.common import Output, Threads, display, importing, is_run, threads_for
from rlzoo.cli.options import Positional, Switch, parse, parse_settings
from rlzoo.core.system.errors import ConfigError, EnvError, require
from rlzoo.core.system.screen import complain, show
from rlzoo.runs.configuration.settings import settings_of
from rlzoo.runs.signals import handling

if TYPE_CHECKING:
    from rlzoo.lm.tasks.conversation import Speaker


@dataclass(frozen=True, kw_only=True)
class _Fit(Output):
    model: str
    """Initial model: a directory, a run, a GGUF file, or a name on the hub."""
    out: str
    """Directory for the model and its tokenizer."""
    overwrite: Switch = False
    """Replace an existing model."""


@dataclass(frozen=True, kw_only=True)
class _SFT(_Fit):
    texts: Positional[str]
    """A .txt file of lines, or a .jsonl or .parquet file or dataset of text, messages, or prompt and completion."""
    model: str
    """Initial model: a directory, a run, a GGUF file, a name on the hub, or a configuration for random weights."""


@dataclass(frozen=True, kw_only=True)
class _RewardModel(_Fit):
    pairs: Positional[str]
    """A .jsonl or .parquet file, or the directory of a dataset: "prompt", "chosen" and "rejected" in each record."""


@dataclass(frozen=True, kw_only=True)
class _Chat(Threads):
    model: Positional[str]
    """Run directory, or a model: smollm2, a directory, a GGUF file, or a name on the hub."""
    beside: Literal["start"] | None = None
    """Also answer with the model that the run started from."""
    temperature: float | None = None
    """Divides the logits; none stands for the temperature of the run, or 1."""
    greedy: Switch = False
    """Take the most probable token instead of a sample."""
    max_new_tokens: int | None = None
    """Largest number of tokens in an answer; none stands for the run's number, or 256."""
    seed: int = 0
    """Seed of the samples."""


def sft_command(arguments: list[str]) -> None:
    _fit("sft", "Fine-tune a language model on texts.", _SFT, arguments)


def reward_model_command(arguments: list[str]) -> None:
    _fit("reward-model", "Train a reward model on pairs of responses with a preference.", _RewardModel, arguments)


def _fit(name: str, description: str, command: type[_Fit], arguments: list[str]) -> None:
    """Trains a model, and prints the metrics of the last epoch if nothing else was printed."""
    with importing(threads_for(parse(Threads, arguments, partly=True))):
        from rlzoo.lm.finetune.reward_model import RewardModelSettings
        from rlzoo.lm.finetune.sft import FitSettings, SFTSettings, describe
        from rlzoo.runs.finetune import sft, train_reward_model

    texts = command is _SFT
    train: Any = sft if texts else train_reward_model
    settings: FitSettings = SFTSettings() if texts else RewardModelSettings()
    options, changes = parse_settings(command, settings_of(settings), arguments, f"rlzoo {name}", description)
    settings = dataclasses.replace(settings, **changes)
    where = {option: getattr(options, option) for option in ("model", "out", "overwrite")}
    metrics = train(options.texts if texts else options.pairs, **where, settings=settings, progress=display(options))
    if options.json:
        show(json.dumps({"model": options.out, **metrics}))
    elif options.quiet:
        show(describe(metrics, settings.epochs))


def chat_command(arguments: list[str]) -> None:
    description = "Talk to a language model. /new begins a new conversation, /quit ends. Ctrl-C ends an answer."
    options = parse(_Chat, arguments, "rlzoo chat", description)
    with importing(threads_for(options, options.model)):
        from rlzoo.core.system.threads import fit_to
        from rlzoo.lm.tasks.conversation import Speaker
        from rlzoo.runs.logs.display import make_display
        from rlzoo.runs.run import Run

    record = Run(options.model).record if is_run(options.model) else {}
    temperature = record.get("temperature", 1.0) if options.temperature is None else options.temperature
    most = record.get("max_new_tokens", 256) if options.max_new_tokens is None else options.max_new_tokens
    fault = f"temperature must be at least 1e-06, got {temperature}; --greedy takes the most probable token"
    require(isinstance(temperature, int | float) and temperature >= 1e-6, fault)
    require(isinstance(most, int) and most >= 1, f"max_new_tokens must be at least 1, got {most}")
    require(options.seed >= 0, f"seed must be at least 0, got {options.seed}")
    run, how = Path(options.model), (temperature, most, options.greedy, options.seed)
    start = run / "start"
    require(options.beside is None or bool(record), f"--beside start is for runs; {run} is none")
    require(options.beside is None or start.is_dir(), f"{run} has no {start}: only language runs keep it")
    limit = record.get("allowed_tokens")
    if isinstance(limit, dict):
        complain(f"{run} has allowed_tokens that no name leads to: here all tokens are allowed")
        limit = None
    with make_display(sys.stderr):
        if record and not (run / "actor").is_dir():  # the run has not ended
            from rlzoo.runs.evaluate import load_task

            with contextlib.closing(load_task(options.model)) as task:
                speakers = {"checkpoint": Speaker.of(task, *how)}
        else:
            speakers = {"actor": Speaker.load(options.model, *how, allowed=limit)}
        if options.beside is not None:
            speakers = {"start": Speaker.load(start, *how, allowed=limit), **speakers}
    size = sum(p.numel() for p in next(iter(speakers.values())).model.parameters())
    fit_to(size, lambda line: None)
    if not all(speaker.chats for speaker in speakers.values()):
        complain(f"{run} has no chat template: each message is a text that it continues")
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        show(f"{run}: {size:,} parameters. /new begins a new conversation, /quit ends; Ctrl-C ends an answer.")
    # The program's own handler lets the first Ctrl-C raise, and no later one.
    every = handling(signal.SIGINT, signal.default_int_handler) if interactive else contextlib.nullcontext()
    with every:
        for message in _messages(interactive):
            _answer(message, speakers, interactive)


def _messages(interactive: bool) -> Iterator[str]:
    """The messages of the user: what is typed, or the lines of standard input, up to its end or /quit."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - line editing
    while True:
        try:
            line = input("> " if interactive else "").strip()
            line.encode()  # Python may read other bytes as surrogates
        except UnicodeError as error:
            if not interactive:
                raise ConfigError(f"standard input is not text: {error}") from None
            complain(f"the message is not text: {error}")
            continue
        except (EOFError, KeyboardInterrupt) as end:
            if isinstance(end, KeyboardInterrupt) and not interactive:
                raise
            break
        if line == "/quit":
            return
        if line:
            yield line
    if interactive:
        show("")


def _answer(message: str, speakers: dict[str, Speaker], interactive: bool) -> None:
    """Prints the answers to a message as they are sampled, each with a name if there are several."""
    for name, speaker in speakers.items():
        if message == "/new":
            speaker.new()
            continue
        if len(speakers) > 1:
            show(f"{name}: ", end="")
        try:
            for piece in speaker.answer(message):
                show(piece, end="")
        except (KeyboardInterrupt, ConfigError, EnvError) as error:
            if not interactive:
                raise
            if not isinstance(error, KeyboardInterrupt):
                complain(str(error))
        show("")
