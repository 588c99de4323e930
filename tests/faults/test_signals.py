"""Ctrl-C and SIGTERM: a checkpoint, one line, and a run that can go on."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import short_runs
import tiny

from rlzoo.cli import main
from rlzoo.core.evaluation import play_episodes
from rlzoo.core.system.errors import Interrupted
from rlzoo.runs.run import Run
from rlzoo.runs.signals import deferred_interrupts, interrupt_once
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


@pytest.fixture
def signal_in_evaluation(monkeypatch):
    """Sends a signal at the n-th step of evaluations; returns how many steps of them were taken."""
    taken = [0]

    def arm(at):
        def play(env, actor, episodes, on_step):
            def watched(done):
                taken[0] += 1
                if taken[0] == at:
                    os.kill(os.getpid(), signal.SIGTERM)
                on_step(done)

            return play_episodes(env, actor, episodes, watched)

        monkeypatch.setattr("rlzoo.core.task.play_episodes", play)
        return taken

    yield arm
    monkeypatch.undo()


@pytest.mark.parametrize(
    "more",
    [
        {"stop_return": 1.0},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"vectorized": False, "total_steps": 200}, marks=pytest.mark.slow),
    ],
)
def test_signal_in_any_evaluation(more, tmp_path, signal_in_evaluation, monkeypatch):
    """It stops between two steps, and the resumed run equals one that was never stopped."""
    settings = {"checkpoint_interval": 10_000, "eval_interval": 200} | more
    taken = signal_in_evaluation(0)
    reference = short_runs.outcome(short_runs.quick_run(tmp_path / "whole", **settings))
    total, final = taken[0], 0
    assert total > 30
    for at in (1, total // 5, total // 2, total):
        path = tmp_path / str(at)
        taken = signal_in_evaluation(at)
        taken[0] = 0
        with pytest.raises(Interrupted) as stop:
            short_runs.quick_run(path, **settings)
        assert (stop.value.signal, taken[0]) == (signal.SIGTERM, at)
        final += "its evaluation has not; complete it with: rlzoo resume" in str(stop.value)
        resumed = short_runs.outcome(resume(path))
        assert resumed["evaluations"] == reference["evaluations"]
        assert (resumed["model"], resumed["metrics"]) == (reference["model"], reference["metrics"])
        assert Run(path).finished
    assert final


def test_trains_in_another_thread(tmp_path):
    thread = threading.Thread(target=short_runs.quick_run, args=(tmp_path,))
    thread.start()
    thread.join()
    assert Run(tmp_path).finished


@pytest.mark.slow
def test_command_exits_with_the_signals_code(tmp_path):
    """That of SIGINT is in the next test."""
    path = tmp_path / "run"
    command = [sys.executable, "-m", "rlzoo", "train", "ppo", "CartPole-v1", "--total-steps", "10_000_000"]
    process = subprocess.Popen([*command, "--out", str(path)], stderr=subprocess.PIPE, text=True)
    while not (path / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, line = process.communicate(timeout=120)
    assert process.returncode == 143
    assert line == f"rlzoo: stopped at step {Run(path).steps()[-1]:,}; continue with: rlzoo resume {path}\n"


@pytest.mark.slow
def test_a_terminals_ctrl_c_reaches_the_process_that_trains_alone(tmp_path):
    """A terminal sends it to the whole group, of which processes with copies of the environment are no part."""
    path = tmp_path / "run"
    command = [sys.executable, "-m", "rlzoo", "train", "ppo", "CartPole-v1", "--no-vectorized", "--async-envs"]
    command += ["--num-envs", "2", "--total-steps", "10_000_000", "--out", str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (path / "metrics.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, line = process.communicate(timeout=120)
    assert process.returncode == 130
    assert line == f"rlzoo: stopped at step {Run(path).steps()[-1]:,}; continue with: rlzoo resume {path}\n"


def keep_sending(process):
    """Sends SIGINT every few milliseconds until the process has ended; returns its output."""
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.003)
    return process.communicate(timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="what is imported is read from /proc")
@pytest.mark.parametrize("moment", ["imports", "training", "end"])
def test_many_signals_give_one_line_at_most(moment, tmp_path):
    path = tmp_path / "run"
    steps = "1500" if moment == "end" else "10_000_000"
    command = [sys.executable, "-m", "rlzoo", "train", "ppo", "CartPole-v1", "--total-steps", steps]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--out", str(path)], **streams) as process:
        if moment == "imports":
            while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
                time.sleep(0.01)
        elif moment == "training":
            while process.poll() is None and not (path / "metrics.jsonl").exists():
                time.sleep(0.05)
        else:
            while "deterministic" not in process.stdout.readline():
                assert process.poll() is None
        _, error = keep_sending(process)
    assert process.returncode in ((0, 130) if moment == "end" else (130,)), error
    assert error.count("\n") <= 1
    assert "Traceback" not in error
    assert "ignored" not in error
    if moment != "end":
        assert error.startswith("rlzoo: ")


def test_interrupt_in_an_exec_of_text_has_the_same_exit_code(tmp_path):
    """After it, `python -m` sends itself SIGINT, also if the exception was handled. Imports run such code often."""
    (tmp_path / "user.py").write_text("exec('raise KeyboardInterrupt')\n")
    command = [sys.executable, "-m", "rlzoo", "train", "ppo", "user:Env", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert done.stderr == "rlzoo: interrupted\n"


def test_deferred_interrupts_take_effect_at_the_end_of_the_block():
    done = []

    def block():
        with deferred_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_error_in_the_block_is_not_hidden_by_an_interrupt():
    def block():
        with deferred_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        block()


def test_only_the_first_interrupt_is_raised(monkeypatch):
    handler, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    try:
        interrupt_once()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, handler)
        sys.unraisablehook = hook


def test_interrupt_in_a_destructor_ends_the_process():
    code = """
