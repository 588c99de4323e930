"""`rlzoo train`, `resume`, `eval`, `play` and `list`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlzoo.cli.common import Output, Threads, all_cores_for, display, importing, threads_for
from rlzoo.cli.options import Positional, Switch, parse, settings_options
from rlzoo.core.errors import ConfigError, no_such, require
from rlzoo.runs.registry import TASKS, uses_all_cores

if TYPE_CHECKING:
    from rlzoo.runs.run import Run


ALGORITHMS = {
    "reinforce": "REINFORCE (Williams 1992)",
    "npg": "natural policy gradient (Kakade 2001)",
    "trpo": "trust region policy optimisation (Schulman et al. 2015)",
    "ppo-penalty": "proximal policy optimisation, KL penalty (Schulman et al. 2017)",
    "ppo-clip": "proximal policy optimisation, clipped ratio (Schulman et al. 2017); also: ppo",
}
"""The registered algorithms, known without importing them."""

_EXAMPLE = "CartPole-v1"
"""The environment whose options are shown where none is given."""


@dataclass(frozen=True, kw_only=True)
class _Train(Output):
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
class _Resume(Output):
    run: Positional[str]
    """The run directory."""
    total_steps: int | None = None
    """A new end for the run."""
    checkpoint: int | None = None
    """The step to go back to; later checkpoints are deleted."""


@dataclass(frozen=True, kw_only=True)
class _Policy(Threads):
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
class _List:
    json: Switch = False
    """Print one JSON object."""


def train_command(arguments: list[str]) -> int:
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[:2]))
    rest = arguments[len(names) :]
    algorithm, env = (*names, *("ppo-clip", _EXAMPLE)[len(names) :])
    if algorithm not in (*ALGORITHMS, "ppo") and ":" not in algorithm:
        raise ConfigError(no_such("algorithm", algorithm, (*ALGORITHMS, "ppo")))
    options = parse(_Train, rest, partly=True)
    if len(names) < 2 and not {"-h", "--help"} & {*rest}:
        raise ConfigError("an algorithm and an environment come first: rlzoo train ALGORITHM ENV [--option value ...]")
    contradiction = options.no_preset and options.preset is not None
    require(not contradiction, "--preset and --no-preset contradict each other")
    with importing(threads_for(options, uses_all_cores(env))):
        from rlzoo.runs.config import Config, assemble
        from rlzoo.runs.defaults import starting_from
        from rlzoo.runs.train import train

    preset = options.preset or not options.no_preset
    settings: dict[str, Any] = {} if options.estimator is None else {"estimator": options.estimator}
    start = Config(env, **assemble(algorithm, env, starting_from(algorithm, env, settings, preset)[0]))
    table = {name: x for name, x in start.table.items() if name != "env"}
    description = "Train a policy in a new run directory. The preset of the pair gives the defaults, if there is one."
    if not names:
        description += (
            f"\n{_algorithms()}\n\nENV is a Gymnasium id, module:Id, or a task: {', '.join(TASKS)}.\n\n"
            f"Below are the options of {algorithm} on {env}.\n\n"
            "rlzoo train ALGORITHM ENV --help has those of another pair, with its preset's values."
        )
    given = settings_options([(x.name, x.hint, x.value, x.help) for x in table.values()])
    both = dataclasses.make_dataclass("Train", [("command", _Train), ("settings", type(given))])(_Train(), given)
    chosen = parse(type(both), rest, f"rlzoo train {algorithm} {env}", description, both).settings
    settings |= {name: getattr(chosen, name) for name, x in table.items() if getattr(chosen, name) != x.value}
    run = train(
        algorithm,
        env,
        out=options.out,
        overwrite=options.overwrite,
        preset=preset,
        progress=display(options),
        **settings,
    )
    return _report(run, options)


def _algorithms() -> str:
    return "\n".join(f"  {name:12} {what}" for name, what in ALGORITHMS.items())


def resume_command(arguments: list[str]) -> int:
    options = parse(_Resume, arguments, "rlzoo resume", "Go on with a run where its last checkpoint was taken.")
    with importing(threads_for(options, all_cores_for(options.run))):
        from rlzoo.runs.train import resume

    shown = display(options)
    run = resume(options.run, options.total_steps, checkpoint=options.checkpoint, progress=shown)
    return _report(run, options)


def eval_command(arguments: list[str]) -> int:
    options = parse(_Eval, arguments, "rlzoo eval", "Play complete episodes and print their mean return.")
    with importing(threads_for(options, all_cores_for(options.run))):
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
    description = "Watch episodes in a window, or record them as a video. Of a language model, read responses."
    options = parse(_Play, arguments, "rlzoo play", description)
    with importing(threads_for(options, all_cores_for(options.run))):
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
        _List, arguments, "rlzoo list", "Algorithms, environments with presets or built in, language tasks."
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
    print("\nenvironments with a vectorised version of our own")
    print("  " + " ".join(builtin))
    print("\nAny other Gymnasium environment: give its id, or module:Id.")
    print("\nlanguage tasks")
    for env, entry in TASKS.items():
        print(f"  {env:12} {entry.description}")
        if env in known:
            print(f"  {'':12} presets: {' '.join(known[env])}")
    print("\nrecipes for language tasks, --preset NAME")
    print("  " + " ".join(recipes()))
    print("\nsuites for rlzoo benchmark")
    print("  " + " ".join(known_suites()))
    return 0


def _report(run: Run, options: Output) -> int:
    """The final evaluations, where the display has not shown them."""
    sampled, modes = run.evaluations()[-2:]
    if options.json:
        step = sampled["step"]
        print(json.dumps({"run": str(run.path), "step": step, "stochastic": sampled, "deterministic": modes}))
    elif options.quiet:
        from rlzoo.runs.evaluate import describe

        print(describe(sampled["step"], sampled, modes))
    return 0
