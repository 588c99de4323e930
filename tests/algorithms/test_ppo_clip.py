"""PPO with clipping: the loss step by step, schedules, and the early stop."""

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model, parameters

from rlzoo.algorithms import PPOClip, PPOPenalty, measure, ppo_clip
from rlzoo.core.estimators import GAE
from rlzoo.optim.objective import KLStop


def make_batch(space="discrete"):
    """A batch that one policy collected, and the model of another."""
    acting, model = make_model(SPACES[space]), make_model(SPACES[space], spread=0.8)
    return model, GAE()(make_buffer(acting, rows=12)).rows(1)


def loss_by_hand(model, batch, epsilon, vf_coef, ent_coef, clip_value):
    """The loss as a sum over unmasked steps, in plain numbers."""
    policy, value = model(batch.obs)
    columns = (policy.log_prob(batch.action), value, policy.entropy())
    columns += (batch.mask, batch.logp, batch.advantage, batch.value, batch.return_)
    total, count, kinds = 0.0, 0, set()
    for new_logp, v, entropy, mask, logp, advantage, old_v, target in zip(
        *(x.flatten().tolist() for x in columns), strict=True
    ):
        if not mask:
            continue
        ratio = np.exp(new_logp - logp)
        clipped = min(max(ratio, 1 - epsilon), 1 + epsilon)
        kinds.add((np.sign(ratio - clipped), np.sign(advantage)))
        objective = min(ratio * advantage, clipped * advantage)
        error = (v - target) ** 2
        if clip_value:
            near = old_v + min(max(v - old_v, -epsilon), epsilon)
            error = max(error, (near - target) ** 2)
        total += -objective + vf_coef * 0.5 * error - ent_coef * entropy
        count += 1
    assert len(kinds) == 6, "the batch must hold ratios below, within and above the bounds, with either sign"
    return total / count


@pytest.mark.parametrize("ent_coef", [0.0, 0.03])
@pytest.mark.parametrize("clip_value", [False, True])
@pytest.mark.parametrize("space", ["discrete", "box"])
def test_loss_equals_the_formula_step_by_step(space, clip_value, ent_coef):
    model, batch = make_batch(space)
    algorithm = PPOClip(vf_coef=0.7, ent_coef=ent_coef, clip_value=clip_value)
    with torch.no_grad():
        expected = loss_by_hand(model, batch, 0.3, 0.7, ent_coef, clip_value)
        assert float(algorithm.loss(model, batch, 0.3, ent_coef)) == pytest.approx(expected, rel=1e-12)


