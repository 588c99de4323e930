"""The command line. Exit codes: 0, 1 for a run that broke off, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import rlzoo
from rlzoo.errors import ConfigError, Interrupted, NonFiniteError, RunError, TrainingError, no_such, require
from rlzoo.fields import check_fields
from rlzoo.lm import TASKS
from rlzoo.options import Positional, Switch, parse

if TYPE_CHECKING:
    from rlzoo.config import Config
    from rlzoo.lm.sft import FitSettings
    from rlzoo.logger import Display
    from rlzoo.run import Run

F = TypeVar("F", bound="_Fit")
S = TypeVar("S", bound="FitSettings")

ALGORITHMS = {
    "reinforce": "REINFORCE (Williams 1992)",
    "npg": "natural policy gradient (Kakade 2001)",
    "trpo": "trust region policy optimisation (Schulman et al. 2015)",
    "ppo-penalty": "proximal policy optimisation, KL penalty (Schulman et al. 2017)",
    "ppo-clip": "proximal policy optimisation, clipped ratio (Schulman et al. 2017); also: ppo",
}
"""The registered algorithms, known without importing them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. What a user can mend becomes one line on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path and not sys.flags.safe_path:
        sys.path.insert(0, "")  # module:Class may be in the current directory
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # after --help
        return int(done.code or 0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Interrupted as stop:
        return _complain(str(stop), 128 + stop.signal)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except (TrainingError, NonFiniteError) as error:
        return _complain(str(error), 1)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except Exception as error:
        from rlzoo.envs import EnvError, UnknownEnv, UnsupportedSpace

        if isinstance(error, (ConfigError, RunError, EnvError, UnknownEnv, UnsupportedSpace)):
            return _complain(str(error), 2)
        raise


def _complain(line: str, code: int) -> int:
    print(f"rlzoo: {line}", file=sys.stderr)
    return code


def _run(arguments: list[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command == "--version":
        print(f"rlzoo {rlzoo.__version__}")
    elif command in ("-h", "--help"):
        print(_HELP)
    elif command.startswith("-"):
        raise ConfigError(no_such("option", command, ("--help", "--version")))
    elif command not in _COMMANDS:
        raise ConfigError(no_such("command", command, _COMMANDS))
    else:
        return _COMMANDS[command](rest)
    return 0 if arguments else 2


_HELP = """\
usage: rlzoo COMMAND ...

On-policy policy gradients, from REINFORCE to PPO.

commands:
  train ALGORITHM ENV   train a policy, in a new run directory
  resume RUN            go on with a run that was stopped
  eval RUN              play episodes and print their mean return
  play RUN              watch episodes, or record them as a video; of a language model, read responses
  sft TEXTS             fine-tune a language model on texts
  reward-model PAIRS    train a reward model on pairs of responses, one of which was preferred
  list                  algorithms, environments and language tasks

options:
  -h, --help            show this and stop
  --version             show the version and stop

rlzoo COMMAND --help says more, rlzoo train ALGORITHM ENV --help most."""


@dataclass(frozen=True, kw_only=True)
class _Threads:
    threads: int | None = None
    """Of PyTorch and NumPy; 1 for control environments and all cores for language models if not given."""


@dataclass(frozen=True, kw_only=True)
class _Output(_Threads):
    quiet: Switch = False
    """Print nothing but the final evaluation."""
    json: Switch = False
    """Print the final evaluation as one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _Train(_Output):
    out: str | None = None
    """The run directory; runs/<algorithm>-<env>-s<seed>-<time> if not given."""
    overwrite: Switch = False
    """Replace a run that is there already."""
    preset: str | None = None
    """A recipe for language tasks, on top of the preset of the pair; rlzoo list shows them."""
    no_preset: Switch = False
    """Start from the class defaults."""
    estimator: str | None = None
    """gae, monte-carlo, leave-one-out, group-norm or module:Class; the algorithm's own if not given."""


@dataclass(frozen=True, kw_only=True)
class _Resume(_Output):
    run: Positional[str]
    """The run directory."""
    total_steps: int | None = None
    """A new end for the run."""
    checkpoint: int | None = None
    """The step to go back to; later checkpoints are deleted."""


@dataclass(frozen=True, kw_only=True)
class _Policy(_Threads):
    run: Positional[str]
    """The run directory."""
    deterministic: Switch = False
    """The policy's modes, not samples of it."""
    seed: int = 0
    """Of environments and actions."""
    checkpoint: int | Literal["best"] | None = None
    """A step; the last one if not given."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _Eval(_Policy):
    episodes: int = 100
    """How many."""


@dataclass(frozen=True, kw_only=True)
class _Play(_Policy):
    episodes: int = 1
    """How many; of a language model, responses."""
    video: str | None = None
    """Write this file, .mp4 or .gif, instead of opening a window."""


@dataclass(frozen=True, kw_only=True)
class _Fit(_Threads):
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


@dataclass(frozen=True, kw_only=True)
class _List:
    json: Switch = False
    """Print one JSON object."""


def _train(arguments: list[str]) -> int:
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[:2]))
    rest = arguments[len(names) :]
    algorithm, env = (*names, *("ppo-clip", "ENV")[len(names) :])
    if algorithm not in (*ALGORITHMS, "ppo") and ":" not in algorithm:
        raise ConfigError(no_such("algorithm", algorithm, (*ALGORITHMS, "ppo")))
    options = parse(_Train, rest, partly=True)
    if len(names) < 2 and not {"-h", "--help"} & {*rest}:
        raise ConfigError("an algorithm and an environment come first: rlzoo train ALGORITHM ENV [--option value ...]")
    contradiction = options.no_preset and options.preset is not None
    require(not contradiction, "--preset and --no-preset contradict each other")
    with _importing(_threads(options, env in TASKS)):
        from rlzoo.config import assemble
        from rlzoo.train import train, with_presets

    preset = options.preset or not options.no_preset
    settings: dict[str, Any] = {} if options.estimator is None else {"estimator": options.estimator}
    start = _draft(env, assemble(algorithm, env, with_presets(algorithm, env, settings, preset)[0]))
    description = "Train a policy, in a new run directory. The preset of the pair gives the defaults, if there is one."
    if not names:
        description += (
            f"\n{_algorithms()}\n\nENV is a Gymnasium id, module:Id, or a language task: {', '.join(TASKS)}.\n\n"
            f"Below are the options of {algorithm} on control environments.\n\n"
            "rlzoo train ALGORITHM ENV --help has those of another pair, with its preset's values."
        )
    both = dataclasses.make_dataclass("Train", [("command", _Train), ("run", type(start))])(_Train(), start)
    config = parse(type(both), rest, f"rlzoo train {algorithm} {env}", description, both).run
    before = start.to_dict()
    settings |= {name: x for name, x in config.to_dict().items() if x != before[name]}
    run = train(
        algorithm,
        env,
        out=options.out,
        overwrite=options.overwrite,
        preset=preset,
        progress=_display(options),
        **settings,
    )
    return _report(run, options)


def _draft(env: str, parts: dict[str, Any]) -> Config:
    """A configuration whose environment is no option, and whose parts need not go together before options are read."""
    import tyro

    from rlzoo.config import Config

    fields: list[Any] = [("env", tyro.conf.Suppress[str])]
    namespace = {"__post_init__": check_fields}
    return dataclasses.make_dataclass("Config", fields, bases=(Config,), namespace=namespace, frozen=True)(env, **parts)


def _algorithms() -> str:
    return "\n".join(f"  {name:12} {what}" for name, what in ALGORITHMS.items())


def _resume(arguments: list[str]) -> int:
    options = parse(_Resume, arguments, "rlzoo resume", "Go on with a run where its last checkpoint was taken.")
    with _importing(_threads(options, _is_language(options.run))):
        from rlzoo.train import resume

    display = _display(options)
    run = resume(options.run, options.total_steps, checkpoint=options.checkpoint, progress=display)
    return _report(run, options)


def _eval(arguments: list[str]) -> int:
    options = parse(_Eval, arguments, "rlzoo eval", "Play complete episodes and print their mean return.")
    with _importing(_threads(options, _is_language(options.run))):
        from rlzoo.evaluate import describe, evaluate
        from rlzoo.run import Run

    run = Run.open(options.run)
    step = run.step_of(options.checkpoint)
    summary = evaluate(
        run, options.episodes, deterministic=options.deterministic, seed=options.seed, checkpoint=step
    ).summary()
    print(json.dumps({"run": str(run.path), "step": step, **summary}) if options.json else describe(step, summary))
    return 0


def _play(arguments: list[str]) -> int:
    description = "Watch episodes in a window, or record them as a video. Of a language model, read responses."
    options = parse(_Play, arguments, "rlzoo play", description)
    with _importing(_threads(options, _is_language(options.run))):
        from rlzoo.play import play, summary, transcript
        from rlzoo.run import Run

    run = Run.open(options.run)
    step = run.step_of(options.checkpoint)
    played = play(
        run,
        options.episodes,
        video=options.video,
        deterministic=options.deterministic,
        seed=options.seed,
        checkpoint=step,
    )
    if options.json:
        print(json.dumps({"run": str(run.path), "step": step, "video": options.video, **summary(played)}))
        return 0
    print(transcript(played))
    if options.video is not None:
        print(options.video)
    return 0


def _sft(arguments: list[str]) -> int:
    with _importing(_threads(parse(_Threads, arguments, partly=True), language=True)):
        from rlzoo.lm.sft import SFTSettings, run_sft

    description = "Fine-tune a language model: raise the likelihood of texts."
    options, settings = _fit_options("sft", description, _SFT, SFTSettings, arguments)
    metrics = run_sft(options.texts, options.model, options.out, settings, _say(options), options.overwrite)
    return _report_fit(metrics, options, settings.epochs)


def _reward_model(arguments: list[str]) -> int:
    with _importing(_threads(parse(_Threads, arguments, partly=True), language=True)):
        from rlzoo.lm.reward_model import RewardModelSettings, run_reward_model

    description = "Train a reward model on pairs of responses, one of which was preferred."
    options, settings = _fit_options("reward-model", description, _RewardModel, RewardModelSettings, arguments)
    metrics = run_reward_model(options.pairs, options.model, options.out, settings, _say(options), options.overwrite)
    return _report_fit(metrics, options, settings.epochs)


def _fit_options(name: str, description: str, options: type[F], settings: type[S], arguments: list[str]) -> tuple[F, S]:
    """The command's options, and the settings of the fit."""
    from rlzoo.train import check_device

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
        from rlzoo.lm.sft import describe

        print(describe(metrics, epochs))
    return 0


def _list(arguments: list[str]) -> int:
    options = parse(
        _List, arguments, "rlzoo list", "Algorithms, environments with presets or built in, language tasks."
    )

    from rlzoo.envs import builtin_ids
    from rlzoo.presets import environments, recipes

    known, builtin = environments(), builtin_ids()
    presets = {env: algorithms for env, algorithms in known.items() if env not in TASKS}
    if options.json:
        listed = [
            {"id": env, "presets": presets.get(env, []), "vectorized": env in builtin}
            for env in sorted({*presets, *builtin})
        ]
        tasks = [{"id": env, "description": what, "presets": known.get(env, [])} for env, what in TASKS.items()]
        found = {"algorithms": ALGORITHMS, "environments": listed, "language_tasks": tasks, "recipes": recipes()}
        print(json.dumps(found))
        return 0
    print("algorithms")
    print(_algorithms())
    print("\nenvironments with presets")
    print("\n".join(f"  {env:26} {' '.join(algorithms)}" for env, algorithms in presets.items()))
    print("\nenvironments with a vectorised version of our own")
    print("  " + " ".join(builtin))
    print("\nAny other Gymnasium environment: give its id, or module:Id.")
    print("\nlanguage tasks")
    for env, what in TASKS.items():
        print(f"  {env:12} {what}")
        if env in known:
            print(f"  {'':12} presets: {' '.join(known[env])}")
    if recipes():
        print("\nrecipes for language tasks, --preset NAME")
        print("\n".join(f"  {name}" for name in recipes()))
    return 0


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "play": _play,
    "sft": _sft,
    "reward-model": _reward_model,
    "list": _list,
}


@contextlib.contextmanager
def _importing(threads: int) -> Iterator[None]:
    """Around the imports of PyTorch and what needs it.

    NumPy's libraries read the variables when they are imported. Collecting garbage among the modules of PyTorch
    finds none and takes 0.2 s.
    """
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    gc.disable()
    try:
        import torch

        torch.set_num_threads(threads)
        yield
    finally:
        gc.freeze()
        gc.enable()


def _threads(options: _Threads, language: bool) -> int:
    """As asked for, or what is fastest: all cores for a language model, one for a small network."""
    if options.threads is not None:
        return options.threads
    return (os.cpu_count() or 1) if language else 1


def _is_language(run: str) -> bool:
    """Whether a run is of a language task, told before PyTorch is imported."""
    try:
        return json.loads(Path(run, "config.json").read_bytes())["env"] in TASKS
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _display(options: _Output) -> Display:
    from rlzoo.logger import Display, make_display

    return Display() if options.quiet else make_display(sys.stderr if options.json else sys.stdout)


def _report(run: Run, options: _Output) -> int:
    """The final evaluations, where the display has not shown them."""
    sampled, modes = run.evaluations()[-2:]
    if options.json:
        step = sampled["step"]
        print(json.dumps({"run": str(run.path), "step": step, "stochastic": sampled, "deterministic": modes}))
    elif options.quiet:
        from rlzoo.evaluate import describe

        print(describe(sampled["step"], sampled, modes))
    return 0
