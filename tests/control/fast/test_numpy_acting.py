"""Acting through NumPy against acting through PyTorch."""

import copy

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model

from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.envs import source as envs
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.networks import GRU, LSTM, MLP
from rlzoo.core.actors import ModelActor
from rlzoo.core.collector import Collector
from rlzoo.core.models import ActorCritic
from rlzoo.core.seen import Seen

OPTIONS = [
    {"activation": "relu", "hidden": (7, 6)},
    {"shared_trunk": True, "normalize_obs": True},
    {"normalize_obs": True, "state_dependent_std": True},
]


def acting(space, **options):
    """A model, observations and noise in single precision."""
    model = make_model(space, dtype=torch.float32, **options)
    if model.normalizer is not None:
        buffer = make_buffer(model)
        model.normalizer.update(3 * buffer.obs[:, :-1] + 1, buffer.mask)
    rng = np.random.default_rng(0)
    return model, (3 * rng.normal(size=(50, 4))).astype(np.float32), next(ActionNoise(space, 50, rng))


def act(make_actor, model, obs, noise):
    """The action that an actor takes with this noise."""
    return make_actor(model, iter([noise]))(obs, *np.zeros((2, 50), bool))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("space", SPACES)
def test_actions_are_those_of_pytorch_for_the_same_noise(space, options):
    model, obs, noise = acting(SPACES[space], **options)
    assert not isinstance(make_numpy_actor(model, iter(())), ModelActor)
    action, expected = (act(make, model, obs, noise) for make in (make_numpy_actor, make_actor))
    assert action.dtype == expected.dtype
    np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", ["discrete", "multidiscrete"])
def test_illegal_actions_are_those_of_pytorch(space):
    model, obs, noise = acting(SPACES[space])
    legal = np.random.default_rng(1).random((50, noise.shape[1])) < 0.5
    legal[:, [0, -1]] = True
    action, expected = (act(make, model, Seen(obs, legal), noise) for make in (make_numpy_actor, make_actor))
    assert np.array_equal(action, expected)
    assert not np.array_equal(action, act(make_numpy_actor, model, obs, noise))


class Mirrored(ActorCritic):
    """A model of the user's own, that NumPy knows nothing of."""

    def features(self, obs):
        return -10 * super().features(obs)


@pytest.mark.parametrize("space", SPACES)
def test_models_that_numpy_cannot_run_act_through_pytorch(space):
    model, obs, noise = acting(SPACES[space])
    own = Mirrored(model.policy, model.value)
    assert np.array_equal(*(act(make, own, obs, noise) for make in (make_numpy_actor, make_actor)))
    assert not np.array_equal(*(act(make_numpy_actor, x, obs, noise) for x in (own, model)))
    assert isinstance(make_numpy_actor(model.double(), iter(())), ModelActor)


class Sharper(MLP):
    def forward(self, x):
        return 10 * super().forward(x)


def test_parts_that_compute_something_else_act_through_pytorch():
    model, obs, noise = acting(SPACES["discrete"])
    hooked, parametrized, of_class = (copy.deepcopy(model) for _ in range(3))
    hooked.policy.net.register_forward_hook(lambda net, args, output: -output)
    torch.nn.utils.parametrizations.weight_norm(parametrized.policy.net.layers[-1])
    parametrized.policy.net.layers[-1].parametrizations.weight.original0.data.neg_()
    of_class.policy.net.__class__ = Sharper
    for own in (hooked, parametrized, of_class):
        assert np.array_equal(*(act(make, own, obs, noise) for make in (make_numpy_actor, make_actor)))
        assert not np.array_equal(*(act(make_numpy_actor, x, obs, noise) for x in (own, model)))


@pytest.mark.parametrize("network", [GRU, LSTM])
@pytest.mark.parametrize(
    ("env_id", "more"),
    [("CartPoleNoVel-v1", {}), ("PendulumNoVel-v1", {"shared_trunk": True, "normalize_obs": True})],
    ids=["separate", "shared"],
)
def test_recurrent_networks_act_as_in_pytorch(network, env_id, more):
    buffers = []
    for make in (make_numpy_actor, make_actor):
        env = envs.make(env_id, 4, 0)
        spaces = env.observation_space, env.action_space
        model = network(cell_size=6, hidden=(5,), **more).build(*spaces, torch.Generator().manual_seed(1))
        noise = ActionNoise(env.action_space, 4, np.random.default_rng(2))
        collector = Collector(env, 60)
        buffers.append([collector.collect(make(model, noise)).buffer for _ in range(2)][-1])
    for x, y in zip(*([*b.obs.tensors(), b.action] for b in buffers), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-5)


def test_normalised_observations_are_clipped_as_in_pytorch():
    model, none = make_model(normalize_obs=True).float(), np.zeros(64, bool)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(generator=torch.Generator().manual_seed(p.numel()))
    obs = 100 * np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    noise = np.zeros((64, 3), np.float32)
    plain, fast = (make(model, iter([noise]))(obs, none, none) for make in (make_actor, make_numpy_actor))
    assert np.array_equal(plain, fast)


def test_illegal_actions_are_impossible_whatever_the_logits():
    model = make_model(dtype=torch.float32)
    model.policy.net.layers[-1].bias.data -= 100.0  # logits have no bounds
    legal = np.tile([True, False, False], (50, 1))
    actor = make_numpy_actor(model, iter([np.zeros((50, 3), np.float32)]))
    assert not actor(Seen(np.ones((50, 4), np.float32), legal), *np.zeros((2, 50), bool)).any()
