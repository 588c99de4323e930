"""The same run with several seeds: a directory of ordinary run directories, trained in parallel processes.

<folder>/seed-1
<folder>/seed-2
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any, NamedTuple

import torch

from rlzoo.benchmark.runner import KILLED, each
from rlzoo.core.system.errors import Interrupted, RunError, describe_error, require
from rlzoo.runs.configuration.config import Config
from rlzoo.runs.evaluate import describe_evaluation
from rlzoo.runs.files import remove_report
from rlzoo.runs.logs.display import Display
from rlzoo.runs.run import Run
from rlzoo.runs.signals import Signals
from rlzoo.runs.train import new_trainer, resume

_POLL = 0.5
"""Seconds between looks at the progress of the processes."""


class Failed(NamedTuple):
    """Why the run of a seed failed."""

    error: str
    traceback: str = ""
    """Of an exception that is none of rlzoo's own."""


def seed_runs(folder: Path | str) -> dict[int, Run]:
    """The runs of a directory of seeds, by seed; none if it is not such a directory."""
    paths = {path.name.removeprefix("seed-"): path for path in Path(folder).glob("seed-*")}
    seeds = sorted(int(x) for x, path in paths.items() if x.isdecimal() and (path / "config.json").is_file())
    return {seed: Run(Path(folder) / f"seed-{seed}") for seed in seeds}


def create_runs(folder: Path | str, config: Config, seeds: Sequence[int], overwrite: bool = False) -> dict[int, Run]:
    """The runs of a configuration with several seeds. Those that exist with the same settings are kept.

    Raises:
        ConfigError, UnknownEnv: as for `train`, before anything is written.
        RunError: the directory holds a run, or a run of a seed has other settings.
    """
    folder = Path(folder)
    if (folder / "config.json").exists():
        raise RunError(f"{folder} holds a run: give another --out for several seeds")
    runs = {seed: Run(folder / f"seed-{seed}") for seed in seeds}
    existing = {} if overwrite else seed_runs(folder)
    created = [seed for seed in seeds if seed not in existing]
    for seed in created:
        runs[seed].check_free(overwrite)
    for seed in existing.keys() & runs.keys():
        then, now = runs[seed].read_config().to_dict(), replace(config, seed=seed).to_dict()
        for name in now:
            if then.get(name) != now[name]:
                values = f"({then.get(name)}, not {now[name]})"
                raise RunError(f"{runs[seed].path} has another {name} {values}: give another --out, or --overwrite")
    if created:
        new_trainer(replace(config, compile=False)).task.close()
    if overwrite and seed_runs(folder):
        remove_report(folder)
    for seed in created:
        Run.create(runs[seed].path, replace(config, seed=seed), overwrite)
    return runs


def train_seeds(
    runs: Mapping[int, Run],
    *,
    total_steps: int | None = None,
    jobs: int = 1,
    threads: int = 1,
    display: Display | None = None,
) -> dict[int, Failed]:
    """Trains runs to their end in parallel processes, each from its last checkpoint. Returns those that failed.

    A signal stops all of them after their iteration, with a checkpoint. So does the death of this process.

    Args:
        total_steps: a new number of steps for each run.
        jobs: processes at a time.
        threads: threads of PyTorch in each process.

    Raises:
        Interrupted: a signal was received.
    """
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    display, signals = display or Display(), Signals()
    changes: dict[str, Any] = {} if total_steps is None else {"total_steps": total_steps}
    totals = {seed: replace(run.read_config(), **changes).total_steps for seed, run in runs.items()}
    finished = {seed for seed, run in runs.items() if run.finished and (total_steps or 0) <= run.steps()[-1]}
    failed: dict[int, Failed] = {}
    work = {seed: (run.path, total_steps, threads) for seed, run in runs.items() if seed not in finished}
    display.start(_progress(runs, totals, finished)["step"], sum(totals.values()))
    with signals, _shown(lambda: _progress(runs, totals, finished), display, signals):
        for seed, outcome in each(_train, work, jobs, threads, lambda: bool(signals.received)):
            if outcome == "finished":
                finished.add(seed)
                display.say(f"seed {seed}: {describe_evaluation(*final_scores(runs[seed]))}")
            elif not isinstance(outcome, str):
                failed[seed] = outcome or Failed(KILLED)
                display.say(f"seed {seed} failed: {failed[seed].error}")
    if signals.received:
        folder = next(iter(runs.values())).path.parent
        raise Interrupted(f"stopped; continue with: rlzoo resume {quote(str(folder))}", signals.received)
    return failed


def _progress(runs: Mapping[int, Run], totals: Mapping[int, int], finished: set[int]) -> dict[str, Any]:
    """Steps of all runs together, and the means of their last mean returns and KLs to the reference."""
    last = {seed: run.last_metrics() or {"step": 0} for seed, run in runs.items()}
    steps = sum(totals[seed] if seed in finished else min(x["step"], totals[seed]) for seed, x in last.items())
    values = {
        name: [x[name] for x in last.values() if x.get(name) is not None] for name in ("mean_return", "kl_reference")
    }
    means = {name: fmean(x) for name, x in values.items() if x}
    return {"mean_return": None, **means, "step": steps}


@contextlib.contextmanager
def _shown(progress: Callable[[], dict[str, Any]], display: Display, signals: Signals) -> Iterator[None]:
    """Context that shows the progress of processes and, after a signal, stops them."""
    ended = threading.Event()

    def follow() -> None:
        step = -1
        while not ended.wait(_POLL):
            if signals.received:
                for process in multiprocessing.active_children():
                    process.terminate()
            record = progress()
            if record["step"] > step:
                step = record["step"]
                display.update(record)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()
        display.update(progress())
        display.close()


def final_scores(run: Run) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The last step of a finished run, and its final evaluations, stochastic and deterministic."""
    stochastic, deterministic = run.evaluations()[-2:]
    return stochastic["step"], stochastic, deterministic


def _train(work: tuple[Path, int | None, int]) -> str | Failed:
    """Trains a run in a worker process: "finished", "stopped", or why it failed."""
    path, total_steps, threads = work
    torch.set_num_threads(threads)
    parent = os.getppid()
    try:
        resume(path, total_steps)
    except Interrupted:
        if os.getppid() != parent:
            os._exit(1)
        return "stopped"
    except (Exception, SystemExit) as error:
        own = type(error).__module__ == "rlzoo.core.system.errors"
        if own or isinstance(error, (OSError, MemoryError)):
            return Failed(" ".join(str(error).split()) or type(error).__name__)
        return Failed(describe_error(error), traceback.format_exc())
    return "finished"
