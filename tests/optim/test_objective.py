"""Objectives as sums of terms: losses by hand, micro-batches, and where auxiliary losses join."""

import numpy as np
import pytest
import torch
from builders import SPACES, Imitation, kl_function, make_buffer, make_model, parameters

from rlzoo.algorithms import TRPO, PPOClip, PPOPenalty, Reinforce
from rlzoo.core.estimators import GAE
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy
from rlzoo.optim.objective import objective_terms, surrogate, surrogate_and_kl, value_error, value_loss

LOSSES = {
    "reinforce": (Reinforce(ent_coef=0.01).loss, (0.01,)),
    "ppo-penalty": (PPOPenalty(ent_coef=0.01).loss, (1.5, 0.01)),
    "ppo-clip": (PPOClip(ent_coef=0.01, clip_value=True).loss, (0.2, 0.01)),
}
NETWORKS = {
    "discrete": {},
    "box": {"space": SPACES["box"]},
    "box, shared trunk": {"space": SPACES["box"], "shared_trunk": True},
    "multidiscrete, shared trunk": {"space": SPACES["multidiscrete"], "shared_trunk": True, "activation": "relu"},
}
ALL_NETWORKS = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
PART_STEPS = pytest.mark.parametrize("part_steps", [None, 11])
OPTIMIZERS = {"plain": Adam, "fast": lambda parameters: FastAdam(Adam(parameters))}
ALL_OPTIMIZERS = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def make(part_steps=None, seed=1, **network):
    """A model, and a batch that another policy collected."""
    model, acting = make_model(**network), make_model(**{**network, "seed": seed})
    batch = GAE()(make_buffer(acting)).rows(1)
    with torch.no_grad():
        batch = batch.replace(old=acting.distribution(batch.obs).detach())
    model.part_steps = part_steps
    return model, batch


def flat_gradient(y, parameters):
    grads = torch.autograd.grad(y, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([g.reshape(-1) for g in grads])


def first_gradient(optimizer, *loss, **settings):
    """The gradient of the first step, which changes nothing but the moments."""
    optimizer.minimize(*loss, learning_rate=0.0, **settings)
    adam = getattr(optimizer, "adam", optimizer)
    return adam.m / (1 - adam.betas[0])  # the first moment starts from 0


def test_terms_are_the_micro_batches_and_the_auxiliary_loss():
    model, batch = make(part_steps=11)
    model.auxiliary = Imitation(model)
    terms = objective_terms(surrogate, model, batch)
    assert len(terms) == 3 + 2
    assert model.auxiliary.drawn == [batch.num_rows]
    with torch.no_grad():
        total = float(surrogate(model, batch) + model.auxiliary.loss(model))
        assert sum(float(term(model)) for term in terms) == pytest.approx(total, rel=1e-12)


def test_scalars_reach_the_loss():
    model, batch = make(part_steps=11)
    algorithm = PPOClip(normalize_advantage=False, ent_coef=0.01)
    with torch.no_grad():
        total = sum(float(term(model)) for term in objective_terms(algorithm.loss, model, batch, 0.3, 0.5))
        assert total == pytest.approx(float(algorithm.loss(model, batch, 0.3, 0.5)), rel=1e-12)
        assert total != pytest.approx(float(algorithm.loss(model, batch, 0.3, 0.1)), rel=1e-3)


@pytest.mark.parametrize("auxiliary", [True, False])
def test_without_an_auxiliary_loss_there_is_one_term_a_part(auxiliary):
    model, batch = make()
    assert len(objective_terms(surrogate, model, batch, auxiliary=auxiliary)) == 1
    model.auxiliary = Imitation(model)
    assert len(objective_terms(surrogate, model, batch, auxiliary=auxiliary)) == (3 if auxiliary else 1)
    assert len(model.auxiliary.drawn) == auxiliary


@ALL_NETWORKS
@PART_STEPS
@ALL_OPTIMIZERS
@pytest.mark.parametrize("loss", LOSSES)
def test_auxiliary_gradient_is_added_to_that_of_every_loss(loss, make_optimizer, part_steps, network):
    """∇(total) = ∇(objective) + ∇(auxiliary)."""
    model, batch = make(part_steps, **network)
    everything, (loss, scalars) = list(model.parameters()), LOSSES[loss]
    model.auxiliary = Imitation(model)
    own, added = (flat_gradient(y, everything) for y in (loss(model, batch, *scalars), model.auxiliary.loss(model)))
    assert added.norm() > 0.1
    total = first_gradient(make_optimizer(everything), loss, model, batch, *scalars)
    torch.testing.assert_close(total, own + added, rtol=0, atol=1e-12)
    alone = first_gradient(make_optimizer(everything), loss, model, batch, *scalars, auxiliary=False)
    torch.testing.assert_close(alone, own, rtol=0, atol=1e-12)
    assert len(model.auxiliary.drawn) == 1


@ALL_NETWORKS
@PART_STEPS
def test_flat_objective_is_the_surrogate_less_the_auxiliary_loss(part_steps, network):
    model, batch = make(part_steps, **network)
    model.auxiliary = Imitation(model)
    policy = FlatPolicy(model)
    objective = policy.objective(surrogate, batch)
    total = surrogate(model, batch) - model.auxiliary.loss(model)
    assert objective(policy.theta) == pytest.approx(total.item(), rel=1e-12)
    expected = flat_gradient(total, model.policy_parameters())
    value, g = objective.value_and_gradient(policy.theta)
    assert value == pytest.approx(total.item(), rel=1e-12)
    torch.testing.assert_close(g, expected, rtol=0, atol=1e-12)
    moved = policy.theta + 0.1
    found = policy.objective_and_kl(objective, batch)(moved)
    assert found == pytest.approx((objective(moved), kl_function(policy, batch)(moved)), rel=1e-12)
    assert found[1] > 1e-3
    assert len(model.auxiliary.drawn) == 1, "one objective has one auxiliary loss, however often it is evaluated"


def test_kl_and_fisher_products_leave_the_auxiliary_loss_out():
    model, batch = make()
    policy = FlatPolicy(model)
    v = torch.ones_like(policy.theta)
    found = []
    for auxiliary in (None, Imitation(model)):
        model.auxiliary = auxiliary
        _, kl = policy.objective_and_kl(policy.objective(surrogate, batch), batch)(policy.theta + 0.1)
        found.append((kl, fisher_vector_product(policy, policy.theta, batch)(v)))
    assert found[0][0] == found[1][0] > 0
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("shared_trunk", [False, True])
@ALL_OPTIMIZERS
def test_fitting_the_value_leaves_the_auxiliary_loss_out(make_optimizer, shared_trunk):
    weights = []
    for with_auxiliary in (False, True):
        model, batch = make(shared_trunk=shared_trunk)
        model.auxiliary = Imitation(model) if with_auxiliary else None
        fit_value(model, make_optimizer(model.value_parameters()), batch, 2, 8, 1e-2, np.random.default_rng(0))
        weights.append(parameters(model))
    assert torch.equal(*weights)
    assert model.auxiliary.drawn == []


class Drawn:
    """An auxiliary loss of one given term."""

    def __init__(self, term):
        self.term = term

    def draw(self, rows):
        return [self.term]


def trpo_update(model, buffer, **settings):
    algorithm = TRPO(vf_epochs=0, **settings)
    return algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)


