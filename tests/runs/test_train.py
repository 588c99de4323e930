"""Training from the start, from the middle, and to the end."""

import copy
import dataclasses
import io
import json
import os
import re
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import short_runs
import torch
from gymnasium import spaces

import rlzoo
from rlzoo.algorithms import TRPO, PPOClip
from rlzoo.control.networks import Network
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.distributions import Categorical, DiagGaussian
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.models import ActorCritic, Policy
from rlzoo.core.system.errors import ConfigError, EnvError, Interrupted, RunError, TrainingError, UnknownEnv
from rlzoo.runs.configuration.config import Config, make_config
from rlzoo.runs.evaluate import describe_evaluation, load_task
from rlzoo.runs.logs.display import LineDisplay
from rlzoo.runs.loop import Trainer
from rlzoo.runs.run import Run
from rlzoo.runs.session import Hooks, Session
from rlzoo.runs.train import check_device, default_directory, resume, train


def weights_of(trainer):
    return {name: x.clone() for name, x in trainer.model.state_dict().items()}


# The same seed is the same run


@pytest.mark.slow
@pytest.mark.parametrize("settings", [short_runs.PPO, short_runs.TRPO, {**short_runs.QUICK, "algorithm": "reinforce"}])
def test_same_seed_same_bytes(settings, tmp_path):
    first, second = (train(**settings, seed=5, out=tmp_path / name) for name in "ab")
    assert short_runs.outcome(first) == short_runs.outcome(second)
    other = train(**settings, seed=6, out=tmp_path / "c")
    assert short_runs.weights(other) != short_runs.weights(first)


def test_evaluation_and_checkpoints_do_not_change_training(tmp_path):
    often = short_runs.quick_run(tmp_path / "often", eval_interval=50, eval_episodes=7, checkpoint_interval=50)
    seldom = short_runs.quick_run(tmp_path / "seldom", eval_interval=10_000, checkpoint_interval=10_000)
    assert short_runs.weights(often) == short_runs.weights(seldom)
    assert len(often.evaluations()) > len(seldom.evaluations()) == 2


def test_global_random_state_plays_no_part(tmp_path):
    first = short_runs.quick_run(tmp_path / "a")
    np.random.seed(1)
    torch.manual_seed(1)
    assert short_runs.weights(short_runs.quick_run(tmp_path / "b")) == short_runs.weights(first)


# What happens when


def test_evaluations_fall_where_their_interval_is_crossed(tmp_path):
    run = short_runs.quick_run(tmp_path, total_steps=1000, eval_interval=300)
    steps = [record["step"] for record in run.metrics()]
    crossed = [next(s for s in steps if s >= n) for n in (300, 600, 900)]
    *interim, sampled, modes = run.evaluations()
    assert [e["step"] for e in interim] == crossed
    assert all(e["episodes"] == 3 and not e["deterministic"] and not e["final"] for e in interim)
    assert [(e["step"], e["episodes"], e["deterministic"]) for e in (sampled, modes)] == [
        (steps[-1], 10, False),
        (steps[-1], 10, True),
    ]
    assert len({e["seed"] for e in run.evaluations()}) == len(interim) + 1
    assert run.steps()[-1] == steps[-1]
    best = max(run.evaluations()[:-1], key=lambda e: e["mean_return"])
    assert run.best_step() == best["step"]
    assert best["step"] in run.steps()


def test_stops_when_the_return_is_reached(tmp_path):
    run = short_runs.quick_run(tmp_path, stop_return=1.0, eval_interval=200)
    assert run.finished
    first = run.steps()[-1]
    assert 200 <= first < 300
    resume(run)
    assert run.steps()[-1] == first
    resume(run, total_steps=900)  # it stops again at its next evaluation
    assert 400 <= run.steps()[-1] < 500
    assert run.finished


def nine_tenths(env):
    return gymnasium.wrappers.TransformReward(gymnasium.wrappers.TimeLimit(env, 1), lambda reward: 0.9)


@pytest.mark.parametrize(("stop_return", "stops"), [(0.9, True), (0.90001, False)])
def test_a_return_that_single_precision_rounds_down_is_reached(stop_return, stops, tmp_path):
    run = short_runs.quick_run(tmp_path, stop_return=stop_return, eval_interval=200, wrappers=(nine_tenths,))
    assert run.evaluations()[0]["mean_return"] < 0.9
    assert (run.steps()[-1] < 600) == stops


def test_killed_before_the_first_checkpoint_after_it_was_taken_further(tmp_path):
    reference, run = (short_runs.quick_run(tmp_path / name, stop_return=1.0, eval_interval=200) for name in "ab")
    resume(reference, total_steps=900)

    def kill(trainer, iteration):
        os.kill(os.getpid(), signal.SIGKILL)

    short_runs.in_child(lambda: resume(run, total_steps=900, on_iteration=kill))
    assert not run.finished
    assert short_runs.outcome(resume(run)) == short_runs.outcome(reference)


