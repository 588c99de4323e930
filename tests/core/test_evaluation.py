"""Evaluation episodes of a scripted environment, and their summary."""

import json

import numpy as np
import pytest
import torch
from builders import Scripted

from rlzoo.core.env import Episode
from rlzoo.core.evaluation import Evaluation, Played, play_episodes


def idle(obs, forced, starts):
    return np.zeros(len(obs), np.int64)


def episode(length):
    """An episode of `Scripted`: rewards 1, 2, ..."""
    return Episode(length * (length + 1) / 2, length)


@pytest.mark.parametrize(("episodes", "shares"), [(1, (1, 0)), (2, (1, 1)), (5, (3, 2))])
def test_every_copy_plays_its_share_however_short_its_episodes(episodes, shares):
    expected = [episode(9)] * shares[0] + [episode(2)] * shares[1]
    assert play_episodes(Scripted([9, 2]), idle, episodes) == expected


class Interrupted(Scripted):
    """Its second step of an episode is forced: no action is taken, and the reward is no part of the return."""

    def step(self, action):
        obs, reward, terminated, truncated, forced = super().step(action)
        return obs, reward, terminated, truncated, forced | (self.time == 1)


def test_forced_steps_within_an_episode_do_not_end_it():
    assert play_episodes(Interrupted([4]), idle, 2) == [Episode(1.0 + 3 + 4, 3)] * 2


class Integers(Scripted):
    """Its flags are 0 and 1."""

    def step(self, action):
        obs, reward, *ends = super().step(action)
        return obs, reward, *(x.astype(int) for x in ends)

    def reset(self):
        obs, forced = super().reset()
        return obs, forced.astype(int)


def test_flags_may_be_integers():
    assert play_episodes(Integers([4, 2]), idle, 4) == play_episodes(Scripted([4, 2]), idle, 4)


def test_endless_episode_is_cut_and_its_copy_plays_no_more(monkeypatch):
    monkeypatch.setattr("rlzoo.core.evaluation.ENDLESS", 10)
    played = play_episodes(Scripted([10**9, 4, 10]), idle, 6)
    assert played == [Episode(55.0, 10, cut=True), episode(4), episode(4), episode(10), episode(10)]
    assert Evaluation.of(played, False, 0).further == {"cut_episodes": 1}
    assert "cut_episodes" not in Evaluation.of(played[1:], False, 0).further
    assert Played.of(played[:2]).transcript == (
        "episode 1: return 55.0, 10 steps, cut there: it had not ended\nepisode 2: return 10.0, 4 steps"
    )


def test_evaluation_of_episodes():
    evaluation = Evaluation.of([Episode(1.0, 3), Episode(5.0, 4)], True, 7)
    assert evaluation.returns.tolist() == [1, 5]
    assert evaluation.lengths.tolist() == [3, 4]
    assert (evaluation.deterministic, evaluation.seed) == (True, 7)


def test_summary_by_hand():
    evaluation = Evaluation(np.array([1.0, 5.0]), np.array([3, 4]), True, 7, {"more": 1})
    assert evaluation.summary() == {
        "mean_return": 3.0,
        "std_return": 2.0,
        "min_return": 1.0,
        "max_return": 5.0,
        "mean_length": 3.5,
        "episodes": 2,
        "deterministic": True,
        "seed": 7,
        "more": 1,
    }


@pytest.mark.parametrize("x", [np.float32(1.5), np.array(1.5), np.median([1, 2]), torch.tensor([1.5])], ids=repr)
def test_numbers_of_other_libraries_are_pythons(x):
    further = Evaluation(np.ones(2), np.ones(2), True, 7, {"x": x, "samples": [{"y": 1}]}).summary()
    assert type(further["x"]) is float
    assert json.dumps(further)


def test_played_episodes_have_a_line_each():
    played = Played.of([Episode(1234.5, 3), Episode(-2.0, 4)])
    assert played.transcript == "episode 1: return 1,234.5, 3 steps\nepisode 2: return -2.0, 4 steps"
    assert played.summary == {"episodes": [{"return": 1234.5, "length": 3}, {"return": -2.0, "length": 4}]}
