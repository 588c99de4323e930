"""TRPO: every accepted step improves the surrogate within the trust region, and a failed search moves nothing."""

import copy

import numpy as np
import pytest
import torch
from builders import SPACES, Imitation, make_buffer, make_model, parameters
from torch.distributions import Categorical, Independent, Normal, kl_divergence
from torch.nn.utils import vector_to_parameters

from rlzoo.algorithms import TRPO, npg, trpo
from rlzoo.core.collector import evaluate
from rlzoo.core.system.errors import ConfigError
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product
from rlzoo.optim.natural_gradient import Objective
from rlzoo.optim.objective import clipped_loss
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer

BY_ADAM = {"epochs": 4, "learning_rate": 1e-3, "minibatch_size": 64}


def reference(policy):
    """The same distribution in `torch.distributions`."""
    if hasattr(policy, "logits"):
        return Categorical(logits=policy.logits)
    return Independent(Normal(policy.mean, policy.log_std.exp()), 1)


@torch.no_grad()
def measured(old, new, batch):
    """Masked means of KL(old ‖ new), KL(new ‖ old) and the surrogate."""
    p, q = (reference(model.distribution(batch.obs)) for model in (old, new))
    advantage = batch.advantage[batch.mask]
    white = (batch.advantage - advantage.mean()) / advantage.std(correction=0)
    surrogate = torch.exp(q.log_prob(batch.action) - p.log_prob(batch.action)) * white
    return [float(x[batch.mask].mean()) for x in (kl_divergence(p, q), kl_divergence(q, p), surrogate)]


def update(algorithm, model, buffer, progress=0.0):
    """The model before the update, the batch and the metrics."""
    before = copy.deepcopy(model)
    state = algorithm.init(model, np.random.default_rng(0))
    state.progress = progress
    return before, algorithm.estimator(buffer).rows(1), algorithm.update(model, state, buffer)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, BY_ADAM], ids=["natural", "adam"])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_every_step_of_a_run_stays_in_the_trust_region_and_improves_the_surrogate(env, settings):
    trainer = Trainer(make_config("trpo", env, num_envs=4, num_steps=100, **settings))
    algorithm, model = trainer.algorithm, trainer.model
    accepted = []
    for _ in range(8):
        buffer = evaluate(model, trainer.task.collector.collect(trainer.task.actor()).buffer)
        old = copy.deepcopy(model)
        metrics = algorithm.update(model, trainer.state, buffer)
        kl, _, surrogate = measured(old, model, algorithm.estimator(buffer).rows(1))
        assert kl <= algorithm.max_kl * (1 + 1e-4)
        assert metrics["kl"] == pytest.approx(kl, rel=1e-2, abs=1e-6)
        if metrics["accepted"]:
            assert surrogate > 0
            accepted.append(kl)
    assert len(accepted) >= 6
    assert np.mean(accepted) > 0.3 * algorithm.max_kl


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_trust_region_is_in_kl_from_old_to_new(space):
    """Fine backtracking from far outside ends just inside the bound, where the two directions differ."""
    model = make_model(SPACES[space])
    algorithm = TRPO(max_kl=0.2, backtrack_coef=0.99, backtrack_iters=500)
    old, batch, metrics = update(algorithm, model, make_buffer(model, rows=8))
    assert metrics["backtracks"] > 0
    forward, backward, _ = measured(old, model, batch)
    assert forward == pytest.approx(0.2, rel=0.04)
    assert forward <= 0.2
    assert abs(backward - forward) > 0.015


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_passes_of_adam_give_the_step_that_the_search_shortens(space):
    """Against PyTorch's Adam on PPO's clipped surrogate, with one minibatch, so that no order of steps is drawn."""
    model = make_model(SPACES[space], dtype=torch.float64)
    buffer = make_buffer(model, rows=8)
    algorithm = TRPO(epochs=5, minibatch_size="all", learning_rate=0.02, clip_coef=0.05, max_kl=0.002, vf_epochs=0)
    old, batch, metrics = update(algorithm, model, buffer)
    expected = copy.deepcopy(old)
    adam = torch.optim.Adam(expected.policy_parameters(), lr=0.02, eps=1e-5)
    white, clipped = batch.whitened, 0
    for _ in range(5):
        adam.zero_grad()
        ratio = torch.exp(expected.distribution(white.obs).log_prob(white.action) - white.logp)
        outside = torch.where(white.advantage > 0, ratio > 1.05, ratio < 0.95)
        clipped += int(outside[white.mask].sum())
        (-(ratio * white.advantage)[white.mask & ~outside].sum() / white.mask.sum()).backward()
        adam.step()
    start, end, full = (
        torch.cat([p.detach().reshape(-1) for p in m.policy_parameters()]) for m in (old, model, expected)
    )
    share = algorithm.backtrack_coef ** int(metrics["backtracks"])
    assert 0 < metrics["backtracks"] < algorithm.backtrack_iters
    assert clipped > 0
    torch.testing.assert_close(end - start, share * (full - start), rtol=1e-6, atol=1e-9)
    longer = copy.deepcopy(old)
    vector_to_parameters(start + share / algorithm.backtrack_coef * (full - start), longer.policy_parameters())
    assert measured(old, model, batch)[0] <= 0.002 < measured(old, longer, batch)[0]


