"""Several processes train one run, and one of them fails: the others stop, and the cause is printed once."""

import os
import random
import signal
import subprocess
import sys

import gymnasium
import pytest
import short_language_runs
import short_runs

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, EnvError, ProcessError, RunError
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train
from tests.faults.campaign.kill import Moments
from tests.faults.campaign.kill import go_on as watched

SETTINGS = {**short_runs.PPO, "checkpoint_interval": 100}


def messages(count, work, folder):
    """Runs `work(rank)` in processes. Returns for each its exit code and the message of its error."""
    folder.mkdir()

    def one():
        rank = int(os.environ["RANK"])
        try:
            work(rank)
        except (ConfigError, EnvError, ProcessError, RunError) as error:
            (folder / str(rank)).write_text(str(error))
            return 3
        return 0

    codes = short_runs.in_processes(count, one)
    return [(code, path.read_text() if (path := folder / str(i)).exists() else None) for i, code in enumerate(codes)]


@pytest.mark.parametrize("dead", [0, 1])
def test_the_others_stop_when_a_process_dies(dead, tmp_path):
    path = tmp_path / "run"

    def work(rank):
        if rank == dead:
            short_runs.dies_in_iteration(4)
        train(**{**SETTINGS, "num_envs": 6}, out=path)

    ends = messages(3, work, tmp_path / "messages")
    assert ends.pop(dead) == (-signal.SIGKILL, None)
    gone = "another process is gone; torchrun says which and why"
    if dead > 0:
        code, line = ends.pop(0)
        assert code == 3
        assert f"{gone}; the last checkpoint is at step {Run(path).steps()[-1]}: rlzoo resume {path}" in line
        assert "\n" not in line
    assert set(ends) <= {(3, gone), (3, "")}
    assert Run(path).load().state["step"] == Run(path).steps()[-1]  # its checksums are right
    assert short_runs.in_processes(2, lambda: resume(path) and None) == [0, 0]
    assert Run(path).finished


class FailsInSecondProcess(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        if self.left == 5 and os.environ["RANK"] == "1":
            raise ValueError("no more")
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


def test_an_error_in_one_process_ends_all(tmp_path):
    def work(rank):
        train(**{**SETTINGS, "env": FailsInSecondProcess, "vectorized": True}, out=tmp_path / "run")

    (first, other), (second, own) = messages(2, work, tmp_path / "messages")
    assert (first, second) == (3, 3)
    assert "copy 0 raised ValueError: no more" in own
    assert "another process is gone" in other


def test_an_error_of_all_is_reported_once(tmp_path):
    ends = messages(2, lambda rank: train(**{**SETTINGS, "num_envs": 5}, out=tmp_path / "run"), tmp_path / "messages")
    assert sorted(ends) == [(3, ""), (3, "num_envs must be a multiple of the 2 processes, got 5")]
    assert not (tmp_path / "run").exists()


def test_processes_with_different_settings(tmp_path):
    def work(rank):
        train(**{**SETTINGS, "num_steps": 25 + rank}, out=tmp_path / "run")

    ends = messages(2, work, tmp_path / "messages")
    assert sorted(ends) == [(3, ""), (3, "num_steps is 26 in process 1, 25 in process 0: start all alike")]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--seed", "1", "2"], "several seeds: start them without torchrun"),
        (["--num-enws", "4"], "no option '--num-enws'; did you mean '--num-envs'?"),
    ],
)
def test_wrong_use_is_reported_once(arguments, line, tmp_path, capfd):
    out = str(tmp_path / "runs")
    codes = short_runs.in_processes(2, lambda: main(["train", "ppo-clip", "CartPole-v1", *arguments, "--out", out]))
    assert sorted(codes) == [1, 2]
    assert capfd.readouterr().err == f"rlzoo: {line}\n"


@pytest.mark.parametrize("command", ["sft", "reward-model", "benchmark"])
def test_commands_of_one_process(command, tmp_path, capfd):
    codes = short_runs.in_processes(2, lambda: main([command, "texts.txt", "--out", str(tmp_path / "out")]))
    assert codes == [2, 2]
    assert capfd.readouterr().err == f"rlzoo: {command} uses one process: start it without torchrun\n"


@pytest.mark.parametrize("function", [rlzoo.sft, rlzoo.train_reward_model])
def test_functions_of_one_process(function, tmp_path):
    ends = messages(2, lambda rank: function("texts.txt", "gpt2", out=tmp_path / "out"), tmp_path / "messages")
    assert ends == [(3, f"{function.__name__} uses one process: start it without torchrun")] * 2


