"""The probes of action spaces: what is right, and what it pays."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlzoo.benchmark.probes import SPACES

RIGHT = {
    "Discrete-2": (1, 0),
    "Discrete-6": (5, 0),
    "MultiDiscrete-2-3-4": ([1, 2, 3], [0, 0, 0]),
    "MultiBinary-3": ([1, 1, 1], [0, 0, 0]),
    "Box-1": ([0.5], [-0.5]),
    "Box-3": ([0.5, 0.5, 0.5], [-0.5, -0.5, -0.5]),
}


def mean_return(name, act, episodes=50):
    env = gymnasium.make(f"probe/{name}-v0")
    total = 0.0
    for seed in range(episodes):
        (sign,), _ = env.reset(seed=seed)
        terminated = False
        while not terminated:
            (sign,), reward, terminated, truncated, _ = env.step(act(sign))
            assert not truncated
            total += reward
    env.close()
    return total / episodes


def test_every_space_has_its_right_actions():
    assert RIGHT.keys() == SPACES.keys()


@pytest.mark.parametrize("name", SPACES)
def test_what_is_right_pays_1(name):
    up, down = RIGHT[name]
    assert mean_return(name, lambda sign: np.array(up if sign == 1 else down), 3) == pytest.approx(1)


@pytest.mark.parametrize("name", SPACES)
def test_not_looking_pays_half(name):
    assert mean_return(name, lambda sign: np.array(RIGHT[name][0])) == pytest.approx(0.5, abs=0.08)


def test_shares():
    assert mean_return("MultiDiscrete-2-3-4", lambda sign: np.array([1, 0, 3] if sign == 1 else [0, 0, 3]), 3) == (
        pytest.approx(2 / 3)
    )
    assert mean_return("Box-1", lambda sign: np.array([sign]), 3) == pytest.approx(0.5)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gymnasium_finds_no_fault(name):
    check_env(gymnasium.make(f"probe/{name}-v0").unwrapped)
