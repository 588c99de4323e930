"""A run around the loop: logs, evaluations, checkpoints, signals, and what may befall it."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from rlzoo.control import envs
from rlzoo.algorithms import Algorithm
from rlzoo.runs.checkpoint import pack
from rlzoo.runs.config import ALIASES, Config, make_config, with_preset, with_recipe
from rlzoo.core.errors import ConfigError, Interrupted, NonFiniteError, RunError, TrainingError, require
from rlzoo.runs.evaluate import Evaluation, check_model_given, describe
from rlzoo.runs.logger import Display, Logger, make_display
from rlzoo.core.models import ActorCritic
from rlzoo.runs.run import Run
from rlzoo.runs.loop import Iteration, Trainer

FINAL_EPISODES = 100
"""Episodes of the evaluations at the end of a run."""


OnIteration = Callable[[Trainer, Iteration], bool | None]
"""Called after every iteration; returning True ends the run."""


def train(
    algorithm: str | Algorithm | Config,
    env: str | None = None,
    *,
    out: Path | str | None = None,
    overwrite: bool = False,
    preset: bool | str = True,
    model: ActorCritic | Path | str | None = None,
    progress: bool | Display = False,
    on_iteration: OnIteration | None = None,
    **settings: Any,
) -> Run:
    """Trains from the start to the end, in a new run directory.

    Args:
        algorithm: a name (`rlzoo list`), `module:Class`, an instance, or a whole `Config`.
        env: Gymnasium id, `module:Id`, or a language task.
        out: the run directory; `runs/<algorithm>-<env>-s<seed>-<time>` by default.
        overwrite: replace a run that is there already.
        preset: start from the tuned settings for the pair, if there are any and `algorithm` is a name; for a language
            task it may be the name of a recipe, which comes on top of them.
        model: train this instead of building one; `resume` and `evaluate` need it again. For a language task it may
            be the setting of that name.
        progress: show it on standard output, or on a display of one's own.
        on_iteration: a callback; it may read anything and change nothing.
        settings: fields of `Config`, of its parts and of theirs, by name.

    Raises:
        ConfigError: a setting cannot work.
        RunError: `out` holds something already.
        TrainingError: training broke off.
        Interrupted: a signal stopped it, after a checkpoint.
    """
    if isinstance(model, (Path, str)):
        settings["model"], model = str(model), None
    started_from: list[str] = []
    if isinstance(algorithm, Config):
        fixed = env is None and not settings and isinstance(preset, bool)
        require(fixed, "a Config leaves no room for further settings")
        config = algorithm
    elif env is None:
        raise ConfigError("env is missing")
    else:
        settings, started_from = with_presets(algorithm, env, settings, preset)
        config = make_config(algorithm, env, **settings)
    check_device(config.device)
    display = _display(progress)
    trainer = Trainer(config, model, say=display.say)
    model_name = None if model is None else f"{type(model).__module__}:{type(model).__qualname__}"
    run = Run.create(out or default_directory(config), config, overwrite, model_name)
    for line in started_from:
        display.say(line)
    display.say(f"training in {run.path}")
    with run.lock():
        trainer.task.begin(run.path)
        logger = Logger(run.path, config.total_steps, config.to_dict(), display)
        _Session(trainer, run, logger, on_iteration).go()
    return run


def resume(
    run: Run | Path | str,
    total_steps: int | None = None,
    *,
    checkpoint: int | None = None,
    model: ActorCritic | None = None,
    progress: bool | Display = False,
    on_iteration: OnIteration | None = None,
) -> Run:
    """Goes on with a run where its last checkpoint was taken, and to the same end as if it had never stopped.

    A run that is finished stays as it is, unless `total_steps` asks for more. An environment that cannot give
    its state starts new episodes.

    Args:
        total_steps: a new end for the run, later than the old one if the run is finished.
        checkpoint: step of an earlier checkpoint to go back to; what came later is deleted.
        model, progress, on_iteration: as for `train`.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged or in use.
        TrainingError, Interrupted: as for `train`.
    """
    run = Run.open(run)
    display = _display(progress)
    with run.lock():
        before = run.read_config()
        config = before if total_steps is None else replace(before, total_steps=total_steps)
        check_model_given(run, model)
        saved = run.load(checkpoint) if run.steps() or checkpoint is not None else None
        finished = run.finished and checkpoint is None
        if finished and config.total_steps <= before.total_steps:
            display.say(f"{run.path} is finished, at step {run.steps()[-1]:,}; --total-steps N takes it further")
            return run
        check_device(config.device)
        trainer = Trainer(config, model, run.path, display.say)
        with _fitting(run):
            if saved is not None:
                trainer.restore(saved)
            logger = Logger(run.path, config.total_steps, config.to_dict(), display, trainer.step)
            if saved is not None:
                logger.load_state_dict(saved.state["logger"])
        if saved is not None and saved.state["task"]["env"] is None:
            display.say(f"{config.env} cannot give its state: episodes start afresh")
        display.say(f"going on with {run.path} at step {trainer.step:,}")
        if config != before:
            run.write_config(config, run.model_name, trainer.step if finished else run.extended_at)
        run.forget_after(trainer.step)
        trainer.task.begin(run.path)
        _Session(trainer, run, logger, on_iteration).go()
    return run


def default_directory(config: Config) -> Path:
    """A new name under `runs/`."""
    name = re.sub(r"[^\w.]+", "-", f"{config.to_dict()['algorithm']}-{config.env}-s{config.seed}")
    path = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    others = (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))
    return next(p for p in itertools.chain([path], others) if not p.exists())


def with_presets(
    algorithm: str | Algorithm, env: str, settings: dict[str, Any], preset: bool | str
) -> tuple[dict[str, Any], list[str]]:
    """`settings` on top of what `preset` asks for, and what that was in words. See `train`."""

    def describe(name: str, given: dict[str, Any]) -> str:
        return f"preset {name}: " + ", ".join(f"{setting}={value}" for setting, value in given.items())

    lines: list[str] = []
    if isinstance(preset, str):
        settings, given = with_recipe(preset, algorithm, env, settings)
        lines = [describe(preset, given)]
    if preset and isinstance(algorithm, str):
        name = ALIASES.get(algorithm, algorithm)
        settings, tuned = with_preset(algorithm, env, settings)
        if tuned is not None:
            lines.insert(0, describe(f"{name}/{env}", tuned))
        elif not lines:
            lines = [f"no preset for {name} on {env}: starting from the defaults"]
    return settings, lines


def check_device(device: str) -> None:
    """Raises `ConfigError` if PyTorch has no such device here."""
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device must be cpu, cuda, cuda:N, mps or the like, got {device!r}") from error
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r} is not available: {str(error).splitlines()[0]}") from error


def _display(progress: bool | Display) -> Display:
    if isinstance(progress, Display):
        return progress
    return make_display() if progress else Display()


@contextlib.contextmanager
def _fitting(run: Run) -> Iterator[None]:
    """Around restoring a checkpoint, which may be anyone's."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise RunError(f"{run.path}: the checkpoint does not fit config.json: {reason}") from error


