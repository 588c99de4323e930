"""Watching a policy."""

import json
import sys

import gymnasium
import numpy as np
import pytest
import short_runs
from gymnasium import spaces

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError

imageio = pytest.importorskip("imageio.v2")


class Screen(gymnasium.Env):
    """Episodes of 4 steps that pay what the action says; a frame is as bright as the step's number times 50."""

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(0, 10, (1,))
    action_space = spaces.Discrete(3)
    shown = 0

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.float32([0]), {}

    def step(self, action):
        self.steps += 1
        Screen.shown += self.render_mode == "human"
        return np.float32([self.steps]), float(action), self.steps == 4, False, {}

    def render(self):
        return np.full((33, 20, 3), 50 * self.steps, np.uint8)


@pytest.fixture(autouse=True)
def screen():
    gymnasium.register("Screen-v0", Screen)
    yield
    del gymnasium.registry["Screen-v0"]


@pytest.fixture
def run(tmp_path):
    return short_runs.quick_run(tmp_path / "run", env="Screen-v0", total_steps=100)


def test_plays_what_evaluation_plays(run, tmp_path):
    def returns(**how):
        return [episode.return_ for episode in rlzoo.play(run, 3, video=tmp_path / "x.gif", **how)]

    assert returns() == returns(seed=0)
    assert len({tuple(returns(seed=seed)) for seed in range(4)}) > 1
    assert len(set(returns(deterministic=True))) == 1
    assert returns(deterministic=True) == rlzoo.evaluate(run, 3, deterministic=True).returns.tolist()


def test_window(run, monkeypatch):
    monkeypatch.setenv("DISPLAY", ":0")
    Screen.shown = 0
    rlzoo.play(run, 2)
    assert Screen.shown == 8


def test_no_window_without_a_screen(run, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"no screen to open a window on: give --video FILE\.mp4"):
        rlzoo.play(run)


def test_command(run, tmp_path, capsys):
    video = tmp_path / "x.gif"
    assert main(["play", str(run.path), "--video", str(video), "--episodes", "2", "--deterministic"]) == 0
    *played, last = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in played] == ["episode 1", "episode 2"]
    assert played[0].endswith("4 steps")
    assert last == str(video)


def test_json(run, tmp_path, capsys):
    video = tmp_path / "x.gif"
    assert main(["play", str(run.path), "--video", str(video), "--episodes", "2", "--deterministic", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    returns = rlzoo.evaluate(run, 2, deterministic=True).returns.tolist()
    assert answer == {
        "run": str(run.path),
        "step": run.steps()[-1],
        "video": str(video),
        "episodes": [{"return": r, "length": 4} for r in returns],
    }


def test_missing_packages_are_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(ConfigError, match=r"recording a video needs the packages of rlzoo\[video\]: "):
        rlzoo.play(run, video=tmp_path / "x.gif")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"video": "x.avi"}, "video must end in .mp4 or .gif, got 'x.avi'"),
        ({"video": "nowhere/x.gif"}, "video: there is no directory nowhere"),
        ({"episodes": 0}, "episodes must be at least 1, got 0"),
        ({"episodes": "3"}, "episodes must be an integer, got '3'"),
        ({"episodes": 2.5}, "episodes must be an integer, got 2.5"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_arguments(run, tmp_path, monkeypatch, wrong, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        rlzoo.play(run, **{"video": "x.gif", **wrong})


def test_built_in_environment_is_drawn_by_gymnasium(tmp_path):
    pytest.importorskip("pygame")
    run = short_runs.quick_run(tmp_path / "run")
    rlzoo.play(run, video=tmp_path / "x.gif")
    assert imageio.imread(tmp_path / "x.gif").shape == (400, 600, 3)
