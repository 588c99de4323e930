"""Watching: what is shown and recorded is what the actor does."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rlzoo.control.envs.rendering import watch
from rlzoo.control.envs.source import Source
from rlzoo.core.env import Episode
from rlzoo.core.system.errors import ConfigError, EnvError

imageio = pytest.importorskip("imageio.v2")


class Film(gymnasium.Env):
    """Episodes of 3 steps that pay the action; a frame is as bright as 60 times the number of the step."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 5}  # noqa: RUF012
    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(4)

    def __init__(self, render_mode=None, fault=None, frame=True):
        self.render_mode, self.fault, self.frame = render_mode, fault, frame

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.float32([self.np_random.random()]), {}

    def step(self, action):
        self.time += 1
        return np.float32([0]), float(action), self.time == 3, False, {}

    def render(self):
        if self.fault is not None:
            raise self.fault
        return np.full((33, 21, 3), 60 * self.time, np.uint8) if self.frame is True else self.frame


@pytest.fixture(autouse=True)
def film():
    gymnasium.register("Film-v0", Film)
    yield
    del gymnasium.registry["Film-v0"]


def show(tmp_path, episodes=2, seed=0, suffix=".gif", seen=None, **env_kwargs):
    def make_actor(env, seed):
        rng = np.random.default_rng(seed)

        def actor(obs, forced, starts):
            if seen is not None:
                seen.append(float(obs[0, 0]))
            return rng.integers(env.action_space.n, size=1)

        return actor

    return watch(Source("Film-v0", env_kwargs), make_actor, episodes, seed, tmp_path / f"film{suffix}")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pipes of imageio's ffmpeg
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_video_has_a_frame_for_each_state_and_even_sides(tmp_path, suffix):
    episodes = show(tmp_path, suffix=suffix)
    assert [episode.length for episode in episodes] == [3, 3]
    assert all(isinstance(episode, Episode) for episode in episodes)
    with imageio.get_reader(tmp_path / f"film{suffix}") as reader:
        frames = [frame[..., 0] for frame in reader]
    assert frames[0].shape == (32, 20)
    assert np.allclose([frame.mean() for frame in frames], [0, 60, 120, 180] * 2, atol=4)


def test_episodes_repeat_with_the_seed_and_differ_from_each_other(tmp_path):
    seen = [[], [], []]
    returns = [show(tmp_path, 5, seed, seen=x) for seed, x in zip((1, 1, 2), seen, strict=True)]
    assert returns[0] == returns[1] != returns[2]
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0][::3])) == 5


def test_environment_that_cannot_be_drawn_is_an_error(tmp_path):
    with pytest.raises(EnvError, match="environment 'Film-v0', step 0: ValueError: no picture"):
        show(tmp_path, fault=ValueError("no picture"))


@pytest.mark.parametrize("frame", [None, [], "a\nscreen", np.zeros(3)], ids=repr)
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_frame_that_is_no_image_is_one_line(frame, suffix, tmp_path):
    with pytest.raises(EnvError, match=r"^environment 'Film-v0', step 0: render\(\) must return an image, got .*$"):
        show(tmp_path, frame=frame, suffix=suffix)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pipes of imageio's ffmpeg
@pytest.mark.parametrize(
    ("suffix", "frame"), [(".gif", np.zeros((8, 8, 3))), (".mp4", np.zeros((3, 8, 8), np.uint8))], ids=["gif", "mp4"]
)
def test_frame_that_cannot_be_recorded_is_one_line(suffix, frame, tmp_path):
    with pytest.raises(EnvError, match=r"^render\(\): a frame of \w+ and shape \(.*\) cannot be recorded: .*$"):
        show(tmp_path, frame=frame, suffix=suffix)


def test_missing_package_names_the_extra(tmp_path):
    fault = gymnasium.error.DependencyNotInstalled("no box2d here")
    with pytest.raises(ConfigError, match=r"rendering needs a package that rlzoo\[video\] may install: no box2d here"):
        show(tmp_path, fault=fault)


def test_file_of_another_kind_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"video must end in \.mp4 or \.gif, got '.*film\.avi'"):
        show(tmp_path, suffix=".avi")


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_file_that_cannot_be_written_is_an_error_before_the_first_step(suffix, tmp_path):
    (tmp_path / f"film{suffix}").mkdir()
    seen = []
    with pytest.raises(ConfigError, match=rf"^video: cannot write .*film\{suffix}: Is a directory$"):
        show(tmp_path, suffix=suffix, seen=seen)
    assert seen == []


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
@pytest.mark.parametrize("files", [{}, {"film": b"an earlier film"}], ids=["new", "earlier"])
def test_play_that_fails_before_a_frame_leaves_the_file_as_it_was(files, suffix, tmp_path):
    for name, content in files.items():
        (tmp_path / f"{name}{suffix}").write_bytes(content)
    with pytest.raises(EnvError):
        show(tmp_path, suffix=suffix, fault=ValueError("no picture"))
    assert {path.stem: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_missing_plugin_of_imageio_names_the_extra(tmp_path, monkeypatch):
    def get_writer(*_, **__):
        raise ValueError("Could not find a backend to open `film.mp4`")

    monkeypatch.setattr("imageio.v2.get_writer", get_writer)
    with pytest.raises(ConfigError, match=r"recording a video needs the packages of rlzoo\[video\]: Could not find"):
        show(tmp_path, suffix=".mp4")
