"""Attributes of the copies that a hook sets, and numbers in `info` that are logged."""

import sys

import cloudpickle
import gymnasium
import numpy as np
import pytest
import short_runs
from gymnasium import spaces

import rlzoo
from rlzoo.control.envs.source import Source
from rlzoo.core.system.errors import ConfigError, EnvError, TrainingError
from rlzoo.runs.loop import Trainer
from rlzoo.runs.session import Hooks
from rlzoo.runs.train import resume, train


class Drift(gymnasium.Env):
    """A random walk with a drift, which `speed` scales, to a limit."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)
    speed = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = np.zeros(1, np.float32), 0
        return self.x, {"speed": 99.0}

    def step(self, action):
        self.t += 1
        self.x = self.x + np.float32(self.speed * (action + self.np_random.normal()))
        info = {"speed": self.speed, "text": "a", **({"length": np.int64(self.t)} if self.t == 12 else {})}
        return self.x, float(self.x[0]), False, self.t == 12, info

    @property
    def locked(self):
        return 0

    @locked.setter
    def locked(self, value):
        raise ValueError("no")


class Slow(gymnasium.Wrapper):
    """A wrapper with an attribute of its own."""

    pause = 0


SMALL = {
    "algorithm": "ppo-clip", "env": Drift, "preset": False, "total_steps": 240, "num_envs": 2, "num_steps": 20,
    "minibatch_size": 20, "epochs": 1, "eval_episodes": 2, "final_eval_episodes": 2, "checkpoint_interval": 40,
}  # fmt: skip
ASYNC = [False, pytest.param(True, marks=pytest.mark.slow)]


def faster(trainer, _):
    """A curriculum that is a function of the step, which is in the middle of episodes."""
    trainer.set_attr("speed", 1 + trainer.step // 80)


@pytest.mark.parametrize("asynchronous", ASYNC)
def test_attributes_reach_the_environment_or_the_wrapper_that_has_them(asynchronous):
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])  # an error is to name this file
    env = Source(Drift, wrappers=(Slow,), asynchronous=asynchronous).make(2, 0)
    env.set_attr("speed", 0)
    env.set_attr("pause", (np.int64(1), 2))
    assert env.attributes == {"speed": 0, "pause": [1, 2]}
    assert env._vector.get_attr("pause") == ([1, 2], [1, 2])
    env._vector.get_attr("pause")[0].append(3)  # each copy has a list of its own
    assert env._vector.get_attr("pause")[1] == env.attributes["pause"] == [1, 2]
    env.reset()
    assert (env.step(np.ones(2, np.int64))[0] == 0).all()
    for name, value, fault in (
        ("sped", 2, "has no attribute 'sped'"),
        ("locked", 2, r"setting 'locked' raised ValueError: no \(.*test_attributes.py:\d+\)"),
        ("speed", Slow, "set_attr: speed must be made of numbers, texts, lists and dicts"),
    ):
        with pytest.raises(ConfigError, match=fault):
            env.set_attr(name, value)
    env.close()


def test_what_has_no_attributes_says_so():
    trainer = Trainer(rlzoo.make_config("ppo-clip", "CartPole-v1"))
    with pytest.raises(ConfigError, match="set_attr: CartPole has no copies of a Gymnasium environment"):
        trainer.set_attr("gravity", 5)
    vector = gymnasium.vector.SyncVectorEnv([Drift])
    with pytest.raises(ConfigError, match="SyncVectorEnv is a vector environment of yours: call its own set_attr"):
        Source(vector).make(1, 0).set_attr("speed", 2)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"async_envs": True}, marks=pytest.mark.slow),
        {"algorithm": "reinforce", "num_steps": None, "minibatch_size": None, "epochs": None},
    ],
)
def test_curriculum_that_is_resumed_equals_one_that_was_never_stopped(settings, tmp_path):
    given = {name: x for name, x in (SMALL | settings).items() if x is not None} | {"log_info": ["speed"]}
    whole, part = (train(**given, out=tmp_path / name, on_iteration=faster) for name in ("whole", "part"))
    speeds = [record["info_speed"] for record in whole.metrics()]
    assert speeds[0] == 1
    assert speeds[-1] > 2
    resumed = resume(part, checkpoint=part.steps()[0], env=Drift, on_iteration=faster)
    assert short_runs.outcome(resumed) == short_runs.outcome(whole)


def test_attributes_are_there_where_episodes_cannot_be_repeated(tmp_path):
    class NormalizeReward(Slow):
        """Has the name of a wrapper whose statistics outlast a reset."""

    given = SMALL | {"wrappers": (NormalizeReward,), "log_info": ("speed",)}
    run = train(**given, out=tmp_path / "run", on_iteration=faster)
    resumed = resume(run, 280, env=Drift, wrappers=[NormalizeReward])
    assert resumed.metrics()[-1]["info_speed"] == 4


def test_evaluations_are_in_the_environment_as_it_was_made():
    trainer = Trainer(rlzoo.make_config(SMALL["algorithm"], Drift, num_envs=2))
    before = trainer.task.evaluate(3, seed=1).returns
    trainer.set_attr("speed", 0)
    assert (trainer.task.evaluate(3, seed=1).returns == before).all()


@pytest.mark.parametrize("asynchronous", ASYNC)
def test_means_of_numbers_in_info(asynchronous, tmp_path, capsys):
    names = ["speed", "length", "typo"]
    run = train(**SMALL, out=tmp_path / "run", log_info=names, async_envs=asynchronous, progress=True)
    records = run.metrics()
    assert [record["info_speed"] for record in records] == [1.0] * len(records)  # not 99, which a reset says
    assert [record.get("info_length") for record in records[:3]] == [12.0] * 3
    assert not any("info_typo" in record for record in records)
    assert capsys.readouterr().out.count("log_info: Drift has not had typo in info so far") == 1
    assert run.read_config(env=Drift).task.log_info == tuple(names)


class Counted(gymnasium.Env):
    """An episode of `length` steps, which tells how many episodes there were before."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def __init__(self, length):
        self.length, self.episode = length, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number, self.episode = 0, self.episode + 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        return np.zeros(1, np.float32), 1.0, self.step_number == self.length, False, {"episode": self.episode}


