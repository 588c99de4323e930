"""Rendering of control environments, in a window or to a video file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gymnasium.error import DependencyNotInstalled

from rlzoo.control.envs.gymnasium_env import GymnasiumEnv
from rlzoo.control.envs.source import Source
from rlzoo.core.actors import Actor
from rlzoo.core.env import Episode
from rlzoo.core.evaluation import play_episodes
from rlzoo.core.system.errors import ConfigError, EnvError, require
from rlzoo.core.system.streams import evaluation_seeds


def watch(
    source: Source,
    make_actor: Callable[[GymnasiumEnv, int], Actor],
    episodes: int,
    seed: int,
    video: Path | None = None,
) -> list[Episode]:
    """Plays episodes in a window, or records them in `video`, an `.mp4` or `.gif` file.

    Args:
        source: one copy is made; of a vector environment that the user made, the first copy is shown.
        make_actor: makes an actor from an environment and a seed.

    Raises:
        ConfigError: there is no screen, a package is missing, or the file cannot be written.
        EnvError: the environment cannot be rendered.
    """
    _check_output(video)
    env_seed, actor_seed = evaluation_seeds(seed)
    mode = "human" if video is None else "rgb_array"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_packages_named())
        env = source.make_rendered(env_seed, mode)
        stack.callback(env.close)
        record: Callable[[], None] = (lambda: None) if video is None else stack.enter_context(_recorder(video, env))
        actor, played = make_actor(env, actor_seed), list[Episode]()
        for _ in range(episodes):
            played += play_episodes(env, actor, 1, lambda _: record())
            record()  # the final state
        return played


def _check_output(video: Path | None) -> None:
    """Checks that there is a screen, or that the video can be written."""
    if video is None:
        has_screen = sys.platform != "linux" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
        require(has_screen, "there is no screen to open a window on: give --video FILE.mp4")
    else:
        require(video.suffix in (".mp4", ".gif"), f"video must end in .mp4 or .gif, got {str(video)!r}")
        require(video.parent.is_dir(), f"video: there is no directory {video.parent}")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame then draws without a screen


@contextlib.contextmanager
def _recorder(path: Path, env: GymnasiumEnv) -> Iterator[Callable[[], None]]:
    """A function that appends the first copy's frame to the video. Frames are cut to the even sizes that MP4 needs."""
    try:
        is_new = not os.path.lexists(path)
        path.open("ab").close()  # imageio opens it after the first frame, or the last
        if is_new:
            path.unlink()
        from imageio import v2 as imageio

        if path.suffix == ".mp4":
            writer = imageio.get_writer(path, fps=env.render_fps, macro_block_size=1)
        else:
            writer = imageio.get_writer(path, duration=1000 / env.render_fps, loop=0)
    except (ImportError, ValueError) as error:  # imageio's own error for a missing plugin is the latter
        raise ConfigError(f"recording a video needs the packages of rlzoo[video]: {error}") from error
    except OSError as error:
        raise ConfigError(f"video: cannot write {path}: {error.strerror or error}") from error

    def record() -> None:
        frame = env.render()
        try:
            writer.append_data(frame[: len(frame) // 2 * 2, : frame.shape[1] // 2 * 2])
        except (ValueError, TypeError) as error:
            fault = f"a frame of {frame.dtype} and shape {frame.shape} cannot be recorded"
            raise EnvError(f"render(): {fault}: {error}") from error

    with contextlib.closing(writer):
        yield record


@contextlib.contextmanager
def _packages_named() -> Iterator[None]:
    """Turns the error of a missing rendering package into one that names the extra to install."""
    try:
        yield
    except EnvError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, DependencyNotInstalled):
            cause = cause.__cause__
        if cause is None:
            raise
        raise ConfigError(f"rendering needs a package that rlzoo[video] may install: {cause}") from error