def test_killed_between_the_stop_and_the_final_evaluation(tmp_path):
    run = short_runs.quick_run(tmp_path, stop_return=1.0, eval_interval=200)
    reference = short_runs.outcome(run)
    lines = (run.path / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (run.path / "evaluations.jsonl").write_text("".join(lines[:1]))
    assert short_runs.outcome(resume(run)) == reference


def test_stopped_between_two_final_evaluations_of_which_the_first_is_below_the_threshold(tmp_path):
    """The evaluation in training ended the run, whatever the final one gives."""
    run = short_runs.quick_run(tmp_path, stop_return=24.0, eval_interval=200, seed=1)
    during, final, _ = (x["mean_return"] for x in run.evaluations())
    assert during > 24 > final
    reference = short_runs.outcome(run)
    lines = (run.path / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (run.path / "evaluations.jsonl").write_text("".join(lines[:-1]))
    assert short_runs.outcome(resume(run)) == reference


def test_a_file_that_a_hook_lacks_is_not_one_that_the_run_writes(tmp_path):
    def read(trainer, iteration):
        (tmp_path / "data.csv").read_text()

    with pytest.raises(TrainingError, match=r"cannot use .*data\.csv: No such file or directory"):
        short_runs.quick_run(tmp_path / "run", on_iteration=read)


def test_callback_sees_every_iteration_and_may_stop_the_run(tmp_path):
    seen = []

    def stop_at_300(trainer, iteration):
        seen.append(iteration.step)
        return trainer.step >= 300

    run = short_runs.quick_run(tmp_path, on_iteration=stop_at_300)
    assert seen == [record["step"] for record in run.metrics()]
    stopped = run.steps()[-1]
    assert stopped == seen[-1] < 600
    assert run.finished
    resume(run)
    assert run.steps()[-1] == stopped
    resume(run, total_steps=600)  # the callback is not part of the run
    assert run.steps()[-1] >= 600
    assert [e["step"] for e in run.evaluations() if e["final"]] == [stopped, stopped, *[run.steps()[-1]] * 2]


def test_interrupted_between_the_callbacks_stop_and_the_end(tmp_path):
    def stop_at_300(trainer, iteration):
        if trainer.step >= 300:
            os.kill(os.getpid(), signal.SIGINT)
        return trainer.step >= 300

    reference = short_runs.quick_run(tmp_path / "whole", on_iteration=lambda trainer, _: trainer.step >= 300)
    with pytest.raises(Interrupted, match=r"training has finished at step 3\d\d, its evaluation has not; complete it"):
        short_runs.quick_run(tmp_path / "run", on_iteration=stop_at_300)
    assert short_runs.outcome(resume(tmp_path / "run")) == short_runs.outcome(reference)


def test_hooks_are_called_in_order_and_their_metrics_are_logged(tmp_path):
    calls, lengths = [], []

    def on_iteration(trainer, iteration):
        calls.append("iteration")
        iteration.metrics["weight"] = 2.0
        return {"halves": iteration.step / 2}

    hooks = Hooks(
        on_start=lambda trainer: calls.append(("start", trainer.step)),
        on_episode=lambda trainer, episode: lengths.append(episode.length),
        on_iteration=on_iteration,
        on_evaluation=lambda trainer, record: calls.append((record["final"], record["deterministic"])),
        on_end=lambda trainer: calls.append("end"),
    )
    run = short_runs.quick_run(tmp_path, hooks=hooks, eval_interval=10_000)
    iterations = ["iteration"] * len(run.metrics())
    assert calls == [("start", 0), *iterations, (True, False), (True, True), "end"]
    assert [(record["halves"], record["weight"]) for record in run.metrics()] == [
        (record["step"] / 2, 2.0) for record in run.metrics()
    ]
    assert np.mean(lengths[-100:]) == pytest.approx(run.metrics()[-1]["mean_length"], rel=1e-5)
    with pytest.raises(ConfigError, match="give on_iteration either in hooks or beside them"):
        resume(run, 900, hooks=hooks, on_iteration=on_iteration)


def test_evaluation_hook_ends_the_run(tmp_path, capsys):
    stop = Hooks(on_evaluation=lambda trainer, record: np.bool_(record["step"] > 150))
    run = short_runs.quick_run(tmp_path, hooks=stop, eval_interval=100, progress=True)
    first, *_ = (x["step"] for x in run.evaluations() if x["step"] > 150)
    assert run.metrics()[-1]["step"] == first < run.read_config().total_steps
    assert f"a hook ended the run at step {first}" in capsys.readouterr().out
    assert run.finished
    assert [x["final"] for x in resume(run).evaluations()] == [x["final"] for x in run.evaluations()]


def test_a_run_that_a_hook_ended_has_ended_however_often_its_evaluations_were_interrupted(tmp_path, monkeypatch):
    hooks = Hooks(on_evaluation=lambda trainer, record: record["step"] > 150)
    whole = short_runs.quick_run(tmp_path / "whole", hooks=hooks, eval_interval=100)
    evaluate, last, interrupted = Session._evaluate, whole.steps()[-1], []

    def interrupt_once_each(session, episodes, final=False, deterministic=False):
        if session.trainer.step == last and final not in interrupted:
            interrupted.append(final)
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(session, episodes, final, deterministic)

    monkeypatch.setattr(Session, "_evaluate", interrupt_once_each)
    with pytest.raises(Interrupted, match="continue with"):
        short_runs.quick_run(tmp_path / "run", hooks=hooks, eval_interval=100)
    with pytest.raises(Interrupted, match="training has finished"):
        resume(tmp_path / "run", hooks=hooks)
    assert short_runs.outcome(resume(tmp_path / "run", hooks=hooks)) == short_runs.outcome(whole)


def test_the_run_is_where_it_was_asked_for_if_the_environment_changes_directories(tmp_path, monkeypatch):
    def make_env():
        os.chdir(tmp_path / "elsewhere")
        return gymnasium.make("CartPole-v1")

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    short_runs.quick_run("run", env=make_env)
    assert Run.open(tmp_path / "run").finished


def test_trainer_is_an_iterable_of_iterations():
    trainer = Trainer(make_config(**{**short_runs.PPO, "total_steps": 200}))
    steps = [iteration.step for iteration in trainer]
    assert steps[-2] < 200 <= steps[-1]
    assert trainer.done


def test_exception_of_a_callback_comes_through(tmp_path):
    with pytest.raises(ZeroDivisionError):
        short_runs.quick_run(tmp_path, on_iteration=lambda trainer, iteration: 1 / 0)


# Resume


def test_restored_trainer_goes_on_bit_by_bit():
    config = make_config(**short_runs.PPO)
    trainer, other = Trainer(config), Trainer(config)
    for _ in range(3):
        trainer.iterate()
    other.restore(trainer.checkpoint())
    for _ in range(2):
        assert trainer.iterate() == other.iterate()
    mine, others = weights_of(trainer), weights_of(other)
    assert {"normalizer.mean", "reward_scale.running"} <= mine.keys()
    assert all(torch.equal(mine[name], others[name]) for name in mine)


def test_resume_of_a_finished_run_leaves_it_alone(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path)
    before = short_runs.outcome(run)
    for total_steps in (None, 600, 100):
        resume(run, total_steps, progress=True)
        assert capsys.readouterr().out == (
            f"{tmp_path} finished at step {run.steps()[-1]}; continue it with --total-steps N\n"
        )
        assert short_runs.outcome(run) == before
    assert run.read_config().total_steps == 600


def test_resume_from_the_best_checkpoint_leaves_a_finished_run_alone_if_that_is_its_last(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path)
    run.mark_best(run.steps()[-1], 1e9)
    before = short_runs.outcome(run)
    resume(run, 100, checkpoint="best", progress=True)
    assert "finished at step" in capsys.readouterr().out
    assert short_runs.outcome(run) == before
    assert run.read_config().total_steps == 600


def test_resume_takes_a_run_further(tmp_path):
    run = short_runs.quick_run(tmp_path)
    first = run.metrics()
    resume(run, total_steps=1200)
    assert run.read_config().total_steps == 1200
    assert run.metrics()[: len(first)] == first
    assert run.steps()[-1] >= 1200
    assert sum(e["final"] for e in run.evaluations()) == 4


def test_resume_from_the_last_checkpoint_takes_a_finished_run_further(tmp_path):
    run = short_runs.quick_run(tmp_path, on_iteration=lambda trainer, _: trainer.step >= 300)
    stopped = run.steps()[-1]
    resume(run, checkpoint=stopped)
    assert run.steps()[-1] == stopped
    resume(run, total_steps=600, checkpoint=stopped)
    assert run.steps()[-1] >= 600


def test_more_steps_for_a_run_that_a_callback_ended_without_its_final_evaluation(tmp_path):
    def interrupt(trainer, iteration):
        os.kill(os.getpid(), signal.SIGINT)
        return True

    with pytest.raises(Interrupted):
        short_runs.quick_run(tmp_path, on_iteration=interrupt)
    assert resume(tmp_path, total_steps=700).steps()[-1] >= 700


def test_a_run_that_went_back_can_end_where_it_ended_before(tmp_path):
    run = short_runs.quick_run(tmp_path, checkpoint_interval=100)
    earlier, end = run.steps()[-2:]
    run.mark_best(earlier, 1e9)
    resume(run, total_steps=700)
    resume(run, total_steps=600, checkpoint=earlier)
    assert run.steps()[-1] == end
    assert run.finished


@pytest.mark.slow
def test_a_run_that_went_back_to_an_earlier_end_and_was_killed_is_not_finished(tmp_path):
    run = short_runs.quick_run(tmp_path)
    first_end = run.steps()[-1]
    for steps in (900, 1200):
        run.mark_best(first_end, 1e9)
        resume(run, total_steps=steps)

    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    with pytest.raises(Killed):
        resume(run, checkpoint=first_end, on_iteration=kill)
    assert run.steps() == [first_end]
    assert not run.finished
    assert resume(run).steps()[-1] >= 1200


def test_resume_from_an_earlier_checkpoint_does_the_rest_again(tmp_path):
    run = short_runs.quick_run(tmp_path, checkpoint_interval=100)
    reference = short_runs.outcome(run)
    earlier = run.steps()[-2]
    seen = []
    resume(run, checkpoint=earlier, on_iteration=lambda trainer, iteration: seen.append(iteration.step))
    assert seen == [record["step"] for record in run.metrics() if record["step"] > earlier]
    assert short_runs.weights(run) == reference["model"]
    assert short_runs.outcome(run)["metrics"] == reference["metrics"]


def test_every_iteration_has_steps_of_its_own_where_a_buffer_may_be_one_forced_step(tmp_path):
    settings = {"num_envs": 2, "num_steps": 1, "minibatch_size": 2, "total_steps": 16}
    settings["env_kwargs"] = {"max_episode_steps": 3}
    run = short_runs.quick_run(tmp_path, algorithm="ppo-penalty", checkpoint_interval=2, **settings)
    reference = short_runs.outcome(run)
    assert [record["step"] for record in run.metrics()] == list(range(2, 17, 2))
    resume(run, checkpoint=run.steps()[-2])
    assert short_runs.outcome(run) == reference


def test_a_log_that_ends_before_the_checkpoint_is_said(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path)
    log, last = tmp_path / "metrics.jsonl", run.steps()[-1]
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-2]))
    resume(run, 700, progress=True)
    assert f"metrics.jsonl has no line of step {last:,}: its end was lost\n" in capsys.readouterr().out


