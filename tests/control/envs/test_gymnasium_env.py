"""The Gymnasium adapter, on small environments that show what they were given and break on demand."""

import copy
import functools
import gc
import os
import re
import sys
import traceback

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rlzoo.control.envs import source as envs
from rlzoo.control.envs.source import Source
from rlzoo.core.system.errors import EnvError, UnknownEnv, UnsupportedSpace

RECEIVED = []
"""Actions that the environments of this process were given, one after another."""


class Echo(gymnasium.Env):
    """Observes samples of its space, rewards 1, 2, 3, ..., ends after `length` steps.

    `fault(step, obs, reward)` may raise, or return another observation and reward, in the copy whose seed
    is `faulty_seed`.
    """

    def __init__(self, obs_space, action_space=None, length=3, fault=None, faulty_seed=None, on_close=None):
        self.observation_space = copy.deepcopy(obs_space)
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.length, self.fault, self.faulty_seed, self.on_close = length, fault, faulty_seed, on_close

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.seed = seed
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {"ignored": 1}

    def step(self, action):
        RECEIVED.append(action)
        assert self.action_space.contains(action)
        self.steps += 1
        obs, reward = self.observation_space.sample(), self.steps
        if self.fault is not None and self.seed == self.faulty_seed:
            obs, reward = self.fault(self.steps, obs, reward)
        return obs, reward, self.steps == self.length, False, {"ignored": 2}

    def close(self):
        if self.on_close is not None:
            raise self.on_close


UNIT_BOX = spaces.Box(-1, 1, (3,))


@pytest.fixture(autouse=True)
def echo_id():
    RECEIVED.clear()
    gymnasium.register("Echo-v0", Echo)
    yield "Echo-v0"
    del gymnasium.registry["Echo-v0"]


def make(obs_space=UNIT_BOX, action_space=None, num_envs=2, seed=10, **kwargs):
    return envs.make("Echo-v0", num_envs, seed, obs_space=obs_space, action_space=action_space, **kwargs)


def zeros(env):
    return np.zeros((env.num_envs, *env.action_space.shape), env.action_space.dtype)


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (spaces.Box(-1, 1, (2, 2), np.float64), 4),
        (spaces.Box(0, 255, (2, 3), np.uint8), 6),
        (spaces.Discrete(4, start=-1), 4),
        (spaces.MultiDiscrete([2, 3]), 5),
        (spaces.MultiBinary(3), 3),
        (spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1, 1, (2, 2))}), 7),
        (spaces.Tuple((spaces.Discrete(3), spaces.Dict({"x": spaces.MultiBinary(2)}))), 5),
    ],
)
def test_observations_are_flattened_as_gymnasium_does(space, size):
    env = make(space, num_envs=1)
    assert env.observation_space.shape == (size,)
    assert env.observation_space.dtype == np.float32
    obs, forced = env.reset()
    assert obs.dtype == np.float32
    assert not forced.any()
    raw, _ = Echo(space).reset(seed=10)
    np.testing.assert_array_equal(obs, spaces.flatten(space, raw)[None].astype(np.float32))


def test_first_reset_seeds_the_copies_and_later_ones_do_not():
    space = spaces.Discrete(1000)
    first, same, other = make(space), make(space), make(space, seed=99)
    start = first.reset()[0].copy()
    np.testing.assert_array_equal(start, same.reset()[0])
    assert (start != other.reset()[0]).any(axis=1).all()
    assert (start != first.reset()[0]).any(axis=1).all()