import os, signal
from rlzoo.runs.signals import interrupt_once
interrupt_once()
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
Last()
print("not reached")
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "rlzoo: interrupted\n")


HANGING = """
import pathlib, time

def reply(conversations):
    folder = pathlib.Path(__file__).parent
    while (folder / "hang").exists() and list(folder.glob("run/checkpoints/*")):
        (folder / "hanging").touch()
        time.sleep(0.05)
    return [x.turns[-1][:1] or None for x in conversations]

def length(prompts, responses):
    return [len(x) / 10 for x in responses]
"""


@pytest.mark.slow
def test_a_reply_that_hangs_is_interrupted_and_the_run_goes_on_once_it_answers(tmp_path):
    tiny.save_lm(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    (tmp_path / "slow.py").write_text(HANGING)
    path = tmp_path / "run"
    command = [sys.executable, "-m", "rlzoo", "train", "ppo-clip", "Prompts", "--model", str(tmp_path / "model")]
    command += ["--prompts", str(tmp_path / "prompts.txt"), "--reward", f"{tmp_path}/slow.py:length"]
    command += ["--reply", f"{tmp_path}/slow.py:reply", "--max-new-tokens", "9", "--stop-tokens", *"abcdefghij"]
    command += ["--responses-per-batch", "8", "--minibatch-responses", "4", "--epochs", "1", "--total-steps", "300"]
    command += ["--eval-interval", "100", "--eval-episodes", "2", "--final-eval-episodes", "2", "--quiet"]
    assert main([*command[3:], "--out", str(tmp_path / "whole")]) == 0

    (tmp_path / "hang").touch()
    with subprocess.Popen([*command, "--out", str(path)], stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "hanging").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)  # waits for the iteration, which does not end
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, line = process.communicate(timeout=120)
    assert (process.returncode, line) == (130, "rlzoo: interrupted\n")
    (tmp_path / "hang").unlink()
    resume(path)
    assert short_runs.outcome(Run(path)) == short_runs.outcome(Run(tmp_path / "whole"))
