"""The command line. Exit codes: 0, 1 for a run that broke off, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import rlzoo
from rlzoo.cli import benchmarks, language, runs
from rlzoo.cli.runs import ALGORITHMS as ALGORITHMS
from rlzoo.core.errors import (
    ConfigError,
    EnvError,
    Interrupted,
    NonFiniteError,
    RunError,
    TrainingError,
    UnknownEnv,
    UnsupportedSpace,
    no_such,
)


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
    except (ConfigError, RunError, EnvError, UnknownEnv, UnsupportedSpace) as error:
        return _complain(str(error), 2)


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
  benchmark SUITE       run a suite of algorithms, environments and seeds
  report RESULTS        tables and figures of what suites came to, as a page
  sft TEXTS             fine-tune a language model on texts
  reward-model PAIRS    train a reward model on pairs of responses, one of which was preferred
  list                  algorithms, environments and language tasks

options:
  -h, --help            show this and stop
  --version             show the version and stop

rlzoo COMMAND --help says more, rlzoo train ALGORITHM ENV --help most."""


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": runs.train_command,
    "resume": runs.resume_command,
    "eval": runs.eval_command,
    "play": runs.play_command,
    "benchmark": benchmarks.benchmark_command,
    "report": benchmarks.report_command,
    "sft": language.sft_command,
    "reward-model": language.reward_model_command,
    "list": runs.list_command,
}
