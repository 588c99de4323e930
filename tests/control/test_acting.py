"""Acting: the NumPy path equals the PyTorch path, and action noise is what it says."""

import itertools

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model
from gymnasium import spaces
from scipy import stats

from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.core.actors import ModelActor
from rlzoo.core.models import ActorCritic

OPTIONS = [
    {},
    {"activation": "relu", "hidden": (7, 6)},
    {"shared_trunk": True},
    {"normalize_obs": True},
    {"state_dependent_std": True},
    {"normalize_obs": True, "shared_trunk": True, "state_dependent_std": True},
]


def acting(space, copies=50, **options):
    """A model, observations and noise in single precision."""
    model = make_model(space, dtype=torch.float32, **options)
    if model.normalizer is not None:
        buffer = make_buffer(model)
        model.normalizer.update(3 * buffer.obs[:, :-1] + 1, buffer.mask)
    rng = np.random.default_rng(0)
    obs = (3 * rng.normal(size=(copies, 4))).astype(np.float32)
    return model, obs, next(ActionNoise(space, copies, rng))


def act(model, obs, noise, **how):
    """The action that the model's actor takes with this noise."""
    return make_actor(model, iter([noise]), **how)(obs, *np.zeros((2, len(obs)), bool))


def draw(noise, steps):
    """The noise of the next steps, (steps, N, Z)."""
    return np.stack(list(itertools.islice(noise, steps)))


def torch_action(model, obs, noise):
    with torch.no_grad():
        return model.distribution(torch.from_numpy(obs)).from_noise(torch.from_numpy(noise)).numpy()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("space", SPACES)
def test_numpy_actor_equals_the_torch_policy_for_the_same_noise(space, options):
    model, obs, noise = acting(SPACES[space], **options)
    assert not isinstance(make_actor(model, iter(())), ModelActor)
    action, expected = act(model, obs, noise), torch_action(model, obs, noise)
    assert action.dtype == expected.dtype
    np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_model_that_numpy_cannot_run_acts_through_torch(space):
    model, obs, noise = acting(SPACES[space])
    double, obs, noise = model.double(), obs.astype(np.float64), noise.astype(np.float64)
    assert isinstance(make_actor(double, iter(())), ModelActor)
    assert np.array_equal(act(double, obs, noise), torch_action(double, obs, noise))


class Mirrored(ActorCritic):
    """A model of the user's own, that NumPy knows nothing of."""

    def features(self, obs):
        return -10 * super().features(obs)


@pytest.mark.parametrize("space", SPACES)
def test_model_of_another_class_acts_through_torch(space):
    model, obs, noise = acting(SPACES[space])
    own = Mirrored(model.policy, model.value)
    assert np.array_equal(act(own, obs, noise), torch_action(own, obs, noise))
    assert not np.array_equal(act(own, obs, noise), act(model, obs, noise))


@pytest.mark.parametrize("space", SPACES)
def test_without_fast_the_actor_is_torch(space):
    model, obs, noise = acting(SPACES[space])
    assert isinstance(make_actor(model, iter(()), fast=False), ModelActor)
    assert np.array_equal(act(model, obs, noise, fast=False), torch_action(model, obs, noise))


@pytest.mark.parametrize("fast", [True, False])
def test_each_action_takes_the_next_noise(fast):
    model, obs, _ = acting(SPACES["box"])
    first, second = ActionNoise(SPACES["box"], 50, np.random.default_rng(7)), np.random.default_rng(7)
    actor = make_actor(model, first, fast)
    expected = ActionNoise(SPACES["box"], 50, second)
    for _ in range(3):
        action = actor(obs, *np.zeros((2, 50), bool))
        np.testing.assert_allclose(action, torch_action(model, obs, next(expected)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_zero_noise_acts_by_the_mode(space):
    model, obs, _ = acting(SPACES[space])
    noise = ActionNoise(SPACES[space], len(obs), np.random.default_rng(0))
    state, zeros = noise.state_dict(), draw(noise.zeros(), 3)
    assert zeros.shape == (3, *noise.shape)
    assert zeros.dtype == np.float32
    assert noise.state_dict()["used"] == state["used"]
    mode = model.distribution(torch.from_numpy(obs)).mode
    np.testing.assert_allclose(act(model, obs, zeros[0]), mode.detach(), rtol=1e-5, atol=1e-5)


def test_acting_samples_the_policy():
    model, obs, _ = acting(SPACES["discrete"], copies=1)
    noise = next(ActionNoise(SPACES["discrete"], 20_000, np.random.default_rng(1)))
    actions = act(model, np.repeat(obs, 20_000, 0), noise)
    probabilities = model.distribution(torch.from_numpy(obs)).log_probs.detach().exp()[0].double()
    expected = 20_000 * probabilities / probabilities.sum()
    assert stats.chisquare(np.bincount(actions, minlength=3), expected).pvalue > 0.01


@pytest.mark.parametrize(("space", "size"), [("discrete", 3), ("box", 2), ("multidiscrete", 5), ("multibinary", 6)])
def test_noise_has_one_number_for_each_output(space, size):
    noise = draw(ActionNoise(SPACES[space], 4, np.random.default_rng(0)), 7)
    assert noise.shape == (7, 4, size)
    assert noise.dtype == np.float32


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
@pytest.mark.parametrize(("space", "marginal"), [("discrete", "gumbel_r"), ("box", "norm")])
def test_noise_is_standard_at_every_step_whatever_its_correlation(space, marginal, correlation):
    noise = ActionNoise(SPACES[space], 2000, np.random.default_rng(12), correlation)
    drawn = draw(noise, 70)  # more than one block
    for t in (0, 1, 20, 43, 63, 64, 69):
        assert stats.kstest(drawn[t].ravel(), marginal).pvalue > 0.001


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.95])
def test_successive_normal_noises_have_the_correlation_asked_for(correlation):
    noise = ActionNoise(SPACES["box"], 4000, np.random.default_rng(3), correlation)
    drawn = draw(noise, 70)
    for t in (*range(7), 63, 64, 68):
        now, then = drawn[t].ravel(), drawn[t + 1].ravel()
        assert np.corrcoef(now, then)[0, 1] == pytest.approx(correlation, abs=0.05)
    across = np.corrcoef(drawn[0, :, 0], drawn[0, :, 1])[0, 1]
    assert across == pytest.approx(0, abs=0.06)


def test_correlated_gumbel_noise_repeats_the_action():
    space = spaces.Discrete(2)
    repeats = {}
    for correlation in (0.0, 0.9):
        first, second = draw(ActionNoise(space, 2000, np.random.default_rng(4), correlation), 2).argmax(-1)
        repeats[correlation] = np.mean(first == second)
    assert repeats[0.0] == pytest.approx(0.5, abs=0.04)
    assert repeats[0.9] > 0.75


@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("space", ["discrete", "box"])
@pytest.mark.parametrize("used", [0, 4, 64, 130])
def test_noise_goes_on_from_its_state(used, space, correlation):
    noise = ActionNoise(SPACES[space], 3, np.random.default_rng(5), correlation)
    for _ in range(used):
        next(noise)
    state = noise.state_dict()
    expected = draw(noise, 100)
    other = ActionNoise(SPACES[space], 3, np.random.default_rng(99), correlation)
    other.load_state_dict(state)
    assert np.array_equal(draw(other, 100), expected)


def test_successive_draws_differ():
    noise = ActionNoise(SPACES["box"], 3, np.random.default_rng(6))
    drawn = draw(noise, 130)
    assert len(np.unique(drawn.reshape(130, -1), axis=0)) == 130
