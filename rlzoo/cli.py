"""The command line. Exit codes: 0, 1 for a run that broke off, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import rlzoo
from rlzoo.errors import ConfigError, Interrupted, RunError, TrainingError, no_such
from rlzoo.options import Parser, add_fields, integer, normalize

if TYPE_CHECKING:
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
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # argparse, after --help
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
    parser = Parser(prog="rlzoo", usage="rlzoo COMMAND ...", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"rlzoo {rlzoo.__version__}")
    if not arguments or arguments[0].startswith("-"):
        parser.parse(arguments)
        parser.print_help()
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in _COMMANDS:
        raise ConfigError(no_such("command", command, _COMMANDS))
    return _COMMANDS[command](rest)


_DESCRIPTION = """\
On-policy policy gradients, from REINFORCE to PPO.

commands:
  train ALGORITHM ENV   train a policy, in a new run directory
  resume RUN            go on with a run that was stopped
  eval RUN              play episodes and print their mean return
  play RUN              watch episodes, or record them as a video
  list                  algorithms and environments"""

_EPILOG = "rlzoo COMMAND --help says more, rlzoo train ALGORITHM ENV --help most."


def _train(arguments: list[str]) -> int:
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[:2]))
    rest = normalize(arguments[len(names) :])
    algorithm, env = (*names, *("ppo-clip", "ENV")[len(names) :])
    if algorithm not in (*ALGORITHMS, "ppo") and ":" not in algorithm:
        raise ConfigError(no_such("algorithm", algorithm, (*ALGORITHMS, "ppo")))
    parser = _train_parser(named=bool(names))
    first = parser.parse_known_args(rest)[0]
    if len(names) < 2 and not first.help:
        raise ConfigError("an algorithm and an environment come first: rlzoo train ALGORITHM ENV [--option value ...]")
    with _importing(first.threads):
        from rlzoo.config import make_config, with_preset
        from rlzoo.train import train

    chosen = {} if first.estimator is None else {"estimator": first.estimator}
    start = make_config(algorithm, env, **(with_preset(algorithm, env, chosen)[0] if first.preset else chosen))
    fields = add_fields(parser, "run", start, leave_out=("env",))
    if names:
        fields += add_fields(parser, algorithm, start.algorithm, description=inspect.getdoc(start.algorithm))
        estimator = start.algorithm.estimator
        fields += add_fields(parser, f"estimator {type(estimator).__name__}", estimator)
    fields += add_fields(parser, "network", start.network)
    options = parser.parse(rest)
    if options.help:
        parser.print_help()
        return 0
    settings = chosen | {name: value for name, value in vars(options).items() if name in fields}
    run = train(
        algorithm,
        env,
        out=options.out,
        overwrite=options.overwrite,
        preset=options.preset,
        progress=_display(options),
        **settings,
    )
    return _report(run, options)


def _train_parser(named: bool) -> Parser:
    """The options that do not come from the fields of a configuration."""
    description = (
        "Train a policy, in a new run directory. The preset of the pair gives the defaults, where there is one."
    )
    if not named:
        description += (
            f"\n\n{_algorithms()}\n\nENV is a Gymnasium id, or module:Id.\n"
            "rlzoo train ALGORITHM ENV --help also lists the algorithm's options, with the preset's values."
        )
    usage = "rlzoo train ALGORITHM ENV [--option value ...]"
    parser = Parser(prog="rlzoo train", usage=usage, description=description, add_help=False)
    parser.add_argument("-h", "--help", action="store_true", help="Show this and stop")
    parser.add_argument("--out", metavar="DIR", help="The run directory [runs/<algorithm>-<env>-s<seed>-<time>]")
    parser.add_argument("--overwrite", action="store_true", help="Replace a run that is there already")
    parser.add_argument("--no-preset", dest="preset", action="store_false", help="Start from the class defaults")
    parser.add_argument("--estimator", metavar="NAME", help="gae, monte-carlo or module:Class [the algorithm's own]")
    _add_output_options(parser)
    return parser


def _algorithms() -> str:
    return "\n".join(f"  {name:12} {what}" for name, what in ALGORITHMS.items())


def _resume(arguments: list[str]) -> int:
    parser = Parser(prog="rlzoo resume", description="Go on with a run where its last checkpoint was taken.")
    parser.add_argument("run", metavar="RUN", help="The run directory")
    parser.add_argument("--total-steps", type=integer, metavar="N", help="A new end for the run")
    parser.add_argument(
        "--checkpoint", type=integer, metavar="STEP", help="Go back to this one; later ones are deleted"
    )
    _add_output_options(parser)
    options = parser.parse(arguments)
    with _importing(options.threads):
        from rlzoo.train import resume

    display = _display(options)
    run = resume(options.run, options.total_steps, checkpoint=options.checkpoint, progress=display)
    return _report(run, options)


def _eval(arguments: list[str]) -> int:
    parser = Parser(prog="rlzoo eval", description="Play complete episodes and print their mean return.")
    parser.add_argument("run", metavar="RUN", help="The run directory")
    _add_policy_options(parser, episodes=100)
    parser.add_argument("--json", action="store_true", help="Print one JSON object")
    _add_threads(parser)
    options = parser.parse(arguments)
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
    parser = Parser(prog="rlzoo play", description="Watch episodes in a window, or record them as a video.")
    parser.add_argument("run", metavar="RUN", help="The run directory")
    parser.add_argument("--video", metavar="FILE", help="Write FILE, .mp4 or .gif, instead of opening a window")
    _add_policy_options(parser, episodes=1)
    options = parser.parse(arguments)
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
    parser = Parser(prog="rlzoo list", description="Algorithms, and environments with presets or built in.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object")
    options = parser.parse(arguments)

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


def _add_output_options(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="Print nothing but the final evaluation")
    parser.add_argument("--json", action="store_true", help="Print the final evaluation as one JSON object")
    _add_threads(parser)


def _add_policy_options(parser: Parser, episodes: int) -> None:
    parser.add_argument("--episodes", type=integer, default=episodes, metavar="N", help=f"How many [{episodes}]")
    parser.add_argument("--deterministic", action="store_true", help="The policy's modes, not samples of it")
    parser.add_argument("--seed", type=integer, default=0, metavar="N", help="Of environments and actions [0]")
    parser.add_argument("--checkpoint", type=_checkpoint, metavar="STEP", help="A step, or best [the last]")


def _add_threads(parser: Parser) -> None:
    parser.add_argument("--threads", type=integer, default=1, metavar="N", help="Of PyTorch and NumPy [1]")


def _checkpoint(text: str) -> int | str:
    if text == "best" or text.isdecimal():
        return text if text == "best" else int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a step nor best")


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


def _display(options: argparse.Namespace) -> Display:
    from rlzoo.logger import Display, make_display

    return Display() if options.quiet else make_display(sys.stderr if options.json else sys.stdout)


def _report(run: Run, options: argparse.Namespace) -> int:
    """The final evaluations, where the display has not shown them."""
    sampled, modes = run.evaluations()[-2:]
    if options.json:
        step = sampled["step"]
        print(json.dumps({"run": str(run.path), "step": step, "stochastic": sampled, "deterministic": modes}))
    elif options.quiet:
        from rlzoo.evaluate import describe

        print(describe(sampled["step"], sampled, modes))
    return 0
