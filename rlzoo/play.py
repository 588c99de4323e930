"""Watching a policy: episodes in a window, or in a video file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.error import DependencyNotInstalled

from rlzoo import envs
from rlzoo.actors import ActionNoise, Actor, make_actor
from rlzoo.collect import Episode
from rlzoo.envs.gym import GymnasiumEnv
from rlzoo.errors import ConfigError, require
from rlzoo.evaluate import load_model
from rlzoo.models import ActorCritic
from rlzoo.run import Run


def play(
    run: Run | Path | str,
    episodes: int = 1,
    *,
    video: Path | str | None = None,
    deterministic: bool = False,
    seed: int = 0,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
) -> list[Episode]:
    """Plays episodes of a run's policy in a window, or records them at the environment's own pace.

    Args:
        video: a file to write instead, `.mp4` or `.gif`.
        deterministic, seed, checkpoint, model: as for `evaluate`.

    Raises:
        ConfigError: there is no screen, a package is missing, or the file cannot be written.
        RunError: there is no such run or checkpoint, or it is damaged.
        EnvError: the environment cannot be rendered.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    if video is None:
        require(_has_screen(), "there is no screen to open a window on: give --video FILE.mp4")
    else:
        video = Path(video)
        require(video.suffix in (".mp4", ".gif"), f"video must end in .mp4 or .gif, got {str(video)!r}")
        require(video.parent.is_dir(), f"video: there is no directory {video.parent}")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws off screen
    run = Run.open(run)
    config = run.read_config()
    actor = make_actor(load_model(run, checkpoint, model))
    env_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2)
    mode = "human" if video is None else "rgb_array"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_packages_named())
        env = GymnasiumEnv(config.env, 1, int(env_seed), render_mode=mode, **config.env_kwargs)
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
