"""Flat settings and the typed configuration."""

import dataclasses
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import rlzoo
from rlzoo.algorithms import TRPO, PPOClip
from rlzoo.cli.runs import _Train
from rlzoo.control.networks import Network
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.estimators import GAE, Estimator, MonteCarlo
from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.schedules import at
from rlzoo.lm.tasks.settings import Language
from rlzoo.runs.configuration.config import Config, check_schedules, make_config
from rlzoo.runs.configuration.settings import RESERVED
from rlzoo.runs.registry import ALGORITHMS, algorithm_class


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_defaults_and_a_name(name):
    config = make_config(name, "CartPole-v1")
    assert config == Config("CartPole-v1", algorithm_class(name)(), Control())
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
        ({"xyzzy": 1}, "no setting 'xyzzy'"),
        ({"gamma": 1.5}, "gamma must be in [0, 1], got 1.5"),
        ({"gamma": "high"}, "gamma must be a number, got 'high'"),
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"num_envs": 2.5}, "num_envs must be an integer, got 2.5"),
        ({"seed": True}, "seed must be an integer, got True"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"wrappers": "TimeLimit"}, "wrappers must be a list, got 'TimeLimit'"),
        ({"hidden": 5}, "hidden must be a tuple, each an integer, got 5"),
        ({"hidden": np.array([5, 6])}, "hidden must be a tuple, each an integer, got array([5, 6])"),
        ({"hidden": [5, "x"]}, "hidden must be a tuple, each an integer, got (5, 'x')"),
        ({"activation": "tan"}, "activation must be tanh or relu, got 'tan'"),
        ({"normalize_obs": 1}, "normalize_obs must be True or False, got 1"),
        ({"stop_return": "x"}, "stop_return must be a number, got 'x'"),
        ({"stop_kl": -1}, "stop_kl must be above 0, got -1"),
        ({"env_kwargs": 3}, "env_kwargs must be a dict, got 3"),
        ({"device": 0}, "device must be a string, got 0"),
        (
            {"network": {}},
            "network must be a name or an instance of NetworkSettings, "
            "such as network='mlp' or network=Network(), got {}",
        ),
        (
            {"estimator": 3},
            "estimator must be a name or an instance of Estimator, such as estimator='gae' or estimator=GAE(), got 3",
        ),
        (
            {"estimator": "gea"},
            "no estimator 'gea'; did you mean 'gae'? (known: gae, monte-carlo, leave-one-out, group-mean, group-norm)",
        ),
        ({"estimator": "rlzoo.core.models:Value"}, "'rlzoo.core.models:Value' is no Estimator"),
        ({"minibatch_size": 5000}, "minibatch_size must be at most num_envs * num_steps = 1024, got 5000"),
        ({"task": 3}, "task must be TaskSettings, got 3"),
        ({"env": "RandomWalks", "hidden": (8,)}, "no setting 'hidden'"),
        ({"max_kl": 0.1}, "ppo-clip has no max_kl; trpo has"),
        ({"env": "RandomWalks", "network": Network()}, "no setting 'network'"),
        ({"env": "RandomWalks", "num_steps": 8}, "no setting 'num_steps'"),
        ({"env": "RandomWalks", "beta": -1}, "beta must be at least 0, got -1"),
        (
            {"compile": True, "fast": False},
            "compile is one of the faster implementations that fast=False switches off: leave out one of the two",
        ),
        (
            {"env": "RandomWalks", "compile": True},
            "compile is not available for language models",
        ),
        ({"env": "Prompts", "bta": 0.1}, "no setting 'bta'; did you mean 'beta'?"),
        ({"lr": 1}, "no setting 'lr'; did you mean 'learning_rate'?"),
        ({"num_envs": 2**31}, f"num_envs must be at most {2**31 - 1}, got {2**31}"),
        ({"hidden": (8, 2**31)}, f"hidden must be at most {2**31 - 1}, got (8, {2**31})"),
        ({"vf_coef": 1e39}, "vf_coef must be at most 3.4e+38 in absolute value, got 1e+39"),
        ({"ent_coef": "linear:0:1e39"}, "ent_coef must be at most 3.4e+38 in absolute value, got linear:0:1e39"),
        (
            {"env": "Prompts"},
            "model is missing: Prompts has none of its own; give a directory, a Hub name or a Hugging Face model",
        ),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ConfigError) as error:
        make_config("ppo", **{"env": "CartPole-v1", **settings})
    assert str(error.value) == message


