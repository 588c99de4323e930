"""Our classic control against Gymnasium's scalar environments, and the contract of a vector environment."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from scipy import stats

from rlzoo.control.envs import source as envs
from rlzoo.control.envs.classic import BUILTIN
from rlzoo.core.system.errors import EnvError

IDS = tuple(BUILTIN)
TERMINATING = [env_id for env_id in IDS if env_id != "Pendulum-v1"]
COMPARED = [env_id for env_id in IDS if env_id != "CartPole-v0"]


def random_actions(env, rng):
    """One action per copy, some of them out of bounds where the space is a box."""
    if isinstance(env.action_space, Discrete):
        return rng.integers(0, env.action_space.n, env.num_envs)
    bound = 1.5 * env.action_space.high
    return rng.uniform(-bound, bound, (env.num_envs, *env.action_space.shape)).astype(np.float32)


def expert_actions(env_id, state):
    """Actions that balance the pole and that pump energy into the other systems."""
    match env_id:
        case "CartPole-v0" | "CartPole-v1":
            return (state[2] + state[3] > 0).astype(np.int64)
        case "Acrobot-v1":
            return np.where(state[3] > 0, 2, 0)
        case "MountainCar-v0":
            return np.where(state[1] < 0, 0, 2)
        case "MountainCarContinuous-v0":
            return np.where(state[1] < 0, -1.0, 1.0).astype(np.float32)[:, None]
        case _:
            return np.sign(state[1]).astype(np.float32)[:, None]


def scalar_step(scalar, state, action):
    """Gymnasium's observation, state and reward after one step from `state`, and whether it terminates."""
    scalar.state = state.copy()
    scalar.steps_beyond_terminated = None
    if isinstance(scalar.action_space, Box):
        # In float64 and inside the bounds: what is compared is the model, not how a float32 is rounded.
        action = np.clip(action.astype(np.float64), scalar.action_space.low, scalar.action_space.high)
    obs, reward, terminated, truncated, _ = scalar.step(action)
    assert not truncated
    return obs, np.array(scalar.state, np.float64), reward, terminated


def compare(env_id, steps, copies, seed, **kwargs):
    """Step half the copies at random and half with skill; every step is also taken by Gymnasium.

    Returns how many episodes were terminated and truncated.
    """
    env = envs.make(env_id, copies, seed, **kwargs)
    reference = gymnasium.make(env_id, **kwargs)
    scalar, limit = reference.unwrapped, reference.spec.max_episode_steps
    scalar.reset(seed=0)
    rng = np.random.default_rng(seed)
    ours, theirs = [], []
    elapsed = np.zeros(copies, np.int64)
    episodes = np.zeros(2, np.int64)
    _, forced = env.reset()
    for _ in range(steps // copies):
        state, live = env.state_dict()["state"], ~forced
        action = random_actions(env, rng)
        action[::2] = expert_actions(env_id, state)[::2]
        obs, reward, terminated, truncated, forced = env.step(action)

        elapsed = np.where(live, elapsed + 1, 0)
        np.testing.assert_array_equal(truncated, elapsed >= limit)
        np.testing.assert_array_equal(forced, terminated | truncated)
        assert not np.any([reward[~live], terminated[~live]])
        episodes += terminated.sum(), truncated.sum()

        after = env.state_dict()["state"]
        for i in live.nonzero()[0]:
            ours.append((*obs[i], *after[:, i], reward[i], terminated[i]))
            their_obs, their_state, their_reward, their_end = scalar_step(scalar, state[:, i], action[i])
            theirs.append((*their_obs, *their_state, their_reward, their_end))

    assert len(ours) >= steps - episodes.sum()
    ours, theirs = np.array(ours), np.array(theirs)
    dim, size = env.observation_space.shape[0], len(state)
    np.testing.assert_allclose(ours[:, :dim], theirs[:, :dim], rtol=2e-7, atol=2e-7)
    # Gymnasium keeps the state of MountainCarContinuous in float32.
    tolerance = 1e-7 if env_id == "MountainCarContinuous-v0" else 1e-12
    np.testing.assert_allclose(ours[:, dim : dim + size], theirs[:, dim : dim + size], rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(ours[:, -2], theirs[:, -2], rtol=2e-7, atol=1e-9)
    np.testing.assert_array_equal(ours[:, -1], theirs[:, -1])
    return tuple(episodes)


@pytest.mark.parametrize("env_id", IDS)
def test_steps_equal_gymnasium(env_id):
    terminated, truncated = compare(env_id, steps=5_000, copies=4, seed=1)
    assert truncated > 0
    assert (terminated > 0) == (env_id in TERMINATING)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", COMPARED)
def test_100_000_steps_equal_gymnasium(env_id):
    terminated, truncated = compare(env_id, steps=110_000, copies=20, seed=2)
    assert truncated > 10
    assert (terminated > 100) == (env_id in TERMINATING)


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"sutton_barto_reward": True}),
        ("CartPole-v1", {"max_episode_steps": 7}),
        # Some of the cars cross the goal below these velocities, and go on.
        ("MountainCar-v0", {"goal_velocity": 0.05}),
        ("MountainCarContinuous-v0", {"goal_velocity": 0.067}),
        ("Pendulum-v1", {"g": 3.7}),
    ],
)
def test_options_equal_gymnasium(env_id, kwargs):
    compare(env_id, steps=3_000, copies=4, seed=3, **kwargs)


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_equal_gymnasium(env_id):
    ours, theirs = envs.make(env_id, 2, 0), gymnasium.make(env_id)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space


