"""`rlzoo train`, `resume`, `eval`, `play` and `list`."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlzoo.cli.common import Output, Threads, display, importing, threads_for
from rlzoo.cli.options import HELP_ALL, Positional, Switch, parse, parse_settings
from rlzoo.core.errors import ConfigError, no_such, require
from rlzoo.runs.registry import TASKS

if TYPE_CHECKING:
    from rlzoo.runs.run import Run


ALGORITHMS = {
    "reinforce": "REINFORCE (Williams 1992)",
    "npg": "natural policy gradient (Kakade 2001)",
    "trpo": "trust region policy optimisation (Schulman et al. 2015)",
    "ppo-penalty": "proximal policy optimisation, KL penalty (Schulman et al. 2017)",
    "ppo-clip": "proximal policy optimisation, clipped ratio (Schulman et al. 2017); also: ppo",
}
"""The registered algorithms with descriptions, which need no import of PyTorch."""

_EXAMPLE = "CartPole-v1"
"""The environment whose options `rlzoo train --help` shows."""


@dataclass(frozen=True, kw_only=True)
class _Train(Output):
    out: str | None = None
    """Run directory; none for runs/<algorithm>-<env>-s<seed>-<time>."""
    overwrite: Switch = False
    """Replace an existing run."""
    preset: str | None = None
    """A recipe for language tasks, on top of the preset of the pair; rlzoo list shows the recipes."""
    no_preset: Switch = False
    """Start from the defaults of the classes, without the preset of the pair."""
    track: Literal["wandb", "mlflow"] | None = None
    """Also log to Weights & Biases or MLflow."""
    estimator: str | None = None
    """gae, monte-carlo, leave-one-out (rloo), group-norm (grpo) or module:Class; none for the algorithm's own."""


@dataclass(frozen=True, kw_only=True)
class _Resume(Output):
    run: Positional[str]
    """Run directory."""
    total_steps: int | None = None
    """New number of steps for the run; none for no change."""
    checkpoint: int | None = None
    """Step of the checkpoint to continue from; none for the last one. Everything later is deleted."""


