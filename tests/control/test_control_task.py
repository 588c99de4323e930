"""The task of a control environment: what training continues from, evaluation, and its settings."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from builders import evaluate_model, parameters
from gymnasium import spaces
from tiny import Said

from rlzoo.control.envs import source as envs
from rlzoo.control.envs.classic import CartPole
from rlzoo.control.envs.gymnasium_env import GymnasiumEnv
from rlzoo.control.fast import accelerate
from rlzoo.control.networks import GRU, Network, make_heads
from rlzoo.control.spaces import space_text
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import ConfigError, EnvError, UnknownEnv
from rlzoo.core.system.streams import stream
from rlzoo.core.task import Setup
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer


def make_task(env="CartPole-v1", seed=3, model=None, **settings):
    settings = {"num_envs": 4, "num_steps": 16, "network": Network(hidden=(8,)), **settings}
    return ControlTask(Control(**settings), Setup(env, seed=seed, gamma=0.9), model)


def collect(task):
    return task.collector.collect(task.actor()).buffer


def test_a_wrapper_with_statistics_of_its_own_is_named():
    said = []
    for name in ("NormalizeObservation", "NormalizeReward"):
        config = make_config("ppo", "CartPole-v1", wrappers=(f"gymnasium.wrappers:{name}",))
        Trainer(config, progress=Said(said)).task.close()
    (line,) = said
    assert line.startswith("NormalizeObservation has other statistics in each copy")
    assert "--normalize-obs" in line


def test_a_wrapper_around_a_vector_environment_is_named_too():
    said = []
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    vector = gymnasium.wrappers.vector.ClipReward(gymnasium.wrappers.vector.NormalizeObservation(vector), 0, 1)
    Trainer(make_config("ppo", vector, num_envs=2), progress=Said(said))
    (line,) = (x for x in said if "NormalizeObservation" in x)
    assert line.startswith(
        "NormalizeObservation has other statistics in each vector environment, and none in load_policy"
    )


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_collection_repeats_with_the_seed(env):
    first, again, other = (collect(make_task(env, seed)) for seed in (3, 3, 4))
    assert all(map(torch.equal, first.tensors(), again.tensors()))
    assert not torch.equal(first.obs[:, 0], other.obs[:, 0])


def test_model_environment_and_noise_have_streams_of_their_own(monkeypatch):
    def drawn(changed=None):
        """The first observations, noise and parameters, with another seed for one of the streams."""
        for module in ("rlzoo.core.task", "rlzoo.control.task"):
            monkeypatch.setattr(
                f"{module}.stream", lambda seed, name, *path: stream(seed + (name == changed), name, *path)
            )
        task = make_task("Pendulum-v1")
        return task.env.reset()[0].tolist(), task.noise.rng.random(), parameters(task.model).tolist()

    before = drawn()
    for i, name in enumerate(("env", "action", "init")):
        assert [x != y for x, y in zip(before, drawn(name), strict=True)] == [j == i for j in range(3)]


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_state_restores_environment_and_noise(env, correlation):
    task, other = (make_task(env, noise_correlation=correlation) for _ in range(2))
    for _ in range(3):
        collect(task)
    state = task.state_dict()
    expected = collect(task)
    other.load_state_dict(state, 192)
    assert all(map(torch.equal, collect(other).tensors(), expected.tensors()))


def test_gymnasium_environment_without_a_state_starts_new_episodes_that_differ_from_the_first():
    task = make_task(vectorized=False)
    assert isinstance(task.env, GymnasiumEnv)
    first = collect(task)
    state = task.state_dict()
    state["collector"]["env"] = None
    restored = []
    for step in (64, 64, 128):
        other = make_task(vectorized=False)
        other.load_state_dict(state, step)
        restored.append(collect(other))
    assert torch.equal(restored[0].obs, restored[1].obs)
    assert not torch.equal(restored[0].obs[:, 0], restored[2].obs[:, 0])
    assert not torch.equal(restored[0].obs[:, 0], first.obs[:, 0])


def test_environment_is_the_vectorised_one_unless_asked_otherwise():
    assert isinstance(make_task().env, CartPole)
    assert isinstance(make_task(vectorized=False).env, GymnasiumEnv)
    assert make_task("Pendulum-v1", env_kwargs={"g": 5.0}).env._gravity_gain == 7.5


def test_reward_scale_belongs_to_the_model_and_has_the_estimators_discount():
    assert make_task().model.reward_scale is None
    task = make_task(normalize_reward=True)
    assert task.model.reward_scale.gamma == 0.9
    assert "reward_scale.running" in task.model.state_dict()
    assert make_task(model=task.model).model.reward_scale is None


def test_new_episodes_after_a_resume_begin_new_discounted_sums():
    task = make_task(normalize_reward=True)
    task.model.reward_scale(collect(task))
    state = task.collector.state_dict()
    running = task.model.reward_scale.running.clone()
    assert running.any()
    task.restore_collector(state, 64)
    assert torch.equal(task.model.reward_scale.running, running)  # the episodes go on
    task.restore_collector({**state, "env": None}, 64)
    assert not task.model.reward_scale.running.any()


def test_new_episodes_after_an_error_begin_new_discounted_sums(monkeypatch):
    task = make_task(normalize_reward=True)
    task.model.reward_scale(task.collect().buffer)
    with monkeypatch.context() as patch:
        patch.setattr(task.env, "step", lambda action: None)
        with pytest.raises(TypeError):
            task.collect()
    assert task.model.reward_scale.running.any()
    task.collect()
    assert not task.model.reward_scale.running.any()


def test_fisher_fraction_is_of_the_rows_that_a_recurrent_network_sees():
    setup = Setup("CartPole-v1", fisher_fraction=0.1)
    ControlTask.check(Control(num_envs=2, num_steps=64), setup)
    with pytest.raises(ConfigError, match=r"fisher_fraction = 0\.1 of the rows of a buffer = 4 leaves no row"):
        ControlTask.check(Control(num_envs=2, num_steps=64, network=GRU(unroll=32)), setup)


@pytest.mark.parametrize(
    ("space", "number"),
    [
        (spaces.MultiDiscrete([2]), lambda action: action[0]),
        (spaces.MultiBinary(1), lambda action: action[0]),
        (spaces.Tuple([spaces.MultiDiscrete([2])]), lambda action: action[0][0]),
    ],
)
def test_array_of_one_category_is_an_action(space, number):
    push = partial(gymnasium.wrappers.TransformAction, func=number, action_space=space)
    assert collect(make_task(wrappers=(push,))).action.unique().tolist() == [0, 1]


def test_frozen_parameters_do_not_move():
    for algorithm in ("reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"):
        model = Network(hidden=(8,), shared_trunk=True).build(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
        model.trunk.requires_grad_(False)
        before = parameters(model.trunk), parameters(model.policy)
        trainer = Trainer(make_config(algorithm, "CartPole-v1", num_envs=2, total_steps=256), model=model)
        trainer.iterate()
        assert torch.equal(parameters(model.trunk), before[0])
        assert not torch.equal(parameters(model.policy), before[1])


def test_lazy_layers_repeat_with_the_seed():
    def weights(seed):
        heads = make_heads(lambda outputs, gain: torch.nn.LazyLinear(outputs), spaces.Discrete(2), 0.0, False)
        return parameters(make_task(seed=seed, model=ActorCritic(*heads)).model)

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_frozen_policy_is_an_error():
    """PPO trained the value alone."""
    for algorithm in ("reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"):
        model = Network(hidden=(8,)).build(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
        for p in model.policy_parameters():
            p.requires_grad_(False)
        with pytest.raises(ConfigError, match=r"there is no parameter .*unfreeze it with requires_grad_"):
            Trainer(make_config(algorithm, "CartPole-v1", num_envs=2, total_steps=256), model=model).iterate()


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_evaluation_repeats_and_leaves_training_alone(deterministic, fast):
    task, untouched = make_task(), make_task()
    if fast:
        accelerate(task)
        accelerate(untouched)
    first, again = (task.evaluate(20, seed=5, deterministic=deterministic) for _ in range(2))
    assert first.returns.tolist() == again.returns.tolist()
    assert (len(first.returns), first.deterministic) == (20, deterministic)
    assert all(map(torch.equal, collect(task).tensors(), collect(untouched).tensors()))


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        ("CartPol-v1", UnknownEnv, "did you mean 'CartPole-v1'"),
        ("GymV21Environment-v0", EnvError, "cannot be made"),
    ],
)
def test_environment_that_cannot_be_made_is_named(env, error, message):
    ControlTask.available("CartPole-v1")
    with pytest.raises(error, match=message):
        ControlTask.available(env)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
        ({"noise_correlation": 1.0}, r"noise_correlation must be in \[0, 1\), got 1.0"),
        ({"noise_correlation": -0.1}, r"noise_correlation must be in \[0, 1\), got -0.1"),
    ],
)
def test_setting_out_of_range_is_an_error(settings, message):
    with pytest.raises(ConfigError, match=message):
        Control(**settings)


def test_model_is_built_for_the_spaces_of_the_environment():
    task = make_task("Pendulum-v1")
    assert isinstance(task.env.action_space, spaces.Box)
    assert task.model.policy.net.outputs == 1
    assert np.isclose(float(task.model.policy.log_scale.exp()), 2.0)


@pytest.mark.parametrize("vectorized", [True, False])
def test_environments_of_evaluations_are_made_once(vectorized, monkeypatch):
    copies, make = [], envs.Source.make
    monkeypatch.setattr(envs.Source, "make", lambda *args, **more: copies.append(make(*args, **more)) or copies[-1])
    task = ControlTask(Control(num_envs=2, vectorized=vectorized), Setup("CartPole-v1"))
    first, other, again = (task.evaluate(8, seed=seed) for seed in (3, 4, 3))
    assert len(copies) == 2  # one to train in, one to evaluate in
    assert first.returns.tolist() == again.returns.tolist() != other.returns.tolist()
    new = evaluate_model(task.model, "CartPole-v1", 8, seed=3, vectorized=vectorized)
    assert new.returns.tolist() == first.returns.tolist()
    closed = []
    monkeypatch.setattr(copies[1], "close", lambda: closed.append(True))
    task.close()
    assert closed


def test_spaces_have_the_same_text_whatever_numpy_prints():
    low = np.array([-0.41887903, -np.inf], np.float32)
    expected = f"Dict('a': {' '.join(str(spaces.Box(low, -low)).split())}, 'b': Discrete(3))"
    with np.printoptions(precision=2, suppress=True):
        assert space_text(spaces.Dict(a=spaces.Box(low, -low), b=spaces.Discrete(3))) == expected
    assert space_text(spaces.Dict(a=spaces.Box(low, -low), b=spaces.Discrete(3))) == expected
