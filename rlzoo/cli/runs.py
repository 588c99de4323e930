"""`rlzoo train`, `resume`, `diagnose` and `list`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from rlzoo.cli.common import Json, Output, display, importing, threads_for
from rlzoo.cli.here import parts_here
from rlzoo.cli.options import HELP_ALL, Positional, Repeated, Seeds, Switch, option_names, parse, parse_settings
from rlzoo.core.system.errors import ConfigError, no_class, require
from rlzoo.core.system.screen import complain, show
from rlzoo.runs.registry import ALGORITHMS, ALIASES, TASKS, check_neighbour

if TYPE_CHECKING:
    from rlzoo.algorithms import Algorithm
    from rlzoo.runs.configuration.config import Config
    from rlzoo.runs.logs.display import Display
    from rlzoo.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class _Start:
    seed: Seeds = field(default_factory=Seeds)
    """Seed of everything random; with --config, by default its seed. Several (1 2 3 or 1-5) train at the same time."""
    out: str | None = None
    """Run directory; none for runs/<algorithm>-<env>-s<seed>-<time>."""
    overwrite: Switch = False
    """Replace an existing run."""
    jobs: int | None = None
    """Processes at a time when there are several seeds; none for the number of cores."""
    config: str | None = None
    """Run again what this config.json (or the run directory that holds it) says, with the other options as changes."""
    preset: str | None = None
    """A recipe for language tasks (rlzoo list) or a preset file (.toml), on top of the preset of the pair."""
    no_preset: Switch = False
    """Start from the defaults of the classes, without the preset of the pair."""
    track: Literal["wandb", "mlflow"] | None = None
    """Also log to Weights & Biases or MLflow."""
    estimator: str | None = None
    """gae, monte-carlo, leave-one-out (rloo), group-mean (dr-grpo), group-norm (grpo), module:Class; none: its own."""
    network: str | None = None
    """mlp, cnn (for images), gru, lstm or module:Class; none for the preset's, or mlp."""
    wrapper: Repeated = ()
    """Wrapper of each environment, module:Class or module:Class(key=value). Repeat it for more, the innermost first."""


@dataclass(frozen=True, kw_only=True)
class _Train(Output, _Start):
    pass


@dataclass(frozen=True, kw_only=True)
class _Resume(Output):
    run: Positional[str]
    """Run directory, or the directory of the runs of several seeds."""
    total_steps: int | None = None
    """New number of steps for the run; none for no change."""
    checkpoint: int | Literal["best"] | None = None
    """Step of the checkpoint to continue from, or best; none for the last one. Everything later is deleted."""
    jobs: int | None = None
    """Processes at a time when RUN holds the runs of several seeds; none for the number of cores."""


@dataclass(frozen=True, kw_only=True)
class _Diagnose(Json):
    run: Positional[str]
    """Run directory. The run may be going on."""


def train_command(arguments: list[str]) -> int:
    names = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments[:2]))
    rest = arguments[len(names) :]
    _check_names(names)
    command = parse(_Train, rest, partly=True)
    if len(names) < 2 and command.config is None and not {"-h", "--help", HELP_ALL} & {*rest}:
        raise ConfigError("algorithm and environment are missing: rlzoo train ALGORITHM ENV [--option value ...]")
    bases = {"--preset": command.preset, "--no-preset": command.no_preset or None, "--config": command.config}
    contradiction = [name for name, value in bases.items() if value is not None]
    require(len(contradiction) <= 1, f"{' and '.join(contradiction)} contradict each other")
    several = len(command.seed) > 1
    require(several or command.jobs is None, "--jobs is for several seeds: --seed 1 2 3")
    require(not (several and command.track), "--track is for one seed: start a run for each")
    with importing(threads_for(command)):
        from rlzoo.core.system import processes
        from rlzoo.runs import train  # noqa: F401 - imports PyTorch

    with processes.joined():
        require(not (several and processes.size() > 1), "several seeds: start them without torchrun")
        return _train(names, rest, command)