def test_schedule_that_takes_nothing():
    with pytest.raises(ConfigError, match=r"learning_rate must be a function of the progress.* \(TypeError: .*takes 0"):
        make_config("ppo", "CartPole-v1", learning_rate=lambda: 1)


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
        ("PPO", "no algorithm 'PPO'; did you mean 'ppo'? (known: reinforce, npg, trpo, ppo-penalty, ppo-clip)"),
        ("own.VMPO", "; a class of your own is own:VMPO"),
        ("rloo", "no algorithm 'rloo'; use ppo-clip --estimator rloo"),
        ("vpg", "no algorithm 'vpg'; use reinforce"),
        ("nowhere:X", "algorithm 'nowhere:X': no module 'nowhere'"),
        (
            "rlzoo.algorithms:PPOClop",
            "algorithm 'rlzoo.algorithms:PPOClop': no class 'PPOClop'; did you mean 'PPOClip'?",
        ),
        ("os:getcwd", "'os:getcwd' is no Algorithm"),
        (3, "must be a name or an instance of Algorithm, such as algorithm='reinforce' or algorithm=Reinforce(), got"),
    ],
)
def test_wrong_algorithms_are_named(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(name, "CartPole-v1")


def test_changing_a_field_checks_it_again():
    with pytest.raises(ConfigError, match="total_steps must be at least 1"):
        replace(make_config("trpo", "CartPole-v1"), total_steps=0)


# Schedules


def halved(progress):
    """A schedule that can be imported."""
    return 0.1 * (1 - progress / 2)


def lowered(progress):
    """It is below 0 at the end."""
    return 0.5 - progress


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (0.1, 0.1),
        ("linear:0.1:0", "linear:0.1:0"),
        (halved, "test_config:halved"),
        ("test_config:halved", "test_config:halved"),
    ],
    ids=["number", "linear", "function", "name"],
)
def test_schedules_survive_json(schedule, text):
    config = make_config("ppo", "CartPole-v1", learning_rate=schedule)
    flat = json.loads(json.dumps(config.to_dict()))
    assert flat["learning_rate"] == text
    again = make_config(flat.pop("algorithm"), flat.pop("env"), **flat)
    assert again.to_dict() == config.to_dict()
    assert at(again.algorithm.learning_rate, 0.5) == at(config.algorithm.learning_rate, 0.5)
    check_schedules(again)


def test_lambda_is_described():
    config = make_config("ppo", "CartPole-v1", learning_rate=lambda progress: 0.1)
    assert config.to_dict()["learning_rate"] == {"object": "a lambda of test_config"}
    assert config.objects == {"learning_rate": "a lambda of test_config"}
    json.dumps(config.to_dict())


@dataclass(frozen=True)
class Keeping(Control):
    """Settings of a task that saves an object in the run directory."""

    kept = frozenset({"kept_object"})
    kept_object: Any = None


def test_objects_that_the_task_keeps_are_not_needed_again():
    config = Config("CartPole-v1", PPOClip(), Keeping(kept_object=object()))
    assert config.to_dict()["kept_object"] == {"object": "an instance of object of builtins"}
    assert config.objects == {}