class _Session:
    """One sitting of a run: turns of the loop, with evaluations, checkpoints and signals between them.

    What happens when depends on step counts alone, so that a run that was stopped and resumed is the same run.
    """

    def __init__(self, trainer: Trainer, run: Run, logger: Logger, on_iteration: OnIteration | None) -> None:
        self.trainer = trainer
        self.config = trainer.config
        self.run = run
        self.logger = logger
        self.on_iteration = on_iteration
        tenth = max(1, self.config.total_steps // 10)
        self.eval_interval = self.config.eval_interval or tenth
        self.checkpoint_interval = self.config.checkpoint_interval or tenth
        self.best_return = -math.inf
        self.signals = _Signals()
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None

    def go(self) -> None:
        """Trains to the end."""
        stopped = self._look_back() and self.run.extended_at != self.trainer.step
        self.logger.display.start(self.trainer.step, self.config.total_steps)
        try:
            with self._failures_named(), self.signals:
                if self.trainer.step == 0 and self.trainer.task.evaluates_start and not self.run.evaluations():
                    self._evaluate(self.config.eval_episodes)
                while not (self.trainer.done or stopped):
                    stopped = self._turn()
                self._finish()
        finally:
            self.writer.shutdown()
            self.logger.display.close()
            self.trainer.task.close()

    def _look_back(self) -> bool:
        """Finds the best evaluation so far; whether the last one stopped the run."""
        stopped, best_step = False, None
        for evaluation in self.run.evaluations():
            step, mean_return = evaluation["step"], evaluation["mean_return"]
            if not evaluation["deterministic"] and step > 0:
                stopped = step == self.trainer.step and self._is_enough(mean_return)
                if mean_return > self.best_return:
                    self.best_return, best_step = mean_return, step
        if best_step in self.run.steps() and best_step != self.run.best_step():
            self.run.mark_best(best_step, self.best_return)
        return stopped

    def _turn(self) -> bool:
        """One iteration and what is due after it; whether the run stops here."""
        trainer, before, start = self.trainer, self.trainer.step, time.perf_counter()
        iteration = trainer.iterate()
        self.logger.iteration(iteration.step, time.perf_counter() - start, iteration.metrics, iteration.episodes)
        stop = self.on_iteration is not None and bool(self.on_iteration(trainer, iteration))

        def due(interval: int) -> bool:
            return trainer.step // interval > before // interval

        new_best = None
        if due(self.eval_interval) and not trainer.done:
            mean_return = self._evaluate(self.config.eval_episodes).mean_return
            stop = stop or self._is_enough(mean_return)
            if mean_return > self.best_return:
                self.best_return = new_best = mean_return
        if due(self.checkpoint_interval) or new_best is not None or stop or trainer.done or self.signals.received:
            self._save(new_best)
        self._heed_signals()
        return stop

    def _finish(self) -> None:
        """The final evaluations: of the policy as it acts, which may be the best so far, and of its modes."""
        sampled = self._evaluate(FINAL_EPISODES, final=True)
        self._wait()
        if sampled.mean_return > self.best_return:
            self.run.mark_best(self.trainer.step, sampled.mean_return)
        self._heed_signals()
        modes = self._evaluate(FINAL_EPISODES, final=True, deterministic=True)
        self.trainer.task.end(self.run.path)
        self.logger.flush()
        self.logger.display.close()
        self.logger.display.say(describe(self.trainer.step, sampled.summary(), modes.summary()))

    def _evaluate(self, episodes: int, final: bool = False, deterministic: bool = False) -> Evaluation:
        config, step, start = self.config, self.trainer.step, time.perf_counter()
        seed = int(np.random.SeedSequence(config.seed, spawn_key=(4, step, final)).generate_state(1)[0])
        evaluation = self.trainer.task.evaluate(episodes, seed=seed, deterministic=deterministic)
        self.logger.evaluation(step, time.perf_counter() - start, evaluation, final)
        return evaluation

    def _is_enough(self, mean_return: float) -> bool:
        return self.config.stop_return is not None and mean_return >= self.config.stop_return

    def _save(self, new_best: float | None) -> None:
        """Takes a checkpoint. Writing it is mostly waiting for the disk, and goes on beside the training."""
        self._wait()
        self.logger.flush()
        step, checkpoint = self.trainer.step, self.trainer.checkpoint()
        checkpoint.state["logger"] = self.logger.state_dict()
        self.writing = self.writer.submit(self._write, step, pack(step, checkpoint), new_best)

    def _write(self, step: int, files: dict[str, bytes], new_best: float | None) -> None:
        self.run.write(step, files)
        if new_best is not None:
            self.run.mark_best(step, new_best)

    def _wait(self) -> None:
        """Until the last checkpoint is written. Raises what writing it raised."""
        if self.writing is not None:
            writing, self.writing = self.writing, None
            writing.result()

    def _heed_signals(self) -> None:
        if self.signals.received:
            self._wait()
            message = f"stopped at step {self.trainer.step:,}; go on with: rlzoo resume {self.run.path}"
            raise Interrupted(message, self.signals.received)

    @contextlib.contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Turns what may befall a run into a `TrainingError` that says what is left of it."""
        try:
            yield
        except (NonFiniteError, envs.EnvError, OSError, torch.OutOfMemoryError) as error:
            what = " ".join(str(error).split())
            if isinstance(error, OSError) and error.filename is not None:
                what = f"cannot write {error.filename}: {error.strerror}"
            with contextlib.suppress(OSError):
                self._wait()
            steps = self.run.steps()
            left = (
                f"the last checkpoint is at step {steps[-1]:,}: rlzoo resume {self.run.path}"
                if steps
                else "there is no checkpoint yet"
            )
            raise TrainingError(f"step {self.trainer.step:,}: {what}; {left}") from error


class _Signals:
    """Notes the first Ctrl-C or SIGTERM, so that training can stop at the end of an iteration; a second acts
    at once."""

    received: int = 0

    def __enter__(self) -> None:
        self._handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._handlers[number] = signal.signal(number, self._note)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = number
        signal.signal(number, self._handlers[number])