def test_a_signal_that_also_ends_the_processes_of_an_evaluation_is_no_failure(tmp_path, monkeypatch):
    def evaluate(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)
        raise EnvError("the connection was reset")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "evaluate", evaluate)
        with pytest.raises(Interrupted, match="continue with"):
            short_runs.quick_run(tmp_path / "run", eval_interval=100)
    whole = short_runs.quick_run(tmp_path / "whole", eval_interval=100)
    assert short_runs.outcome(resume(tmp_path / "run")) == short_runs.outcome(whole)


def test_versions_of_all_sessions_are_recorded(tmp_path, capsys):
    run = short_runs.quick_run(tmp_path)
    file, now = tmp_path / "config.json", torch.__version__
    before = file.read_text()
    file.write_text(before.replace(f'"torch": "{now}"', '"torch": "1.0"'))
    for total_steps in (None, None, 700):
        resume(run, total_steps, checkpoint=run.steps()[0], progress=True)
        assert run.record["versions"] == json.loads(before)["versions"] | {"torch": f"1.0, then {now}"}
    assert capsys.readouterr().out.count(f"{tmp_path} was trained with another torch: 1.0, then {now}\n") == 1


def test_resume_without_a_checkpoint_starts_again(tmp_path):
    reference = short_runs.outcome(short_runs.quick_run(tmp_path / "whole"))
    config = Run.open(tmp_path / "whole").read_config()
    run = Run.create(tmp_path / "run", config)
    (run.path / "metrics.jsonl").write_text('{"step": 96}\n{"st')
    assert short_runs.outcome(resume(run)) == reference
    with pytest.raises(RunError, match="has no checkpoint 7"):
        resume(run, checkpoint=7)