def test_line_search_of_trpo_accepts_by_the_surrogate_less_the_auxiliary_loss():
    """The auxiliary loss is twice the surrogate. So their sum improves where the surrogate gets worse."""
    model = make_model()
    buffer = make_buffer(model)
    batch = TRPO().estimator(buffer).rows(1)
    batch = batch.replace(advantage=batch.whitened_advantage)
    model.auxiliary = Drawn(lambda model: 2 * surrogate(model, batch))
    metrics = trpo_update(model, buffer)
    assert metrics["accepted"]
    with torch.no_grad():
        assert surrogate(model, batch) < -0.01


def test_line_search_of_trpo_refuses_what_the_auxiliary_loss_outweighs():
    """The auxiliary loss is least, and its gradient 0, at the parameters as they are."""
    start, model = make_model(), make_model()
    buffer = make_buffer(model)
    old = torch.cat([p.detach().reshape(-1) for p in start.policy_parameters()])

    def distance(model):
        return 1e6 * (torch.cat([p.reshape(-1) for p in model.policy_parameters()]) - old).square().sum()

    model.auxiliary = Drawn(distance)
    assert not trpo_update(model, buffer, backtrack_iters=3)["accepted"]
    assert torch.equal(parameters(model), parameters(start))
    model.auxiliary = None
    assert trpo_update(model, buffer, backtrack_iters=3)["accepted"]


@torch.no_grad()
def test_surrogate_and_kl_by_hand():
    model, batch = make(seed=0)
    advantage = batch.advantage[batch.mask]
    assert float(surrogate(model, batch)) == pytest.approx(float(advantage.mean()), rel=1e-12)  # at ratio 1
    assert float(surrogate_and_kl(model, batch)[1]) == pytest.approx(0, abs=1e-15)
    model, batch = make(seed=1)
    new, old = model.distribution(batch.obs), batch.old
    ratio = torch.exp(new.log_prob(batch.action) - old.log_prob(batch.action))
    kl = (old.log_probs.exp() * (old.log_probs - new.log_probs)).sum(-1)
    assert float(surrogate(model, batch)) == pytest.approx(
        float((ratio * batch.advantage)[batch.mask].mean()), rel=1e-12
    )
    assert float(surrogate_and_kl(model, batch)[1]) == pytest.approx(float(kl[batch.mask].mean()), rel=1e-12)


def test_value_loss_is_half_the_masked_mean_square():
    model, batch = make(seed=0)
    error = (batch.value - batch.return_)[batch.mask]
    torch.testing.assert_close(value_loss(model, batch), 0.5 * error.square().mean())


@pytest.mark.parametrize(
    ("value", "old", "target", "expected"),
    [
        (1.5, 1.0, 3.0, 1.8**2),  # clipped to 1.2, which is farther from the target
        (0.5, 1.0, 3.0, 2.5**2),  # clipped to 0.8, which is nearer
        (1.1, 1.0, 3.0, 1.9**2),  # within the bounds
    ],
)
def test_clipped_value_error_by_hand(value, old, target, expected):
    _, batch = make()
    filled = [torch.full_like(batch.value, x) for x in (value, old, target)]
    batch = batch.replace(value=filled[1], return_=filled[2])
    error = value_error(filled[0], batch, clip_coef=0.2)
    torch.testing.assert_close(error, torch.full_like(error, expected), rtol=1e-12, atol=0)
    plain = value_error(filled[0], batch)
    torch.testing.assert_close(plain, torch.full_like(plain, (value - target) ** 2), rtol=1e-12, atol=0)
