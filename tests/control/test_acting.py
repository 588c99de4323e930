"""Acting, and the noise of actions."""

import itertools

import numpy as np
import pytest
import torch
from builders import SPACES, make_model
from scipy import stats

import rlzoo
from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.networks import MLP, MLPValue
from rlzoo.core.distributions import DiagGaussian


def acting(space, copies=50):
    """A model and observations in single precision."""
    model = make_model(space, dtype=torch.float32)
    return model, (3 * np.random.default_rng(0).normal(size=(copies, 4))).astype(np.float32)


def act(model, obs, noise):
    """The action that the model's actor takes with this noise."""
    return make_actor(model, iter([noise]))(obs, *np.zeros((2, len(obs)), bool))


def draw(noise, steps):
    """The noise of the next steps, (steps, N, Z)."""
    return np.stack(list(itertools.islice(noise, steps)))


def test_noise_of_zeros_stands_for_the_mode():
    """The mode of a skewed distribution is not its median, which the quantile function gives for 0."""

    class Skewed(DiagGaussian):
        def from_noise(self, noise):
            return super().from_noise(noise).exp()

    class Policy(rlzoo.Policy):
        def forward(self, features, memory=None):
            return Skewed(features, torch.zeros_like(features)), memory

    model = rlzoo.ActorCritic(Policy(), MLPValue(MLP(4, (), outputs=1)))
    obs = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(act(model, obs, np.zeros((2, 4), np.float32)), obs)
    np.testing.assert_allclose(act(model, obs, np.ones((2, 4), np.float32)), np.exp(obs + 1), rtol=1e-6)


@pytest.mark.parametrize("make_actor", [make_actor, make_numpy_actor])
def test_each_action_takes_the_next_noise(make_actor):
    model, obs = acting(SPACES["box"])
    first, second = (ActionNoise(SPACES["box"], 50, np.random.default_rng(7)) for _ in range(2))
    actor, policy = make_actor(model, first), model.distribution(torch.from_numpy(obs))
    for _ in range(3):
        action, expected = actor(obs, *np.zeros((2, 50), bool)), policy.from_noise(torch.from_numpy(next(second)))
        np.testing.assert_allclose(action, expected.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("space", SPACES)
def test_zero_noise_acts_by_the_mode(space):
    model, obs = acting(SPACES[space])
    noise = ActionNoise(SPACES[space], len(obs), np.random.default_rng(0))
    state, zeros = noise.state_dict(), draw(noise.zeros(), 3)
    assert zeros.shape == (3, *noise.shape)
    assert zeros.dtype == np.float32
    assert noise.state_dict()["used"] == state["used"]
    mode = model.distribution(torch.from_numpy(obs)).mode
    np.testing.assert_allclose(act(model, obs, zeros[0]), mode.detach(), rtol=1e-5, atol=1e-5)


def test_acting_samples_the_policy():
    model, obs = acting(SPACES["discrete"], copies=1)
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
