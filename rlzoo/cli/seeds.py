"""`rlzoo train` and `rlzoo resume` for several seeds at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlzoo.cli.common import Output, display, importing, threads_for
from rlzoo.core.system.errors import require
from rlzoo.core.system.screen import complain, show

if TYPE_CHECKING:
    from rlzoo.runs.configuration.config import Config
    from rlzoo.runs.logs.display import Display
    from rlzoo.runs.run import Run


def holds_seeds(folder: str) -> bool:
    """Whether a directory holds the runs of several seeds."""
    runs = (config.parent.name.removeprefix("seed-") for config in Path(folder).glob("seed-*/config.json"))
    return not Path(folder, "config.json").exists() and any(name.isdecimal() for name in runs)


def train_seeds_command(config: Config, lines: list[str], options: Any) -> int:
    """`rlzoo train --seed 1 2 3` with a configuration, and the lines that say where it started from."""
    from rlzoo.benchmark.seeds import create_runs
    from rlzoo.runs.train import default_directory

    require(options.jobs is None or options.jobs >= 1, f"jobs must be at least 1, got {options.jobs}")
    folder = Path(options.out or default_directory(config, seeds=True))
    runs = create_runs(folder, config, options.seed, options.overwrite)
    shown = display(options)
    for line in (*lines, f"training seeds {', '.join(map(str, options.seed))} in {folder}"):
        shown.say(line)
    return _train(folder, runs, None, options, shown)


def resume_seeds_command(options: Any) -> int:
    """`rlzoo resume` with a directory that holds the runs of several seeds."""
    require(options.checkpoint is None, "--checkpoint is for the run of one seed")
    require(options.jobs is None or options.jobs >= 1, f"jobs must be at least 1, got {options.jobs}")
    with importing(threads_for(options)):
        from rlzoo.benchmark.seeds import seed_runs

    runs, shown = seed_runs(options.run), display(options)
    shown.say(f"resuming seeds {', '.join(map(str, runs))} in {options.run}")
    return _train(Path(options.run), runs, options.total_steps, options, shown)


def _train(folder: Path, runs: Mapping[int, Run], total_steps: int | None, options: Any, shown: Display) -> int:
    from joblib import cpu_count

    from rlzoo.benchmark.seeds import train_seeds

    threads = threads_for(options, str(next(iter(runs.values())).path)).count or 1
    jobs = options.jobs or max(1, cpu_count() // threads)
    failed = train_seeds(runs, total_steps=total_steps, jobs=jobs, threads=threads, display=shown)
    done = {seed: run for seed, run in runs.items() if seed not in failed}
    _print_scores(folder, done, options)
    for seed, failure in failed.items():
        complain(f"seed {seed} failed: {failure.error}")
        if failure.traceback:
            show(failure.traceback, sys.stderr)
    if failed:
        complain(f"{len(failed)} of {len(runs)} seeds failed; again: rlzoo resume {folder}")
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