@pytest.mark.parametrize(
    ("space", "given", "received"),
    [
        (spaces.Discrete(3), [0, 2], [0, 2]),
        (spaces.Discrete(3, start=-1), [0, 2], [-1, 1]),
        (spaces.MultiDiscrete([3, 4]), [[0, 3], [2, 1]], [[0, 3], [2, 1]]),
        (spaces.MultiDiscrete([3, 4], start=[5, -1]), [[0, 3], [2, 1]], [[5, 2], [7, 0]]),
        (
            spaces.MultiDiscrete([[2, 2], [3, 3]]),
            [[0, 1, 2, 0], [1, 0, 0, 2]],
            [[[0, 1], [2, 0]], [[1, 0], [0, 2]]],
        ),
        (spaces.MultiBinary(3), [[0, 1, 1], [1, 0, 0]], [[0, 1, 1], [1, 0, 0]]),
        (
            spaces.Box(-1, 2, (2, 2), np.float64),
            np.array([[0, 3, -3, 0.5], [1, 2, -1, 0]], np.float32),
            [[[0, 2], [-1, 0.5]], [[1, 2], [-1, 0]]],
        ),
        (spaces.Box(-np.inf, 1, (1,)), np.array([[-1e30], [2]], np.float32), [[np.float32(-1e30)], [1]]),
    ],
)
def test_actions_reach_the_environment_in_its_own_space(space, given, received):
    env = make(action_space=space)
    assert env.action_space == space
    env.reset()
    env.step(np.array(given))
    np.testing.assert_array_equal(np.array(RECEIVED), received)
    env.close()


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_autoreset_follows_the_protocol(asynchronous):
    env = make(asynchronous=asynchronous)
    junk = np.array([-5, 99])
    env.reset()
    seen = []
    forced = np.zeros(2, np.bool_)
    for _ in range(8):
        _, reward, terminated, truncated, forced = env.step(junk if forced.all() else zeros(env))
        assert reward.dtype == np.float32
        assert not truncated.any()
        np.testing.assert_array_equal(forced, terminated)
        seen.append((reward[0], forced[0]))
    episode = [(1, False), (2, False), (3, True), (0, False)]
    assert seen == episode + episode
    env.close()


def raise_at_3(step, obs, reward):
    if step == 3:
        raise LookupError("50% of it\nis gone")
    return obs, reward


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_raising_environment_names_the_copy_and_the_step(asynchronous):
    env = make(length=5, fault=raise_at_3, faulty_seed=11, asynchronous=asynchronous)
    env.reset()
    env.step(zeros(env))
    env.step(zeros(env))
    with pytest.raises(
        EnvError, match=r"'Echo-v0', step 3: copy 1 raised LookupError: 50% of it is gone( \(.*\))?$"
    ) as e:
        env.step(zeros(env))
    assert asynchronous or isinstance(e.value.__cause__, LookupError)
    assert "in raise_at_3" in "".join(traceback.format_exception(e.value))
    env.close()


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no text")


def raise_mute():
    raise MuteError


class Flags(gymnasium.Env):
    """Gives these flags at every step."""

    observation_space, action_space = UNIT_BOX, spaces.Discrete(2)

    def __init__(self, terminated=False, truncated=False):
        self.flags = terminated, truncated

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 1.0, *self.flags, {}


FALSE = [False, 0, 0.0, np.False_, np.int8(0), np.array(False), np.array([0]), torch.tensor(False)]
TRUE = [True, 1, 1.0, np.True_, np.int64(1), np.array(True), np.array([1]), torch.tensor(True)]


@pytest.mark.parametrize(("flags", "meaning"), [(FALSE, False), (TRUE, True)], ids=["false", "true"])
def test_flags_in_many_forms(flags, meaning):
    for flag in flags:
        env = envs.make(Flags, 1, 0, terminated=flag, truncated=flag)
        env.reset()
        assert [x.tolist() for x in env.step(zeros(env))[2:]] == [[meaning]] * 3


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("flag", ["False", "", None, 2, 0.5, np.nan, [], np.array([True, False]), 1j], ids=repr)
def test_flag_that_is_neither_true_nor_false_is_named(name, flag):
    env = envs.make(Flags, 1, 0, **{name: flag})
    env.reset()
    with pytest.raises(EnvError, match=f"step 1: copy 0 raised TypeError: {name} must be True or False, got "):
        env.step(zeros(env))


def test_flags_and_observations_of_a_given_vector_environment_are_checked(monkeypatch):
    for name, values in {"terminated": ["False"], "truncated": [2], "obs": [["a"]]}.items():
        vector = SyncVectorEnv([Flags])
        env = envs.make(vector, 1, 0)
        env.reset()
        results = {"obs": np.zeros((1, 3)), "reward": np.ones(1), "terminated": [0], "truncated": [1], name: values}
        monkeypatch.setattr(vector, "step", lambda action, results=results: (*results.values(), {}))
        with pytest.raises(EnvError, match=f"step 1: ({name} must be True or False for each copy|ValueError)"):
            env.step(zeros(env))


