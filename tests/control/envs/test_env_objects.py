"""Environments given as functions and vector environments, wrappers, processes, and successes."""

import json
import re
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, TimeLimit

import rlzoo
from rlzoo.cli import main
from rlzoo.control.envs import source as envs
from rlzoo.control.envs.source import Source
from rlzoo.control.envs.wrappers import load_wrapper, wrap
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.collector import Collector
from rlzoo.core.env import Episode
from rlzoo.core.evaluation import Evaluation, play_episodes
from rlzoo.core.system.errors import ConfigError, EnvError, RunError, UnsupportedSpace
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer

QUICK = {"total_steps": 200, "num_steps": 25, "eval_episodes": 3, "hidden": (8,), "epochs": 1, "minibatch_size": 50}


class Walk(gymnasium.Env):
    """Walks left or right along a line; an episode is a success if it ends at the right. Its time limit is `length`."""

    observation_space = spaces.Dict({"place": spaces.Box(-9, 9, (1,)), "odd": spaces.Discrete(2)})
    action_space = spaces.Discrete(2, start=1)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, length=4, tells=True, render_mode=None):
        self.length, self.tells, self.render_mode = length, tells, render_mode

    def _observe(self):
        return {"place": np.float32([self.place]), "odd": self.steps % 2}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(-1, 2)), 0
        return self._observe(), {"is_success": True}  # of no episode that has ended

    def step(self, action):
        assert action in (1, 2)
        self.place += 1 if action == 2 else -1
        self.steps += 1
        ended, cut = abs(self.place) == 3, self.steps == self.length
        info = {"is_success": np.bool_(self.place > 0)} if self.tells else {}
        return self._observe(), float(self.place > 0), ended, cut and not ended, info

    def render(self):
        return np.full((16, 16, 3), self.steps, np.uint8)


def vector(copies=3, mode=AutoresetMode.NEXT_STEP, **settings):
    return SyncVectorEnv([lambda: Walk(**settings)] * copies, autoreset_mode=mode)


def right(obs, forced, starts):
    return np.ones(len(obs), np.int64)


class NotAnEnv:
    pass


def make_nothing():
    return None


# Functions


@pytest.mark.parametrize("env", [Walk, f"{__name__}:Walk", lambda **kwargs: Walk(**kwargs)])
def test_function_makes_the_copies(env):
    made = envs.make(env, 3, 7, length=5)
    same = envs.make(Walk, 3, 7, length=5)
    for a, b in (
        (made.reset(), same.reset()),
        (made.step(right([0] * 3, None, None)), same.step(right([0] * 3, None, None))),
    ):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert made.observation_space.shape == (3,)
    assert made.raw_observation_space == Walk.observation_space


def test_run_of_a_function_that_can_be_imported_needs_nothing(tmp_path):
    run = rlzoo.train("ppo", Walk, out=tmp_path, num_envs=4, **QUICK)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["env"] == f"{__name__}:Walk"
    assert record["spaces"] == {
        "observation": " ".join(str(Walk.observation_space).split()),
        "action": "Discrete(2, start=1)",
    }
    assert rlzoo.evaluate(run, 3).lengths.max() <= 4
    assert rlzoo.resume(run, total_steps=400).steps()[-1] >= 400