@pytest.mark.parametrize("env_id", COMPARED)
def test_first_states_are_distributed_as_in_gymnasium(env_id):
    count = 2_000
    env = envs.make(env_id, count, 0)
    env.reset()
    ours = env.state_dict()["state"]
    scalar = gymnasium.make(env_id).unwrapped
    scalar.reset(seed=1)
    theirs = []
    for _ in range(count):
        scalar.reset()
        theirs.append(np.array(scalar.state, np.float64))
    bounds = {
        "CartPole-v1": [0.05] * 4,
        "Acrobot-v1": [0.1] * 4,
        "MountainCar-v0": [0.1, 0.0],
        "MountainCarContinuous-v0": [0.1, 0.0],
        "Pendulum-v1": [np.pi, 1.0],
    }[env_id]
    centre = -0.5 if "Mountain" in env_id else 0.0
    for i, (our, their, bound) in enumerate(zip(ours, np.transpose(theirs), bounds, strict=True)):
        our, their = (our - centre, their - centre) if i == 0 else (our, their)
        assert np.abs(our).max() <= bound * (1 + 1e-6)
        assert np.abs(our).max() >= bound * 0.99
        assert stats.ks_2samp(our, their).pvalue > 0.001


def test_first_states_of_copies_and_of_their_variables_are_independent():
    env = envs.make("CartPole-v1", 2_000, 0)
    env.reset()
    correlation = np.corrcoef(env.state_dict()["state"])
    assert np.abs(correlation - np.eye(4)).max() < 0.1


@pytest.mark.parametrize("env_id", IDS)
def test_autoreset_returns_the_final_observation_then_starts_again(env_id):
    env, unlimited = (envs.make(env_id, 3, 5, max_episode_steps=limit) for limit in (3, 1_000))
    rng = np.random.default_rng(0)
    for e in (env, unlimited):
        _, forced = e.reset()
        assert not forced.any()
    for step in (1, 2, 3):
        action = random_actions(env, rng)
        obs, reward, terminated, truncated, forced = env.step(action)
        expected_obs, expected_reward, *_ = unlimited.step(action)
        np.testing.assert_array_equal(obs, expected_obs)
        np.testing.assert_array_equal(reward, expected_reward)
        assert truncated.all() == forced.all() == (step == 3)
        assert not terminated.any()
    final = obs.copy()
    obs, reward, terminated, truncated, forced = env.step(random_actions(env, rng))
    assert not np.any([reward, terminated, truncated, forced])
    assert (obs != final).any(axis=1).all()
    first = envs.make(env_id, 3, 6).reset()[0]
    assert np.abs(obs - first).max() < 2.1
    _, _, _, truncated, _ = env.step(random_actions(env, rng))
    assert not truncated.any()


@pytest.mark.parametrize("env_id", IDS)
def test_returned_arrays_have_the_types_of_the_protocol(env_id):
    env = envs.make(env_id, 3, 0)
    obs, forced = env.reset()
    outputs = env.step(random_actions(env, np.random.default_rng(0)))
    for array, dtype in zip((obs, forced, *outputs), "f?ff???", strict=True):
        assert array.dtype == np.dtype(dtype)
        assert len(array) == 3
    assert obs.shape == (3, *env.observation_space.shape)
    env.close()


@pytest.mark.parametrize("env_id", IDS)
def test_time_limits_fall_where_gymnasium_puts_them(env_id):
    ours, theirs = (envs.make(env_id, 2, 0, vectorized=v, max_episode_steps=5) for v in (True, False))
    ours.reset()
    theirs.reset()
    action = np.zeros((2, *ours.action_space.shape), ours.action_space.dtype)
    for _ in range(20):
        for our, their in zip(ours.step(action)[1:], theirs.step(action)[1:], strict=True):
            if our.dtype == np.bool_:
                np.testing.assert_array_equal(our, their)
    theirs.close()