@pytest.mark.parametrize("obs", [np.zeros((3, 2)), np.zeros(2), np.zeros((2, 3), complex)])
def test_observations_of_a_given_vector_environment_are_not_reshaped(obs, monkeypatch):
    vector = SyncVectorEnv([functools.partial(Echo, UNIT_BOX)] * 2)
    monkeypatch.setattr(vector, "reset", lambda **_: (obs, {}))
    with pytest.raises(EnvError, match=rf"observation is {obs.dtype} of shape .*, its space float32 of shape \(2, 3\)"):
        envs.make(vector, 2, 0).reset()


@pytest.mark.filterwarnings("ignore:.*Overriding environment")
def test_an_environment_that_replaces_a_built_in_one_is_used():
    spec = gymnasium.registry["CartPole-v1"]
    try:
        gymnasium.register("CartPole-v1", lambda: Echo(UNIT_BOX))
        assert envs.make("CartPole-v1", 1, 0).observation_space.shape == (3,)
    finally:
        gymnasium.registry["CartPole-v1"] = spec
    assert envs.make("CartPole-v1", 1, 0).observation_space.shape == (4,)


@pytest.mark.parametrize("error", [RuntimeError("no\nway"), SystemExit(0), SystemExit("bye")], ids=repr)
def test_close_that_fails_is_a_warning(error):
    env = make(on_close=error)
    env.reset()
    with pytest.warns(RuntimeWarning, match=f"closing the environment raised {type(error).__name__}: (no way|0|bye)$"):
        env.close()


@pytest.mark.parametrize(
    "error", [SystemExit(0), MemoryError("full"), StopIteration()], ids=lambda error: type(error).__name__
)
def test_environment_that_cannot_be_made(error):
    def factory():
        raise error

    with pytest.raises(EnvError, match=f"environment 'factory' cannot be made: {type(error).__name__}"):
        envs.make(factory, 2, 0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda step, obs, reward: (obs * np.nan, reward), r"copy 1 gave a non-finite observation: \[nan nan nan\]"),
        (lambda step, obs, reward: (obs, np.inf), r"copy 1 gave a non-finite reward: \[inf\]"),
        (lambda step, obs, reward: (obs, 1e300), r"copy 1 gave a non-finite reward: \[inf\]"),
        (lambda step, obs, reward: (obs, None), r"copy 1 raised TypeError"),
        (lambda step, obs, reward: (obs, np.ones(2)), r"copy 1 raised ValueError: can only convert an array of size 1"),
        (lambda step, obs, reward: (obs, "1"), r"copy 1 raised TypeError: reward must be a number, got '1'"),
        (lambda step, obs, reward: sys.exit("enough"), r"copy 1 raised SystemExit: enough"),
        (lambda step, obs, reward: raise_mute(), r"copy 1 raised MuteError: its message cannot be made"),
        (lambda step, obs, reward: (obs[:2], reward), r"copy 1 raised ValueError: .*\(2,\).*\(3,\)"),
        (lambda step, obs, reward: (obs[None], reward), r"copy 1 raised ValueError: .*\(1, 3\).*\(3,\)"),
    ],
)
def test_broken_results_name_the_copy_and_the_step(fault, message):
    env = make(fault=fault, faulty_seed=11)
    env.reset()
    with pytest.raises(EnvError, match=f"'Echo-v0', step 1: {message}"):
        env.step(zeros(env))