# The Python interface


def test_settings_by_name_config_and_instance(tmp_path):
    settings = {**short_runs.QUICK, "env": "CartPole-v1", "vf_minibatch_size": 50}
    by_name = train("trpo", out=tmp_path / "a", preset=False, max_kl=0.02, gamma=0.9, **settings)
    env = settings.pop("env")
    by_instance = train(TRPO(max_kl=0.02), env, out=tmp_path / "b", gamma=0.9, **settings)
    by_config = train(make_config("trpo", env, max_kl=0.02, gamma=0.9, **settings), out=tmp_path / "c")
    assert short_runs.outcome(by_name) == short_runs.outcome(by_instance) == short_runs.outcome(by_config)
    by_run = train(config=by_name, out=tmp_path / "d")
    assert short_runs.outcome(by_run) == short_runs.outcome(by_name)
    with pytest.raises(ConfigError, match="give either a Config or settings, not both"):
        train(by_config.read_config(), gamma=0.5)
    with pytest.raises(ConfigError, match="give either a Config or settings, not both"):
        train(by_config.read_config(), preset="gentle")
    with pytest.raises(RunError, match="gpt2 holds no run"):
        train("trpo", env, model="gpt2")
    with pytest.raises(ConfigError, match="env is missing"):
        train("trpo")


def test_preset_is_the_default_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "rlzoo.runs.configuration.defaults.find_preset", lambda *pair: {"gamma": 0.9, "max_kl": 0.02, "hidden": [5]}
    )
    settings = {name: x for name, x in short_runs.TRPO.items() if name not in ("hidden", "algorithm")}
    config = train("trpo", out=tmp_path / "a", gamma=0.8, progress=True, **settings).read_config()
    assert (config.algorithm.max_kl, config.algorithm.estimator.gamma, config.task.network.hidden) == (0.02, 0.8, (5,))
    assert capsys.readouterr().out.startswith("preset trpo/CartPole-v1: max_kl=0.02, hidden=[5]\n")
    config = train("trpo", out=tmp_path / "b", preset=False, **settings).read_config()
    assert config.algorithm.max_kl == TRPO().max_kl
    config = train(TRPO(), out=tmp_path / "c", **settings).read_config()
    assert config.algorithm.max_kl == TRPO().max_kl


def test_five_lines(tmp_path):
    run = rlzoo.train("ppo", out=tmp_path, epochs=1, minibatch_size=50, **short_runs.QUICK)
    evaluation = rlzoo.evaluate(run, episodes=20)
    assert evaluation.mean_return == rlzoo.evaluate(str(tmp_path), episodes=20, seed=0).mean_return
    assert rlzoo.evaluate(run, 20, seed=1).returns.tolist() != evaluation.returns.tolist()
    best, same = (rlzoo.evaluate(run, 20, checkpoint=c, deterministic=True) for c in ("best", run.best_step()))
    assert best.returns.tolist() == same.returns.tolist()
    model = rlzoo.load_model(run)
    assert isinstance(model, ActorCritic)
    assert {type(module).__name__ for module in model.modules()}.isdisjoint({"FastMLP"})
    with pytest.raises(ConfigError, match="episodes must be at least 1"):
        rlzoo.evaluate(run, 0)


def test_last_checkpoint_holds_the_trained_model(tmp_path):
    trained = {}
    run = train(
        **short_runs.PPO,
        out=tmp_path,
        on_iteration=lambda trainer, _: trained.update(weights_of(trainer)) or trainer.done,
    )
    loaded = rlzoo.load_model(run).state_dict()
    assert loaded.keys() == trained.keys()
    assert all(torch.equal(loaded[name], trained[name]) for name in loaded)


class OwnModel(ActorCritic):
    """A model that no configuration describes."""


def own_model(seed=0):
    observations, actions = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2)
    parts = Network(hidden=(6, 6)).build(observations, actions, torch.Generator().manual_seed(seed))
    return OwnModel(parts.policy, parts.value)


def test_model_of_ones_own(tmp_path):
    run = short_runs.quick_run(tmp_path, model=own_model())
    for use in (resume, rlzoo.evaluate, rlzoo.load_model):
        with pytest.raises(RunError, match=r"cannot hold: pass model=... \(an instance of OwnModel of test_train\)$"):
            use(run)
    resume(run, total_steps=800, model=own_model(seed=1))
    assert rlzoo.evaluate(run, 3, model=own_model(seed=2)).returns.size == 3
    assert run.objects == {"model": "pass model=... (an instance of OwnModel of test_train)"}


