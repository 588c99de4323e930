"""A third kind of task, in one file of a user: everything that works for the others works for it."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import short_runs

from rlzoo.cli import main
from rlzoo.runs.run import Run

MODULE = '''
"""A corridor: walk to the right end. A kind of task of its own."""

from dataclasses import dataclass

import numpy as np
import torch

import rlzoo
from rlzoo.core.system.fields import Count


@dataclass(frozen=True)
class CorridorSettings(rlzoo.RolloutSettings):
    rooms: Count = 5
    """Rooms of the corridor."""


class Corridor(rlzoo.VectorEnv):
    """Each step costs 1. The last room ends the episode, and so does a limit of 30 steps."""

    def __init__(self, num_envs, seed, rooms):
        self.num_envs, self.rooms = num_envs, rooms
        self.rng = np.random.default_rng(seed)
        self.room, self.steps = np.zeros((2, num_envs), np.int64)
        self.ended = np.zeros(num_envs, bool)

    def _observe(self):
        return np.eye(self.rooms, dtype=np.float32)[self.room]

    def reset(self):
        self.room = self.rng.integers(self.rooms - 1, size=self.num_envs)
        self.steps = np.zeros(self.num_envs, np.int64)
        self.ended = np.zeros(self.num_envs, bool)
        return self._observe(), self.ended

    def step(self, action):
        new = self.ended
        moved = np.clip(self.room + 2 * np.asarray(action) - 1, 0, self.rooms - 1)
        self.room = np.where(new, self.rng.integers(self.rooms - 1, size=self.num_envs), moved)
        self.steps = np.where(new, 0, self.steps + 1)
        terminated = (self.room == self.rooms - 1) & ~new
        truncated = (self.steps == 30) & ~terminated
        self.ended = terminated | truncated
        return self._observe(), np.where(new, 0, -1).astype(np.float32), terminated, truncated, self.ended

    def state_dict(self):
        names = ("room", "steps", "ended")
        return {"rng": self.rng.bit_generator.state, **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]
        self.room, self.steps, self.ended = state["room"], state["steps"], state["ended"]


class Table(rlzoo.Policy):
    def __init__(self, rooms, generator):
        super().__init__()
        self.logits = torch.nn.Parameter(0.01 * torch.randn(rooms, 2, generator=generator))

    def forward(self, features, memory=None):
        return rlzoo.Categorical(features @ self.logits), memory


class TableValue(rlzoo.Value):
    def __init__(self, rooms):
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(rooms))

    def forward(self, features):
        return features @ self.values


class CorridorTask(rlzoo.EnvTask):
    Settings = CorridorSettings

    def make_env(self, num_envs, seed):
        return Corridor(num_envs, seed, self.settings.rooms)

    def make_model(self, generator):
        rooms = self.settings.rooms
        return rlzoo.ActorCritic(Table(rooms, generator), TableValue(rooms))
'''

SUITE = """
title: Corridor
algorithms: [ppo-clip]
environments:
  corridor:CorridorTask: {threshold: -5}
seeds: [0]
total_steps: 2_000
eval_interval: 1_000
eval_episodes: 5
final_episodes: 10
overrides: {num_envs: 4, num_steps: 50, minibatch_size: 50, learning_rate: 0.05, rooms: 4}
"""

ENV = "corridor:CorridorTask"
SETTINGS = "--total-steps 12000 --num-envs 4 --num-steps 25 --minibatch-size 50 --learning-rate linear:0.05:0 --rooms 6"
SCHEDULE = "--checkpoint-interval 600 --eval-interval 10000 --eval-episodes 4 --seed 3 --quiet"
TRAIN = ["train", "ppo-clip", ENV, *SETTINGS.split(), *SCHEDULE.split()]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "corridor.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("corridor", None)


@pytest.fixture
def short(folder):
    arguments = [*TRAIN, "--total-steps", "3000", "--out", "short"]
    assert main(arguments) == 0
    return Run("short")


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_its_settings_are_options(capsys):
    assert main(["train", "ppo-clip", ENV, "--help"]) == 0
    page = capsys.readouterr().out
    assert "--rooms INT" in page
    assert "Rooms of the corridor. (default: 5)" in page
    assert "--hidden" not in page
    assert main(["train", "ppo-clip", ENV, "--room", "3"]) == 2
    assert capsys.readouterr().err == "rlzoo: no option '--room'; did you mean '--rooms'?\n"
    assert main(["train", "ppo-clip", ENV, "--rooms", "0"]) == 2
    assert capsys.readouterr().err == "rlzoo: rooms must be at least 1, got 0\n"


def test_it_learns_and_is_evaluated_and_played(short, capsys):
    """The best mean return is -3, over all first rooms; seeds 0 to 7 had -2.95, and one that goes left has -30."""
    capsys.readouterr()
    assert json.loads(Path("short/config.json").read_text()).items() >= {"env": ENV, "rooms": 6}.items()
    assert main(["eval", "short", "--episodes", "20", "--deterministic", "--json"]) == 0
    evaluation = json.loads(lines(capsys)[0])
    assert evaluation["mean_return"] > -5
    assert main(["play", "short", "--episodes", "2", "--deterministic"]) == 0
    assert [line.split(":")[0] for line in lines(capsys)] == ["episode 1", "episode 2"]
    assert main(["play", "short", "--video", "x.gif"]) == 2
    assert capsys.readouterr().err == f"rlzoo: video: {ENV} cannot be recorded\n"


@pytest.mark.slow
def test_it_is_resumed(short):
    assert main(["resume", "short", "--total-steps", "4000", "--quiet"]) == 0
    assert short.read_config().total_steps == 4000
    assert short.finished


@pytest.mark.slow
def test_killed_in_mid_run_and_resumed_it_is_the_run_that_was_never_killed(short):
    def killed():
        short_runs.dies_in_iteration(20)
        main([*TRAIN, "--total-steps", "3000", "--out", "killed"])

    assert os.WTERMSIG(short_runs.in_child(killed)) == signal.SIGKILL
    assert 0 < Run("killed").steps()[-1] < 3000
    assert main(["resume", "killed", "--quiet"]) == 0
    assert short_runs.outcome(Run("killed")) == short_runs.outcome(short)


@pytest.mark.slow
def test_it_is_an_environment_of_a_suite(folder, monkeypatch):
    Path("own.yaml").write_text(SUITE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, sys.path)]))  # of the job's process
    assert main(["benchmark", "own.yaml", "--out", "results", "--jobs", "1"]) == 0
    (outcome,) = map(json.loads, Path("results/results.jsonl").read_text().splitlines())
    assert outcome["env"] == ENV
    assert outcome["final_deterministic"] > -5