@dataclass(frozen=True, kw_only=True)
class _Policy(Threads):
    run: Positional[str]
    """Run directory."""
    deterministic: Switch = False
    """Take the mode of the policy instead of a sample."""
    seed: int = 0
    """Seed of environments and actions."""
    checkpoint: int | Literal["best"] | None = None
    """Step of a checkpoint, or best; none for the last one."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True, kw_only=True)
class _Eval(_Policy):
    episodes: int = 100
    """Number of episodes."""


@dataclass(frozen=True, kw_only=True)
class _Play(_Policy):
    episodes: int = 1
    """Number of episodes, or of responses for a language model."""
    video: str | None = None
    """File to record the episodes in, .mp4 or .gif; none to open a window."""


@dataclass(frozen=True, kw_only=True)
class _List:
    json: Switch = False
    """Print one JSON object."""


def train_command(arguments: list[str]) -> int:
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[:2]))
    rest = arguments[len(names) :]
    _check_names(names)
    command = parse(_Train, rest, partly=True)
    if len(names) < 2 and not {"-h", "--help", HELP_ALL} & {*rest}:
        raise ConfigError("algorithm and environment are missing: rlzoo train ALGORITHM ENV [--option value ...]")
    contradiction = command.no_preset and command.preset is not None
    require(not contradiction, "--preset and --no-preset contradict each other")
    algorithm, env = (*names, *("ppo-clip", _EXAMPLE)[len(names) :])
    with importing(threads_for(command)):
        from rlzoo.runs.config import assemble
        from rlzoo.runs.defaults import starting_from
        from rlzoo.runs.train import train

    preset = command.preset or not command.no_preset
    settings: dict[str, Any] = {} if command.estimator is None else {"estimator": command.estimator}
    table = assemble(algorithm, env, starting_from(algorithm, env, settings, preset)[0]).table
    del table["env"]
    description = "Train a policy in a new run directory. The defaults are the preset of the pair, if there is one."
    description += "\n\nA SCHEDULE is linear:START:END, from START to END over the run, or module:function."
    if not names:
        description += (
            f"\n{_algorithms()}\n\nENV is a Gymnasium id, module:Id, module:Class of a task, or one of"
            f" {', '.join(TASKS)}.\n\nBelow are the options of {algorithm} on {env}.\n\n"
            "rlzoo train ALGORITHM ENV --help shows those of another pair, with the values of its preset."
        )
    _, given = parse_settings(_Train, table, rest, f"rlzoo train {algorithm} {env}", description)
    settings |= given
    run = train(
        algorithm,
        env,
        out=command.out,
        overwrite=command.overwrite,
        preset=preset,
        progress=display(command),
        track=command.track,
        **settings,
    )
    return _report(run, command)


def _check_names(names: list[str]) -> None:
    """Raises `ConfigError` if the first name is not an algorithm."""
    known = (*ALGORITHMS, "ppo")
    if names and names[0] not in known and ":" not in names[0]:
        if len(names) == 2 and names[1] in known:
            raise ConfigError(f"the algorithm comes before the environment: rlzoo train {names[1]} {names[0]}")
        raise ConfigError(f"{no_such('algorithm', names[0], known)} (known: {', '.join(known)})")


def _algorithms() -> str:
    return "\n".join(f"  {name:12} {what}" for name, what in ALGORITHMS.items())


def resume_command(arguments: list[str]) -> int:
    options = parse(_Resume, arguments, "rlzoo resume", "Continue a run from its last checkpoint.")
    with importing(threads_for(options, options.run)):
        from rlzoo.runs.train import resume

    shown = display(options)
    run = resume(options.run, options.total_steps, checkpoint=options.checkpoint, progress=shown)
    return _report(run, options)


def eval_command(arguments: list[str]) -> int:
    options = parse(_Eval, arguments, "rlzoo eval", "Play complete episodes and print their mean return.")
    with importing(threads_for(options, options.run)):
        from rlzoo.runs.evaluate import describe, evaluate
        from rlzoo.runs.run import Run

    run = Run.open(options.run)
    step = run.step_of(options.checkpoint)
    summary = evaluate(
        run, options.episodes, deterministic=options.deterministic, seed=options.seed, checkpoint=step
    ).summary()
    print(json.dumps({"run": str(run.path), "step": step, **summary}) if options.json else describe(step, summary))
    return 0


def play_command(arguments: list[str]) -> int:
    description = "Watch episodes in a window or record a video. For a language model, read responses."
    options = parse(_Play, arguments, "rlzoo play", description)
    with importing(threads_for(options, options.run)):
        from rlzoo.runs.evaluate import played
        from rlzoo.runs.run import Run

    run = Run.open(options.run)
    step = run.step_of(options.checkpoint)
    shown = played(run, options.episodes, options.video, options.deterministic, options.seed, step)
    if options.json:
        print(json.dumps({"run": str(run.path), "step": step, "video": options.video, **shown.summary}))
        return 0
    print(shown.transcript)
    if options.video is not None:
        print(options.video)
    return 0


def list_command(arguments: list[str]) -> int:
    options = parse(
        _List, arguments, "rlzoo list", "List algorithms, environments, language tasks, recipes and suites."
    )

    from rlzoo.benchmark import known_suites
    from rlzoo.control.envs import builtin_ids
    from rlzoo.runs.presets import environments, recipes

    known, builtin = environments(), builtin_ids()
    presets = {env: algorithms for env, algorithms in known.items() if env not in TASKS}
    if options.json:
        listed = [
            {"id": env, "presets": presets.get(env, []), "vectorized": env in builtin}
            for env in sorted({*presets, *builtin})
        ]
        tasks = [{"id": env, "description": x.description, "presets": known.get(env, [])} for env, x in TASKS.items()]
        found = {"algorithms": ALGORITHMS, "environments": listed, "language_tasks": tasks, "recipes": recipes()}
        found["suites"] = list(known_suites())
        print(json.dumps(found))
        return 0
    print("algorithms")
    print(_algorithms())
    print("\nenvironments with presets")
    print("\n".join(f"  {env:26} {' '.join(algorithms)}" for env, algorithms in presets.items()))
    print("\nenvironments with a built-in vectorised version")
    print("  " + " ".join(builtin))
    print("\nEvery other Gymnasium environment works too: give its id, or module:Id.")
    print("\nlanguage tasks")
    for env, entry in TASKS.items():
        print(f"  {env:12} {entry.description}")
        if env in known:
            print(f"  {'':12} presets: {' '.join(known[env])}")
    print("\nrecipes for language tasks (--preset NAME)")
    print("  " + " ".join(recipes()))
    print("\nsuites for rlzoo benchmark")
    print("  " + " ".join(known_suites()))
    return 0


def _report(run: Run, options: Output) -> int:
    """Prints the final evaluations, unless the display has shown them already."""
    stochastic, deterministic = run.evaluations()[-2:]
    if options.json:
        evaluations = {"stochastic": stochastic, "deterministic": deterministic}
        print(json.dumps({"run": str(run.path), "step": stochastic["step"], **evaluations}))
    elif options.quiet:
        from rlzoo.runs.evaluate import describe

        print(describe(stochastic["step"], stochastic, deterministic))
    return 0
