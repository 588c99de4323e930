"""Flat settings and the typed configuration."""

import json
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from rlzoo.algorithms import ALGORITHMS, TRPO, PPOClip
from rlzoo.cli import ALGORITHMS as LISTED
from rlzoo.control.networks import Network
from rlzoo.control.task import Control
from rlzoo.core.errors import ConfigError
from rlzoo.core.estimators import GAE, MonteCarlo
from rlzoo.lm.tasks.settings import Language
from rlzoo.runs.config import Config, make_config


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_defaults_and_a_name(name):
    config = make_config(name, "CartPole-v1")
    assert config == Config("CartPole-v1", ALGORITHMS[name](), Control())
    assert config.to_dict()["algorithm"] == name


def test_each_setting_goes_to_its_part():
    config = make_config("trpo", "CartPole-v1", seed=3, max_kl=0.02, gamma=0.9, hidden=[8, 8], activation="relu")
    assert config == Config(
        "CartPole-v1",
        TRPO(estimator=GAE(gamma=0.9, gae_lambda=0.97), max_kl=0.02),
        Control(network=Network(hidden=(8, 8), activation="relu")),
        seed=3,
    )


def test_parts_may_be_given_whole():
    config = make_config(PPOClip(epochs=3), "CartPole-v1", network=Network(hidden=(3,)), estimator=MonteCarlo(0.5))
    assert config.algorithm == PPOClip(epochs=3, estimator=MonteCarlo(0.5))
    assert config.task.network.hidden == (3,)
    assert config.algorithm.estimator.whole_episodes


def test_ppo_is_ppo_clip():
    assert make_config("ppo", "CartPole-v1") == make_config("ppo-clip", "CartPole-v1")


@dataclass(frozen=True)
class OwnAlgorithm(TRPO):
    name: ClassVar[str] = "own"
    extra: int = 1


@pytest.mark.parametrize("algorithm", ["npg", "test_config:OwnAlgorithm"])
def test_flat_form_survives_json(algorithm):
    config = make_config(algorithm, "CartPole-v1", hidden=(), gamma=0.5, env_kwargs={"a": [1, None]}, stop_return=3.0)
    flat = json.loads(json.dumps(config.to_dict()))
    assert make_config(flat.pop("algorithm"), flat.pop("env"), **flat) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gama": 0.9}, "no setting 'gama'; did you mean 'gamma'?"),
        ({"max_kl": 0.1}, "no setting 'max_kl'; did you mean 'target_kl'?"),
        ({"xyzzy": 1}, "no setting 'xyzzy'"),
        ({"gamma": 1.5}, "gamma must be in [0, 1], got 1.5"),
        ({"gamma": "high"}, "gamma must be a number, got 'high'"),
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_envs": 2.5}, "num_envs must be an integer, got 2.5"),
        ({"seed": True}, "seed must be an integer, got True"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"hidden": 5}, "hidden must be a tuple, each an integer, got 5"),
        ({"hidden": [5, "x"]}, "hidden must be a tuple, each an integer, got (5, 'x')"),
        ({"activation": "tan"}, "activation must be tanh or relu, got 'tan'"),
        ({"normalize_obs": 1}, "normalize_obs must be True or False, got 1"),
        ({"stop_return": "x"}, "stop_return must be a number, got 'x'"),
        ({"target_kl": -1}, "target_kl must be above 0, got -1"),
        ({"env_kwargs": 3}, "env_kwargs must be a dict, got 3"),
        ({"device": 0}, "device must be a string, got 0"),
        ({"network": {}}, "network must be a Network, got {}"),
        ({"estimator": 3}, "estimator must be a name or an Estimator, got 3"),
        (
            {"estimator": "gea"},
            "no estimator 'gea'; did you mean 'gae'? (known: gae, monte-carlo, leave-one-out, group-norm)",
        ),
        ({"estimator": "rlzoo.core.models:Value"}, "'rlzoo.core.models:Value' is not an Estimator"),
        ({"minibatch_size": 5000}, "minibatch_size must be at most num_envs * num_steps = 1024, got 5000"),
        ({"task": 3}, "task must be TaskSettings, got 3"),
        ({"model": "gpt2"}, "no setting 'model'"),
        ({"env": "RandomWalks", "hidden": (8,)}, "no setting 'hidden'"),
        ({"env": "RandomWalks", "network": Network()}, "no setting 'network'; did you mean 'estimator'?"),
        ({"env": "RandomWalks", "num_steps": 8}, "no setting 'num_steps'; did you mean 'total_steps'?"),
        ({"env": "RandomWalks", "beta": -1}, "beta must be at least 0, got -1"),
        (
            {"env": "RandomWalks", "compile": True},
            "compile is not available for language models",
        ),
        ({"env": "Prompts", "bta": 0.1}, "no setting 'bta'; did you mean 'beta'?"),
        ({"env": "Prompts"}, "model is missing: Prompts has none of its own"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError) as error:
        make_config("ppo", **{"env": "CartPole-v1", **settings})
    assert str(error.value) == message


def test_language_tasks_have_settings_of_their_own():
    config = make_config("ppo", "RandomWalks", beta=0.2, stop_tokens=["a", "b"])
    assert (config.task.max_new_tokens, config.task.stop_tokens, config.task.beta) == (9, ("a", "b"), 0.2)
    assert isinstance(config.task, Language)
    flat = json.loads(json.dumps(config.to_dict()))
    assert flat.items() >= {"beta": 0.2, "stop_tokens": ["a", "b"], "model": None}.items()
    assert not flat.keys() & {"hidden", "num_steps", "task"}
    assert make_config(flat.pop("algorithm"), flat.pop("env"), **flat) == config


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trop", "no algorithm 'trop'; did you mean 'trpo'? (known: reinforce, npg, trpo, ppo-penalty, ppo-clip)"),
        ("nowhere:X", "cannot load algorithm 'nowhere:X': No module named 'nowhere'"),
        (
            "rlzoo.algorithms:PPOClop",
            "cannot load algorithm 'rlzoo.algorithms:PPOClop': module 'rlzoo.algorithms' has no attribute 'PPOClop'",
        ),
        ("os:getcwd", "'os:getcwd' is not an Algorithm"),
        (3, "algorithm must be a name or an Algorithm, got 3"),
    ],
)
def test_wrong_algorithms_are_named(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(name, "CartPole-v1")


def test_command_line_knows_the_algorithms():
    assert list(LISTED) == list(ALGORITHMS)


def test_changing_a_field_checks_it_again():
    with pytest.raises(ConfigError, match="total_steps must be at least 1"):
        replace(make_config("trpo", "CartPole-v1"), total_steps=0)


def test_minibatches_of_the_value_fit_into_the_buffer_too():
    with pytest.raises(ConfigError, match=r"vf_minibatch_size must be at most num_envs \* num_steps = 64, got 128"):
        make_config("trpo", "CartPole-v1", num_envs=2, num_steps=32)
    make_config("reinforce", "CartPole-v1", num_envs=2, num_steps=32)