def _train(names: list[str], rest: list[str], command: _Train) -> int:
    """`rlzoo train` with the names that come first, and the other arguments."""
    from rlzoo.core.env import env_name
    from rlzoo.core.system import processes
    from rlzoo.runs.configuration.config import check
    from rlzoo.runs.configuration.defaults import configure
    from rlzoo.runs.train import train

    known: list[Any] = [None, None] if command.config else ["ppo-clip", "CartPole-v1"]  # for `rlzoo train --help`
    algorithm, env = names + known[len(names) :]
    preset = command.preset or not command.no_preset
    named = {"estimator": command.estimator, "network": command.network, "wrappers": command.wrapper or None}
    settings: dict[str, Any] = {name: x for name, x in named.items() if x is not None}
    defaults = configure(algorithm, env, command.config, preset, settings)[0]
    table, rest = defaults.table, _present_options(rest, defaults.algorithm, defaults.table)
    for name in ("env", "seed", "wrappers"):
        table.pop(name, None)
    description = "Train a policy in a new run directory. The defaults are the preset of the pair, if there is one."
    description += "\n\nA SCHEDULE is linear:START:END, from START to END over the run, or module:function."
    description += "\n\nA module may also be a file: path/file.py:Class."
    if not names and command.config is None:
        description += (
            f"\n{_algorithms()}\n\nENV is a Gymnasium id, module:Id, module:Class of a task, or one of"
            f" {', '.join(TASKS)}.\n\nBelow are the options of {algorithm} on {env}.\n\n"
            "rlzoo train ALGORITHM ENV --help shows those of another pair, with the values of its preset."
        )
    pair = f"{algorithm or defaults.algorithm.name} {env or env_name(defaults.env)}"
    _, options = parse_settings(_Train, table, rest, f"rlzoo train {pair}", description)
    settings |= options
    if len(command.seed) > 1:
        config, lines = configure(algorithm, env, command.config, preset, settings)
        check(config)
        return _train_seeds(config, lines, command)
    if command.seed:
        settings["seed"] = command.seed[0]
    run = train(
        algorithm,
        env,
        config=command.config,
        out=command.out,
        overwrite=command.overwrite,
        preset=preset,
        progress=display(command),
        track=command.track,
        **settings,
    )
    return _report(run, command) if processes.rank() == 0 else 0


def _present_options(arguments: list[str], algorithm: Algorithm, known: Collection[str]) -> list[str]:
    """The arguments with the present names of the algorithm's settings, and a line for each that had another one.

    Raises `ConfigError` if a setting is not among the `known` ones, and is one of other algorithms.
    """
    from rlzoo.runs.configuration.config import complain_once
    from rlzoo.runs.configuration.settings import of_others

    for old, new in algorithm.renamed.items():
        option = re.compile(f"--{old}".replace("_", "[-_]") + "(?==|$)")
        if any(map(option.match, arguments)):
            complain_once(f"{old} of {algorithm.name} is called {new}")
        arguments = [option.sub(f"--{new}", x) for x in arguments]
    for name in option_names(arguments):
        fault = None if name in known else of_others(algorithm, name, known)
        require(fault is None, str(fault))
    return arguments


def _check_names(names: list[str]) -> None:
    """Raises `ConfigError` if the first name is not an algorithm."""
    algorithms = (*ALGORITHMS, *ALIASES)
    if names and names[0] not in algorithms and ":" not in names[0]:
        if len(names) == 2 and names[1] in algorithms:
            raise ConfigError(f"the algorithm comes before the environment: rlzoo train {names[1]} {names[0]}")
        check_neighbour(names[0])
        raise ConfigError(no_class("algorithm", names[0], algorithms))


def _algorithms() -> str:
    return "\n".join(f"  {name:12} {entry.description}" for name, entry in ALGORITHMS.items())