def test_run_of_a_function_without_a_name_needs_it_again(tmp_path):
    make = lambda: Walk(length=3)  # noqa: E731
    run = rlzoo.train("ppo", make, out=tmp_path, num_envs=4, **QUICK)
    with pytest.raises(RunError, match=rf"cannot hold: pass env=... \(a lambda of {__name__}\)$"):
        rlzoo.evaluate(run)
    assert rlzoo.evaluate(run, 3, env=make).lengths.max() <= 3
    assert rlzoo.resume(run, total_steps=400, env=make).steps()[-1] >= 400
    video = tmp_path / "walk.gif"
    with pytest.raises(ConfigError, match=r"play needs lambda to take render_mode='rgb_array', and to pass it on"):
        rlzoo.play(run, env=make, video=video)
    assert len(rlzoo.play(run, env=lambda render_mode=None: Walk(3, render_mode=render_mode), video=video)) == 1


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (3, ConfigError, "env must be a Gymnasium id, module:function, a function that returns an environment"),
        (Walk(), ConfigError, "env is one environment, and training needs copies: give a function that makes"),
        (make_nothing, EnvError, "environment 'make_nothing' is None, not a gymnasium.Env: end it with `return env`"),
        (NotAnEnv, EnvError, "not a gymnasium.Env: give a function that returns a gymnasium.Env"),
        (lambda: 1 / 0, EnvError, "environment 'lambda' cannot be made: ZeroDivisionError: division by zero"),
        (lambda x: x, EnvError, "environment 'lambda' cannot be made: TypeError"),
        (f"{__name__}:NotAnEnv", ConfigError, "has no Task or function of this name and registers no such environment"),
    ],
)
def test_wrong_environments_are_one_line(env, error, message):
    with pytest.raises(error, match=re.escape(message)) as found:
        Trainer(make_config("ppo", env, num_envs=2, num_steps=32))
    assert "\n" not in str(found.value)


def test_copies_with_other_spaces_are_named():
    made = iter([Walk(), gymnasium.make("CartPole-v1")])
    with pytest.raises(EnvError, match=r"copy 1 has the observation space Box.*, copy 0 has Dict"):
        envs.make(lambda: next(made), 2, 0)


# Vector environments


def test_vector_environment_steps_as_its_copies_do():
    ours, theirs = Source(Walk).make(3, 5), Source(vector()).make(3, 5)
    for env in (ours, theirs):
        env.seen = [env.reset()[0].copy()]
        for _ in range(9):
            obs, reward, terminated, truncated, forced = env.step(right([0] * 3, None, None))
            env.seen += [
                obs.copy(),
                reward.copy(),
                terminated.copy(),
                truncated.copy(),
                forced.copy(),
                env.success.copy(),
            ]
    for x, y in zip(ours.seen, theirs.seen, strict=True):
        np.testing.assert_array_equal(x, y)


def test_vector_environment_is_used_for_training_and_evaluation_in_turn(tmp_path):
    env = vector()
    run = rlzoo.train("ppo", env, out=tmp_path, normalize_reward=True, **QUICK)
    assert run.path == tmp_path
    with pytest.raises(RunError, match=r"cannot hold: pass env=... \(an instance of SyncVectorEnv of gymnasium"):
        rlzoo.evaluate(run)
    first, again = (rlzoo.evaluate(run, 7, env=env, seed=3) for _ in range(2))
    assert first.returns.tolist() == again.returns.tolist()
    assert len(first.returns) == 7
    assert rlzoo.resume(run, total_steps=400, env=env).steps()[-1] >= 400
    assert not env.closed


def test_training_starts_new_episodes_after_an_evaluation():
    trainer = Trainer(make_config("ppo", vector(length=40), **{**QUICK, "num_steps": 30}))
    trainer.iterate()
    trainer.task.evaluate(3, seed=1)
    experience = trainer.task.collector.collect(trainer.task.actor())
    odd = experience.buffer.obs[:, 0, :2]  # steps taken, which is even at the first observation of an episode
    assert odd.tolist() == [[1, 0]] * 3
    assert all(episode.length <= 30 for episode in experience.episodes)
    trainer.task.close()


def test_training_starts_new_episodes_after_another_evaluation_or_training_in_its_environment(tmp_path):
    env, settings = vector(length=40), {**QUICK, "num_steps": 30, "normalize_reward": True}
    run = rlzoo.train("ppo", env, out=tmp_path, **{**settings, "total_steps": 90})
    trainer, other = (Trainer(make_config("ppo", env, seed=seed, **settings)) for seed in (1, 2))
    for use in (lambda: rlzoo.evaluate(run, 3, env=env), other.iterate):
        trainer.iterate()
        use()
        trainer.model.reward_scale.running.fill_(1e6)
        buffer = trainer.task.collect().buffer
        assert buffer.obs[:, 0, :2].tolist() == [[1, 0]] * 3
        assert trainer.model.reward_scale.running.max() < 1e6
    assert other.task.env.interrupted
    assert not trainer.task.env.interrupted


