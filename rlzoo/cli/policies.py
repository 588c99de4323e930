"""`rlzoo eval`, `play`, `export` and `push`."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from rlzoo.cli.common import Json, Threads, importing, threads_for
from rlzoo.cli.options import Positional, Repeated, Switch, parse
from rlzoo.core.system.screen import show


@dataclass(frozen=True, kw_only=True)
class _Saved:
    run: Positional[str]
    """Run directory, or hf:user/name."""
    checkpoint: int | Literal["best"] | None = None
    """Step of a checkpoint, or best; none for the last one."""


@dataclass(frozen=True, kw_only=True)
class _Policy(_Saved, Threads, Json):
    deterministic: Switch = False
    """Take the mode of the policy instead of a sample."""
    seed: int = 0
    """Seed of environments and actions."""


@dataclass(frozen=True, kw_only=True)
class _Eval(_Policy):
    episodes: int = 100
    """Number of episodes; for a language model, of responses."""
    pass_k: int | None = None
    """Also print pass@1 and pass@k of a language model: the chance that one of k responses to a prompt scores 1."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Evaluate in a changed environment: keyword arguments on top of those of the run."""


@dataclass(frozen=True, kw_only=True)
class _Play(_Policy):
    episodes: int | None = None
    """Number of episodes, or of responses for a language model; none for 1, or for one to each prompt."""
    prompt: Repeated = ()
    """Text for a language model to respond to, instead of the evaluation prompts. Repeat it for more."""
    video: str | None = None
    """File to record the episodes in, .mp4 or .gif; none to open a window."""


@dataclass(frozen=True, kw_only=True)
class _Export(_Saved):
    format: Literal["onnx", "c"] = "onnx"
    """onnx, or c for a header without dependencies."""
    out: str | None = None
    """File to write; none for policy.onnx or policy.h."""


@dataclass(frozen=True, kw_only=True)
class _Push(_Saved):
    repo: Positional[str]
    """user/name on the Hugging Face hub, or a new folder: ./name or /path/name."""
    private: Switch = False
    """Make a new repository private."""


def eval_command(arguments: list[str]) -> None:
    options = parse(_Eval, arguments, "rlzoo eval", "Play complete episodes and print their mean return.")
    with importing(threads_for(options, options.run)):
        from rlzoo.runs.evaluate import describe_evaluation, evaluate
        from rlzoo.runs.logs.display import make_display
        from rlzoo.runs.run import Run

    run = Run.open(options.run)
    step = run.step_of(options.checkpoint)
    with make_display(sys.stderr):
        evaluation = evaluate(
            run,
            options.episodes,
            deterministic=options.deterministic,
            seed=options.seed,
            checkpoint=step,
            pass_k=options.pass_k,
            env_kwargs=options.env_kwargs,
        )
    summary = evaluation.summary()
    changed = "".join(f", {name}={x!r}" for name, x in options.env_kwargs.items())
    line = describe_evaluation(step, summary) + (f"; in a changed environment{changed}" if changed else "")
    record = {"run": str(run.path), "step": step, **summary}
    show(json.dumps(record | ({"env_kwargs": options.env_kwargs} if changed else {})) if options.json else line)


def play_command(arguments: list[str]) -> None:
    description = "Watch episodes in a window or record a video. For a language model, read responses."
    options = parse(_Play, arguments, "rlzoo play", description)
    with importing(threads_for(options, options.run)):
        from rlzoo.runs.evaluate import load_task, play_task
        from rlzoo.runs.logs.display import make_display
        from rlzoo.runs.run import Run

    run = Run.open(options.run)
    step = run.step_of(options.checkpoint)
    with make_display(sys.stderr), contextlib.closing(load_task(run, step)) as task:
        result = play_task(task, options.episodes, options.video, options.deterministic, options.seed, options.prompt)
    if options.json:
        show(json.dumps({"run": str(run.path), "step": step, "video": options.video, **result.summary}))
        return
    show(result.transcript)
    if options.video is not None:
        show(options.video)


def export_command(arguments: list[str]) -> None:
    description = "Write the deterministic policy to a file for other programs, with the normaliser inside."
    options = parse(_Export, arguments, "rlzoo export", description)
    with importing():
        from rlzoo.runs.publish.policies import export

    show(str(export(options.run, options.format, options.out, checkpoint=options.checkpoint)))


def push_command(arguments: list[str]) -> None:
    description = "Upload the policy to the Hugging Face hub with a model card, or write the same files to a folder."
    options = parse(_Push, arguments, "rlzoo push", description)
    with importing():
        from rlzoo.runs.publish.policies import push

    show(push(options.run, options.repo, private=options.private, checkpoint=options.checkpoint))
