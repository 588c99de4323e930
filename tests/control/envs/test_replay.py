"""Episodes of Gymnasium environments are repeated on resume: the run ends as one that was never stopped."""

import gymnasium
import numpy as np
import pytest
import short_runs
from gymnasium import spaces

from rlzoo.control.envs.gymnasium_env import GymnasiumEnv
from rlzoo.control.envs.source import Source
from rlzoo.core.env import ReplayError
from rlzoo.runs.train import resume, train


class Nested(gymnasium.Env):
    """A random walk with Dict observations and actions, and random numbers in resets and steps."""

    observation_space = spaces.Dict(x=spaces.Box(-np.inf, np.inf, (2,)), n=spaces.Discrete(50))
    action_space = spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Tuple([spaces.Discrete(3, start=1)]))

    def _obs(self):
        return {"x": self.x.astype(np.float32), "n": self.n}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.n = self.np_random.normal(size=2), 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.x = self.x + action["a"] + self.np_random.normal(size=2) * action["b"][0]
        self.n += 1
        return self._obs(), float(-abs(self.x).sum()), abs(self.x).max() > 6, self.n == 40, {}


class Foreign(gymnasium.Env):
    """Random numbers that are not Gymnasium's, so that no episode can be repeated."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)
    numbers = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.numbers.normal(size=1).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.numbers.normal(size=1).astype(np.float32), 1.0, self.t == 30, False, {}


SMALL = {
    "algorithm": "ppo-clip",
    "preset": False,
    "total_steps": 400,
    "num_envs": 4,
    "num_steps": 25,
    "minibatch_size": 50,
    "epochs": 1,
    "normalize_reward": True,
    "eval_episodes": 3,
    "final_eval_episodes": 3,
    "checkpoint_interval": 100,
}
TRPO = {"algorithm": "trpo", "vf_minibatch_size": 50}
LIMIT = {"wrappers": ("gymnasium.wrappers:TimeLimit(max_episode_steps=30)",)}
SLOW = pytest.mark.slow


def settings_of(env, *without, **more):
    return {name: x for name, x in {**SMALL, "env": env, **more}.items() if name not in without}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        settings_of(Nested),
        settings_of("Taxi-v4"),
        settings_of("CliffWalking-v1", **LIMIT),
        settings_of("FrozenLake-v1"),
        settings_of("CartPole-v1", vectorized=False, network="gru", cell_size=4),
        pytest.param(
            settings_of("Taxi-v4", "epochs", "minibatch_size", **TRPO, **LIMIT),
            marks=SLOW,
        ),
        pytest.param(settings_of("LunarLander-v3"), marks=SLOW),
        pytest.param(settings_of("LunarLander-v3", env_kwargs={"continuous": True, "enable_wind": True}), marks=SLOW),
        pytest.param(settings_of(Nested, num_envs=2, async_envs=True), marks=SLOW),
        pytest.param(
            settings_of(
                Nested, "epochs", "minibatch_size", "num_steps", algorithm="reinforce", num_envs=2, async_envs=True
            ),
            marks=SLOW,
        ),
    ],
    ids=lambda x: f"{x['algorithm']}-{getattr(x['env'], '__name__', x['env'])}",
)
def test_resumed_equals_never_stopped(settings, tmp_path, capsys):
    if settings["env"] == "LunarLander-v3":
        pytest.importorskip("Box2D")
    whole, part = (train(**settings, out=tmp_path / name) for name in ("whole", "part"))
    first = part.steps()[0]
    assert first < part.steps()[-1]
    objects = {} if isinstance(settings["env"], str) else {"env": settings["env"]}
    resumed = resume(part, checkpoint=first, progress=True, **objects)
    assert "steps of the episodes that had begun, in " in capsys.readouterr().out
    assert short_runs.outcome(resumed) == short_runs.outcome(whole)


def roll(env, steps):
    """The results of steps with given actions."""
    actions = np.random.default_rng(steps).integers(2, size=(steps, env.num_envs))
    return [np.concatenate([np.ravel(x) for x in env.step(action)]) for action in actions]


@pytest.mark.parametrize(
    ("steps", "asynchronous"), [(0, False), (1, False), (9, False), (10, False), pytest.param(10, True, marks=SLOW)]
)
def test_state_at_every_point_of_an_episode(steps, asynchronous):
    """Also at the end of one, where the next step is a reset."""

    def make():
        limit = "gymnasium.wrappers:TimeLimit(max_episode_steps=10)"
        return Source("CartPole-v1", {}, (limit,), vectorized=False, asynchronous=asynchronous).make(2, 3)

    env, other, fresh = make(), make(), make()
    for used, before in ((env, steps), (other, 7)):
        used.reset()
        roll(used, before)
    other.load_state_dict(env.state_dict())
    again = [copy["obs"] for copy in other.state_dict()["copies"]]
    np.testing.assert_array_equal(again, [copy["obs"] for copy in env.state_dict()["copies"]])
    np.testing.assert_array_equal(roll(other, 30), roll(env, 30))
    fresh.load_state_dict(make().state_dict())
    np.testing.assert_array_equal(fresh.reset()[0], make().reset()[0])


class FromSeed(gymnasium.Env):
    """Has random numbers from its first reset with a seed on."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        return self.rng.normal(size=1).astype(np.float32), {}

    def step(self, action):
        return self.rng.normal(size=1).astype(np.float32), 1.0, False, False, {}