def test_first_reset_counts_where_the_vector_environment_was_stepped_meanwhile():
    source = Source(vector(length=40))
    env, other = source.make(3, seed=0), source.make(3, seed=1)
    other.reset()
    other.step(np.zeros(3, int))
    first = env.reset()[0].copy()
    assert env.step(np.zeros(3, int))[0][:, :2].tolist() == [[0, 1]] * 3  # an odd number of steps
    np.testing.assert_array_equal(Source(vector(length=40)).make(3, seed=0).reset()[0], first)


def test_vector_environment_is_played_as_it_was_made(tmp_path):
    env = vector(render_mode="rgb_array")
    run = rlzoo.train("ppo", env, out=tmp_path / "run", **QUICK)
    assert len(rlzoo.play(run, 2, env=env, video=tmp_path / "walk.gif")) == 2
    with pytest.raises(
        ConfigError, match=r"play needs a vector environment made with render_mode='rgb_array', got None"
    ):
        rlzoo.play(run, env=vector(), video=tmp_path / "walk.gif")


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        (vector(), {"num_envs": 4}, "num_envs must be 3, as the vector environment has, got 4"),
        (vector(), {"wrappers": [TimeLimit]}, "wrappers cannot change a vector environment that is made already"),
        (vector(), {"env_kwargs": {"a": 1}}, "env_kwargs cannot change a vector environment that is made already"),
        (vector(), {"async_envs": True}, "async_envs cannot change a vector environment that is made already"),
        (vector(mode=AutoresetMode.SAME_STEP), {}, "made with autoreset_mode=AutoresetMode.NEXT_STEP, got"),
        (vector(mode=AutoresetMode.DISABLED), {}, "made with autoreset_mode=AutoresetMode.NEXT_STEP, got"),
    ],
)
def test_what_a_vector_environment_cannot_have(env, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config("ppo", env, num_steps=32, **settings)


def test_given_processes_share_their_memory():
    env = vector()
    env.shared_memory = False  # as an AsyncVectorEnv has it
    with pytest.raises(ConfigError, match=r"^env must be made with shared_memory=True: without it Gymnasium resets"):
        make_config("ppo", env, num_steps=32)


def test_spaces_of_a_vector_environment_are_checked():
    env = vector()
    env.single_observation_space = spaces.Text(3)
    with pytest.raises(UnsupportedSpace, match="observation space Text"):
        Source(env).make(3, 0)


def test_info_of_a_vector_environment_is_a_dict():
    with pytest.raises(EnvError, match=r"step 0: info must be a dict of arrays, got a list$"):
        Source(gymnasium.wrappers.vector.DictInfoToList(vector())).make(3, 0).reset()


# Wrappers


def test_wrappers_are_applied_in_order_from_every_form():
    text = "gymnasium.wrappers:TimeLimit(max_episode_steps=3)"
    env = wrap(gymnasium.make("CartPole-v1"), [text, lambda env: FrameStackObservation(env, 2)])
    assert isinstance(env, FrameStackObservation)
    assert isinstance(env.env, TimeLimit)
    assert env.env._max_episode_steps == 3
    assert load_wrapper("gymnasium.wrappers:TimeLimit") is TimeLimit
    assert load_wrapper("builtins:dict( a = [1, 'x'], b={'y': None})")() == {"a": [1, "x"], "b": {"y": None}}


@pytest.mark.parametrize(
    ("wrapper", "error", "message"),
    [
        (
            3,
            ConfigError,
            "a wrapper must be a class, a function of an environment, module:Class or module:Class(key=value)",
        ),
        (
            "TimeLimit",
            ConfigError,
            "such as wrappers=[MyWrapper] or gymnasium.wrappers:TimeLimit(max_episode_steps=100)",
        ),
        ("nowhere:X", ConfigError, "wrapper 'nowhere:X': no module 'nowhere'"),
        ("gymnasium.wrappers:TimeLimt", ConfigError, "no function 'TimeLimt'; did you mean 'TimeLimit'?"),
        ("math:pi", ConfigError, "pi is not a function but of type float"),
        ("builtins:dict(3)", ConfigError, "its arguments must be key=value with numbers, strings"),
        ("builtins:dict(a=print('x'))", ConfigError, "its arguments must be key=value"),
        ("builtins:dict(**{'a': 1})", ConfigError, "its arguments must be key=value"),
        ("builtins:dict(a=1)(b=2)", ConfigError, "its arguments must be key=value"),
        ("builtins:dict(a={[1]: 2})", ConfigError, "its arguments must be key=value"),
        ("builtins:dict(a=1) + dict(b=2)", ConfigError, "its arguments must be key=value"),
        ("builtins:dict(a=1, a=)", ConfigError, "its arguments must be key=value"),
        (lambda env: None, EnvError, "wrapper <lambda> returned None, not an environment: end it with `return env`"),
        (lambda env: 1 / 0, EnvError, "wrapper <lambda> cannot wrap the environment: ZeroDivisionError"),
    ],
)
def test_wrong_wrappers_are_one_line(wrapper, error, message, capsys):
    with pytest.raises(error, match=re.escape(message)) as found:
        Trainer(make_config("ppo", Walk, num_envs=2, num_steps=32, wrappers=[wrapper]))
    assert "\n" not in str(found.value)
    assert capsys.readouterr().out == ""


def test_wrapper_that_changes_the_spaces_between_runs_is_one_line(tmp_path):
    two, three = (lambda env: FrameStackObservation(env, 2)), (lambda env: FrameStackObservation(env, 3))
    run = rlzoo.train("ppo", "CartPole-v1", wrappers=[two], out=tmp_path, num_envs=2, **QUICK)
    assert len(rlzoo.evaluate(run, 2, wrappers=[two]).returns) == 2
    for use in (rlzoo.evaluate, partial(rlzoo.resume, total_steps=400), rlzoo.load_model):
        with pytest.raises(
            RunError, match=r"the observation space is now .*\(3, 4\).*, but the run was trained with .*\(2, 4"
        ):
            use(run, wrappers=[three])


# Processes


@pytest.mark.slow
def test_copies_in_processes_give_the_same_run():
    one, many = (
        Trainer(make_config("ppo", Walk, num_envs=2, num_steps=32, minibatch_size=32, epochs=1, async_envs=x))
        for x in (False, True)
    )
    try:
        for trainer in (one, many):
            trainer.iterate()
            trainer.found = trainer.task.evaluate(4, seed=0)
        assert one.found.summary() == many.found.summary()
    finally:
        many.task.close()


def test_processes_are_not_for_the_vectorised_environments():
    with pytest.raises(
        ConfigError, match=r"async_envs: CartPole-v1 is vectorised in this process; add vectorized=False"
    ):
        make_config("ppo", "CartPole-v1", async_envs=True)
    assert make_config("ppo", "CartPole-v1", async_envs=True, vectorized=False).task.async_envs


# Successes


@pytest.mark.parametrize("given", [False, True], ids=["function", "vector"])
@pytest.mark.parametrize(("success", "known"), [(None, None), (np.True_, True), (np.float32(0), False)], ids=repr)
def test_success_of_none_is_unknown(success, known, given):
    class Ends(Walk):
        def step(self, action):
            return *super().step(action)[:4], {"is_success": success}

    env = envs.make(SyncVectorEnv([partial(Ends, 2)]) if given else Ends, 1, 0, **({} if given else {"length": 2}))
    episodes = play_episodes(env, right, 2)
    assert [episode.success for episode in episodes] == [known, known]


@pytest.mark.parametrize("success", [np.nan, "no", 2, [1, 0]], ids=repr)
def test_success_that_is_neither_true_nor_false_is_an_error(success):
    class Ends(Walk):
        def step(self, action):
            return *super().step(action)[:4], {"is_success": success}

    with pytest.raises(EnvError, match="copy 0 raised TypeError: is_success must be True or False, got "):
        play_episodes(envs.make(Ends, 1, 0), right, 1)


@pytest.mark.parametrize("info", [np.array(["a", "b"]), np.ones((2, 2)), np.array([[1], None], object)], ids=repr)
@pytest.mark.parametrize("name", ["is_success", "x"])
def test_info_of_a_vector_environment_that_is_no_number_is_an_error(info, name, monkeypatch):
    env = Source(given := vector(2), log_info=("x",)).make(2, 0)
    env.reset()
    step = given.step
    monkeypatch.setattr(given, "step", lambda action: (*step(action)[:4], {name: info}))
    with pytest.raises(EnvError, match=rf"step 1: info\['{name}'\] must be a number for each copy, got "):
        env.step(np.zeros(2, np.int64))


def test_number_for_all_copies_of_a_vector_environment(monkeypatch):
    env = Source(given := vector(2), log_info=("x",)).make(2, 0)
    env.reset()
    step = given.step
    monkeypatch.setattr(given, "step", lambda action: (*step(action)[:4], {"is_success": True, "x": 3.0}))
    steps = 0
    for _ in range(8):
        steps += (~env._ended).sum()
        *_, done = env.step(np.ones(2, np.int64))
        np.testing.assert_array_equal(env.success, np.where(done, 1, np.nan))
    np.testing.assert_array_equal(env.info_sums(), [[3 * steps, steps]])


def test_rate_of_successes():
    episodes = [Episode(1.0, 2), Episode(1.0, 2, True), Episode(1.0, 2, False), Episode(0.0, 1, True)]
    assert Evaluation.of(episodes, False, 0).further == {"success_rate": 2 / 3}
    assert Evaluation.of(episodes[:1], False, 0).further == {}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "source",
    [Source(Walk), Source(vector()), pytest.param(Source(Walk, asynchronous=True), marks=pytest.mark.slow)],
)
def test_episodes_tell_whether_they_were_a_success(source, whole):
    env = source.make(3, 0)
    collector = Collector(env, 20, whole_episodes=whole)
    alternate = iter(range(10_000))

    def actor(obs, forced, starts):
        goes_right = next(alternate) // 8 % 2 == 0
        return np.full(3, int(goes_right))

    try:
        episodes = collector.collect(actor).episodes + collector.collect(actor).episodes
    finally:
        env.close()
    assert {episode.success for episode in episodes} >= {True}
    assert all(episode.success is not None for episode in episodes)
    assert all(episode.success for episode in episodes if episode.return_ == episode.length)
    assert len(episodes) == 6 or not whole


def test_settings_of_a_vector_environment_start_from_its_copies():
    assert ControlTask.default_settings(vector(5)).num_envs == 5
    assert ControlTask.default_settings("CartPole-v1") == Control()


def test_command_line_names_wrappers_network_and_function(tmp_path):
    wrapper = "gymnasium.wrappers:TimeLimit(max_episode_steps=2)"
    small = ["--total-steps", "64", "--num-envs", "2", "--num-steps", "32", "--eval-episodes", "2"]
    arguments = ["train", "ppo-clip", f"{__name__}:Walk", *small, "--wrapper", wrapper, "--wrapper", f"{__name__}:same"]
    assert main([*arguments, "--network", "mlp", "--quiet", "--threads", "1", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["wrappers"] == [wrapper, f"{__name__}:same"]
    assert record["network"] == "mlp"
    assert rlzoo.evaluate(tmp_path, 2).lengths.tolist() == [2, 2]


def same(env):
    return env