class Linear(Policy):
    """Logits, or what `kind` makes of them, by a linear layer."""

    def __init__(self, inputs, outputs, kind=Categorical):
        super().__init__()
        self.layer, self.kind = torch.nn.Linear(inputs, outputs), kind

    def forward(self, features, memory=None):
        return self.kind(self.layer(features)), memory


class LinearValue(torch.nn.Linear):
    def forward(self, features):
        return super().forward(features).squeeze(-1)


def gaussian(x):
    return DiagGaussian(x, torch.zeros_like(x))


def double(x):
    return Categorical(x.double())


@dataclasses.dataclass(frozen=True)
class Scaled(DiagGaussian):
    scale: torch.Tensor


def scaled(x):
    return Scaled(x, torch.zeros_like(x), torch.ones(1))


@pytest.mark.parametrize(
    ("env", "policy", "value", "fault"),
    [
        ("CartPole-v1", Linear(3, 2), LinearValue(4, 1), r"RuntimeError: mat1 and mat2 .* \(2x4 and 3x2\)"),
        ("CartPole-v1", Linear(4, 2), LinearValue(3, 1), r"RuntimeError: mat1 and mat2 .* \(2x4 and 3x1\)"),
        ("CartPole-v1", Linear(4, 1), LinearValue(4, 1), "RuntimeError: index 1 is out of bounds"),
        ("CartPole-v1", Linear(4, 5), LinearValue(4, 1), r"RuntimeError: The size of tensor a \(5\) must match"),
        ("CartPole-v1", Linear(4, 2, gaussian), LinearValue(4, 1), r"action of shape \(2, 2\) .*, needed \(2,\)"),
        ("CartPole-v1", Linear(4, 2), torch.nn.Linear(4, 1), r"value of shape \(2, 1, 1\) .*, needed \(2, 1\)"),
        ("CartPole-v1", torch.nn.Linear(4, 2), LinearValue(4, 1), "TypeError: Linear.forward"),
        ("Pendulum-v1", Linear(3, 2), LinearValue(3, 1), r"action of shape \(2,\) .*, needed \(2, 1\)"),
        ("Pendulum-v1", Linear(3, 1, scaled), LinearValue(3, 1), r"scale of shape \(1,\) .*, needed \(2, 1, \.\.\.\)"),
        ("CartPole-v1", Linear(4, 2, double), LinearValue(4, 1), "log-probability of float64, .*: convert it by"),
        ("Pendulum-v1", Linear(3, 2, gaussian), LinearValue(3, 1), r"action of shape \(2, 2\) .*, needed \(2, 1\)"),
    ],
)
def test_model_that_does_not_fit_leaves_an_earlier_run(env, policy, value, fault, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"^the model does not fit the observations and actions of {env}: .*{fault}"):
        short_runs.quick_run(tmp_path, env=env, model=ActorCritic(policy, value), overwrite=True)
    assert (tmp_path / "config.json").read_text() == "{}"


def test_model_that_is_no_actor_critic(tmp_path):
    forms = r"an ActorCritic\(policy, value\) or the directory of a run"
    with pytest.raises(ConfigError, match=f"^model must be {forms}, got a Linear$"):
        short_runs.quick_run(tmp_path / "run", model=torch.nn.Linear(4, 2))
    run = short_runs.quick_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"^the model must be an ActorCritic, got Linear$"):
        rlzoo.evaluate(run, model=torch.nn.Linear(4, 2))


def test_model_with_buffers_that_overlap(tmp_path):
    def overlapping():
        model, bounds = own_model(), torch.arange(4.0)
        for name, buffer in (("high", bounds[2:]), ("bounds", bounds), ("low", bounds[:2])):
            model.register_buffer(name, buffer)
        return model

    run = short_runs.quick_run(tmp_path, model=overlapping())
    loaded = rlzoo.load_model(run, model=overlapping())
    assert [loaded.low.tolist(), loaded.high.tolist(), loaded.bounds.tolist()] == [[0, 1], [2, 3], [0, 1, 2, 3]]


def test_model_with_a_layer_under_two_names(tmp_path):
    def tied():
        model = own_model()
        model.policy.again = model.policy.net
        return model

    run = short_runs.quick_run(tmp_path, model=tied())
    loaded = rlzoo.load_model(run, model=tied())
    assert loaded.policy.again is loaded.policy.net
    resume(run, total_steps=800, model=tied())
    assert run.steps()[-1] >= 800


# Settings that are objects


def lowered(progress):
    return 3e-3 * (1 - progress)


@pytest.mark.slow
def test_run_with_a_lambda_needs_it_again_and_goes_on_exactly(tmp_path):
    schedule = lambda progress: lowered(progress)  # noqa: E731
    whole = short_runs.quick_run(tmp_path / "whole", learning_rate=lowered)
    run = short_runs.quick_run(tmp_path / "run", learning_rate=schedule, checkpoint_interval=100)
    record = json.loads((run.path / "config.json").read_text())
    assert record["learning_rate"] == {"object": "a lambda of test_train"}
    assert record["objects"] == {"learning_rate": "pass learning_rate=... (a lambda of test_train)"}
    assert short_runs.weights(run) == short_runs.weights(whole)
    for use in (resume, rlzoo.evaluate, rlzoo.play, rlzoo.load_model, load_task):
        with pytest.raises(RunError) as error:
            use(run)
        assert str(error.value) == (
            f"{run.path} was made from objects that config.json cannot hold: "
            "pass learning_rate=... (a lambda of test_train)"
        )
    assert rlzoo.evaluate(run, 2, learning_rate=schedule).returns.size == 2
    resume(run, checkpoint=run.steps()[0], learning_rate=schedule)
    assert short_runs.weights(run) == short_runs.weights(whole)


