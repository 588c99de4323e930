"""The same run with several seeds: a directory of ordinary run directories, trained in parallel processes.

<folder>/seed-1
<folder>/seed-2
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rlzoo.core.errors import (
    ConfigError,
    EnvError,
    Interrupted,
    NonFiniteError,
    RunError,
    UnknownEnv,
    UnsupportedSpace,
    require,
)
from rlzoo.runs.configuration.config import Config
from rlzoo.runs.evaluate import describe
from rlzoo.runs.logs.display import Display
from rlzoo.runs.run import Run
from rlzoo.runs.signals import interruptible
from rlzoo.runs.train import check_device, resume

_POLL = 0.5
"""Seconds between looks at the progress of the processes."""
_EXPECTED = (ConfigError, EnvError, NonFiniteError, RunError, UnknownEnv, UnsupportedSpace, OSError, MemoryError)


class Failed(NamedTuple):
    """Why the run of a seed failed."""

    error: str
    traceback: str = ""
    """Of an unexpected exception."""


def seed_runs(folder: Path | str) -> dict[int, Run]:
    """The runs of a directory of seeds, by seed; none if it is not such a directory."""
    paths = {path for path in Path(folder).glob("seed-*") if (path / "config.json").is_file()}
    found = {path.name.removeprefix("seed-"): Run(path) for path in paths}
    return {int(seed): found[seed] for seed in sorted(found, key=int) if seed.isdecimal()}


def create_runs(folder: Path | str, config: Config, seeds: Sequence[int], overwrite: bool = False) -> dict[int, Run]:
    """The runs of a configuration with several seeds. Those that exist with the same settings are kept.

    Raises:
        ConfigError: the device is not available.
        RunError: the directory holds a run, or a run of a seed has other settings.
    """
    folder = Path(folder)
    check_device(config.device)
    if (folder / "config.json").exists():
        raise RunError(f"{folder} holds a run: give another --out for several seeds")
    runs = {seed: Run(folder / f"seed-{seed}") for seed in seeds}
    known = seed_runs(folder)
    for seed, run in runs.items():
        wanted = replace(config, seed=seed)
        if overwrite or seed not in known:
            Run.create(run.path, wanted, overwrite)
        elif run.read_config() != wanted:
            then, now = run.read_config().to_dict(), wanted.to_dict()
            name = next((name for name in now if then.get(name) != now[name]), "algorithm")
            raise RunError(
                f"{run.path} has another {name} ({then.get(name)}, not {now[name]}): give another --out, or --overwrite"
            )
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
        runs: runs by seed.
        total_steps: a new number of steps for each run.
        jobs: processes at a time.
        threads: threads of PyTorch in each process.

    Raises:
        Interrupted: a signal was received.
    """
    require(jobs >= 1, f"jobs must be at least 1, got {jobs}")
    display = display or Display()
    bar = _Bar(runs, total_steps, display)
    waiting = {seed: run for seed, run in runs.items() if seed not in bar.finished}
    running: dict[int, _Process] = {}
    failed: dict[int, Failed] = {}
    with interruptible(lambda: f"stopped; continue with: rlzoo resume {next(iter(runs.values())).path.parent}"):
        bar.start()
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    seed, run = next(iter(waiting.items()))
                    running[seed] = _Process.start(run, total_steps, threads)
                    del waiting[seed]
                connection.wait([x.process.sentinel for x in running.values()], _POLL)
                for seed in [seed for seed, x in running.items() if not x.process.is_alive()]:
                    failure = running.pop(seed).failure()
                    if failure is None:
                        bar.finished.add(seed)
                        display.say(f"seed {seed}: {describe(*final_scores(runs[seed]))}")
                    else:
                        failed[seed] = failure
                        display.say(f"seed {seed} failed: {failure.error}")
                bar.update()
        except KeyboardInterrupt:
            _stop(running.values())
            raise
        finally:
            display.close()
    return failed


def final_scores(run: Run) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The last step of a finished run, and its final evaluations, stochastic and deterministic."""
    stochastic, deterministic = run.evaluations()[-2:]
    return stochastic["step"], stochastic, deterministic


@dataclass(frozen=True)
class _Process:
    """A process that trains a run, and the connection that its failure comes through."""

    process: Any
    errors: connection.Connection

    @classmethod
    def start(cls, run: Run, total_steps: int | None, threads: int) -> _Process:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(run.path, total_steps, threads, sender), daemon=True)
        with _ignored(signal.SIGINT):  # the process inherits it: Ctrl-C in the terminal reaches this process alone
            process.start()
        sender.close()
        return cls(process, receiver)

    def failure(self) -> Failed | None:
        """Why the process failed, after its end; None if it did not."""
        with contextlib.suppress(EOFError):
            if self.errors.poll():
                return Failed(*self.errors.recv())
        code = self.process.exitcode
        return None if code == 0 else Failed(f"its process was killed (exit code {code}); memory may have run out")


def _work(path: Path, total_steps: int | None, threads: int, errors: connection.Connection) -> None:
    """Trains a run in a process of its own, which stops with its parent."""
    torch.set_num_threads(threads)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        resume(path, total_steps)
    except Interrupted:
        os._exit(128 + signal.SIGTERM)
    except _EXPECTED as error:
        errors.send((" ".join(str(error).split()) or type(error).__name__, ""))
    except Exception as error:
        errors.send((" ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc()))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(processes: Any) -> None:
    """Stops processes after their iterations; at once with a second signal."""
    processes = list(processes)
    try:
        for x in processes:
            x.process.terminate()
        for x in processes:
            x.process.join()
    except KeyboardInterrupt:
        for x in processes:
            x.process.kill()


@contextlib.contextmanager
def _ignored(number: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, handler)


class _Bar:
    """One display for the steps of all runs, which are read from their files."""

    def __init__(self, runs: Mapping[int, Run], total_steps: int | None, display: Display) -> None:
        self._runs = dict(runs)
        self._totals = {seed: total_steps or run.read_config().total_steps for seed, run in runs.items()}
        self.finished = {
            seed
            for seed, run in runs.items()
            if run.finished and (total_steps is None or total_steps <= run.read_config().total_steps)
        }
        self._display = display
        self._shown = -1

    def start(self) -> None:
        self._display.start(self._progress()[0], sum(self._totals.values()))

    def update(self) -> None:
        """Shows the steps so far, if there are new ones."""
        step, mean_return = self._progress()
        if step > self._shown:
            self._shown = step
            self._display.update({"step": step, "mean_return": mean_return})

    def _progress(self) -> tuple[int, float | None]:
        """Steps of all runs together, and the mean of their last mean returns."""
        steps, returns = 0, []
        for seed, run in self._runs.items():
            record = run.last_metrics() or {"step": 0}
            steps += self._totals[seed] if seed in self.finished else min(record["step"], self._totals[seed])
            if record.get("mean_return") is not None:
                returns.append(record["mean_return"])
        return steps, sum(returns) / len(returns) if returns else None