@pytest.mark.parametrize("epochs", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("space", SPACES)
def test_failed_search_leaves_the_policy_bit_equal(space, dtype, epochs, monkeypatch):
    search = trpo.line_search
    monkeypatch.setattr(trpo, "line_search", lambda accept, *rest: search(lambda theta: accept(theta) and False, *rest))
    model = make_model(SPACES[space], dtype=dtype)
    old, _, metrics = update(TRPO(epochs=epochs), model, make_buffer(model))
    for new, before in zip(model.policy_parameters(), old.policy_parameters(), strict=True):
        assert torch.equal(new, before)
    assert metrics["accepted"] == metrics["step_norm"] == metrics["kl"] == 0
    assert metrics["backtracks"] == TRPO().backtrack_iters


def test_step_outside_the_region_is_not_taken_though_it_improves():
    model = make_model(SPACES["box"])
    buffer = make_buffer(model, rows=8)
    old, _, metrics = update(TRPO(max_kl=0.2, backtrack_iters=1, vf_epochs=0), model, buffer)
    assert torch.equal(parameters(model), parameters(old))
    assert metrics["accepted"] == 0


def test_step_inside_the_region_is_not_taken_unless_it_improves(monkeypatch):
    gradient = Objective.value_and_gradient

    def downhill(objective, theta):
        value, g = gradient(objective, theta)
        return value, -g

    monkeypatch.setattr(Objective, "value_and_gradient", downhill)
    model = make_model()
    old, _, metrics = update(TRPO(vf_epochs=0), model, make_buffer(model))
    assert torch.equal(parameters(model), parameters(old))
    assert metrics["accepted"] == 0


def test_max_kl_follows_its_schedule():
    model = make_model()
    algorithm = TRPO(max_kl="linear:0.02:0", backtrack_coef=0.99, backtrack_iters=500)
    old, batch, _ = update(algorithm, model, make_buffer(model), progress=0.75)
    kl, _, _ = measured(old, model, batch)
    assert 0.004 < kl <= 0.005


@pytest.mark.parametrize("name", ["trpo", "npg"])
def test_fisher_products_average_over_a_part_of_the_rows(name, monkeypatch):
    trainer = Trainer(make_config(name, "CartPole-v1", num_envs=4, num_steps=100, fisher_fraction=0.1))
    module = trpo if name == "trpo" else npg
    rows = []

    def product(policy, theta, part, damping):
        rows.append(part.num_rows)
        return fisher_vector_product(policy, theta, part, damping)

    monkeypatch.setattr(module, "fisher_vector_product", product)
    for _ in range(3):
        buffer = evaluate(trainer.model, trainer.task.collector.collect(trainer.task.actor()).buffer)
        old = copy.deepcopy(trainer.model)
        metrics = trainer.algorithm.update(trainer.model, trainer.state, buffer)
        kl, *_ = measured(old, trainer.model, trainer.algorithm.estimator(buffer).rows(1))
        assert metrics["kl"] == pytest.approx(kl, rel=1e-2, abs=1e-6)
        if name == "trpo":  # the bound holds on all rows
            assert kl <= trainer.algorithm.max_kl * (1 + 1e-4)
    assert all(36 <= n <= 40 for n in rows)


def test_rows_of_fisher_products_have_a_stream_of_their_own():
    make = lambda fraction: TRPO(fisher_fraction=fraction).init(make_model(), np.random.default_rng(3))  # noqa: E731
    part, whole = make(0.5), make(1.0)
    assert "fisher_rng" not in whole.state_dict()
    part.fisher_rng.random(5)
    assert part.rng.random() == whole.rng.random()
    state, expected = part.state_dict(), part.fisher_rng.random(3)
    other = make(0.5)
    other.load_state_dict(state)
    assert np.array_equal(other.fisher_rng.random(3), expected)


@pytest.mark.parametrize(
    ("env", "fraction", "message"),
    [
        ("CartPole-v1", 0.0001, "= 0.0001 of num_envs . num_steps = 1024 leaves no row"),
        ("RandomWalks", 0.01, "0.01 of responses_per_batch = .* leaves no row"),
        ("CartPole-v1", 0, "fisher_fraction must be in .0, 1., got 0"),
    ],
)
def test_fraction_that_leaves_no_row_is_an_error(env, fraction, message):
    with pytest.raises(ConfigError, match=message):
        make_config("trpo", env, fisher_fraction=fraction)


def test_search_takes_the_longest_step_that_improves_the_surrogate_less_all_terms_of_the_auxiliary_loss():
    model = make_model()
    model.auxiliary = Imitation(model, coef=5.0)
    algorithm = TRPO(max_kl=3.0, vf_epochs=0)
    old, batch, metrics = update(algorithm, model, make_buffer(model, rows=8))
    tries = int(metrics["backtracks"])
    start, end = (torch.cat([p.detach().reshape(-1) for p in m.policy_parameters()]) for m in (old, model))
    step = (end - start) / algorithm.backtrack_coef**tries
    improved = []
    for i in range(tries + 1):
        candidate = copy.deepcopy(old)
        vector_to_parameters(start + algorithm.backtrack_coef**i * step, candidate.policy_parameters())
        kl, _, surrogate = measured(old, candidate, batch)
        assert kl < 3.0
        loss, before = (float(model.auxiliary.loss(x).detach()) for x in (candidate, old))
        improved.append(surrogate - loss > -before)
    assert improved == [False] * 4 + [True]


@pytest.mark.parametrize("module", [trpo, npg])
def test_the_length_of_the_step_is_measured_on_all_rows(module, monkeypatch):
    name = module.__name__.rpartition(".")[2]
    trainer = Trainer(make_config(name, "CartPole-v1", num_envs=4, num_steps=100, fisher_fraction=0.1))
    lengths = []

    def curvature(policy, theta, batch, x):
        lengths.append(batch.num_rows)
        return fisher_curvature(policy, theta, batch, x)

    monkeypatch.setattr(module, "fisher_curvature", curvature)
    buffer = evaluate(trainer.model, trainer.task.collector.collect(trainer.task.actor()).buffer)
    trainer.algorithm.update(trainer.model, trainer.state, buffer)
    assert lengths == [400]


def test_a_step_without_improvement_is_not_accepted():
    model, algorithm = make_model(), TRPO(vf_epochs=0)
    buffer = make_buffer(model)
    buffer = buffer.replace(reward=torch.zeros_like(buffer.reward), value=torch.zeros_like(buffer.value))
    metrics = algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
    assert (metrics["accepted"], metrics["backtracks"]) == (0.0, algorithm.backtrack_iters)


def test_epochs_with_a_negative_surrogate_are_accepted_if_it_grows():
    model, algorithm = make_model(), TRPO(epochs=4, learning_rate=1e-3, normalize_advantage=False, vf_epochs=0)
    buffer = make_buffer(model)
    buffer = buffer.replace(reward=buffer.reward - 10.0)  # every advantage is negative, and so is the surrogate
    assert algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)["accepted"] == 1


def test_advantages_of_minibatches_are_normalised(monkeypatch):
    means, model, algorithm = [], make_model(), TRPO(epochs=1, minibatch_size=8, vf_epochs=0)

    def loss(model, batch, *scalars):
        means.append(float(batch.mean(batch.advantage)))
        return clipped_loss(model, batch, *scalars)

    monkeypatch.setattr(trpo, "clipped_loss", loss)
    algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), make_buffer(model))
    assert means == pytest.approx([0] * 4, abs=1e-9)