def resume_command(arguments: list[str]) -> int:
    try:
        options = parse(_Resume, arguments, "rlzoo resume", "Continue a run from its last checkpoint.")
    except ConfigError as error:
        if not str(error).startswith("no option"):
            raise
        remedy = "rlzoo train --config RUN --model RUN --learning-rate X starts a new run from the policy"
        raise ConfigError(f"{error}. A resumed run keeps its settings; {remedy}") from error
    if _holds_seeds(options.run):
        return _resume_seeds(options)
    require(options.jobs is None, f"--jobs is for the runs of several seeds; {options.run} does not hold any")
    with importing(threads_for(options, options.run)):
        from rlzoo.core.system import processes
        from rlzoo.runs.train import resume

    with processes.joined():
        run = resume(options.run, options.total_steps, checkpoint=options.checkpoint, progress=display(options))
        return _report(run, options) if processes.rank() == 0 else 0


def diagnose_command(arguments: list[str]) -> None:
    description = "Read the metrics of a run and name what looks wrong, with the settings to change."
    options = parse(_Diagnose, arguments, "rlzoo diagnose", description)
    with importing():
        from rlzoo.runs.diagnose import PAGE, diagnose
        from rlzoo.runs.run import Run

    run = Run.open(options.run)
    findings = diagnose(run)
    last = run.last_metrics() or {}
    if options.json:
        records = [dataclasses.asdict(x) for x in findings]
        show(json.dumps({"run": str(run.path), "step": last.get("step"), "findings": records}))
        return
    few = {0: "nothing looks wrong", 1: "1 thing looks wrong"}
    count = few.get(len(findings), f"{len(findings)} things look wrong")
    show(f"{run.path}, up to step {last.get('step', 0):,}: {count}")
    has_pages = (Path(__file__).parents[2] / PAGE).is_file()  # a clone has them, a wheel has not
    for x in findings:
        page = f"\n  page: {x.page}" if has_pages else ""
        show(f"\n{x.name}: {x.seen}\n  {x.reason}\n  change: {x.change}{page}")


def list_command(arguments: list[str]) -> None:
    description = "List algorithms, environments, language tasks, recipes and suites."
    options = parse(Json, arguments, "rlzoo list", description)
    from rlzoo.benchmark import known_suites
    from rlzoo.control.envs.classic import BUILTIN
    from rlzoo.control.envs.no_velocity import HIDDEN
    from rlzoo.runs.configuration.presets import environments, recipes

    presets, builtin, suites = environments(), [*BUILTIN, *HIDDEN], list(known_suites())
    tuned = {env: algorithms for env, algorithms in presets.items() if env not in TASKS}
    if options.json:
        ids = sorted({*tuned, *builtin})
        lists = {
            "algorithms": {name: x.description for name, x in ALGORITHMS.items()},
            "environments": [{"id": x, "presets": tuned.get(x, []), "vectorized": x in builtin} for x in ids],
            "language_tasks": [
                {"id": env, "description": x.description, "presets": presets.get(env, [])} for env, x in TASKS.items()
            ],
            "recipes": recipes(),
            "suites": suites,
            "here": [{"kind": kind, "name": name} for kind, name in parts_here()],
        }
        show(json.dumps(lists))
        return
    tasks = [
        f"{env:12} {entry.description}" + (f"\n{'':14} presets: {' '.join(presets[env])}" if env in presets else "")
        for env, entry in TASKS.items()
    ]
    sections = {
        "environments with presets": [f"{env:30} {' '.join(algorithms)}" for env, algorithms in tuned.items()],
        "environments with a built-in vectorised version": [
            " ".join(builtin),
            "Every other Gymnasium environment works too: give its id, or module:Id.",
        ],
        "language tasks": tasks,
        "recipes for language tasks (--preset NAME)": [" ".join(recipes())],
        "suites for rlzoo benchmark": [" ".join(suites)],
    }
    if here := parts_here():
        sections["in the files of this directory"] = [f"{kind:12} {name}" for kind, name in here]
    show(f"algorithms\n{_algorithms()}")
    for title, lines in sections.items():
        show("\n" + "\n  ".join([title, *lines]))


def _report(run: Run, options: Output) -> int:
    """Prints the final evaluations, unless the display has shown them already."""
    stochastic, deterministic = run.evaluations()[-2:]
    if options.json:
        evaluations = {"stochastic": stochastic, "deterministic": deterministic}
        show(json.dumps({"run": str(run.path), "step": stochastic["step"], **evaluations}))
    elif options.quiet:
        from rlzoo.runs.evaluate import describe_evaluation

        show(describe_evaluation(stochastic["step"], stochastic, deterministic))
    return 0


