"""Training a new run, and resuming one."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from rlzoo.algorithms import Algorithm
from rlzoo.core.env import env_name
from rlzoo.core.models import ActorCritic
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, Interrupted, RunError, TrainingError, describe_error, require
from rlzoo.runs.configuration.config import ANY_INTEGER, Config
from rlzoo.runs.configuration.defaults import configure
from rlzoo.runs.configuration.record import changed_versions
from rlzoo.runs.logs.display import Display, display_for
from rlzoo.runs.logs.logger import Logger
from rlzoo.runs.logs.sinks import check_tracker, continue_tracker, start_tracker
from rlzoo.runs.loop import Trainer, check_context
from rlzoo.runs.publish import hub
from rlzoo.runs.run import Run
from rlzoo.runs.session import Hooks, OnIteration, Session, out_of_memory
from rlzoo.runs.signals import Signals


@processes.joined()
def train(
    algorithm: str | Algorithm | Config | None = None,
    env: Any = None,
    *,
    config: Config | Run | Path | str | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    preset: bool | str = True,
    model: Any = None,
    progress: bool | Display = False,
    on_iteration: OnIteration | None = None,
    hooks: Hooks | None = None,
    track: str | None = None,
    **settings: Any,
) -> Run:
    """Trains a policy in a new run directory.

    Args:
        algorithm: a name (`rlzoo list`), `module:Class`, an instance, or a `Config`.
        env: Gymnasium id, name of a task, `module:Id` of an environment, or `module:Class` of a task.
        config: a `config.json`, the run directory that holds it, or its `Run`: start from its algorithm, env and
            settings, with `settings` as changes. Or a `Config`, as for `algorithm`.
        out: the run directory; `runs/<algorithm>-<env>-s<seed>-<time>` by default.
        overwrite: replace an existing run.
        preset: start from the tuned settings of the pair, if there are any and `algorithm` is a name. A string names a
            recipe or a preset file (`.toml`), whose settings come on top of them.
        model: train this model itself instead of a new one. `resume` and `evaluate` then need it again. Anything else
            than an `ActorCritic` is the setting `model`: a run to start from, or the model of a language task.
        progress: show progress on standard output, or on your own display.
        on_iteration: called after each iteration with the `Trainer` and the `Iteration`. Returning True ends the run.
            Numbers that it returns by name are logged. It may change training only by `Trainer.set_attr`.
        hooks: functions to call at the start, after episodes, iterations and evaluations, and at the end.
        track: also log to this tracker, wandb or mlflow.
        settings: fields of `Config` and of its parts, by name.

    Raises:
        ConfigError: a setting cannot work.
        UnknownEnv: there is no such environment or task.
        RunError: `out` holds a run or other files.
        TrainingError: training failed.
        Interrupted: a signal stopped training, after a checkpoint was written.
    """
    if not isinstance(model, ActorCritic | None):
        settings["model"], model = model, None
    config, started_from = configure(algorithm, env, config, preset, settings)
    if model is not None:
        idle = sorted(config.of_model & settings.keys())
        started_from += [f"{name} does nothing with a model of your own" for name in idle]
    hooks = Hooks.of(hooks, on_iteration)
    if track is not None:
        check_tracker(track)
    display = display_for(progress if processes.rank() == 0 else False)
    here = Path.cwd()
    trainer = new_trainer(config, model, display)
    spaces = trainer.task.described_spaces()
    path = Path(out or default_directory(config))
    path = processes.ready(path if here == Path.cwd() else here / path)  # the environment may change directories
    if processes.rank() > 0:
        _follow(trainer)
        return Run(path)
    with Run.creating(path, config, overwrite, model, spaces) as run:
        for line in started_from:
            display.say(line)
        display.say(f"training in {run.path}")
        trainer.task.begin(run.path)
        flat = config.to_dict()
        before = [*run.path.iterdir()]
        try:
            trackers = [] if track is None else start_tracker(track, run.path, flat)
            logger = Logger(run.path, config.total_steps, flat, display, trackers=trackers)
            Session(trainer, run, logger, hooks).go()
        except (TrainingError, Interrupted):
            raise
        except BaseException:  # also Ctrl-C, while it waits for a server
            if run.last_metrics() is None and not run.steps():
                run.discard(before)
            raise
    return run


@processes.joined()
def resume(
    run: Run | Path | str,
    total_steps: int | None = None,
    *,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
    progress: bool | Display = False,
    on_iteration: OnIteration | None = None,
    hooks: Hooks | None = None,
    **objects: Any,
) -> Run:
    """Continues a run from its last checkpoint. The result is the same as without the interruption.

    A finished run does not change, unless `total_steps` is larger than the steps that it took, also if a hook or
    `stop_return` ended it. New episodes start if the environment cannot save its state.

    Args:
        total_steps: a new number of steps for the run.
        checkpoint: step of an earlier checkpoint to continue from, or "best". Everything later is deleted.
        model, progress, on_iteration, hooks: as for `train`.
        objects: settings of the run that `config.json` cannot hold, such as `env=make_env`.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged, in use, or of another format.
        TrainingError, Interrupted: as for `train`.
    """
    if hub.is_name(run):
        raise RunError(f"{run} is on the Hugging Face hub: it can be evaluated and played, but not resumed")
    run, hooks = Run.open(run), Hooks.of(hooks, on_iteration)
    display = display_for(progress if processes.rank() == 0 else False)
    with run.lock() if processes.rank() == 0 else contextlib.nullcontext():
        before = run.read_config(model=model, **objects)
        config = before if total_steps is None else replace(before, total_steps=total_steps)
        finished = run.finished and run.step_of(checkpoint) == run.steps()[-1]
        if finished and (total_steps is None or total_steps <= run.steps()[-1]):
            display.say(f"{run.path} finished at step {run.steps()[-1]:,}; continue it with --total-steps N")
            return run
        saved = run.load(checkpoint) if run.steps() or checkpoint is not None else None
        trainer = new_trainer(config, model, display, run.path)
        spaces = trainer.task.described_spaces()
        run.check_spaces(spaces)
        if saved is not None:
            with _restoring(run):
                trainer.restore(saved)
                require(trainer.step == run.step_of(checkpoint), f"its step is {trainer.step}")
        processes.ready(None)
        if processes.rank() > 0:
            _follow(trainer)
            return run
        flat = config.to_dict()
        logger = Logger(run.path, config.total_steps, flat, display, trainer.step, continue_tracker(run.path, flat))
        if saved is not None:
            with _restoring(run):
                logger.load_state_dict(saved.state["logger"])
        run.forget_after(trainer.step)
        if trainer.step and (run.last_metrics() or {}).get("step") != trainer.step:
            display.say(f"{run.path / 'metrics.jsonl'} has no line of step {trainer.step:,}: its end was lost")
        if saved is not None and saved.state["task"]["collector"]["env"] is None:
            display.say(f"{env_name(config.env)} cannot save its state: new episodes start")
        display.say(f"resuming {run.path} at step {trainer.step:,}")
        ended = any(e["final"] and e["deterministic"] and e["step"] == trainer.step for e in run.evaluations())
        extended = (ended or config != before) and not trainer.done
        changed = {} if saved is None else changed_versions(run.record)
        for library, versions in changed.items():
            display.say(f"{run.path} was trained with another {library}: {versions}")
        if extended or config != before or saved is None or changed:
            run.write_config(config, model, spaces, trainer.step if extended else run.extended_at)
        trainer.task.begin(run.path)
        stopped = saved is not None and saved.state.get("stopped", False)
        del saved  # its tensors are in the files of a checkpoint, which the session may delete
        Session(trainer, run, logger, hooks, stopped).go()
    return run


def new_trainer(
    config: Config, model: ActorCritic | None = None, display: Display | None = None, folder: Path | None = None
) -> Trainer:
    """The trainer of a run. If there is not enough memory for it, the error names the largest setting.

    It is all that can fail before a new run has a directory.
    """
    check_device(config.device)
    check_context()
    display = display or Display()
    try:
        with display:
            return Trainer(config, model, folder, display)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        values = {name: x.value for name, x in config.table.items() if name not in ANY_INTEGER}
        items = ((x, name) for name, y in values.items() for x in (y if isinstance(y, tuple) else (y,)))
        size, name = max(item for item in items if type(item[0]) is int)
        raise ConfigError(f"there is not enough memory; the largest setting is {name} = {size}") from error


def _follow(trainer: Trainer) -> None:
    """Training in a process that is not the first, which decides what a signal means."""
    with Signals(), contextlib.closing(trainer.task):
        trainer.follow()


def default_directory(config: Config, seeds: bool = False) -> Path:
    """A path under `runs/` that does not exist yet, for a run or for the runs of several seeds."""
    seed = "seeds" if seeds else f"s{config.seed}"
    written = config.to_dict()["algorithm"]
    algorithm = written if isinstance(written, str) else config.algorithm.name
    name = re.sub(r"[^\w.]+", "-", f"{algorithm}-{env_name(config.env)}-{seed}")
    path = Path("runs", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    others = (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))
    return next(p for p in itertools.chain([path], others) if not p.exists())


def check_device(device: str) -> None:
    """Raises `ConfigError` if PyTorch cannot compute in double precision on the device, or processes would share it."""
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device must be cpu, cuda, cuda:N or the like, got {device!r}") from error
    try:
        torch.zeros((), dtype=torch.float64, device=place).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]  # all backends of PyTorch follow
        raise ConfigError(f"device {device!r} is not available: {reason}") from error
    processes.check_gpu(place)


@contextlib.contextmanager
def _restoring(run: Run) -> Iterator[None]:
    """Turns the errors of restoring a damaged checkpoint into a `RunError` that names the run."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise RunError(f"{run.path}: the checkpoint does not fit config.json: {describe_error(error)}") from error
