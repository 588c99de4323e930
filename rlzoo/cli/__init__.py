"""The command line.

Exit codes: 0 for success, 1 for a run that failed, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence

from rlzoo.cli import benchmarks, language, policies, runs
from rlzoo.cli.options import HELP_ALL
from rlzoo.core.system import errors
from rlzoo.core.system.launch import check_alone, rank_and_size
from rlzoo.core.system.screen import complain, show
from rlzoo.core.system.version import __version__
from rlzoo.runs.signals import INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code. An error that the user can correct is one line on standard error."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path and not sys.flags.safe_path:
        sys.path.insert(0, "")  # module:Class may be in the current directory
    traced = "--traceback" in arguments
    try:
        try:
            code = _run([x for x in arguments if x != "--traceback"])
        except Exception as error:
            if errors.OF_THE_FIRST in getattr(error, "__notes__", ()):
                return 0  # the exit code is that of the first process
            if traced:
                show(traceback.format_exc(), sys.stderr)
            raise
        sys.stdout.flush()
        return code
    except SystemExit as done:
        if {"-h", "--help", HELP_ALL} & {*arguments}:
            return 0
        return _complain(f"code that the command loaded ended the program: SystemExit({done.code!r})", 1)
    except BrokenPipeError:
        return 0
    except errors.Interrupted as stop:
        return _complain(str(stop), 128 + stop.signal)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except (errors.TrainingError, errors.NonFiniteError, errors.ProcessError) as error:
        return _complain(str(error), 1)
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except (errors.ConfigError, errors.RunError, errors.EnvError, errors.UnknownEnv, errors.UnsupportedSpace) as error:
        return _complain(str(error), 2)
    except (MemoryError, RuntimeError) as error:
        from rlzoo.runs.session import out_of_memory

        if not out_of_memory(error):
            raise
        remedy = "use a smaller model, or lower micro_batch_tokens, max_tokens or max_new_tokens if it is a setting"
        return _complain(f"there is not enough memory: {' '.join(str(error).split())}; {remedy}", 1)


def _complain(line: str, code: int) -> int:
    if line:
        complain(line)
    return code


def _run(arguments: list[str]) -> int:
    command, *rest = arguments or ["--help"]
    if command == "--version":
        show(f"rlzoo {__version__}")
    elif command in ("-h", "--help"):
        show(_HELP)
    elif command.startswith("-"):
        raise errors.ConfigError(errors.no_such("option", command, ("--help", "--version")))
    elif command not in _COMMANDS:
        raise errors.ConfigError(errors.no_such("command", command, _COMMANDS))
    elif command not in _TOGETHER and rank_and_size()[0] > 0:
        return 2  # the first process says why
    else:
        if command not in _TOGETHER:
            check_alone(command)
        return _COMMANDS[command][-1](rest) or 0
    return 0 if arguments else 2


_TOGETHER = ("train", "resume")
"""Commands that several processes can run together."""
_COMMANDS: dict[str, tuple[str, str, Callable[[list[str]], int | None]]] = {
    "train": ("ALGORITHM ENV", "train a policy in a new run directory", runs.train_command),
    "resume": ("RUN", "continue a run from its last checkpoint", runs.resume_command),
    "eval": ("RUN", "play episodes and print their mean return", policies.eval_command),
    "play": ("RUN", "watch episodes or record a video; for a language model, read responses", policies.play_command),
    "export": ("RUN", "write the policy to a file: ONNX or a C header", policies.export_command),
    "push": ("RUN REPO", "upload the policy to the Hugging Face hub, with a model card", policies.push_command),
    "benchmark": ("SUITE", "run a suite of algorithms, environments and seeds", benchmarks.benchmark_command),
    "report": ("PATH ...", "write tables and figures of runs and of the results of suites", benchmarks.report_command),
    "diagnose": ("RUN", "name what looks wrong in the metrics of a run", runs.diagnose_command),
    "search": ("ALGORITHM ENV", "search settings, and write the best ones as a preset file", benchmarks.search_command),
    "sft": ("TEXTS", "fine-tune a language model on texts", language.sft_command),
    "reward-model": (
        "PAIRS",
        "train a reward model on pairs of responses with a preference",
        language.reward_model_command,
    ),
    "chat": ("RUN_OR_MODEL", "talk to a language model in the terminal", language.chat_command),
    "list": ("", "list algorithms, environments, language tasks, recipes and suites", runs.list_command),
}
"""Commands by name: arguments, what the command does, and its function, which returns the exit code; None is 0."""
_LINES = "\n".join(f"  {f'{name} {arguments}':22}{text}" for name, (arguments, text, _) in _COMMANDS.items())
_HELP = f"""\
usage: rlzoo COMMAND ...

On-policy policy gradients, from REINFORCE to PPO.

commands:
{_LINES}

options:
  -h, --help            show this help and exit
  --version             show the version and exit
  --traceback           with any command, show where in the code an error comes from

rlzoo COMMAND --help shows the options of a command.
rlzoo train ALGORITHM ENV --help shows all settings of the pair, with their defaults."""
