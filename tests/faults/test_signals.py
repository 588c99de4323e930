"""Ctrl-C and SIGTERM: a checkpoint, one line, and a run that can go on."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import short_runs

from rlzoo.control.evaluation import evaluate_model
from rlzoo.core.errors import Interrupted
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume


def sending(*signals, at=2):
    """A callback that sends this process signals in its n-th iteration."""
    count = 0

    def on_iteration(trainer, iteration):
        nonlocal count
        count += 1
        if count == at:
            for number in signals:
                os.kill(os.getpid(), number)

    return on_iteration


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_writes_a_checkpoint_and_names_the_command(number, tmp_path):
    handler = signal.getsignal(number)
    reference = short_runs.outcome(short_runs.quick_run(tmp_path / "whole"))
    path = tmp_path / "run"
    with pytest.raises(Interrupted) as stop:
        short_runs.quick_run(path, checkpoint_interval=10_000, eval_interval=10_000, on_iteration=sending(number))
    (step,) = Run(path).steps()
    assert str(stop.value) == f"stopped at step {step}; continue with: rlzoo resume {path}"
    assert stop.value.signal == number
    assert isinstance(stop.value, KeyboardInterrupt)
    assert signal.getsignal(number) is handler
    resumed = short_runs.outcome(resume(path))
    assert resumed["model"] == reference["model"]
    assert resumed["metrics"] == reference["metrics"]


def test_second_signal_acts_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt) as stop:
        short_runs.quick_run(tmp_path, on_iteration=sending(signal.SIGINT, signal.SIGINT))
    assert not isinstance(stop.value, Interrupted)


def test_signal_in_the_final_evaluation(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate_model(*args, **kwargs)

    reference = short_runs.outcome(short_runs.quick_run(tmp_path / "whole", eval_interval=10_000))
    monkeypatch.setattr("rlzoo.control.task.evaluate_model", interrupted)
    with pytest.raises(Interrupted):
        short_runs.quick_run(tmp_path / "run", eval_interval=10_000)
    monkeypatch.undo()
    assert short_runs.outcome(resume(tmp_path / "run")) == reference


def test_trains_in_another_thread(tmp_path):
    thread = threading.Thread(target=short_runs.quick_run, args=(tmp_path,))
    thread.start()
    thread.join()
    assert Run(tmp_path).finished


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_command_exits_with_the_signals_code(number, code, tmp_path):
    path = tmp_path / "run"
    command = [sys.executable, "-m", "rlzoo", "train", "ppo", "CartPole-v1", "--total-steps", "10_000_000"]
    process = subprocess.Popen([*command, "--out", str(path)], stderr=subprocess.PIPE, text=True)
    while not (path / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    _, line = process.communicate(timeout=30)
    assert process.returncode == code
    assert line == f"rlzoo: stopped at step {Run(path).steps()[-1]:,}; continue with: rlzoo resume {path}\n"


@pytest.mark.slow
def test_interrupted_while_it_imports(tmp_path):
    command = [sys.executable, "-m", "rlzoo", "train", "ppo", "CartPole-v1", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, line = process.communicate(timeout=30)
    assert process.returncode == 130
    assert line == "rlzoo: interrupted\n"
