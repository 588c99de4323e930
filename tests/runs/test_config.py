"""Flat settings and the typed configuration."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from rlzoo.runs import presets
from rlzoo.algorithms import ALGORITHMS, TRPO, PPOClip
from rlzoo.cli import ALGORITHMS as LISTED
from rlzoo.runs.config import Config, make_config, with_preset, with_recipe
from rlzoo.control.task import Control
from rlzoo.core.errors import ConfigError
from rlzoo.core.estimators import GAE, LeaveOneOut, MonteCarlo
from rlzoo.lm.tasks.settings import Language
from rlzoo.control.networks import Network
from rlzoo.runs.presets import environments, find_recipe


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_defaults_and_a_name(name):
    config = make_config(name, "CartPole-v1")
    assert config == Config("CartPole-v1", ALGORITHMS[name]())
    assert config.to_dict()["algorithm"] == name


def test_each_setting_goes_to_its_part():
    config = make_config("trpo", "CartPole-v1", seed=3, max_kl=0.02, gamma=0.9, hidden=[8, 8], activation="relu")
    assert config == Config(
        "CartPole-v1",
        TRPO(estimator=GAE(gamma=0.9, gae_lambda=0.97), max_kl=0.02),
        Control(Network(hidden=(8, 8), activation="relu")),
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
        ({"estimator": "gea"}, "no estimator 'gea'; did you mean 'gae'?"),
        ({"estimator": "rlzoo.core.models:Value"}, "'rlzoo.core.models:Value' is no estimator"),
        ({"minibatch_size": 5000}, "minibatch_size must be at most num_envs * num_steps = 1024, got 5000"),
        ({"task": 3}, "task must be TaskSettings, got 3"),
        ({"model": "gpt2"}, "no setting 'model'"),
        ({"env": "RandomWalks", "hidden": (8,)}, "no setting 'hidden'"),
        ({"env": "RandomWalks", "network": Network()}, "no setting 'network'; did you mean 'estimator'?"),
        ({"env": "RandomWalks", "num_steps": 8}, "no setting 'num_steps'; did you mean 'num_envs'?"),
        ({"env": "RandomWalks", "beta": -1}, "beta must be at least 0, got -1"),
        (
            {"env": "RandomWalks", "compile": True},
            "compile is for control environments; language models run as they are",
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
    assert config.task == Language(max_new_tokens=9, stop_tokens=("a", "b"), beta=0.2)
    flat = json.loads(json.dumps(config.to_dict()))
    assert flat.items() >= {"beta": 0.2, "stop_tokens": ["a", "b"], "model": None}.items()
    assert not flat.keys() & {"hidden", "num_steps", "task"}
    assert make_config(flat.pop("algorithm"), flat.pop("env"), **flat) == config


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("trop", "no algorithm 'trop'; did you mean 'trpo'?"),
        ("nowhere:X", "cannot load algorithm 'nowhere:X': No module named 'nowhere'"),
        ("rlzoo.algorithms:PPOClop", "cannot load algorithm 'rlzoo.algorithms:PPOClop': .* has no attribute 'PPOClop'"),
        ("os:getcwd", "'os:getcwd' is no algorithm"),
        (3, "algorithm must be a name or an Algorithm, got 3"),
    ],
)
def test_wrong_algorithms_are_named(name, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        make_config(name, "CartPole-v1")


def test_preset_gives_way_to_settings(monkeypatch):
    preset = {"gamma": 0.9, "gae_lambda": 0.8, "max_kl": 0.02}
    monkeypatch.setattr("rlzoo.runs.config.find_preset", lambda algorithm, env: preset if env == "A" else None)
    assert with_preset("trpo", "A", {"gamma": 0.5}) == (
        {"gae_lambda": 0.8, "max_kl": 0.02, "gamma": 0.5},
        {"gae_lambda": 0.8, "max_kl": 0.02},
    )
    assert with_preset("trpo", "B", {"gamma": 0.5}) == ({"gamma": 0.5}, None)
    assert with_preset("trpo", "A", {"estimator": "monte-carlo"})[0] == {
        "estimator": "monte-carlo",
        "gamma": 0.9,
        "max_kl": 0.02,
    }


RECIPES = {
    "gentle": {"beta": 0.5, "num_envs": 32, "learning_rate": 1e-5},
    "grouped": {"estimator": "leave-one-out", "responses_per_prompt": 4},
    "bootstrapped": {"estimator": "gae", "gae_lambda": 0.8, "gamma": 1.0},
}


@pytest.fixture
def recipes(monkeypatch):
    monkeypatch.setattr("rlzoo.runs.presets.recipes", lambda: RECIPES)


def test_recipe_gives_way_to_settings_and_comes_on_top_of_the_preset(recipes, monkeypatch):
    preset = {"beta": 0.1, "num_envs": 16, "epochs": 2, "gae_lambda": 0.9}
    monkeypatch.setattr("rlzoo.runs.config.find_preset", lambda algorithm, env: preset)
    settings, given = with_recipe("gentle", "ppo", "Reviews", {"num_envs": 64})
    assert given == {"beta": 0.5, "learning_rate": 1e-5}
    assert settings == {"beta": 0.5, "learning_rate": 1e-5, "num_envs": 64}
    assert with_preset("ppo", "Reviews", settings) == (
        {"epochs": 2, "gae_lambda": 0.9, "beta": 0.5, "learning_rate": 1e-5, "num_envs": 64},
        {"epochs": 2, "gae_lambda": 0.9},
    )
    config = make_config("ppo", "Reviews", **with_preset("ppo", "Reviews", settings)[0])
    assert (config.num_envs, config.task.beta, config.algorithm.epochs) == (64, 0.5, 2)


def test_estimator_of_a_recipe_leaves_out_the_presets_settings_for_its_own(recipes, monkeypatch):
    monkeypatch.setattr("rlzoo.runs.config.find_preset", lambda *pair: {"gae_lambda": 0.9, "gamma": 0.95, "epochs": 2})
    settings, _ = with_recipe("grouped", "ppo", "Reviews", {})
    settings, given = with_preset("ppo", "Reviews", settings)
    assert given == {"gamma": 0.95, "epochs": 2}
    config = make_config("ppo", "Reviews", **settings)
    assert config.algorithm.estimator == LeaveOneOut(gamma=0.95)
    assert config.task.responses_per_prompt == 4


def test_estimator_of_ones_own_leaves_out_the_recipes_settings_for_its_own(recipes):
    settings, given = with_recipe("bootstrapped", "trpo", "RandomWalks", {"estimator": "monte-carlo"})
    assert given == {"gamma": 1.0}
    assert settings == {"gamma": 1.0, "estimator": "monte-carlo"}


def test_recipe_needs_nothing_that_options_are_about_to_give(recipes):
    assert with_recipe("grouped", "ppo", "Prompts", {})[1] == RECIPES["grouped"]


def test_recipe_on_an_instance_of_an_algorithm(recipes):
    settings, _ = with_recipe("gentle", PPOClip(epochs=3), "RandomWalks", {})
    assert make_config(PPOClip(epochs=3), "RandomWalks", **settings).algorithm == PPOClip(epochs=3, learning_rate=1e-5)


@pytest.mark.parametrize(
    ("recipe", "algorithm", "env", "message"),
    [
        ("gentel", "ppo", "RandomWalks", "no preset 'gentel'; did you mean 'gentle'?"),
        (
            *("gentle", "ppo", "CartPole-v1"),
            "preset 'gentle' is for language tasks, RandomWalks, Reviews, Prompts; CartPole-v1 is none",
        ),
        (
            *("gentle", "trpo", "RandomWalks"),
            "preset 'gentle' sets learning_rate, which trpo on RandomWalks does not have",
        ),
    ],
)
def test_recipes_that_cannot_be_used_say_why(recipe, algorithm, env, message, recipes):
    with pytest.raises(ConfigError) as error:
        with_recipe(recipe, algorithm, env, {})
    assert str(error.value) == message


def test_every_recipe_suits_an_algorithm():
    for name, recipe in presets.recipes().items():
        assert find_recipe(name) == recipe
        assert any(suits(name, algorithm) for algorithm in ALGORITHMS), name


def suits(recipe, algorithm):
    try:
        make_config(algorithm, "Reviews", **with_recipe(recipe, algorithm, "Reviews", {})[0])
    except ConfigError:
        return False
    return True


def test_recipes_are_no_algorithms_presets(monkeypatch, tmp_path):
    (tmp_path / "recipes.toml").write_text("[gentle]\nbeta = 0.5\n")
    (tmp_path / "npg.toml").write_text("[Reviews]\nbeta = 0.1\n")
    monkeypatch.setattr("rlzoo.runs.presets.resources.files", lambda _: tmp_path)
    assert environments() == {"Reviews": ["npg"]}
    assert find_recipe("gentle") == {"beta": 0.5}


def test_every_preset_is_a_configuration():
    pairs = [(algorithm, env) for env, algorithms in environments().items() for algorithm in algorithms]
    for algorithm, env in pairs:
        assert algorithm in ALGORITHMS
        settings, preset = with_preset(algorithm, env, {})
        assert (
            make_config(algorithm, env, **settings).to_dict().items()
            >= {name: tuple(x) if isinstance(x, list) else x for name, x in preset.items()}.items()
        )


def test_command_line_knows_the_algorithms():
    assert list(LISTED) == list(ALGORITHMS)


def test_changing_a_field_checks_it_again():
    with pytest.raises(ConfigError, match="total_steps must be at least 1"):
        replace(make_config("trpo", "CartPole-v1"), total_steps=0)


def test_minibatches_of_the_value_fit_into_the_buffer_too():
    with pytest.raises(ConfigError, match=r"vf_minibatch_size must be at most num_envs \* num_steps = 64, got 128"):
        make_config("trpo", "CartPole-v1", num_envs=2, num_steps=32)
    make_config("reinforce", "CartPole-v1", num_envs=2, num_steps=32)
