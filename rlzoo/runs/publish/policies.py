"""Policies for other programs: loading, exporting to a file, and uploading."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import RunError, require
from rlzoo.core.system.files import naming
from rlzoo.core.task import DeployedPolicy, Task
from rlzoo.runs.checkpoint import FILES
from rlzoo.runs.configuration.objects import first_description
from rlzoo.runs.evaluate import check_numbers, load_task
from rlzoo.runs.files import remove, write_atomically
from rlzoo.runs.publish import card
from rlzoo.runs.publish.hub import PREFIX, upload
from rlzoo.runs.run import Run

SUFFIXES = {"onnx": ".onnx", "c": ".h"}
"""Formats of `export`, and the names of their files."""


def load_policy(
    run: Run | Path | str,
    checkpoint: int | Literal["best"] | None = None,
    *,
    deterministic: bool = True,
    seed: int = 0,
    model: ActorCritic | None = None,
    **objects: Any,
) -> DeployedPolicy:
    """The policy of a run, to act in an environment of your own program.

        policy = rlzoo.load_policy("runs/cartpole")
        obs, info = env.reset()
        policy.reset()
        action = policy(obs)
        obs, reward, terminated, truncated, info = env.step(action)

    `policy(obs)` takes one observation as the environment gives it and returns what `env.step` takes. It also takes the
    batch of observations of a Gymnasium vector environment, and returns an array of actions. `policy.reset()` clears
    the memory of a recurrent policy at the start of an episode.

    Args:
        run: a run directory, or `hf:user/name` for a policy on the Hugging Face hub.
        deterministic: take the most probable action instead of a sample.
        seed: seed of the samples.
        checkpoint, model, objects: as for `evaluate`.

    Raises:
        ConfigError: the run trains a language model, or a task that has no such policy.
        RunError: there is no such run or checkpoint, it is damaged, or the hub cannot be reached.
    """
    check_numbers(seed=seed)
    with contextlib.closing(load_task(run, checkpoint, model, **objects)) as task:
        return task.policy(deterministic=deterministic, seed=seed)


def export(
    run: Run | Path | str,
    format: str = "onnx",
    out: Path | str | None = None,
    *,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
    **objects: Any,
) -> Path:
    """Writes the deterministic policy of a run to a file for other programs.

    Its input `obs` is a batch of flat observations (N, D) float32; `policy.flatten` of a loaded policy makes it from
    the observations of the environment. Its output `action` is what `env.step` takes. Normaliser, clipping and the
    first number of a `Discrete` space are inside.

    Args:
        run, checkpoint, model, objects: as for `load_policy`.
        format: onnx (checked with onnxruntime), or c (a header without dependencies).
        out: the file; by default `policy.onnx` or `policy.h` in the current directory.

    Raises:
        ConfigError: a package is missing, or a part of the policy cannot be exported to the format.
        RunError: there is no such run or checkpoint, or it is damaged.
    """
    require(format in SUFFIXES, f"format must be {' or '.join(SUFFIXES)}, got {format!r}")
    path = Path(f"policy{SUFFIXES[format]}" if out is None else out)
    require(not path.is_dir(), f"out must be a file, and {path} is a directory")
    require(path.is_file() or not path.exists(), f"out must be a file, and {path} is none")
    require(not path.parent.is_file(), f"out must be in a directory, and {path.parent} is a file")
    run = Run.open(run)
    step = run.step_of(checkpoint)
    with contextlib.closing(load_task(run, step, model, plain=True, **objects)) as task:
        policy = task.policy()
    record = run.record
    names = {name: first_description(record[name]) or str(record[name]) for name in ("env", "algorithm", "seed")}
    about = {"run": run.path.name, **names, "step": str(step), **record.get("versions", {}), **_spaces(policy)}
    write_atomically(path, policy.export(format, about))
    return path


def push(
    run: Run | Path | str,
    repo: Path | str,
    *,
    private: bool = False,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
    **objects: Any,
) -> str:
    """Uploads the policy of a run to the Hugging Face hub, or writes the same files to a folder.

    The files are those of a run directory with one checkpoint, a model card README.md and the training curve.
    `load_policy("hf:user/name")`, or `load_policy` of the folder, loads the policy. A language model is shared in the
    form of transformers, with its tokenizer, card and curve.

    Args:
        run, checkpoint, model, objects: as for `load_policy`.
        repo: `user/name` on the hub, or a new folder: a `Path`, or a string that begins with `.`, `/` or `~`.
        private: make a new repository private.

    Returns:
        The address of the repository, or the path of the folder.

    Raises:
        ConfigError: the task has neither a policy nor a model to share.
        RunError: there is no such run or checkpoint; the folder is not empty; the hub cannot be reached, or refuses.
    """
    run = Run.open(run)
    step = run.step_of(checkpoint)
    folder = None
    if isinstance(repo, Path) or repo.startswith((".", "/", "~")):
        try:
            folder = Path(repo).expanduser()
        except RuntimeError as error:
            raise RunError(f"{repo}: no such home directory: name the folder without ~") from error
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RunError(f"{folder} exists already and is not an empty folder")
        require(folder.resolve() != Path.cwd(), "repo is the current directory: name a new one, such as ./policy")
    with contextlib.closing(load_task(run, step, model, **objects)) as task:
        if folder is not None:
            try:
                with naming(folder):
                    _write(folder, str(repo), run, step, task)
            except BaseException:
                remove(folder)
                raise
            return str(folder)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "files")
            _write(folder, f"{PREFIX}{repo}", run, step, task)
            return upload(folder, str(repo), private)


def _write(folder: Path, name: str, run: Run, step: int, task: Task) -> None:
    """Writes a model, or a run directory with one checkpoint, and the card."""
    picture = card.curve(run, step)  # reads the logs, so that only files that can be read are copied
    names: list[str | Path] = ["config.json", *(Path("checkpoints", str(step), file) for file in FILES)]
    names += [file for file in ("metrics.jsonl", "evaluations.jsonl") if (run.path / file).exists()]
    home = run.path.resolve()
    places = home, (home / "../../blobs").resolve()  # files from the hub are links to the latter, in its cache
    for path in (*map(run.path.joinpath, names), *run.path.glob("start/**/*")):
        if not any(map(path.resolve().is_relative_to, places)):
            raise RunError(f"{path} is a link to a file outside of the run, which would be published: put it there")
    origin = task.save_model(folder)
    if origin is not None:
        text = card.language_card(run, step, name.removeprefix(PREFIX), origin, picture is not None)
    else:
        text = card.card(run, step, name, _spaces(task.policy()), picture is not None)
        (folder / "checkpoints" / str(step)).mkdir(parents=True)
        for file in names:
            shutil.copy(run.path / file, folder / file)
    if picture is not None:
        (folder / "curve.png").write_bytes(picture)
    (folder / "README.md").write_text(text, encoding="utf-8")


def _spaces(policy: DeployedPolicy) -> dict[str, str]:
    spaces = {"observation space": policy.observation_space, "action space": policy.action_space}
    return {name: " ".join(str(space).split()) for name, space in spaces.items()}
