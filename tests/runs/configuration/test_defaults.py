"""Presets and recipes below the settings of a user."""

import pytest

from rlzoo.algorithms import ALGORITHMS, PPOClip
from rlzoo.core.errors import ConfigError
from rlzoo.core.estimators import LeaveOneOut
from rlzoo.runs.configuration import presets
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import with_preset, with_recipe
from rlzoo.runs.configuration.presets import environments, find_recipe


def test_preset_gives_way_to_settings(monkeypatch):
    preset = {"gamma": 0.9, "gae_lambda": 0.8, "max_kl": 0.02}
    monkeypatch.setattr(
        "rlzoo.runs.configuration.defaults.find_preset", lambda algorithm, env: preset if env == "Acrobot-v1" else None
    )
    assert with_preset("trpo", "Acrobot-v1", {"gamma": 0.5}) == (
        {"gae_lambda": 0.8, "max_kl": 0.02, "gamma": 0.5},
        {"gae_lambda": 0.8, "max_kl": 0.02},
    )
    assert with_preset("trpo", "CartPole-v1", {"gamma": 0.5}) == ({"gamma": 0.5}, None)
    assert with_preset("trpo", "Acrobot-v1", {"estimator": "monte-carlo"})[0] == {
        "estimator": "monte-carlo",
        "gamma": 0.9,
        "max_kl": 0.02,
    }


RECIPES = {
    "gentle": {"beta": 0.5, "responses_per_batch": 32, "learning_rate": 1e-5},
    "grouped": {"estimator": "leave-one-out", "responses_per_prompt": 4},
    "bootstrapped": {"estimator": "gae", "gae_lambda": 0.8, "gamma": 1.0},
}


@pytest.fixture
def recipes(monkeypatch):
    monkeypatch.setattr("rlzoo.runs.configuration.presets.recipes", lambda: RECIPES)


def test_recipe_gives_way_to_settings_and_comes_on_top_of_the_preset(recipes, monkeypatch):
    preset = {"beta": 0.1, "responses_per_batch": 16, "epochs": 2, "gae_lambda": 0.9}
    monkeypatch.setattr("rlzoo.runs.configuration.defaults.find_preset", lambda algorithm, env: preset)
    settings, given = with_recipe("gentle", "ppo", "Reviews", {"responses_per_batch": 64})
    assert given == {"beta": 0.5, "learning_rate": 1e-5}
    assert settings == {"beta": 0.5, "learning_rate": 1e-5, "responses_per_batch": 64}
    assert with_preset("ppo", "Reviews", settings) == (
        {"epochs": 2, "gae_lambda": 0.9, "beta": 0.5, "learning_rate": 1e-5, "responses_per_batch": 64},
        {"epochs": 2, "gae_lambda": 0.9},
    )
    config = make_config("ppo", "Reviews", **with_preset("ppo", "Reviews", settings)[0])
    assert (config.task.responses_per_batch, config.task.beta, config.algorithm.epochs) == (64, 0.5, 2)


def test_estimator_of_a_recipe_leaves_out_the_presets_settings_for_its_own(recipes, monkeypatch):
    monkeypatch.setattr(
        "rlzoo.runs.configuration.defaults.find_preset", lambda *pair: {"gae_lambda": 0.9, "gamma": 0.95, "epochs": 2}
    )
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
        ("gentel", "ppo", "RandomWalks", "no preset 'gentel'; did you mean 'gentle'? (a file ends in .toml)"),
        (
            *("gentle", "ppo", "CartPole-v1"),
            "preset 'gentle' sets beta, which ppo on CartPole-v1 does not have",
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
    monkeypatch.setattr("rlzoo.runs.configuration.presets.resources.files", lambda _: tmp_path)
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


def test_none_of_a_recipe_is_none_where_a_setting_can_be_none(monkeypatch):
    recipe = {"max_grad_norm": "none", "score_normalization": "none", "minibatch_responses": "all"}
    monkeypatch.setattr("rlzoo.runs.configuration.presets.recipes", lambda: {"open": recipe})
    settings, given = with_recipe("open", "ppo", "Reviews", {})
    config = make_config("ppo", "Reviews", **settings)
    assert given == recipe
    assert config.algorithm.max_grad_norm is None
    assert config.task.score_normalization == "none"
    assert config.algorithm.minibatch_size == "all"
    assert config.to_dict().items() >= {**recipe, "max_grad_norm": None}.items()


def test_task_defaults_apply_to_parts_that_are_made_from_names():
    by_name = make_config("ppo", "RandomWalks")
    assert (by_name.algorithm.minibatch_size, by_name.algorithm.estimator.gamma) == (16, 1.0)
    by_instance = make_config(PPOClip(), "RandomWalks", minibatch_responses=8)
    assert by_instance.algorithm == PPOClip(minibatch_size=8)
    mixed = make_config("ppo", "RandomWalks", estimator=LeaveOneOut(gamma=0.9), responses_per_prompt=2)
    assert (mixed.algorithm.minibatch_size, mixed.algorithm.estimator.gamma) == (16, 0.9)
