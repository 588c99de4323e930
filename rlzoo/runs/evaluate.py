"""The policy of a run: loading and evaluating it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlzoo.control.evaluation import Evaluation, evaluate_model
from rlzoo.core.errors import RunError, require
from rlzoo.core.models import ActorCritic
from rlzoo.runs.run import Run
from rlzoo.core.task import Task

__all__ = ["Evaluation", "check_model_given", "describe", "evaluate", "evaluate_model", "load_model", "load_task"]


def describe(step: int, summary: Mapping[str, Any], modes: Mapping[str, Any] | None = None) -> str:
    """A summary at a step in one line; `modes` is that of a second, deterministic evaluation."""

    def spread(summary: Mapping[str, Any]) -> str:
        size = abs(summary["mean_return"])
        digits = 1 if size >= 10 else 2 if size >= 1 else 3
        return f"{summary['mean_return']:,.{digits}f} ± {summary['std_return']:,.{digits}f}"

    kind = "deterministic " if summary["deterministic"] else ""
    line = f"step {step:,}: {kind}mean return {spread(summary)} over {summary['episodes']} episodes"
    if "kl_reference" in summary:
        line += f", KL to the reference {summary['kl_reference']:.3g}"
    return line if modes is None else f"{line}; deterministic {spread(modes)}"


def evaluate(
    run: Run | Path | str,
    episodes: int = 100,
    *,
    deterministic: bool = False,
    seed: int = 0,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
) -> Evaluation:
    """Plays complete episodes with a run's policy, on the CPU.

    Args:
        deterministic: take the mode of the policy instead of a sample.
        seed: of environments and actions; the same seed gives the same episodes.
        checkpoint: its step, or "best" for the one with the best evaluation; the last one by default.
        model: a model to load the weights into, for a run whose model `config.json` does not describe.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    task = load_task(run, checkpoint, model)
    try:
        return task.evaluate(episodes, seed=seed, deterministic=deterministic)
    finally:
        task.close()


def load_model(
    run: Run | Path | str, checkpoint: int | Literal["best"] | None = None, model: ActorCritic | None = None
) -> ActorCritic:
    """The model of a run's checkpoint, on the CPU. The arguments are those of `evaluate`.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged.
    """
    task = load_task(run, checkpoint, model)
    task.close()
    return task.model


def load_task(
    run: Run | Path | str, checkpoint: int | Literal["best"] | None = None, model: ActorCritic | None = None
) -> Task:
    """What a run trains on, with the model of a checkpoint, on the CPU. Arguments and errors as for `load_model`."""
    run = Run.open(run)
    config = replace(run.read_config(), device="cpu")
    check_model_given(run, model)
    weights = run.load(run.step_of(checkpoint)).model
    task = config.task.make(config, model, run.path)
    try:
        task.model.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{run.path}: the weights do not fit the model: {' '.join(str(error).split())}") from error
    return task


def check_model_given(run: Run, model: ActorCritic | None) -> None:
    """Raises `RunError` if the run's model is not one that its configuration describes, and none is given."""
    if model is None and run.model_name is not None:
        raise RunError(f"{run.path} trains a model of its own, {run.model_name}; give it as model=...")