def test_objects_that_are_needed_are_all_named(tmp_path):
    run = short_runs.quick_run(tmp_path, model=own_model(), learning_rate=lambda progress: 1e-3)
    with pytest.raises(RunError, match=r"pass learning_rate=... \(a lambda of test_train\), model=... \(an inst"):
        resume(run)


def test_objects_that_a_run_was_not_made_with(tmp_path):
    run = short_runs.quick_run(tmp_path, learning_rate=lowered)
    assert run.objects == {}
    assert rlzoo.evaluate(run, 2, learning_rate=lowered).returns.size == 2
    with pytest.raises(RunError, match="no setting 'learn_rate'; did you mean 'learning_rate'"):
        rlzoo.evaluate(run, learn_rate=lowered)
    with pytest.raises(RunError, match=r"was made with gamma=0\.99: leave gamma out"):
        rlzoo.evaluate(run, gamma=0.5)
    with pytest.raises(RunError, match="was made with env='CartPole-v1': leave env out"):
        rlzoo.evaluate(run, env=own_model)


def test_object_that_does_not_do_is_named_and_not_the_file(tmp_path):
    run = short_runs.quick_run(tmp_path, env=lambda: gymnasium.make("CartPole-v1"))
    with pytest.raises(RunError, match=f"^env for {re.escape(str(tmp_path))} cannot be used: env is one environment"):
        rlzoo.evaluate(run, env=gymnasium.make("CartPole-v1"))


def test_model_that_trained_with_scaled_rewards_is_loaded_into_again(tmp_path):
    model = own_model()
    run = short_runs.quick_run(tmp_path, model=model, normalize_reward=True)
    assert rlzoo.evaluate(run, 3, model=model).returns.size == 3
    assert rlzoo.evaluate(run, 3, model=own_model()).returns.size == 3


def test_an_evaluation_leaves_a_model_in_training_as_it_is(tmp_path):
    before, model = [], own_model()

    def evaluate(trainer, iteration):
        if trainer.step > 250 and not before:
            before.append(copy.deepcopy(model.state_dict()))
            rlzoo.evaluate(tmp_path, 1, model=model)
            before.append(copy.deepcopy(model.state_dict()))

    short_runs.quick_run(tmp_path, model=model, checkpoint_interval=200, on_iteration=evaluate)
    assert before[0].keys() == before[1].keys()
    assert all(torch.equal(x, before[1][name]) for name, x in before[0].items())


def test_a_hook_may_change_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    run = short_runs.quick_run("run", on_iteration=lambda *_: os.chdir(tmp_path / "elsewhere"))
    assert run.finished
    assert len(run.metrics()) == 7
    assert not any((tmp_path / "elsewhere").iterdir())


def test_default_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config("some/module:Env-v0", PPOClip(), Control(), seed=3)
    path = default_directory(config)
    assert re.fullmatch(r"ppo-clip-some-module-Env-v0-s3-\d{8}-\d{6}", path.name)
    assert path.parent == Path("runs")
    path.mkdir(parents=True)
    assert default_directory(config) != path


def test_nothing_is_left_of_a_run_that_cannot_start(tmp_path):
    for wrong, fault in (
        ({"env": "CartPol-v1"}, "no environment 'CartPol-v1'"),
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"device": "abacus"}, "device must be cpu, cuda, cuda:N or the like, got 'abacus'"),
        ({"device": "meta"}, "device 'meta' is not available"),
        ({"env_kwargs": {"gravity": 0}}, "'CartPole-v1' cannot be made: TypeError: .*'gravity'"),
    ):
        with pytest.raises((ConfigError, EnvError, UnknownEnv), match=fault):
            short_runs.quick_run(tmp_path / "run", **wrong)
    assert not (tmp_path / "run").exists()


def test_nothing_is_left_of_a_run_that_fails_before_its_first_metrics(tmp_path, monkeypatch):
    def fails_at(step):
        return lambda trainer, iteration: 1 / 0 if iteration.step >= step else None

    for wrong, kind, fault in (
        ({"on_iteration": fails_at(1)}, ZeroDivisionError, "division"),
        ({"on_iteration": lambda *_: {"mine": "x"}}, ConfigError, "metric 'mine'"),
        ({"hooks": {"on_end": print}}, ConfigError, r"^hooks must be Hooks, such as Hooks\(on_end=f\), got a dict$"),
        ({"algorithm": 3}, ConfigError, "^algorithm must be a name or an instance of Algorithm, .*, got 3$"),
    ):
        with pytest.raises(kind, match=fault):
            short_runs.quick_run(tmp_path / "run", **wrong)
    for method, kind in (("init", "State"), ("update", "dict")):
        monkeypatch.setattr(PPOClip, method, lambda *_: None)
        with pytest.raises(ConfigError, match=f"^{method} of PPOClip must return a {kind}, got None$"):
            short_runs.quick_run(tmp_path / "run")
        monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    with pytest.raises(ZeroDivisionError):
        short_runs.quick_run(tmp_path / "run", on_iteration=fails_at(200))
    assert Run(tmp_path / "run").metrics()


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (torch.no_grad, r"^training needs gradients: leave torch.no_grad\(\) or "),
        (torch.inference_mode, r"^training needs gradients: leave torch.no_grad\(\) or "),
        (lambda: torch.autocast("cpu", torch.bfloat16), "^torch.autocast keeps old weights in its cache: leave it "),
    ],
)
def test_training_in_a_context_of_pytorch_that_spoils_it_is_an_error(mode, message, tmp_path):
    trainer = Trainer(make_config("reinforce", "CartPole-v1"))
    with mode():
        with pytest.raises(ConfigError, match=message):
            train("ppo-clip", "CartPole-v1", out="run")
        with pytest.raises(ConfigError, match=message):
            trainer.iterate()
    assert not Path("run").exists()


