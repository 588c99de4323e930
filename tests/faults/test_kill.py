"""A run that is killed at any instant and resumed is the run that was never killed."""

import random

import pytest
import short_runs

from rlzoo.runs.run import Run
from rlzoo.runs.train import train
from tests.faults.campaign.kill import go_on, killed_at

EVERYWHERE = {"checkpoint_interval": 100, "eval_interval": 100}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(short_runs.PPO, id="ppo-clip"),
        pytest.param(short_runs.TRPO, id="trpo", marks=pytest.mark.slow),
        pytest.param(short_runs.GRU, id="ppo-clip-gru", marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(settings, tmp_path):
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    rng = random.Random(0)
    path = tmp_path / "killed"
    for most in (90, 30, 30, 30):
        assert killed_at(path, settings, "operation", rng.randint(1, most))
        assert killed_at(path, settings, "evaluation", rng.randint(1, 5))
    go_on(path, settings)
    assert short_runs.outcome(Run(path)) == reference


@pytest.mark.slow
def test_killed_before_every_fifth_of_its_file_operations(tmp_path):
    settings = {**short_runs.PPO, "total_steps": 400, **EVERYWHERE}
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    number = 1
    while killed_at(tmp_path / str(number), settings, "operation", number):
        go_on(tmp_path / str(number), settings)
        assert short_runs.outcome(Run(tmp_path / str(number))) == reference, f"killed before operation {number}"
        number += 5
    assert number > 60


def test_killed_while_it_is_resumed(tmp_path):
    settings = {**short_runs.PPO, "total_steps": 300, "checkpoint_interval": 100}
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    path = tmp_path / "killed"
    assert killed_at(path, settings, "operation", 25)
    for number in range(1, 12):
        assert killed_at(path, settings, "operation", number)
    go_on(path, settings)
    assert short_runs.outcome(Run(path)) == reference