def test_clip_fraction_is_the_share_of_unmasked_steps_out_of_bounds():
    model, batch = make_batch()
    with torch.no_grad():
        policy = model.distribution(batch.obs)
        ratio = torch.exp(policy.log_prob(batch.action) - batch.logp)[batch.mask]
        outside = ((ratio < 0.7) | (ratio > 1.3)).double().mean()
        assert 0 < outside < 1
        assert measure(model, batch, 0.3)["clip_fraction"] == pytest.approx(float(outside))


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_loss_is_equation_7(space):
    """L^CLIP(θ) = E[min(r(θ)·Â, clip(r(θ), 1 − ε, 1 + ε)·Â)], in double precision, for advantages as they are."""
    model, batch = make_batch(space)
    policy, epsilon = model.distribution(batch.obs), 0.2
    r = policy.log_prob(batch.action).exp() / batch.logp.exp()
    clipped = torch.where(r > 1 + epsilon, 1 + epsilon, torch.where(r < 1 - epsilon, 1 - epsilon, r))
    both = torch.stack([r * batch.advantage, clipped * batch.advantage])
    expected = -both.min(0).values[batch.mask].mean()
    loss = PPOClip(vf_coef=0.0).loss(model, batch, epsilon, 0.0)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    for mine, theirs in zip(
        *(torch.autograd.grad(x, model.policy_parameters()) for x in (loss, expected)), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_gradient_at_ratio_one_is_the_policy_gradient(space):
    """Nothing is clipped there, whatever ε is: ∇L = E[∇log π·Â]."""
    model = make_model(SPACES[space])
    batch = GAE()(make_buffer(model)).rows(1)
    parameters = model.policy_parameters()
    logp = model.distribution(batch.obs).log_prob(batch.action)
    expected = torch.autograd.grad(-(logp * batch.advantage)[batch.mask].mean(), parameters)
    for epsilon in (1e-6, 0.2, 10.0):
        loss = PPOClip(vf_coef=0.0).loss(model, batch, epsilon, 0.0)
        for mine, theirs in zip(torch.autograd.grad(loss, parameters), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def spy(state):
    """Clip coefficient, entropy coefficient, learning rate and bound on the gradient of each step."""
    calls, minimize = [], state.optimizers["all"].minimize

    def recording(loss, model, batch, *scalars, learning_rate, max_grad_norm, **more):
        calls.append((*scalars, learning_rate, max_grad_norm))
        rates = {"learning_rate": learning_rate, "max_grad_norm": max_grad_norm}
        return minimize(loss, model, batch, *scalars, **rates, **more)

    state.optimizers["all"].minimize = recording
    return calls


CONSTANT = {"clip_coef": 0.2, "ent_coef": 0.04, "learning_rate": 0.004}
LINEAR = {"clip_coef": "linear:0.2:0", "ent_coef": "linear:0:0.04", "learning_rate": "linear:0.004:0"}
AT_THREE_QUARTERS = {"clip_coef": 0.05, "ent_coef": 0.03, "learning_rate": 0.001}


@pytest.mark.parametrize("scheduled", [(), ("learning_rate",), ("clip_coef",), ("ent_coef",), tuple(LINEAR)])
def test_learning_rate_clip_and_entropy_coefficients_follow_their_schedules(scheduled):
    model = make_model()
    settings = CONSTANT | {name: LINEAR[name] for name in scheduled}
    algorithm = PPOClip(**settings, max_grad_norm=0.7, epochs=2)
    state = algorithm.init(model, np.random.default_rng(0))
    state.progress = 0.75
    calls = spy(state)
    algorithm.update(model, state, make_buffer(model))
    expected = CONSTANT | {name: AT_THREE_QUARTERS[name] for name in scheduled}
    assert calls == [pytest.approx((*expected.values(), 0.7))] * 2


def update(**settings):
    model = make_model()
    algorithm = PPOClip(learning_rate=0.01, **settings)
    metrics = algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), make_buffer(model))
    return parameters(model), metrics


def test_every_epoch_takes_every_minibatch():
    _, metrics = update(epochs=3, minibatch_size=10)
    assert metrics["gradient_steps"] == 3 * 4


def test_stop_kl_stops_before_the_step_that_would_go_on():
    one_step, _ = update(epochs=1, minibatch_size=32)
    stopped, metrics = update(epochs=5, minibatch_size=32, stop_kl=1e-9)
    assert metrics["gradient_steps"] == 1
    assert torch.equal(stopped, one_step)


def test_stop_kl_ends_all_epochs_once_it_is_passed():
    _, free = update(epochs=30, minibatch_size=8)
    _, held = update(epochs=30, minibatch_size=8, stop_kl=0.01)
    assert held["gradient_steps"] < free["gradient_steps"] == 120
    assert held["kl_k3"] < free["kl_k3"]


@pytest.mark.parametrize("algorithm", [PPOClip, PPOPenalty])
@pytest.mark.parametrize("whiten", [True, False])
def test_policy_loss_is_of_the_advantages_that_were_used(algorithm, whiten):
    model = make_model()
    algorithm = algorithm(learning_rate=1e-12, epochs=1, normalize_advantage=whiten)
    buffer = make_buffer(model)
    metrics = algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
    batch = algorithm.estimator(buffer)
    expected = 0.0 if whiten else -float(batch.mean(batch.advantage))
    assert metrics["policy_loss"] == pytest.approx(expected, abs=1e-6)


def test_an_update_stops_at_one_and_a_half_times_stop_kl(monkeypatch):
    limits, model = [], make_model()
    monkeypatch.setattr(ppo_clip, "KLStop", lambda limit: limits.append(limit) or KLStop(limit))
    algorithm = PPOClip(stop_kl=0.01)
    algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), make_buffer(model))
    assert limits == pytest.approx([0.015])