def test_a_trainer_that_goes_on_after_its_end_keeps_the_last_value_of_schedules():
    config = make_config("reinforce", "CartPole-v1", learning_rate="linear:1e-3:0", total_steps=1, num_envs=2)
    trainer = Trainer(config)
    trainer.iterate()
    before = [p.clone() for p in trainer.model.policy.parameters()]
    trainer.iterate()
    assert trainer.state.progress == 1
    assert all(map(torch.equal, before, trainer.model.policy.parameters()))


def test_a_device_must_compute_in_double_precision(monkeypatch):
    """MPS does not."""

    def zeros(*shape, dtype, device):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype\nas the MPS framework has none")

    monkeypatch.setattr(torch, "zeros", zeros)
    message = r"^device 'mps' is not available: Cannot convert a MPS Tensor to float64 dtype$"
    with pytest.raises(ConfigError, match=message):
        check_device("mps")


def test_progress_on_a_display_of_ones_own(tmp_path):
    out = io.StringIO()
    run = short_runs.quick_run(tmp_path, progress=LineDisplay(out), seed=1)
    lines = out.getvalue().splitlines()
    assert lines[1] == f"training in {tmp_path}"
    assert lines[-1] == describe_evaluation(run.steps()[-1], *run.evaluations()[-2:])


def test_evaluation_in_words():
    sampled = {"mean_return": 1234.56, "std_return": 7.89, "episodes": 100, "deterministic": False}
    modes = {"mean_return": 0.456, "std_return": 0.123, "episodes": 100, "deterministic": True}
    line = "step 12,345: mean return 1,234.6 ± 7.9 over 100 episodes"
    assert describe_evaluation(12345, sampled) == line
    assert describe_evaluation(12345, sampled, modes) == f"{line}; deterministic 0.456 ± 0.123"
    assert describe_evaluation(1, modes) == "step 1: deterministic mean return 0.456 ± 0.123 over 100 episodes"
    spoken = {"mean_return": 1.234, "std_return": 0.1, "episodes": 8, "deterministic": False, "kl_reference": 4.321}
    assert describe_evaluation(1, spoken) == "step 1: mean score 1.23 ± 0.10 over 8 responses, KL to the reference 4.32"
    assert " over 8 prompts, KL" in describe_evaluation(1, spoken | {"exact": True})


def test_quiet_without_progress(tmp_path, capfd):
    short_runs.quick_run(tmp_path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 29.1 TiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("Storage size calculation overflowed with sizes=[2000000000, 2000000000]"),
    ],
    ids=["numpy", "torch", "overflow"],
)
def test_too_little_memory_names_the_largest_setting(error, tmp_path, monkeypatch):
    def build(*_):
        raise error

    monkeypatch.setattr(Network, "build", build)
    with pytest.raises(ConfigError, match="there is not enough memory; the largest setting is hidden = 1234567"):
        short_runs.quick_run(tmp_path / "run", hidden=(8, 1234567), seed=2**40)
    assert not (tmp_path / "run").exists()


def test_too_little_memory_in_training_says_what_to_lower(tmp_path, monkeypatch):
    def collect(*_):
        raise MemoryError("Unable to allocate 29.1 TiB")

    monkeypatch.setattr("rlzoo.core.collector.Collector.collect", collect)
    with pytest.raises(
        TrainingError, match=r"step 0: there is not enough memory: lower .*29\.1 TiB.*; there is no checkpoint yet"
    ):
        short_runs.quick_run(tmp_path)