def test_algorithm_of_a_script_is_described(monkeypatch):
    monkeypatch.setattr(OwnAlgorithm, "__module__", "__main__")
    config = make_config(OwnAlgorithm(), "CartPole-v1")
    assert config.objects == {"algorithm": "an instance of OwnAlgorithm of __main__"}


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("liner:1:0", "learning_rate must be a number, linear:START:END or module:function, got 'liner:1:0': "),
        ("os:getcwdd", "learning_rate must be a number, linear:START:END or module:function, got 'os:getcwdd': "),
        ("test_config:lowered", "learning_rate must be above 0 throughout, got 'test_config:lowered'"),
        (
            "test_config:negative",
            "learning_rate must be above 0 throughout, got 'test_config:negative'",
        ),
    ],
)
def test_schedules_are_loaded_before_training(schedule, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_schedules(make_config("ppo", "CartPole-v1", learning_rate=schedule))
    with pytest.raises(ConfigError, match=re.escape(f"vf_{message}")):
        check_schedules(make_config("ppo", "CartPole-v1", vf_learning_rate=schedule))


def negative(progress):
    return 1e-3 * (1 - 1.05 * progress)


def test_function_that_becomes_negative_is_no_schedule():
    with pytest.raises(ConfigError, match="learning_rate must be above 0 throughout"):
        make_config("ppo", "CartPole-v1", learning_rate=negative)


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "message"),
    [
        ("ppo", "CartPole-v1", {"minibatch_size": 1}, "minibatch_size must be at least 2: whitened advantages of one"),
        ("ppo", "RandomWalks", {"minibatch_responses": 1, "estimator": "rloo", "responses_per_prompt": 2},
         "minibatch_responses must be at least 2"),
        ("ppo", "CartPole-v1", {"estimator": "rloo", "num_envs": 1}, "num_envs must be at least 2 for group adv"),
        ("reinforce", "CartPole-v1", {"estimator": "gae", "baseline": False}, "without baseline the end of a buffer"),
        ("ppo", "Pendulum-v1", {"log_std_init": float("nan")}, "log_std_init must be a finite number, got nan"),
        ("ppo", "Pendulum-v1", {"stop_return": float("inf")}, "stop_return must be a finite number, got inf"),
    ],
)  # fmt: skip
def test_settings_that_could_not_train(algorithm, env, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_config(algorithm, env, **settings)


def test_minibatches_of_one_may_be_plain():
    make_config("ppo", "CartPole-v1", minibatch_size=1, normalize_advantage=False)
    make_config("ppo", "RandomWalks", minibatch_responses=1)


@dataclass(frozen=True)
class Unnamed(rlzoo.Algorithm):
    estimator: GAE = GAE()

    def init(self, model, rng):
        return rlzoo.State(rng)

    def update(self, model, state, buffer):
        return {}


@dataclass(frozen=True)
class Incomplete(GAE):
    needed: int = dataclasses.field(kw_only=True)


class Undiscounted(rlzoo.Estimator):
    """Forgets `gamma`."""

    def __call__(self, buffer):
        return buffer


class Abstract(rlzoo.Estimator):
    """Forgets `__call__`."""

    gamma = 1.0


def test_instances_of_a_user_that_lack_something():
    with pytest.raises(ConfigError, match="algorithm Unnamed has no name, which every Algorithm has"):
        make_config(Unnamed(), "CartPole-v1")
    with pytest.raises(ConfigError, match="estimator Undiscounted has no gamma, which every Estimator has"):
        make_config("ppo", "CartPole-v1", estimator=Undiscounted())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"algorithm": "test_config:Unnamed"},
            "algorithm 'test_config:Unnamed' has no name, which",
        ),
        (
            {"estimator": "test_config:Incomplete"},
            "estimator 'test_config:Incomplete': .*missing .*'needed'",
        ),
        ({"estimator": "test_config:Abstract"}, "estimator 'test_config:Abstract': Can't instantiate abstract class"),
    ],
)
def test_classes_of_a_user_that_lack_something(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**{"algorithm": "ppo", "env": "CartPole-v1", **settings})


def test_schedule_may_return_a_number_of_numpy():
    config = make_config("ppo", "CartPole-v1", learning_rate=lambda progress: np.float32(1e-3) * (1 - progress / 2))
    assert at(config.algorithm.learning_rate, 0.5) == pytest.approx(7.5e-4)


# Names are unique over all parts, also those of a user


@dataclass(frozen=True)
class ClashingAlgorithm(TRPO):
    num_steps: int = 3


@dataclass(frozen=True)
class ClashingEstimator(GAE):
    num_envs: int = 3


@dataclass(frozen=True)
class ClashingSettings(Control):
    max_kl: float = 3.0


class ClashingTask(ControlTask):
    Settings = ClashingSettings


@dataclass(frozen=True)
class RunSettings(Control):
    seed: int = 3


class RunTask(ControlTask):
    Settings = RunSettings


