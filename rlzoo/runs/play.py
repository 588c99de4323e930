"""Watching a policy: episodes in a window or in a video file, responses of a language model as text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from gymnasium.error import DependencyNotInstalled

from rlzoo.control import envs
from rlzoo.control.acting import ActionNoise, Actor, make_actor
from rlzoo.core.collector import Episode
from rlzoo.runs.config import Config
from rlzoo.control.task import Control
from rlzoo.control.gymnasium_env import GymnasiumEnv
from rlzoo.core.errors import ConfigError, require
from rlzoo.runs.evaluate import load_model, load_task
from rlzoo.lm.tasks.settings import Language
from rlzoo.core.models import ActorCritic
from rlzoo.runs.run import Run

if TYPE_CHECKING:
    from rlzoo.lm.tasks.language import Sample


def play(
    run: Run | Path | str,
    episodes: int = 1,
    *,
    video: Path | str | None = None,
    deterministic: bool = False,
    seed: int = 0,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
) -> Sequence[Episode | Sample]:
    """Plays episodes of a run's policy in a window, or records them at the environment's own pace.

    Of a language model, nothing is shown: its responses come back as `Sample`s, with their scores.

    Args:
        episodes: how many; or how many responses, to the evaluation's prompts in turn.
        video: a file to write instead, `.mp4` or `.gif`.
        deterministic, seed, checkpoint, model: as for `evaluate`.

    Raises:
        ConfigError: there is no screen, a package is missing, or the file cannot be written.
        RunError: there is no such run or checkpoint, or it is damaged.
        EnvError: the environment cannot be rendered, or the score of a response is none.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    run = Run.open(run)
    config = run.read_config()
    if isinstance(config.task, Language):
        require(video is None, f"video: there is nothing to see of {config.env}; play prints what the model says")
        return _respond(run, episodes, deterministic, seed, checkpoint, model)
    if video is not None:
        video = Path(video)
    _check_output(video)
    actor = make_actor(load_model(run, checkpoint, model))
    return _watch(config, actor, episodes, video, deterministic, seed)


def _respond(
    run: Run,
    responses: int,
    deterministic: bool,
    seed: int,
    checkpoint: int | Literal["best"] | None,
    model: ActorCritic | None,
) -> list[Sample]:
    from rlzoo.lm.tasks.language import LanguageTask

    task = load_task(run, checkpoint, model)
    assert isinstance(task, LanguageTask)
    try:
        return task.sample(responses, seed=seed, deterministic=deterministic)
    finally:
        task.close()


def _check_output(video: Path | None) -> None:
    """Holds that there is a screen, or a place for the video."""
    if video is None:
        require(_has_screen(), "there is no screen to open a window on: give --video FILE.mp4")
    else:
        require(video.suffix in (".mp4", ".gif"), f"video must end in .mp4 or .gif, got {str(video)!r}")
        require(video.parent.is_dir(), f"video: there is no directory {video.parent}")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws off screen


def _watch(
    config: Config, actor: Actor, episodes: int, video: Path | None, deterministic: bool, seed: int
) -> list[Episode]:
    if not isinstance(config.task, Control):
        raise ConfigError(f"{config.env} cannot be watched")
    env_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2)
    mode = "human" if video is None else "rgb_array"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_packages_named())
        env = GymnasiumEnv(config.env, 1, int(env_seed), render_mode=mode, **config.task.env_kwargs)
        stack.callback(env.close)
        record = None if video is None else stack.enter_context(_recorder(video, env))
        noise = ActionNoise(env.action_space, 1, np.random.default_rng(int(noise_seed)))
        draw = noise.zeros if deterministic else noise.draw
        return [_episode(env, actor, draw, record) for _ in range(episodes)]


def _episode(
    env: GymnasiumEnv,
    actor: Actor,
    draw: Callable[[int], np.ndarray[Any, Any]],
    record: Callable[[Any], None] | None,
) -> Episode:
    obs, _ = env.reset()
    total, length, done = 0.0, 0, False
    while True:
        if record is not None:
            record(env.render())
        if done:
            return Episode(total, length)
        obs, reward, terminated, truncated, _ = env.step(actor(obs, draw(1)[0]))
        total, length, done = total + float(reward[0]), length + 1, bool(terminated[0] or truncated[0])


@contextlib.contextmanager
def _recorder(path: Path, env: GymnasiumEnv) -> Iterator[Callable[[Any], None]]:
    """A function that takes the frames of a video, and cuts them to the even sizes that MP4 demands."""
    try:
        from imageio import v2 as imageio

        if path.suffix == ".mp4":
            writer = imageio.get_writer(path, fps=env.render_fps, macro_block_size=1)
        else:
            writer = imageio.get_writer(path, duration=1000 / env.render_fps, loop=0)
    except ImportError as error:
        raise ConfigError(f"recording a video needs the packages of rlzoo[video]: {error}") from error
    except OSError as error:
        raise ConfigError(f"video: cannot write {path}: {error.strerror or error}") from error
    with contextlib.closing(writer):
        yield lambda frame: writer.append_data(frame[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2])


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """Names the extra that brings what an environment needs for rendering."""
    try:
        yield
    except envs.EnvError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, DependencyNotInstalled):
            cause = cause.__cause__
        if cause is None:
            raise
        raise ConfigError(f"rendering needs a package that rlzoo[video] may bring: {cause}") from error


def _has_screen() -> bool:
    if sys.platform != "linux":
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def transcript(played: Sequence[Episode | Sample]) -> str:
    """What was played, as text: a line for each episode, a few for each response and one for all of these."""
    lines = []
    for number, x in enumerate(played, 1):
        if isinstance(x, Episode):
            lines.append(f"episode {number}: return {x.return_:,.1f}, {x.length} steps")
        else:
            end = "" if x.ended else ", cut at the limit"
            lines += [f"response {number}: score {x.score:.4g}, KL {x.kl:.4g} nats, {x.length} tokens{end}"]
            lines += [_quoted("prompt", x.prompt), _quoted("response", x.response), ""]
    told = summary(played)
    if "responses" in told:
        scores, kls = told["mean_score"], told["mean_kl"]
        lines.append(f"mean score {scores:.4g}, mean KL {kls:.4g} nats over {len(played)} responses")
    return "\n".join(lines)


def summary(played: Sequence[Episode | Sample]) -> dict[str, Any]:
    """What `rlzoo play --json` prints of it."""
    episodes = [x for x in played if isinstance(x, Episode)]
    if episodes:
        return {"episodes": [{"return": x.return_, "length": x.length} for x in episodes]}
    samples = [x for x in played if not isinstance(x, Episode)]
    return {
        "mean_score": float(np.mean([x.score for x in samples])),
        "mean_kl": float(np.mean([x.kl for x in samples])),
        "responses": [x._asdict() for x in samples],
    }


def _quoted(name: str, text: str) -> str:
    """Indented under its name. What a terminal would obey, and not show, is written as Python would."""
    shown = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
    return f"  {name:10}" + shown.replace("\n", "\n" + 12 * " ")
