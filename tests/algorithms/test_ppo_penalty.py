"""PPO with an adaptive KL penalty: the loss by hand, and β from update to update."""

import dataclasses

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model, parameters
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from rlzoo.algorithms import PPOPenalty
from rlzoo.core.estimators import GAE
from rlzoo.core.system.errors import ConfigError


def make_batch(space):
    """A batch of one policy, holding it as `old`, and the model of another."""
    acting, model = make_model(SPACES[space]), make_model(SPACES[space], seed=1)
    batch = GAE()(make_buffer(acting)).rows(1)
    with torch.no_grad():
        return model, batch.replace(old=acting.distribution(batch.obs))


def reference(policy):
    if hasattr(policy, "logits"):
        return Categorical(logits=policy.logits)
    return Independent(Normal(policy.mean, policy.log_std.exp()), 1)


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_loss_is_the_mean_of_its_terms_over_unmasked_steps(space):
    model, batch = make_batch(space)
    algorithm = PPOPenalty(vf_coef=0.7, ent_coef=0.02)
    policy, old = reference(model.distribution(batch.obs)), reference(batch.old)
    ratio = torch.exp(policy.log_prob(batch.action) - old.log_prob(batch.action))
    value_error = (model(batch.obs)[1] - batch.return_).square()
    terms = (
        -(ratio * batch.advantage - 3.0 * kl_divergence(old, policy))
        + 0.7 * 0.5 * value_error
        - 0.02 * policy.entropy()
    )
    torch.testing.assert_close(algorithm.loss(model, batch, 3.0, 0.02), terms[batch.mask].mean())


@pytest.mark.parametrize(
    ("kl_coef", "d", "expected"),
    [
        (1.0, 0.0, 0.5),
        (1.0, 0.0066, 0.5),
        (1.0, 0.0067, 1.0),
        (1.0, 0.01, 1.0),
        (1.0, 0.0149, 1.0),
        (1.0, 0.0151, 2.0),
        (8.0, 9.0, 16.0),
        (60.0, 9.0, 100.0),
        (0.15, 0.0, 0.1),
    ],
)
def test_penalty_doubles_above_and_halves_below_the_target(kl_coef, d, expected):
    assert PPOPenalty(target_kl=0.01, kl_coef_min=0.1, kl_coef_max=100.0).adapt(kl_coef, d) == expected


def spy(state):
    """The penalty coefficient of each step."""
    coefs, minimize = [], state.optimizers["all"].minimize

    def recording(loss, model, batch, kl_coef, ent_coef, **settings):
        coefs.append(kl_coef)
        return minimize(loss, model, batch, kl_coef, ent_coef, **settings)

    state.optimizers["all"].minimize = recording
    return coefs


@pytest.mark.parametrize(("target_kl", "factor"), [(1e-9, 2.0), (1e3, 0.5)])
def test_new_penalty_serves_the_whole_next_update(target_kl, factor):
    model = make_model()
    algorithm = PPOPenalty(target_kl=target_kl, epochs=3, minibatch_size=8)
    state = algorithm.init(model, np.random.default_rng(0))
    coefs, reported = spy(state), []
    for _ in range(3):
        reported.append(algorithm.update(model, state, make_buffer(model))["kl_coef"])
    assert reported == [1.0, factor, factor**2]
    assert coefs == [1.0] * 12 + [factor] * 12 + [factor**2] * 12
    assert state.state_dict()["scalars"] == {"kl_coef": factor**3}


def test_learning_rate_follows_its_schedule():
    model = make_model()
    algorithm = PPOPenalty(learning_rate="linear:0.4:0", epochs=1, minibatch_size=32)
    state = algorithm.init(model, np.random.default_rng(0))
    state.progress = 0.75
    before = parameters(model)
    algorithm.update(model, state, make_buffer(model))
    step = float((parameters(model) - before).abs().max())
    assert step == pytest.approx(0.1, rel=1e-2)  # Adam's first step is the learning rate


@pytest.mark.parametrize("changes", [{"kl_coef": 1e-5}, {"kl_coef_max": 0.5}])
def test_penalty_outside_its_bounds_is_an_error(changes):
    with pytest.raises(ConfigError, match=r"kl_coef must be in \[kl_coef_min, kl_coef_max\]"):
        dataclasses.replace(PPOPenalty(), **changes)