@pytest.mark.parametrize(
    "two", [2, np.float64(2), np.array(2), np.array([[2]]), np.array([2], object), torch.ones(1) * 2]
)
def test_rewards_in_many_forms(two):
    env = make(fault=lambda step, obs, reward: (obs, two), faulty_seed=11)
    env.reset()
    assert env.step(zeros(env))[1].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("space", "later", "said"),
    [
        (spaces.Box(-5, 5, (2,), np.int64), np.array([0.7, -0.7]), "float64 of shape (2,), its space int64"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([300, 0]), "observation has an integer that uint8 does not have"),
        (spaces.Dict(a=spaces.Box(0, 255, (2,), np.uint8)), {"a": np.full(2, np.nan)}, "its space uint8"),
        (spaces.Dict(a=UNIT_BOX, b=spaces.Box(-1, 1, (1,))), {"a": np.zeros(1), "b": np.zeros(3)}, "observation['a']"),
    ],
)
def test_a_later_observation_that_the_type_of_its_space_cannot_hold_is_an_error(space, later, said):
    """It was rounded, wrapped, or its numbers were those of another part."""
    env = make(space, fault=lambda step, obs, reward: (later, reward), faulty_seed=11)
    env.reset()
    with pytest.raises(EnvError, match=rf"step 1: copy 1 raised ValueError: .*{re.escape(said)}"):
        env.step(zeros(env))


@pytest.mark.parametrize(
    ("method", "result", "said"),
    [
        ("reset", np.zeros(2, np.float32), "the last value of reset() is info and must be a dict, got np.float32(0.0)"),
        ("reset", (np.zeros(3), None), "the last value of reset() is info and must be a dict, got None"),
        ("step", (np.zeros(3), 0.0, False, False, []), "the last value of step() is info and must be a dict, got []"),
    ],
)
def test_info_that_is_no_dict_is_named(method, result, said, monkeypatch):
    env = make(action_space=UNIT_BOX)
    if method == "step":
        env.reset()
    monkeypatch.setattr(Echo, method, lambda *_, **__: result)
    with pytest.raises(EnvError, match=rf"copy 0 raised TypeError: {re.escape(said)}"):
        env.step(zeros(env)) if method == "step" else env.reset()


def test_broken_part_of_a_dict_observation_is_an_error():
    space = spaces.Dict({"a": UNIT_BOX, "b": spaces.Discrete(3)})
    env = make(space, fault=lambda step, obs, reward: ({"a": obs["a"]}, reward), faulty_seed=10)
    env.reset()
    with pytest.raises(EnvError, match="copy 0 raised KeyError: 'b'"):
        env.step(zeros(env))


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(3), -1),
        (spaces.Discrete(3), 7),
        (spaces.Discrete(3, start=2), 1),
        (spaces.MultiDiscrete([3, 4]), np.array([3, 0])),
        (spaces.MultiDiscrete([3, 4]), np.array([0, -1])),
        (spaces.MultiBinary(2), np.array([5, 5])),
        (spaces.MultiBinary(2), np.array([0.5, 1])),
    ],
)
@pytest.mark.parametrize("part", [False, True], ids=["alone", "part"])
@pytest.mark.parametrize("given", [False, True], ids=["copies", "vector"])
def test_discrete_observation_outside_its_space_is_an_error(space, obs, part, given):
    if part:
        space, obs = spaces.Dict({"a": UNIT_BOX, "b": spaces.Tuple([space])}), {"a": np.zeros(3), "b": (obs,)}
    fault = functools.partial(Echo, space, fault=lambda *_: (obs, 0.0), faulty_seed=10)
    env = envs.make(SyncVectorEnv([fault], autoreset_mode="NextStep") if given else fault, 1, 10)
    env.reset()
    with pytest.raises(EnvError, match=r"step 1: .*(observation .* lies outside|Cannot cast)"):
        env.step(np.zeros(1, int))


class First(Echo):
    """Observes the same at every reset."""

    def __init__(self, obs_space, obs):
        super().__init__(obs_space, UNIT_BOX)
        self.obs = obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.obs, {}