def _holds_seeds(folder: str) -> bool:
    """Whether a directory holds the runs of several seeds."""
    runs = (config.parent.name.removeprefix("seed-") for config in Path(folder).glob("seed-*/config.json"))
    return not Path(folder, "config.json").exists() and any(name.isdecimal() for name in runs)


def _train_seeds(config: Config, lines: list[str], options: Any) -> int:
    """`rlzoo train --seed 1 2 3` with a configuration, and the lines that say where it started from."""
    from rlzoo.benchmark.seeds import create_runs
    from rlzoo.runs.train import default_directory

    require(options.jobs is None or options.jobs >= 1, f"jobs must be at least 1, got {options.jobs}")
    folder = Path(options.out or default_directory(config, seeds=True))
    runs = create_runs(folder, config, options.seed, options.overwrite)
    shown = display(options)
    for line in (*lines, f"training seeds {', '.join(map(str, options.seed))} in {folder}"):
        shown.say(line)
    return _finish_seeds(folder, runs, None, options, shown)


def _resume_seeds(options: Any) -> int:
    """`rlzoo resume` with a directory that holds the runs of several seeds."""
    require(options.checkpoint is None, "--checkpoint is for the run of one seed")
    require(options.jobs is None or options.jobs >= 1, f"jobs must be at least 1, got {options.jobs}")
    with importing(threads_for(options)):
        from rlzoo.benchmark.seeds import seed_runs

    runs, shown = seed_runs(options.run), display(options)
    shown.say(f"resuming seeds {', '.join(map(str, runs))} in {options.run}")
    return _finish_seeds(Path(options.run), runs, options.total_steps, options, shown)


def _finish_seeds(folder: Path, runs: Mapping[int, Run], total_steps: int | None, options: Any, shown: Display) -> int:
    from joblib import cpu_count

    from rlzoo.benchmark.seeds import train_seeds

    threads = threads_for(options, str(next(iter(runs.values())).path)).count or 1
    jobs = options.jobs or max(1, cpu_count() // threads)
    failed = train_seeds(runs, total_steps=total_steps, jobs=jobs, threads=threads, display=shown)
    done = {seed: run for seed, run in runs.items() if seed not in failed}
    for seed, failure in failed.items():
        complain(f"seed {seed} failed: {failure.error}")
        if failure.traceback:
            show(failure.traceback, sys.stderr)
    if failed:
        complain(f"{len(failed)} of {len(runs)} seeds failed; again: rlzoo resume {quote(str(folder))}")
    with contextlib.suppress(BrokenPipeError):
        _print_scores(folder, done, options)
    return 1 if failed else 0


def _print_scores(folder: Path, runs: Mapping[int, Run], options: Output) -> None:
    """A table of the final scores, with their interquartile means and 95 % intervals."""
    from rlzoo.benchmark.reports.statistics import iqm_interval
    from rlzoo.benchmark.reports.tables import fixed, mean
    from rlzoo.benchmark.seeds import final_scores

    modes = ("stochastic", "deterministic")
    finals = {seed: dict(zip(modes, final_scores(run)[1:], strict=True)) for seed, run in runs.items()}
    scores = {mode: [pair[mode]["mean_return"] for pair in finals.values()] for mode in modes}
    intervals = {mode: iqm_interval([x]) for mode, x in scores.items() if x}
    if options.json:
        summary = {mode: {"iqm": x.estimate, "interval": [x.low, x.high]} for mode, x in intervals.items()}
        show(json.dumps({"run": str(folder), "seeds": finals, **summary}))
        return
    if not finals:
        return
    rows = [["seed", *modes]]
    rows += [[str(seed), *(fixed(x["mean_return"], 2) for x in pair.values())] for seed, pair in finals.items()]
    rows.append(["IQM", *(mean(x, 2) for x in scores.values())])
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        show("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    if len(finals) <= 5:
        show(f"IQM: interquartile mean and 95 % interval, which is too narrow for {len(finals)} seeds")
