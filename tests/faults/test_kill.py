"""A run that is killed at any instant and resumed is the run that was never killed."""

import os
import random
import time

import pytest
import short_runs

from rlzoo.runs.run import Run
from rlzoo.runs.train import train
from tests.faults.campaign.kill import Moments, go_on

EVERYWHERE = {"checkpoint_interval": 100, "eval_interval": 100}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(short_runs.PPO, id="ppo-clip"),
        pytest.param(short_runs.TRPO, id="trpo", marks=pytest.mark.slow),
        pytest.param(short_runs.GRU, id="ppo-clip-gru", marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_instants(settings, tmp_path):
    start = time.perf_counter()
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    duration = time.perf_counter() - start
    rng = random.Random(0)
    path = tmp_path / "killed"
    for _ in range(6):
        short_runs.in_child(lambda: go_on(path, settings), kill_after=rng.uniform(0, duration))
    go_on(path, settings)
    assert short_runs.outcome(Run(path)) == reference


def killed_at_file_operation(number, path, settings):
    """Runs until the process is about to touch the run's files for the n-th time; whether it got so far."""
    return os.WIFSIGNALED(short_runs.in_child(lambda: go_on(path, settings, Moments(path, "operation", number))))


@pytest.mark.slow
def test_killed_before_every_fifth_of_its_file_operations(tmp_path):
    settings = {**short_runs.PPO, "total_steps": 400, **EVERYWHERE}
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    number = 1
    while killed_at_file_operation(number, tmp_path / str(number), settings):
        go_on(tmp_path / str(number), settings)
        assert short_runs.outcome(Run(tmp_path / str(number))) == reference, f"killed before operation {number}"
        number += 5
    assert number > 60


def test_killed_while_it_is_resumed(tmp_path):
    settings = {**short_runs.PPO, "total_steps": 300, "checkpoint_interval": 100}
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    path = tmp_path / "killed"
    assert killed_at_file_operation(25, path, settings)
    for number in range(1, 12):
        assert killed_at_file_operation(number, path, settings)
    go_on(path, settings)
    assert short_runs.outcome(Run(path)) == reference
