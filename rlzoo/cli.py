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
from typing import TYPE_CHECKING, Any, Literal

import rlzoo
from rlzoo.errors import ConfigError, Interrupted, RunError, TrainingError, no_such
from rlzoo.options import Switch, parse

if TYPE_CHECKING:
    from rlzoo.config import Config
    from rlzoo.logger import Display
    from rlzoo.run import Run

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
    except TrainingError as error:
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
  play RUN              watch episodes, or record them as a video
  list                  algorithms and environments

options:
  -h, --help            show this and stop
  --version             show the version and stop

rlzoo COMMAND --help says more, rlzoo train ALGORITHM ENV --help most."""


@dataclass(frozen=True, kw_only=True)
class _Threads:
    threads: int = 1
    """Of PyTorch and NumPy."""


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
    no_preset: Switch = False
    """Start from the class defaults."""
    estimator: str | None = None
    """gae, monte-carlo or module:Class; the algorithm's own if not given."""


@dataclass(frozen=True, kw_only=True)
class _Resume(_Output):
    run: str
    """The run directory."""
    total_steps: int | None = None
    """A new end for the run."""
    checkpoint: int | None = None
    """The step to go back to; later checkpoints are deleted."""


@dataclass(frozen=True, kw_only=True)
class _Policy:
    run: str
    """The run directory."""
    deterministic: Switch = False
    """The policy's modes, not samples of it."""
    seed: int = 0
    """Of environments and actions."""
    checkpoint: int | Literal["best"] | None = None
    """A step; the last one if not given."""


@dataclass(frozen=True, kw_only=True)
class _Eval(_Policy, _Threads):
    episodes: int = 100
    """How many."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _Play(_Policy):
    episodes: int = 1
    """How many."""
    video: str | None = None
    """Write this file, .mp4 or .gif, instead of opening a window."""


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
    with _importing(options.threads):
        from rlzoo.config import make_config, with_preset
        from rlzoo.train import train

    preset = not options.no_preset
    settings: dict[str, Any] = {} if options.estimator is None else {"estimator": options.estimator}
    start = make_config(algorithm, env, **(with_preset(algorithm, env, settings)[0] if preset else settings))
    description = "Train a policy, in a new run directory. The preset of the pair gives the defaults, if there is one."
    if not names:
        description += (
            f"\n{_algorithms()}\n\nENV is a Gymnasium id, or module:Id. Below are the options of {algorithm}.\n\n"
            "rlzoo train ALGORITHM ENV --help has another algorithm's, with the preset's values."
        )
    both = _with_config(start)
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


def _with_config(config: Config) -> Any:
    """The defaults of the command's options, and of the run's without its environment, as one dataclass."""
    import tyro

    fields: list[Any] = [("env", tyro.conf.Suppress[str])]
    run = dataclasses.make_dataclass("Config", fields, bases=(type(config),), frozen=True)(**vars(config))
    return dataclasses.make_dataclass("Train", [("command", _Train), ("run", type(run))])(_Train(), run)


def _algorithms() -> str:
    return "\n".join(f"  {name:12} {what}" for name, what in ALGORITHMS.items())


def _resume(arguments: list[str]) -> int:
    options = parse(_Resume, arguments, "rlzoo resume", "Go on with a run where its last checkpoint was taken.")
    with _importing(options.threads):
        from rlzoo.train import resume

    display = _display(options)
    run = resume(options.run, options.total_steps, checkpoint=options.checkpoint, progress=display)
    return _report(run, options)


def _eval(arguments: list[str]) -> int:
    options = parse(_Eval, arguments, "rlzoo eval", "Play complete episodes and print their mean return.")
    with _importing(options.threads):
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
    options = parse(_Play, arguments, "rlzoo play", "Watch episodes in a window, or record them as a video.")
    with _importing():
        from rlzoo.play import play

    played = play(
        options.run,
        options.episodes,
        video=options.video,
        deterministic=options.deterministic,
        seed=options.seed,
        checkpoint=options.checkpoint,
    )
    for number, episode in enumerate(played, 1):
        print(f"episode {number}: return {episode.return_:,.1f}, {episode.length} steps")
    if options.video is not None:
        print(options.video)
    return 0


def _list(arguments: list[str]) -> int:
    options = parse(_List, arguments, "rlzoo list", "Algorithms, and environments with presets or built in.")

    from rlzoo.envs import builtin_ids
    from rlzoo.presets import environments

    presets, builtin = environments(), builtin_ids()
    if options.json:
        known = sorted({*presets, *builtin})
        listed = [{"id": env, "presets": presets.get(env, []), "vectorized": env in builtin} for env in known]
        print(json.dumps({"algorithms": ALGORITHMS, "environments": listed}))
        return 0
    print("algorithms")
    print(_algorithms())
    if presets:
        print("\nenvironments with presets")
        print("\n".join(f"  {env:26} {' '.join(algorithms)}" for env, algorithms in presets.items()))
    print("\nenvironments with a vectorised version of our own")
    print("  " + " ".join(builtin))
    print("\nAny other Gymnasium environment: give its id, or module:Id.")
    return 0


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "play": _play,
    "list": _list,
}


@contextlib.contextmanager
def _importing(threads: int = 1) -> Iterator[None]:
    """Around the imports of PyTorch and what needs it.

    Small networks are fastest with one thread; NumPy's libraries read the variables when they are imported.
    Collecting garbage among the modules of PyTorch finds none and takes 0.2 s.
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