def test_compile_is_for_one_process(tmp_path):
    ends = messages(2, lambda rank: train(**SETTINGS, compile=True, out=tmp_path), tmp_path / "messages")
    assert any(line.startswith("compile is for one process") for _, line in ends)


def test_a_run_that_exists_is_left_alone(tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    before = short_runs.outcome(run)
    (code, line), _ = messages(2, lambda rank: train(**SETTINGS, out=run.path), tmp_path / "messages")
    assert code == 3
    assert "already holds a run" in line
    assert short_runs.outcome(run) == before


def test_an_error_of_the_first_process_is_one_of_all(tmp_path):
    """So all take the same way on from it."""
    path = short_runs.quick_run(tmp_path / "run").path

    def work(rank):
        try:
            train(**SETTINGS, out=path)
        except RunError:
            resume(path, Run(path).steps()[-1] + 100)
            raise

    ends = messages(2, work, tmp_path / "messages")
    assert [code for code, _ in ends] == [3, 3]
    assert all("already holds a run" in line for _, line in ends)
    assert Run(path).finished


class UnsendableError(Exception):
    def __reduce__(self):
        raise TypeError("cannot be sent")


@pytest.mark.parametrize("error", [KeyError("key"), UnsendableError("key")])
def test_an_error_of_a_hook_ends_all(error, tmp_path, capfd):
    def fail(trainer, iteration):
        raise error

    def work():
        train(**SETTINGS, out=tmp_path / "run", on_iteration=fail)

    assert short_runs.in_processes(2, work) == [1, 1]
    assert capfd.readouterr().err.count("The first process has reported it.") == 1


@pytest.mark.slow  # it compiles
def test_a_run_with_native_code_goes_on_without_it(tmp_path):
    path = short_runs.quick_run(tmp_path / "run", compile=True).path
    assert short_runs.in_processes(2, lambda: resume(path, Run(path).steps()[-1] + 100) and None) == [0, 0]
    assert Run(path).finished
    assert Run(path).record["compile"] is True


def test_only_the_first_process_calls_back(tmp_path):
    """And the others do not wait for it for ever: the end of the first is theirs."""

    def work(rank):
        def stop(trainer, iteration):
            assert processes.rank() == rank == 0
            return True

        train(**SETTINGS, out=tmp_path / "run", on_iteration=stop)
        assert processes.size() == 1

    assert messages(2, work, tmp_path / "messages") == [(0, None), (0, None)]
    assert len(Run(tmp_path / "run").metrics()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["control", "language"])
def test_killed_together_and_resumed(kind, tmp_path):
    settings = SETTINGS
    if kind == "language":
        short_language_runs.save_data(tmp_path)
        algorithm, more = short_language_runs.KINDS["turns-trpo"]
        settings = short_language_runs.settings(tmp_path, algorithm, **more)

    def go_on(path, at=0):
        """Both are killed when the first is about to touch the run's files for the n-th time."""
        kill, rank = os.kill, os.environ["RANK"]
        (tmp_path / f"pid-{rank}").write_text(str(os.getpid()))
        os.kill = lambda _, number: [kill(int((tmp_path / f"pid-{i}").read_text()), number) for i in (1, 0)]
        watched(path, settings, Moments(path, "operation", at) if rank == "0" else None)

    assert short_runs.in_processes(2, lambda: go_on(tmp_path / "whole")) == [0, 0]
    rng, path = random.Random(0), tmp_path / "killed"
    for most in (90, 30, 30):
        at = rng.randint(1, most)
        assert short_runs.in_processes(2, lambda at=at: go_on(path, at)) == [-signal.SIGKILL] * 2
    assert short_runs.in_processes(2, lambda: go_on(path)) == [0, 0]
    assert short_runs.outcome(Run(path)) == short_runs.outcome(Run(tmp_path / "whole"))


@pytest.mark.slow
def test_torchrun(tmp_path):
    def launch(*arguments):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "rlzoo", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    out = str(tmp_path / "run")
    small = ["--no-preset", "--total-steps", "600", "--num-steps", "25"]
    small += ["--eval-episodes", "2", "--final-eval-episodes", "2"]
    done = launch("train", "ppo-clip", "CartPole-v1", "--num-envs", "4", *small, "--out", out, "--json")
    assert done.returncode == 0
    assert done.stdout.count(out) == 1
    assert Run(out).finished