def test_programming_errors_in_training_keep_their_class(tmp_path, monkeypatch):
    def collect(*_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("rlzoo.core.collector.Collector.collect", collect)
    with pytest.raises(RuntimeError, match="mat1 and mat2") as error:
        short_runs.quick_run(tmp_path)
    assert type(error.value) is RuntimeError


def test_config_dataclass_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_config("ppo", "CartPole-v1").seed = 1


def test_environment_without_state_starts_other_episodes_after_each_resume():
    wrappers = ("gymnasium.wrappers:NormalizeReward",)  # whose statistics outlast a reset
    config = make_config("ppo-clip", "CartPole-v1", num_envs=2, num_steps=16, minibatch_size=32, wrappers=wrappers)

    def start(trainer):
        return trainer.task.env.reset()[0].copy()

    first, second, again = (Trainer(config) for _ in range(3))
    first.iterate()
    for resumed in (second, again):
        resumed.restore(first.checkpoint())
    after_resume = start(second)
    np.testing.assert_array_equal(after_resume, start(again))
    assert not np.array_equal(after_resume, start(Trainer(config)))


@pytest.mark.parametrize("answer", [0.5, "stop", 3])
def test_an_answer_of_a_hook_that_means_nothing_is_an_error(answer, tmp_path):
    with pytest.raises(
        ConfigError, match=f"on_iteration must return True, False, None or metrics by name, got {answer!r}"
    ):
        short_runs.quick_run(tmp_path, on_iteration=lambda *_: answer)
    short_runs.quick_run(tmp_path, overwrite=True, on_iteration=lambda *_: np.bool_(False))


def falling(progress):
    return 1e-3 * (1 - progress)


def rising(progress):
    return 1e-3 * (1 + progress)


def test_a_function_that_is_named_is_not_replaced_when_a_run_goes_on(tmp_path):
    run = short_runs.quick_run(tmp_path, learning_rate=falling)
    assert resume(run, 600, learning_rate=falling).finished
    for other in (rising, 0.25):
        with pytest.raises(RunError, match="was made with learning_rate='test_train:falling': leave learning_rate out"):
            resume(run, 800, learning_rate=other)


def test_a_run_goes_on_from_its_best_checkpoint(tmp_path):
    run = short_runs.quick_run(tmp_path)
    best, *_, last = run.steps()
    run.mark_best(best, 1e6)
    resume(run, checkpoint="best", on_iteration=lambda *_: True)
    assert best < run.steps()[-1] < last


# What an algorithm or a network of one's own brings along


@dataclasses.dataclass(frozen=True)
class Tempered(PPOClip):
    """Learns a number of its own, beside the model."""

    name = "tempered"

    def init(self, model, rng):
        state = super().init(model, rng)
        state.optimizers["own"] = rlzoo.Adam([torch.nn.Parameter(1 + torch.rand(1))])
        return state

    def update(self, model, state, buffer):
        own = state.optimizers["own"]
        own.minimize(lambda model, batch: own.parameters[0].square().sum(), model, buffer, learning_rate=0.1)
        return super().update(model, state, buffer) | {"temperature": float(own.theta)}


def test_parameters_of_an_algorithm_are_in_its_checkpoints(tmp_path):
    settings = {"algorithm": Tempered(epochs=1, minibatch_size=100), "checkpoint_interval": 100}
    whole = short_runs.quick_run(tmp_path / "whole", **settings)
    half = short_runs.quick_run(tmp_path / "half", **settings, total_steps=300)
    resume(half, total_steps=600)
    first, *_, last = (x["temperature"] for x in whole.metrics())
    assert half.metrics()[-1]["temperature"] == last < first - 0.3
    assert short_runs.weights(half) == short_runs.weights(whole)


@dataclasses.dataclass(frozen=True)
class Unseeded(rlzoo.NetworkSettings):
    """A network that is initialised as PyTorch does."""

    def build(self, observation_space, action_space, generator=None):
        return ActorCritic(Linear(4, 2), LinearValue(4, 1))


def test_the_seed_is_that_of_a_network_of_ones_own_too():
    before = torch.get_rng_state()
    models = [
        Trainer(make_config("ppo-clip", "CartPole-v1", network=Unseeded(), seed=seed)).model for seed in (1, 1, 2)
    ]
    first, second, other = (torch.cat([p.flatten() for p in model.parameters()]) for model in models)
    assert torch.equal(first, second)
    assert not (first == other).any()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_has_no_other_attributes_and_no_keys_that_json_changes(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Foreign(PPOClip):
        def init(self, model, rng):
            state = super().init(model, rng)
            number = torch.nn.Parameter(torch.ones(1))
            number.grad = torch.ones(1)
            state.optimizers["own"] = torch.optim.AdamW([number])
            state.optimizers["own"].step()
            return state

    with pytest.raises(ConfigError, match=r"^a state_dict must have texts as keys; it has 0, as that of a torch.optim"):
        short_runs.quick_run(tmp_path, algorithm=Foreign(epochs=1, minibatch_size=100, normalize_advantage=False))
    with pytest.raises(AttributeError, match="baseline"):
        rlzoo.State(np.random.default_rng(0)).baseline = 0.5


@pytest.fixture
def sampled(monkeypatch):
    """Mean returns of the next sampled evaluations. The one before training and those of the mode give 9."""
    returns = []

    def evaluate(trainer, episodes, *, seed, deterministic=False):
        x = 9.0 if deterministic or trainer.step == 0 else returns.pop(0)
        return Evaluation(np.array([x]), np.array([1]), deterministic, seed)

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    monkeypatch.setattr(ControlTask, "evaluates_start", True)
    return returns


def test_the_best_checkpoint_is_by_sampled_evaluations_of_trained_policies(sampled, tmp_path):
    sampled += [3.0, 1.0]
    run = short_runs.quick_run(tmp_path, eval_interval=300)
    assert run.best_step() == run.evaluations()[1]["step"]
    sampled += [4.0, 2.0]
    resume(run, total_steps=900)
    assert run.best_step() == run.evaluations()[4]["step"]


def test_killed_before_the_best_checkpoint_was_marked(sampled, tmp_path):
    sampled += [1.0, 3.0]
    run = short_runs.quick_run(tmp_path, eval_interval=300)
    best = run.best_step()
    (run.checkpoints / "best.json").unlink()
    sampled += [2.0, 2.0]
    resume(run, total_steps=900)
    assert run.best_step() == best < run.steps()[-1]


def test_an_update_sees_observations_normalised_as_when_they_were_collected(monkeypatch):
    settings = {"num_envs": 2, "num_steps": 20, "minibatch_size": 40, "normalize_obs": True}
    trainer = Trainer(make_config("ppo-clip", "CartPole-v1", **settings))
    counts, update = [], PPOClip.update

    def spy(self, model, *rest):
        counts.append(int(model.normalizer.count))
        return update(self, model, *rest)

    monkeypatch.setattr(PPOClip, "update", spy)
    first, second = (trainer.iterate().step for _ in range(2))
    assert counts == [0, first]
    assert trainer.model.normalizer.count == second


def test_schedules_begin_at_their_start():
    trainer = Trainer(make_config("ppo-clip", "CartPole-v1", num_envs=2, num_steps=20, minibatch_size=40))
    first = trainer.iterate().step
    assert trainer.state.progress == 0.0
    trainer.iterate()
    assert trainer.state.progress == first / trainer.config.total_steps
