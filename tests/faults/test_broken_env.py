"""Environments and updates that go wrong in the middle of a run."""

import re

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from short_runs import outcome, quick_run

from rlzoo.cli import main
from rlzoo.core.system.errors import NonFiniteError, TrainingError
from rlzoo.core.task import RolloutSettings
from rlzoo.lm.tasks.settings import Language
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume


class Trap(gymnasium.Env):
    """Pays 1 a step for episodes of 5 steps; misbehaves at the step with the number `at`, counted over episodes."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    taken = 0

    def __init__(self, at=10**9, fault="raise", length=5):
        self.at, self.fault, self.end = at, fault, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.taken, self.length = self.taken + 1, self.length + 1
        obs, reward = np.zeros(2, np.float32), 1.0
        if self.taken == self.at:
            if self.fault == "raise":
                raise ZeroDivisionError("the simulator\nexploded")
            if self.fault == "nan observation":
                obs = obs * np.nan
            if self.fault == "infinite reward":
                reward = np.inf
            if self.fault == "leave":
                raise SystemExit(0)
        said = self.fault == "say" and self.taken == self.at
        return obs, reward, "False" if said else self.length == self.end, False, {}


@pytest.fixture(autouse=True)
def trap():
    gymnasium.register("Trap-v0", Trap)
    yield
    del gymnasium.registry["Trap-v0"]


SETTINGS = {"env": "Trap-v0", "num_envs": 2, "checkpoint_interval": 100, "eval_interval": 10_000, "total_steps": 300}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "copy 0 raised ZeroDivisionError: the simulator exploded"),
        ("nan observation", r"copy 0 gave a non-finite observation: \[nan nan\]"),
        ("infinite reward", r"copy 0 gave a non-finite reward: \[inf\]"),
    ],
)
def test_run_stops_with_the_step_and_the_last_checkpoint(fault, words, tmp_path):
    with pytest.raises(TrainingError, match=f"step [12]..: environment 'Trap-v0', step .*{words}") as error:
        quick_run(tmp_path, minibatch_size=25, env_kwargs={"at": 110, "fault": fault}, **SETTINGS)
    step = Run(tmp_path).steps()[-1]
    assert str(error.value).endswith(f"; the last checkpoint is at step {step}: rlzoo resume {tmp_path}")
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is not None
    Run(tmp_path).load()


def test_fault_before_the_first_checkpoint(tmp_path, capsys):
    arguments = ["train", "ppo", "Trap-v0", "--env-kwargs", "at=3", "--out", str(tmp_path / "run"), "--quiet"]
    assert main(arguments) == 1
    line = capsys.readouterr().err
    assert line.startswith("rlzoo: step 0: environment 'Trap-v0', step 3: copy 0 raised ZeroDivisionError")
    assert line.endswith("test_broken_env.py:42); there is no checkpoint yet\n")
    assert line.count("\n") == 1
    assert main([*arguments, "--traceback", "--overwrite"]) == 1
    trace, again = capsys.readouterr().err.rsplit("rlzoo: ", 1)
    assert f"rlzoo: {again}" == line
    assert 'raise ZeroDivisionError("the simulator' in trace


def test_endless_episodes_are_cut_and_said(tmp_path, monkeypatch, capsys):
    for module in ("core.evaluation", "runs.session", "runs.evaluate"):
        monkeypatch.setattr(f"rlzoo.{module}.ENDLESS", 40)
    path = str(tmp_path / "run")
    small = ["--num-envs", "2", "--num-steps", "20", "--total-steps", "80", "--eval-episodes", "3"]
    small += ["--final-eval-episodes", "3", "--minibatch-size", "20", "--eval-interval", "40"]
    assert main(["train", "ppo", "Trap-v0", "--env-kwargs", "length=1000000000", "--out", path, *small]) == 0
    said = capsys.readouterr().out
    cut = "3 of 3 episodes had not ended after 40 steps and were cut; --env-kwargs max_episode_steps=N limits them\n"
    for name in ("evaluation", "final evaluation", "final evaluation, deterministic"):
        assert f"\n{name}: {cut}" in said
    assert [x["cut_episodes"] for x in Run(tmp_path / "run").evaluations()] == [3, 3, 3]
    assert main(["eval", path, "--episodes", "1"]) == 0
    assert capsys.readouterr().out == (
        "step 80: mean return 40.0 ± 0.0 over 1 episodes, 1 of them cut after 40 steps\n"
    )
    named = ["train", "ppo", f"{__name__}:Trap"]
    assert main([*named, "--env-kwargs", "length=1000000000", "--out", path, "--overwrite", *small]) == 0
    limit = '--wrapper "gymnasium.wrappers:TimeLimit(max_episode_steps=N)" limits them'
    assert (
        f"\nevaluation: 3 of 3 episodes had not ended after 40 steps and were cut; {limit}\n" in capsys.readouterr().out
    )


@pytest.mark.parametrize("fault", [RuntimeError("boom"), SystemExit(0), SystemExit("bye")], ids=repr)
def test_close_that_fails_leaves_a_finished_run(fault, tmp_path, monkeypatch, capsys):
    def close(env):
        raise fault

    monkeypatch.setattr(Trap, "close", close)
    path = str(tmp_path / "run")
    small = ["--num-envs", "2", "--total-steps", "40", "--num-steps", "20", "--minibatch-size", "20"]
    with pytest.warns(RuntimeWarning, match=f"closing the environment raised {type(fault).__name__}"):
        assert main(["train", "ppo", "Trap-v0", "--out", path, "--final-eval-episodes", "2", *small]) == 0
    assert "mean return 5.00 ± 0.00 over 2 episodes" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["leave", "say"])
def test_environment_that_ends_the_program_or_says_words(fault, tmp_path, capsys):
    arguments = ["train", "ppo", "Trap-v0", "--env-kwargs", "at=3", f"fault={fault}"]
    assert main([*arguments, "--out", str(tmp_path / "run"), "--quiet"]) == 1
    place = f"({__file__}:{Trap.step.__code__.co_firstlineno + 11})"
    what = {"leave": f"SystemExit: 0 {place}", "say": "TypeError: terminated must be True or False, got 'False'"}[fault]
    line = f"rlzoo: step 0: environment 'Trap-v0', step 3: copy 0 raised {what}; there is no checkpoint yet\n"
    assert capsys.readouterr().err == line


def test_environment_without_a_state_starts_new_episodes_on_resume(tmp_path, capsys):
    wrapper = "gymnasium.wrappers:NormalizeReward"  # whose statistics outlast a reset
    run = quick_run(tmp_path, minibatch_size=25, wrappers=(wrapper,), **SETTINGS)
    before = run.steps()[-1]
    resume(run, total_steps=500, progress=True)
    assert "Trap-v0 cannot save its state: new episodes start\n" in capsys.readouterr().out
    assert run.steps()[-1] > before
    assert run.metrics()[-1]["mean_length"] == 5


@pytest.mark.parametrize("fast", [True, False])
def test_non_finite_gradient_stops_the_run(fast, tmp_path, monkeypatch):
    good = quick_run(tmp_path / "good", checkpoint_interval=100, fast=fast)
    optimizer = FastAdam if fast else Adam
    minimize = optimizer.minimize
    calls = []

    def poisoned(adam, *args, **kwargs):
        calls.append(0)
        if len(calls) == 4:
            raise NonFiniteError("gradient of PPOClip.loss is not finite")
        return minimize(adam, *args, **kwargs)

    monkeypatch.setattr(optimizer, "minimize", poisoned)
    path = tmp_path / "bad"
    with pytest.raises(TrainingError, match=r"step 2..: gradient of PPOClip.loss is not finite; the last"):
        quick_run(path, checkpoint_interval=100, fast=fast)
    assert outcome(resume(path)) == outcome(good)


def test_weights_that_become_nan_stop_the_run(tmp_path):
    def poison(trainer, iteration):
        with torch.no_grad():
            next(trainer.model.value.parameters()).fill_(torch.nan)

    with pytest.raises(TrainingError, match="not finite"):
        quick_run(tmp_path, on_iteration=poison)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        MemoryError("numpy"),
    ],
)
def test_out_of_memory(tmp_path, error):
    def fail_later(trainer, iteration):
        if iteration.step > 200:
            raise error

    said = re.escape(" ".join(str(error).split()))
    message = rf"^step \d+: there is not enough memory: lower num_envs = 4, num_steps = \d+ \({said}\); "
    with pytest.raises(TrainingError, match=message + r"the last checkpoint is at step \d+: rlzoo resume "):
        quick_run(tmp_path, on_iteration=fail_later, checkpoint_interval=1)


def test_settings_that_bound_the_memory_are_settings():
    for settings in (Language(), RolloutSettings()):
        assert settings.memory
        assert all(hasattr(settings, name) for name in settings.memory)