BYTES, PAIR = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (BYTES, np.array([0.2, 0.9]), "observation is float64 of shape (2,), its space uint8 of shape (2,)"),
        (
            spaces.MultiDiscrete([3, 3]),
            np.array([1]),
            "observation is int64 of shape (1,), its space int64 of shape (2,)",
        ),
        (spaces.MultiBinary(2), [1, 0, 1], "observation is int64 of shape (3,), its space int8 of shape (2,)"),
        (PAIR, np.array([1j, 0]), "observation is complex128 of shape (2,), its space float32 of shape (2,)"),
        (
            spaces.Dict(a=spaces.Box(-1, 1, (2, 3)), b=PAIR),
            {"a": np.zeros((3, 2), np.float32), "b": np.zeros(2)},
            "observation['a'] is float32 of shape (3, 2), its space float32 of shape (2, 3)",
        ),
        (
            spaces.Dict(a=spaces.Tuple([PAIR, BYTES])),
            {"a": (np.zeros(2), np.zeros(2))},
            "observation['a'][1] is float64 of shape (2,), its space uint8 of shape (2,)",
        ),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_first_observation_that_does_not_fit_its_space_is_named(space, obs, said, asynchronous):
    env = envs.make(First, 1, 0, obs_space=space, obs=obs, asynchronous=asynchronous)
    with pytest.raises(EnvError, match=f"step 0: copy 0 raised ValueError: {re.escape(said)}$"):
        env.reset()
    env.close()


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (PAIR, np.array([0.0, 1.0])),
        (PAIR, [0, 1]),
        (PAIR, np.array([False, True])),
        (PAIR, np.array([0, 1], object)),
        (BYTES, [0, 1]),
        (BYTES, np.array([0, 1])),
        (spaces.Box(-1, 1, (2,), np.float16), (0.0, 1.0)),
        (spaces.Dict(a=PAIR), {"a": torch.tensor([0.0, 1.0])}),
        (spaces.Discrete(2), np.array([1])),
        (spaces.MultiBinary((2, 1)), [0, 1]),
    ],
)
def test_first_observation_of_another_type_that_fits_is_taken(space, obs):
    assert envs.make(First, 1, 0, obs_space=space, obs=obs).reset()[0].tolist() == [[0, 1]]


def test_broken_reset_is_an_error():
    env = make(spaces.Box(np.inf, np.inf, (1,)))
    with pytest.raises(EnvError, match="step 0: copy 0 gave a non-finite observation"):
        env.reset()


# Gymnasium warns while it closes, and what it leaves to the garbage collector complains once more.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dead_worker_process_is_an_error_and_can_be_closed():
    env = make(fault=lambda *_: os._exit(1), faulty_seed=11, asynchronous=True)
    env.reset()
    with pytest.raises(EnvError, match="'Echo-v0', step 1: "):
        env.step(zeros(env))
    env.close()
    del env
    gc.collect()


@pytest.mark.parametrize(
    ("obs_space", "action_space", "message"),
    [
        (UNIT_BOX, spaces.Dict({"a": spaces.Text(2)}), "action space Text"),
        (UNIT_BOX, spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (2,), np.int64))), "action space Box"),
        (UNIT_BOX, spaces.Dict({}), "action space Dict"),
        (UNIT_BOX, spaces.Box(0, 9, (2,), np.int64), "action space Box"),
        (UNIT_BOX, spaces.Discrete(2**40), f"action space Discrete.{2**40}. has 1,099,511,627,776 categories"),
        (spaces.Discrete(2**40), None, f"observation space Discrete.{2**40}. has 1,099,511,627,776 categories"),
        (spaces.Dict({"a": spaces.MultiDiscrete([2**30] * 2)}), None, "observation space Dict.* has 2,147,483,648 cat"),
        (spaces.Box(0, 1, (0,)), None, "observation space Box.* has no numbers"),
        (UNIT_BOX, spaces.Box(0, 1, (2, 0)), "action space Box.* has no numbers"),
        (UNIT_BOX, spaces.MultiDiscrete([]), "action space MultiDiscrete.* has no numbers"),
        (UNIT_BOX, spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (0,)))), "action space Box.* has no numbers"),
        (spaces.MultiBinary(2**40), None, "observation space MultiBinary.* has 1,099,511,627,776 categories"),
        (spaces.Text(3), None, "observation space Text"),
        (spaces.Sequence(UNIT_BOX), None, "observation space Sequence"),
        (spaces.Graph(UNIT_BOX, None), None, "observation space Graph"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Text(3),))}), None, "observation space Dict"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_unsupported_spaces_are_named(obs_space, action_space, message, asynchronous):
    with pytest.raises(UnsupportedSpace, match=f"'Echo-v0': {message}") as error:
        make(obs_space, action_space, asynchronous=asynchronous)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPol-v1", "no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("Pendulum", "no environment 'Pendulum'; did you mean 'Pendulum-v1'?"),
        ("Zzzzzzzzzzzz", "no environment 'Zzzzzzzzzzzz'"),
        (
            "zqxv:X-v0",
            "environment 'zqxv:X-v0': cannot import module 'zqxv': no module 'zqxv'",
        ),
    ],
)
def test_unknown_id_suggests_the_nearest(env_id, message):
    with pytest.raises(UnknownEnv) as error:
        envs.make(env_id, 1, 0)
    assert str(error.value) == message


