"""Loading, evaluating and playing the policy of a run."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from rlzoo.core.env import ENDLESS, env_name
from rlzoo.core.evaluation import Evaluation, Played
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import RunError, require
from rlzoo.core.system.progress import operation
from rlzoo.core.task import Task
from rlzoo.runs.acceleration import accelerate
from rlzoo.runs.configuration.config import LARGEST_INT
from rlzoo.runs.registry import task_class
from rlzoo.runs.run import Run


def describe_evaluation(step: int, summary: Mapping[str, Any], deterministic: Mapping[str, Any] | None = None) -> str:
    """An evaluation's summary in one line, with that of a second, deterministic evaluation if it is given."""

    def spread(summary: Mapping[str, Any]) -> str:
        size = abs(summary["mean_return"])
        digits = 1 if size >= 10 else 2 if size >= 1 else 3
        return f"{summary['mean_return']:,.{digits}f} ± {summary['std_return']:,.{digits}f}"

    kind = "deterministic " if summary["deterministic"] else ""
    return_, episodes = ("score", "responses") if "kl_reference" in summary else ("return", "episodes")
    episodes = "prompts" if summary.get("exact") else episodes
    line = f"step {step:,}: {kind}mean {return_} {spread(summary)} over {summary['episodes']} {episodes}"
    labels = {"success_rate": "success rate", "kl_reference": "KL to the reference"}
    labels |= {name: name for name in summary if name.startswith("pass@")}
    line += "".join(f", {label} {summary[name]:.3g}" for name, label in labels.items() if name in summary)
    if "cut_episodes" in summary:
        line += f", {summary['cut_episodes']} of them cut after {ENDLESS:,} steps"
    return line if deterministic is None else f"{line}; deterministic {spread(deterministic)}"


def evaluate(
    run: Run | Path | str,
    episodes: int = 100,
    *,
    deterministic: bool = False,
    seed: int = 0,
    checkpoint: int | Literal["best"] | None = None,
    pass_k: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    model: ActorCritic | None = None,
    **objects: Any,
) -> Evaluation:
    """Plays complete episodes with a run's policy on the CPU.

    Args:
        deterministic: take the mode of the policy instead of a sample.
        seed: seed of environments and actions. The same seed gives the same episodes.
        checkpoint: the step of a checkpoint, or "best" for the one with the best evaluation; by default the last one.
        pass_k: for a language model, also estimate pass@1 and pass@k with this k: the chance that one of k responses to
            a prompt has a score of 1 or more. Only as many prompts are used as get k responses each.
        env_kwargs: evaluate in a changed environment: keyword arguments on top of those of the run.
        model: a model of the run's architecture, if the run was trained with a model of your own. It does not change.
        objects: settings of the run that `config.json` cannot hold, such as `env=make_env`.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged.
    """
    check_numbers(seed, episodes)
    contradiction = "pass_k and deterministic contradict each other: all responses to a prompt would be the same"
    require(pass_k is None or not deterministic, contradiction)
    loaded = contextlib.closing(load_task(run, checkpoint, model, env_kwargs=env_kwargs, **objects))
    with loaded as task, operation("evaluation", episodes) as evaluating:
        task.on_step = evaluating.reach
        if pass_k is not None:
            return task.evaluate_passes(episodes, pass_k, seed=seed)
        return task.evaluate(episodes, seed=seed, deterministic=deterministic)


def play(
    run: Run | Path | str,
    episodes: int | None = None,
    *,
    video: Path | str | None = None,
    deterministic: bool = False,
    seed: int = 0,
    checkpoint: int | Literal["best"] | None = None,
    prompts: Sequence[str] = (),
    model: ActorCritic | None = None,
    **objects: Any,
) -> Sequence[Any]:
    """Plays episodes of a run's policy in a window, or records them at the environment's own frame rate.

    Args:
        episodes: number of episodes; for a language model, of responses to all prompts together. None for 1, or for one
            to each of `prompts`.
        video: a file to record them in, `.mp4` or `.gif`.
        prompts: for a language model, respond to these in turn instead of the evaluation prompts.
        deterministic, seed, checkpoint, model, objects: as for `evaluate`.

    Returns:
        An `Episode` for each episode; for a language model, a `Sample` with prompt, response and score.

    Raises:
        ConfigError: there is no screen, a package is missing, or the file cannot be written.
        RunError: there is no such run or checkpoint, or it is damaged.
        EnvError: the environment cannot be rendered, or scoring a response failed.
    """
    with contextlib.closing(load_task(run, checkpoint, model, **objects)) as task:
        return play_task(task, episodes, video, deterministic, seed, prompts).records


def play_task(
    task: Task, episodes: int | None, video: Path | str | None, deterministic: bool, seed: int, prompts: Sequence[str]
) -> Played:
    """`play` with a loaded task, which also returns a transcript and a summary."""
    prompts = [prompts] if isinstance(prompts, str) else prompts
    episodes = len(prompts) or 1 if episodes is None else episodes
    check_numbers(seed, episodes)
    require(not prompts or video is None, "prompt and video contradict each other")
    if prompts:
        return task.respond_to(prompts, episodes, seed=seed, deterministic=deterministic)
    path = None if video is None else Path(video)
    return task.play(episodes, seed=seed, deterministic=deterministic, video=path)


def load_model(
    run: Run | Path | str,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
    **objects: Any,
) -> ActorCritic:
    """The model of a run's checkpoint, plain PyTorch on the CPU; a given `model`, with its weights.

    The other arguments and the errors are those of `evaluate`.
    """
    with contextlib.closing(load_task(run, checkpoint, model, plain=True, **objects)) as task:
        return task.model


def load_task(
    run: Run | Path | str,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
    plain: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
    **objects: Any,
) -> Task:
    """The task of a run on the CPU, with the model of a checkpoint; if `plain`, without the faster implementations.

    The other arguments and the errors are those of `evaluate`.
    """
    run, model = Run.open(run), model if plain else copy.deepcopy(model)  # which may be in training
    if env_kwargs is not None and "env_kwargs" in run.objects:
        objects, env_kwargs = {**objects, "env_kwargs": dict(env_kwargs)}, None
    config = replace(run.read_config(model=model, **objects), device="cpu")
    if env_kwargs:
        require(hasattr(config.task, "env_kwargs"), f"env_kwargs is for control tasks; {env_name(config.env)} is none")
        changed = {**config.task.env_kwargs, **env_kwargs}  # type: ignore[attr-defined]
        config = replace(config, task=replace(config.task, env_kwargs=changed))  # type: ignore[call-arg]
        task_class(config.env).check(config.task, config.setup(run.path))
    weights = run.load(checkpoint).model
    task = task_class(config.env)(config.task, config.setup(run.path), model)
    try:
        run.check_spaces(task.described_spaces())
        task.model.load_state_dict(weights)
        if config.fast and not plain:
            accelerate(task)
    except RuntimeError as error:
        task.close()
        if isinstance(error, RunError):
            raise
        raise RunError(f"{run.path}: the weights do not fit the model: {' '.join(str(error).split())}") from error
    return task


def check_numbers(seed: int, episodes: int = 1) -> None:
    """Raises `ConfigError` if the arguments of an evaluation are no integers in their range."""
    for name, x in {"episodes": episodes, "seed": seed}.items():
        require(isinstance(x, Integral) and not isinstance(x, bool), f"{name} must be an integer, got {x!r}")
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(episodes <= LARGEST_INT, f"episodes must be at most {LARGEST_INT}, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