def test_no_copy_is_reset_without_a_seed_before_it_repeats_its_episode():
    env, other = (Source(FromSeed).make(2, 3) for _ in range(2))
    env.reset()
    env.step(np.zeros((2, 1)))
    other.load_state_dict(env.state_dict())
    np.testing.assert_array_equal(*(x.step(np.zeros((2, 1)))[0] for x in (env, other)))


def test_a_state_without_attributes_is_that_of_version_0_1_0():
    env, other = (Source("CartPole-v1", vectorized=False).make(2, 3) for _ in range(2))
    for used, before in ((env, 5), (other, 7)):
        used.reset()
        roll(used, before)
    state = env.state_dict()
    for of_copy in state["copies"]:
        del of_copy["attributes"]
    other.load_state_dict(state)
    np.testing.assert_array_equal(roll(other, 30), roll(env, 30))


def test_an_environment_that_does_not_repeat_itself_is_named(tmp_path, capsys):
    run = train(**settings_of(Foreign), out=tmp_path)
    resume(run, checkpoint=run.steps()[0], env=Foreign, progress=True)
    said = capsys.readouterr().out
    assert "Foreign does not repeat an episode from its seed and actions: new episodes start\n" in said
    assert run.finished


def test_a_copy_more_is_refused():
    env = GymnasiumEnv(Source("Taxi-v4").make(2, 0)._vector, "Taxi-v4", 0)
    env.reset()
    with pytest.raises(ValueError, match="2 copies given, 3 needed"):
        Source("Taxi-v4").make(3, 0).load_state_dict(env.state_dict())


class Draws(gymnasium.Env):
    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
    extra = 0
    """Random numbers that a step draws besides, which no observation shows."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.np_random.random(1 + self.extra)
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_an_environment_that_draws_other_random_numbers_does_not_repeat(monkeypatch):
    env, other = (Source(Draws).make(1, 3) for _ in range(2))
    env.reset()
    env.step(np.zeros(1, np.int64))
    monkeypatch.setattr(Draws, "extra", 1)
    with pytest.raises(ReplayError, match="does not repeat"):
        other.load_state_dict(env.state_dict())


def test_an_episode_that_had_ended_is_not_part_of_the_next():
    limit = "gymnasium.wrappers:TimeLimit(max_episode_steps=5)"
    env, other = (Source("CartPole-v1", {}, (limit,), vectorized=False).make(2, 3) for _ in range(2))
    env.reset()
    for _ in range(5):
        env.step(np.zeros(2, np.int64))
    other.load_state_dict(env.state_dict())  # where the next step is a reset
    for _ in range(3):
        other.step(np.zeros(2, np.int64))
    assert [len(copy["actions"]) for copy in other.state_dict()["copies"]] == [2, 2]


def test_a_reset_in_the_middle_of_an_episode_forgets_its_actions():
    env, other = (Source("CartPole-v1", vectorized=False).make(2, 3) for _ in range(2))
    for steps in (3, 2):  # a reset in the middle of an episode
        env.reset()
        for _ in range(steps):
            env.step(np.ones(2, np.int64))
    other.load_state_dict(env.state_dict())
    assert [len(copy["actions"]) for copy in other.state_dict()["copies"]] == [2, 2]