def test_means_of_whole_episodes_leave_out_those_that_are_not_trained_on():
    vector = gymnasium.vector.SyncVectorEnv([lambda: Counted(2), lambda: Counted(40)])
    settings = {"total_steps": 42, "log_info": ["episode"], "vf_minibatch_size": "all"}
    trainer = Trainer(rlzoo.make_config("reinforce", vector, **settings))
    assert trainer.iterate().metrics["info_episode"] in (0, 1)  # and no mean of several


def test_numbers_of_a_vector_environment_of_the_users(tmp_path):
    vector = gymnasium.vector.SyncVectorEnv([Drift, Drift])
    run = train(**SMALL | {"env": vector}, out=tmp_path / "run", log_info=["speed"])
    assert {record["info_speed"] for record in run.metrics()} == {1.0}


def test_what_cannot_be_logged(tmp_path):
    with pytest.raises(TrainingError, match=r"log_info: info\['text'\] must be a number, got 'a'") as caught:
        train(**SMALL, out=tmp_path / "run", log_info=["text"])
    assert isinstance(caught.value.__cause__, EnvError)
    with pytest.raises(ConfigError, match=r"log_info: the vectorised CartPole-v1 has no info; add vectorized=False"):
        rlzoo.make_config("ppo-clip", "CartPole-v1", log_info=["x"])


def test_what_a_hook_adds_is_logged_everywhere(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def add(trainer, iteration):
        iteration.metrics["written"] = 2.0
        return {"returned": 3.0, "entropy": -1.0}  # a name that is taken

    run = train(**SMALL, out=tmp_path / "run", hooks=Hooks(on_iteration=add))
    assert {(record["written"], record["returned"]) for record in run.metrics()} == {(2.0, 3.0)}
    assert all(record["entropy"] >= 0 for record in run.metrics())
    events = EventAccumulator(str(run.path)).Reload()
    for name, value in (("written", 2), ("returned", 3)):
        assert {event.value for event in events.Scalars(f"train/{name}")} == {value}


@pytest.mark.slow
def test_several_processes_set_and_log_the_same(tmp_path):
    def work(path):
        train(**SMALL, out=path, log_info=["speed", "length"], on_iteration=faster)

    work(tmp_path / "one")
    assert short_runs.in_processes(2, lambda: work(tmp_path / "two")) == [0, 0]
    one, two = (rlzoo.Run(tmp_path / name).metrics() for name in ("one", "two"))
    for name in ("info_speed", "info_length"):
        assert [record.get(name) for record in two] == pytest.approx([record.get(name) for record in one])