def test_module_prefix_imports_the_module_that_registers(tmp_path, monkeypatch):
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import PendulumEnv\n"
        "gymnasium.register('Mine-v0', PendulumEnv, max_episode_steps=2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    env = envs.make("my_envs:Mine-v0", 2, 0, g=3.0)
    assert env.reset()[0].shape == (2, 3)
    with pytest.raises(UnknownEnv, match="did you mean 'Mine-v0'"):
        envs.make("my_envs:Mine-v1", 2, 0)
    del gymnasium.registry["Mine-v0"]


def test_a_warning_of_mujoco_is_printed_once_and_in_no_file(tmp_path, monkeypatch, capfd):
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        body = envs._function_of("InvertedPendulum-v5")().unwrapped
        body.data.ctrl[:] = np.nan
        mujoco.mj_step(body.model, body.data)
    assert capfd.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env", "module", "extra"), [("Hopper-v5", "mujoco", "mujoco"), ("LunarLander-v3", "Box2D", "box2d")]
)
def test_missing_package_of_gymnasium_is_one_line_with_the_extra(env, module, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith(("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(EnvError) as error:
        envs.make(env, 1, 0)
    remedy = f"pip install 'rlzoo[{extra}]'"
    assert str(error.value) == f"environment {env!r} cannot be made: a package is missing: {remedy}"


def test_missing_package_is_named_in_one_line():
    def needs_a_package():
        raise gymnasium.error.DependencyNotInstalled('no Atari, run `pip install "gymnasium[atari]"`')

    gymnasium.register("Needy-v0", needs_a_package)
    with pytest.raises(EnvError, match=r"'Needy-v0' cannot be made: .*gymnasium\[atari\]") as error:
        envs.make("Needy-v0", 1, 0)
    del gymnasium.registry["Needy-v0"]
    assert "\n" not in str(error.value)


def test_unknown_option_is_an_error():
    with pytest.raises(EnvError, match=r"'CartPole-v1' cannot be made: TypeError: .*'colour'"):
        envs.make("CartPole-v1", 1, 0, colour="red")


def test_number_of_copies_must_be_positive():
    with pytest.raises(ValueError, match="num_envs=0 must be positive"):
        make(num_envs=0)


@pytest.mark.parametrize(
    ("env", "wrapper", "possible"),
    [
        ("CartPole-v1", None, True),
        ("FrozenLake-v1", None, True),
        ("CartPole-v1", gymnasium.wrappers.NormalizeObservation, False),
    ],
)
def test_reseeded_is_as_new_or_refused(env, wrapper, possible):
    spec = gymnasium.spec(env)
    gymnasium.register("Again-v0", lambda: (wrapper or (lambda x: x))(spec.make()), max_episode_steps=20)

    def roll(env, steps=60):
        obs, _ = env.reset()
        seen = [obs.copy()]
        for t in range(steps):
            obs, reward, *_ = env.step(np.full(env.num_envs, t % 2))
            seen += [obs.copy(), reward.copy()]
        return np.concatenate([x.ravel() for x in seen])

    try:
        used = envs.make("Again-v0", 2, seed=3)
        roll(used)
        assert used.reseed(7) is possible
        if possible:
            np.testing.assert_array_equal(roll(used), roll(envs.make("Again-v0", 2, seed=7)))
    finally:
        del gymnasium.registry["Again-v0"]


def test_a_reseeded_environment_with_masks_begins_as_a_new_one():
    class Masked(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.random(2, np.float32), {"action_mask": np.ones(2, np.int8)}

    env, other = Source(Masked).make(2, 3), Source(Masked).make(2, 7)
    assert env.reseed(7)
    np.testing.assert_array_equal(env.reset()[0].obs, other.reset()[0].obs)
