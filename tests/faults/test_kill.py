"""A run that is killed at any instant and resumed is the run that was never killed."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import short_runs

from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train


def go_on(path, settings):
    """What a user does who finds the run stopped."""
    if (path / "config.json").exists():
        resume(path)
    else:
        train(**settings, out=path)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [short_runs.PPO, short_runs.TRPO], ids=["ppo-clip", "trpo"])
def test_killed_at_ten_random_instants(settings, tmp_path):
    start = time.perf_counter()
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    duration = time.perf_counter() - start
    rng = random.Random(0)
    path = tmp_path / "killed"
    for _ in range(10):
        short_runs.in_child(lambda: go_on(path, settings), kill_after=rng.uniform(0, duration))
    go_on(path, settings)
    assert short_runs.outcome(Run(path)) == reference


def killed_at_file_operation(number, path, settings):
    """Runs until the process is about to touch the run's files for the n-th time; whether it got so far."""

    def work():
        left = number

        def hook(event, args):
            nonlocal left
            touches = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
            if touches and str(path) in str(args[0]):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        go_on(path, settings)

    return os.WIFSIGNALED(short_runs.in_child(work))


@pytest.mark.slow
def test_killed_before_every_third_of_its_file_operations(tmp_path):
    settings = {**short_runs.PPO, "total_steps": 400, "checkpoint_interval": 100, "eval_interval": 100}
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    number = 1
    while killed_at_file_operation(number, tmp_path / str(number), settings):
        go_on(tmp_path / str(number), settings)
        assert short_runs.outcome(Run(tmp_path / str(number))) == reference, f"killed before operation {number}"
        number += 3
    assert number > 60


@pytest.mark.slow
def test_killed_while_it_is_resumed(tmp_path):
    settings = {**short_runs.PPO, "total_steps": 300, "checkpoint_interval": 100}
    reference = short_runs.outcome(train(**settings, out=tmp_path / "whole"))
    path = tmp_path / "killed"
    assert killed_at_file_operation(25, path, settings)
    for number in range(1, 12):
        assert killed_at_file_operation(number, path, settings)
    go_on(path, settings)
    assert short_runs.outcome(Run(path)) == reference


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["ppo-clip", "CartPole-v1", "--normalize-obs", "--normalize-reward", "--num-steps", "64"],
        ["trpo", "CartPole-v1"],
    ],
    ids=["ppo-clip", "trpo"],
)
def test_command_killed_at_five_random_instants(arguments, tmp_path):
    def command(*arguments):
        return [sys.executable, "-m", "rlzoo", *arguments, "--quiet"]

    steps = ["--total-steps", "8000"]
    start = time.perf_counter()
    subprocess.run(command("train", *arguments, *steps, "--out", str(tmp_path / "whole")), check=True)
    duration = time.perf_counter() - start
    rng = random.Random(1)
    path = tmp_path / "killed"
    for _ in range(5):
        going_on = (path / "config.json").exists()
        process = subprocess.Popen(
            command("resume", str(path)) if going_on else command("train", *arguments, *steps, "--out", str(path))
        )
        time.sleep(rng.uniform(0.5, 1) * duration)
        process.kill()
        process.wait()
    if not Run(path).finished:
        subprocess.run(command("resume", str(path)), check=True)
    assert short_runs.outcome(Run(path)) == short_runs.outcome(Run(tmp_path / "whole"))