@pytest.mark.parametrize(
    ("arguments", "name", "parts"),
    [
        ({"algorithm": "test_config:ClashingAlgorithm"}, "num_steps", "ClashingAlgorithm and Control"),
        ({"algorithm": ClashingAlgorithm()}, "num_steps", "ClashingAlgorithm and Control"),
        ({"estimator": "test_config:ClashingEstimator"}, "num_envs", "ClashingEstimator and Control"),
        ({"estimator": ClashingEstimator()}, "num_envs", "ClashingEstimator and Control"),
        ({"env": "test_config:ClashingTask"}, "max_kl", "TRPO and ClashingSettings"),
        ({"env": "test_config:RunTask"}, "seed", "RunSettings and Config"),
    ],
)
def test_settings_of_the_same_name_are_an_error(arguments, name, parts):
    with pytest.raises(ConfigError) as error:
        make_config(**{"algorithm": "trpo", "env": "CartPole-v1", **arguments})
    assert str(error.value) == f"setting {name!r} is defined by both {parts}: rename one of them"


# Units of the task


def test_minibatches_of_language_models_are_counted_in_responses():
    config = make_config("ppo", "RandomWalks", minibatch_responses=8)
    assert config.algorithm.minibatch_size == 8
    flat = config.to_dict()
    assert flat["minibatch_responses"] == 8
    assert "minibatch_size" not in flat
    with pytest.raises(ConfigError, match="no setting 'minibatch_size'; did you mean 'minibatch_responses'"):
        make_config("ppo", "RandomWalks", minibatch_size=8)
    with pytest.raises(ConfigError, match="minibatch_responses must be at least 1 or all, got 0"):
        make_config("ppo", "RandomWalks", minibatch_responses=0)


def test_seeds_and_steps_may_be_large():
    config = make_config("ppo", "CartPole-v1", seed=2**80, total_steps=10**12, eval_interval=10**12)
    assert (config.seed, config.total_steps) == (2**80, 10**12)


def test_paths_are_settings():
    names = {"model": "m", "tokenizer": "t", "prompts": "p.txt"}
    config = make_config("ppo", "Prompts", reward=[Path("r")], **{name: Path(x) for name, x in names.items()})
    plain = make_config("ppo", "Prompts", reward=["r"], **names)
    assert json.dumps(config.to_dict()) == json.dumps(plain.to_dict())


def test_numbers_of_numpy_are_settings():
    given = {"num_envs": np.int64(4), "learning_rate": np.float32(0.5), "normalize_obs": np.True_, "seed": np.int32(3)}
    config = make_config("ppo-clip", "CartPole-v1", **given)
    plain = make_config("ppo-clip", "CartPole-v1", num_envs=4, learning_rate=0.5, normalize_obs=True, seed=3)
    assert json.dumps(config.to_dict()) == json.dumps(plain.to_dict())


def made(name, base, field):
    """A dataclass with one more field."""
    return dataclasses.make_dataclass(name, [(field, str, "x")], bases=(base,), frozen=True)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"algorithm": made("Named", PPOClip, "algorithm")()}, "algorithm"),
        ({"algorithm": made("Named", PPOClip, "network")()}, "network"),
        ({"algorithm": made("Named", PPOClip, "out")()}, "out"),
        ({"estimator": made("Named", GAE, "estimator")()}, "estimator"),
        ({"network": made("Named", Network, "network")()}, "network"),
    ],
)
def test_setting_with_a_name_of_something_else(arguments, field):
    with pytest.raises(ConfigError, match=f"setting '{field}' of Named has a name of rlzoo's own: rename it"):
        make_config(**{"algorithm": "ppo", "env": "CartPole-v1", **arguments})


def test_options_of_train_are_reserved():
    config = make_config("ppo", "CartPole-v1")
    options = {x.name for x in dataclasses.fields(_Train)}
    assert options <= RESERVED | config.table.keys() | config.task.named_parts.keys()


class Undecorated(Estimator):
    gamma: float = 0.9

    def __call__(self, buffer):
        return buffer


@pytest.mark.parametrize("estimator", [Undecorated(), Undecorated, "test_config:Undecorated"])
def test_part_that_is_no_dataclass(estimator):
    with pytest.raises(ConfigError, match=r"Undecorated is not decorated: @dataclass\(frozen=True\)"):
        make_config("ppo", "CartPole-v1", estimator=estimator)
