"""Presets and recipes below the settings of a user."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from rlzoo.algorithms import PPOClip, Reinforce
from rlzoo.control.networks import Network
from rlzoo.control.task import Control
from rlzoo.core.estimators import GAE, LeaveOneOut
from rlzoo.core.system.errors import ConfigError
from rlzoo.runs.configuration.config import complain_once, make_config
from rlzoo.runs.configuration.defaults import configure, starting_from
from rlzoo.runs.configuration.presets import environments, find_preset, find_recipe
from rlzoo.runs.registry import ALGORITHMS, ALIASES, task_class
from rlzoo.runs.run import Run


def use_preset(monkeypatch, preset, pair=None):
    monkeypatch.setattr(
        "rlzoo.runs.configuration.defaults.find_preset",
        lambda algorithm, env: preset if pair in (None, (algorithm, env)) else None,
    )


def test_preset_gives_way_to_settings(monkeypatch):
    use_preset(monkeypatch, {"gamma": 0.9, "gae_lambda": 0.8, "max_kl": 0.02}, ("trpo", "Acrobot-v1"))
    assert starting_from("trpo", "Acrobot-v1", {"gamma": 0.5}) == (
        {"gae_lambda": 0.8, "max_kl": 0.02, "gamma": 0.5},
        ["preset trpo/Acrobot-v1: gae_lambda=0.8, max_kl=0.02"],
    )
    assert starting_from("trpo", "FrozenLake-v1", {"gamma": 0.5}) == (
        {"gamma": 0.5},
        ["no preset for trpo on FrozenLake-v1: starting from the defaults"],
    )
    assert starting_from("trpo", "Acrobot-v1", {"estimator": "monte-carlo"})[0] == {
        "estimator": "monte-carlo",
        "gamma": 0.9,
        "max_kl": 0.02,
    }


NORMALISED = {"normalize_obs": True, "normalize_reward": True}


@pytest.mark.parametrize(
    ("algorithm", "env", "kind", "settings"),
    [
        ("ppo", "LunarLanderContinuous-v3", "continuous actions", NORMALISED | {"num_steps": 256}),
        ("reinforce", "Reacher-v5", "continuous actions", NORMALISED),
        ("npg", "LunarLander-v3", "discrete actions", NORMALISED),
    ],
)
def test_a_task_without_a_preset_starts_from_the_settings_of_its_kind(algorithm, env, kind, settings):
    text = ", ".join(f"{name}={x}" for name, x in settings.items())
    name = ALIASES.get(algorithm, algorithm)
    assert starting_from(algorithm, env, {}) == (
        settings,
        [f"no preset for {name} on {env}: settings for {kind}: {text}"],
    )
    assert starting_from(algorithm, env, {"normalize_obs": False})[0] == settings | {"normalize_obs": False}
    assert starting_from(algorithm, env, {}, False) == ({}, [])
    make_config(algorithm, env, **settings)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("FrozenLake-v1", {}),
        ("Blackjack-v1", {}),
        ("LunarLanderContinuous-v3", {"env_kwargs": {"wind": "strong"}}),
        ("LunarLanderContinuous-v3", {"wrappers": ["gymnasium.wrappers:AddRenderObservation"]}),
    ],
)
def test_other_observations_and_environments_that_cannot_be_made_have_no_kind(env, settings):
    lines = starting_from("ppo", env, settings)[1]
    assert lines == [f"no preset for ppo-clip on {env}: starting from the defaults"]


@dataclass(frozen=True)
class Own(Reinforce):
    name: ClassVar[str] = "own"


def test_preset_of_another_algorithm(monkeypatch, capsys):
    use_preset(monkeypatch, {"max_kl": 0.02, "backtrack_iters": 3}, ("trpo", "Acrobot-v1"))
    with pytest.raises(ConfigError, match="preset trpo/Acrobot-v1 sets backtrack_iters, which npg on Acrobot-v1 does"):
        starting_from("npg", "Acrobot-v1", {}, of="trpo")
    use_preset(monkeypatch, {"max_kl": 0.02}, ("trpo", "Acrobot-v1"))
    assert starting_from("npg", "Acrobot-v1", {}, of="trpo")[0] == {"step_kl": 0.02}
    use_preset(monkeypatch, {"learning_rate": 1e-3, "backtrack_iters": 3, "num_envs": 4}, ("trpo", "Acrobot-v1"))
    own = f"{__name__}:Own"
    settings, lines = starting_from(own, "Acrobot-v1", {}, of="trpo")
    assert settings == {"learning_rate": 1e-3, "num_envs": 4}
    assert lines == ["preset trpo/Acrobot-v1 without backtrack_iters: learning_rate=0.001, num_envs=4"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("algorithm", "old", "new"), [("ppo", "target_kl", "stop_kl"), ("npg", "max_kl", "step_kl")])
def test_old_name_of_a_setting_is_said_once(algorithm, old, new, monkeypatch, tmp_path, capsys):
    complain_once.cache_clear()
    use_preset(monkeypatch, {new: 0.5})
    preset = tmp_path / "mine.toml"
    preset.write_text(f'algorithm = "{algorithm}"\n[CartPole-v1]\n{old} = 0.25\n')  # which may be an alias
    assert starting_from(algorithm, "CartPole-v1", {old: 0.125})[0] == {new: 0.125}
    assert starting_from(algorithm, "CartPole-v1", {}, str(preset))[0] == {new: 0.25}
    assert make_config(algorithm, "CartPole-v1", **{old: 0.125}).to_dict()[new] == 0.125
    name = ALIASES.get(algorithm, algorithm)
    assert capsys.readouterr().err == f"rlzoo: {old} of {name} is called {new}\n"
    with pytest.raises(ConfigError, match=f"^{old} and {new} are two names of one setting: leave out {old}$"):
        make_config(algorithm, "CartPole-v1", **{old: 0.1, new: 0.1})


RECIPES = {
    "gentle": {"beta": 0.5, "responses_per_batch": 32, "learning_rate": 1e-5},
    "grouped": {"estimator": "leave-one-out", "responses_per_prompt": 4},
    "bootstrapped": {"estimator": "gae", "gae_lambda": 0.8, "gamma": 1.0},
}


@pytest.fixture
def recipes(monkeypatch):
    monkeypatch.setattr("rlzoo.runs.configuration.presets.recipes", lambda: RECIPES)


def test_recipe_gives_way_to_settings_and_comes_on_top_of_the_preset(recipes, monkeypatch):
    use_preset(monkeypatch, {"beta": 0.1, "responses_per_batch": 16, "epochs": 2, "gae_lambda": 0.9})
    settings, lines = starting_from("ppo", "Reviews", {"responses_per_batch": 64}, "gentle")
    assert lines == [
        "preset ppo-clip/Reviews: epochs=2, gae_lambda=0.9",
        "preset gentle: beta=0.5, learning_rate=1e-05",
    ]
    expected = {"epochs": 2, "gae_lambda": 0.9, "beta": 0.5, "learning_rate": 1e-5, "responses_per_batch": 64}
    assert settings == expected
    config, _ = configure("ppo", "Reviews", None, "gentle", {"responses_per_batch": 64})
    assert config == make_config("ppo", "Reviews", **expected)


def test_preset_of_which_nothing_is_left_has_no_line(recipes, monkeypatch):
    use_preset(monkeypatch, {"beta": 0.1, "epochs": 2})
    _, lines = starting_from("ppo", "Reviews", {"epochs": 3, "learning_rate": 1e-4}, "gentle")
    assert lines == ["preset gentle: beta=0.5, responses_per_batch=32"]


def test_estimator_of_a_recipe_leaves_out_the_presets_settings_for_its_own(recipes, monkeypatch):
    use_preset(monkeypatch, {"gae_lambda": 0.9, "gamma": 0.95, "epochs": 2})
    settings, lines = starting_from("ppo", "Reviews", {}, "grouped")
    assert lines[0] == "preset ppo-clip/Reviews: gamma=0.95, epochs=2"
    config = make_config("ppo", "Reviews", **settings)
    assert config.algorithm.estimator == LeaveOneOut(gamma=0.95)
    assert config.task.responses_per_prompt == 4


def test_estimator_of_ones_own_leaves_out_the_recipes_settings_for_its_own(recipes, monkeypatch):
    use_preset(monkeypatch, None)
    settings = starting_from("trpo", "RandomWalks", {"estimator": "monte-carlo"}, "bootstrapped")
    assert settings == ({"gamma": 1.0, "estimator": "monte-carlo"}, ["preset bootstrapped: gamma=1.0"])


@pytest.mark.parametrize("algorithm", ["ppo-clip", "ppo-penalty"])
def test_estimator_that_needs_a_value_has_one_that_is_trained(algorithm):
    task = {"model": "m", "prompts": "p", "reward": "r"}

    def vf_coef(**settings):
        return configure(algorithm, "Prompts", None, True, {**task, **settings})[0].algorithm.vf_coef

    assert vf_coef() == vf_coef(estimator="group-norm") == vf_coef(estimator="gae", vf_coef=0.0) == 0
    assert vf_coef(estimator="gae") == vf_coef(estimator=GAE(gamma=1.0)) == vf_coef(estimator="monte-carlo") == 1
    assert vf_coef(estimator="gae", vf_coef=0.5) == 0.5


def test_recipe_on_an_instance_of_an_algorithm(recipes):
    settings, _ = starting_from(PPOClip(epochs=3), "RandomWalks", {}, "gentle")
    assert make_config(PPOClip(epochs=3), "RandomWalks", **settings).algorithm == PPOClip(epochs=3, learning_rate=1e-5)


@pytest.mark.parametrize(
    ("recipe", "algorithm", "env", "message"),
    [
        ("gentel", "ppo", "RandomWalks", "no preset 'gentel'; did you mean 'gentle'? (a file ends in .toml)"),
        (
            *("gentle", "ppo", "CartPole-v1"),
            "preset gentle sets beta, which ppo-clip on CartPole-v1 does not have",
        ),
        (
            *("gentle", "npg", "RandomWalks"),
            "preset gentle sets learning_rate, which npg on RandomWalks does not have",
        ),
    ],
)
def test_recipes_that_cannot_be_used_say_why(recipe, algorithm, env, message, recipes):
    with pytest.raises(ConfigError) as error:
        starting_from(algorithm, env, {}, recipe)
    assert str(error.value) == message


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
        preset = find_preset(algorithm, env)
        settings = make_config(algorithm, env, **preset).to_dict()
        assert {name: settings[name] for name in preset} == preset


@pytest.mark.parametrize("lora_rank", [None, 4])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_language_task_without_a_preset_starts_from_that_of_its_kind(algorithm, lora_rank):
    given = {"model": "m", "prompts": "p", "reward": "r", "lora_rank": lora_rank}
    settings, lines = starting_from(algorithm, "Prompts", given)
    kind = "language" if lora_rank is None else "language with LoRA"
    assert len(lines) == 1
    assert lines[0].startswith(f"no preset for {algorithm} on Prompts: settings for {kind}: estimator=leave-one-out")
    config = make_config(algorithm, "Prompts", **settings)
    assert config.algorithm.estimator == LeaveOneOut()
    assert config.task.responses_per_prompt == 8
    rate = getattr(config.algorithm, "learning_rate", None)
    one_step = 3 if algorithm == "reinforce" else 1
    assert rate in (None, pytest.approx(one_step * (1e-5 if lora_rank is None else 1e-4)))


@pytest.mark.parametrize(("numbers", "kind"), [(10_000_000, "a small language model"), (10_001_000, "language")])
@pytest.mark.parametrize(("part", "dtype"), [(".", None), ("actor", "float32"), (".", "bfloat16")])
def test_a_small_model_takes_larger_steps(part, dtype, numbers, kind, tmp_path):
    (tmp_path / part).mkdir(exist_ok=True)
    if dtype is not None:
        (tmp_path / part / "config.json").write_text(json.dumps({"dtype": dtype}))
    with (tmp_path / part / "model.safetensors").open("wb") as file:
        file.truncate((2 if dtype == "bfloat16" else 4) * numbers)
    given = {"model": str(tmp_path), "prompts": "p", "reward": "r"}
    settings, (line,) = starting_from("ppo-clip", "Prompts", given)
    assert line.startswith(f"no preset for ppo-clip on Prompts: settings for {kind}: estimator=leave-one-out")
    assert settings["learning_rate"] == (1e-5 if kind == "language" else 1e-4)
    assert settings["stop_kl"] == 0.1


@pytest.mark.parametrize(
    ("env", "model", "kind"),
    [
        ("Prompts", torch.nn.Linear(1, 1), "a small language model"),
        ("Prompts", torch.nn.Linear(10**4, 1001, device="meta"), "language"),
        ("Calculator", None, "a small language model"),
        ("Sums", None, "language"),
    ],
)
def test_a_loaded_model_counts_its_parameters_and_a_checkpoint_of_the_package_is_small(env, model, kind):
    given = {} if model is None else {"model": model}
    assert task_class(env).Settings.kind(env, given) == kind


def test_a_task_with_a_preset_and_a_control_task_have_none_of_a_kind():
    assert starting_from("trpo", "CliffWalking-v1", {})[0] == {}
    assert "responses_per_prompt" not in starting_from("ppo", "RandomWalks", {})[0]
    assert starting_from("ppo", "Prompts", {}, preset=False) == ({}, [])


def test_none_of_a_recipe_is_none_where_a_setting_can_be_none(monkeypatch):
    recipe = {"max_grad_norm": "none", "score_normalization": "none", "minibatch_responses": "all"}
    monkeypatch.setattr("rlzoo.runs.configuration.presets.recipes", lambda: {"open": recipe})
    settings, _ = starting_from("ppo", "Reviews", {}, "open")
    config = make_config("ppo", "Reviews", **settings)
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


def test_an_instance_keeps_its_values_beside_a_preset_and_a_file(monkeypatch, tmp_path):
    use_preset(monkeypatch, {"gamma": 0.8, "gae_lambda": 0.7, "num_envs": 3, "hidden": (5,), "epochs": 2})
    parts = {"estimator": GAE(gamma=0.5), "network": Network(hidden=(8,))}
    config, (line, *_) = configure("ppo", "CartPole-v1", None, True, parts)
    assert (config.algorithm.estimator, config.task.network) == (parts["estimator"], parts["network"])
    assert (config.algorithm.epochs, config.task.num_envs) == (2, 3)
    assert line == "preset ppo-clip/CartPole-v1: num_envs=3, epochs=2"
    config, _ = configure("ppo", "CartPole-v1", None, True, {**parts, "gamma": 0.6, "task": Control(num_envs=9)})
    assert (config.algorithm.estimator, config.task.num_envs) == (GAE(gamma=0.6), 9)
    run = Run.create(tmp_path, make_config("ppo", "CartPole-v1", gamma=0.8, hidden=(5,)))
    config, _ = configure(None, None, run, True, parts)
    assert (config.algorithm.estimator, config.task.network) == (parts["estimator"], parts["network"])


def test_a_typo_in_a_preset_is_an_error_beside_a_network(recipes, monkeypatch):
    monkeypatch.setitem(RECIPES, "typo", {"lerning_rate": 1e-5})
    with pytest.raises(ConfigError, match="preset typo sets lerning_rate, which ppo-clip on CartPole-v1 does not have"):
        starting_from("ppo", "CartPole-v1", {"network": "mlp"}, "typo")