def rollout(env, actions):
    return [tuple(array.copy() for array in env.step(action)) for action in actions]


def assert_equal_rollouts(first, second):
    for left, right in zip(first, second, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("env_id", IDS)
def test_junk_in_a_forced_step_changes_nothing(env_id):
    clean, junky = (envs.make(env_id, 4, 5, max_episode_steps=6) for _ in range(2))
    rng = np.random.default_rng(0)
    forced = clean.reset()[1]
    junky.reset()
    junk = [-7, 10**9] if isinstance(clean.action_space, Discrete) else [np.nan, np.inf]
    forced_steps = 0
    for step in range(60):
        action = random_actions(clean, rng)
        junk_action = action.copy()
        junk_action[forced] = junk[step % 2]
        forced_steps += forced.sum()
        assert_equal_rollouts(rollout(clean, [action]), rollout(junky, [junk_action]))
        forced = clean.state_dict()["forced"]
    assert forced_steps >= 4 * 8


@pytest.mark.parametrize("env_id", IDS)
def test_state_dict_continues_to_the_last_bit(env_id):
    env = envs.make(env_id, 5, 7, max_episode_steps=40)
    rng = np.random.default_rng(0)
    env.reset()
    rollout(env, [random_actions(env, rng) for _ in range(55)])

    state = env.state_dict()
    arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
    rest = json.loads(json.dumps({key: value for key, value in state.items() if key not in arrays}))
    copy = envs.make(env_id, 5, 8, max_episode_steps=40)
    copy.load_state_dict({**arrays, **rest})

    actions = [random_actions(env, rng) for _ in range(200)]
    expected = rollout(env, actions)
    assert_equal_rollouts(rollout(copy, actions), expected)
    copy.load_state_dict({**arrays, **rest})
    assert_equal_rollouts(rollout(copy, actions), expected)


def test_state_of_another_number_of_copies_is_refused():
    with pytest.raises(ValueError, match=r"\(4, 3\).*\(4, 2\)"):
        envs.make("CartPole-v1", 2, 0).load_state_dict(envs.make("CartPole-v1", 3, 0).state_dict())


@pytest.mark.parametrize("env_id", IDS)
def test_seed_fixes_the_episodes_and_reset_goes_on_with_them(env_id):
    first, second, other = (envs.make(env_id, 3, seed) for seed in (1, 1, 2))
    start = first.reset()[0].copy()
    np.testing.assert_array_equal(start, second.reset()[0])
    assert (start != other.reset()[0]).any(axis=1).all()
    again = first.reset()[0].copy()
    assert (start != again).any(axis=1).all()
    np.testing.assert_array_equal(again, second.reset()[0])


def test_reset_in_mid_episode_starts_the_clock_again():
    env = envs.make("Pendulum-v1", 2, 0, max_episode_steps=3)
    env.reset()
    action = np.zeros((2, 1), np.float32)
    rollout(env, [action] * 2)
    env.reset()
    assert [truncated.all() for *_, truncated, _ in rollout(env, [action] * 3)] == [False, False, True]


def test_first_step_without_a_reset_starts_every_copy():
    env, same = envs.make("CartPole-v1", 2, 0), envs.make("CartPole-v1", 2, 0)
    obs, reward, _, _, forced = env.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(obs, same.reset()[0])
    assert not np.any([reward, forced])


@pytest.mark.parametrize(("num_envs", "limit"), [(0, 10), (1, 0)])
def test_sizes_must_be_positive(num_envs, limit):
    with pytest.raises(EnvError, match="must be positive"):
        envs.make("CartPole-v1", num_envs, 0, max_episode_steps=limit)


@pytest.mark.parametrize("env_id", BUILTIN)
def test_reseeded_is_as_new(env_id):
    used, new = (BUILTIN[env_id](3, seed) for seed in (1, 7))

    def roll(env):
        seen = [env.reset()[0].copy()]
        for _ in range(30):
            shape = (3, *env.action_space.shape)
            obs, reward, *_ = env.step(np.zeros(shape, env.action_space.dtype))
            seen += [obs.copy(), reward.copy()]
        return np.concatenate([x.ravel() for x in seen])

    roll(used)
    assert used.reseed(7)
    np.testing.assert_array_equal(roll(used), roll(new))


@pytest.mark.parametrize("name", ["seed", "num_envs"])
def test_arguments_of_the_built_in_version_alone_are_no_options(name):
    with pytest.raises(EnvError, match=f"unexpected keyword argument '{name}'"):
        envs.Source("CartPole-v1", {name: 3}).make(2, 0)
