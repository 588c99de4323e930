"""Objectives as sums of terms: losses by hand, micro-batches, and where auxiliary losses join."""

import numpy as np
import pytest
import torch
from builders import SPACES, Imitation, make_buffer, make_model, mean_kl, parameters

from rlzoo.algorithms import TRPO, PPOClip, PPOPenalty, Reinforce
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE
from rlzoo.core.kl import k3
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.fisher import fisher_curvature, fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, conjugate_gradient, line_search, trust_region_step
from rlzoo.optim.objective import KLStop, loss_terms, policy_statistics, surrogate, value_error, value_loss, with_old

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
MICRO_BATCHES = pytest.mark.parametrize("micro_batch_steps", [None, 11])
OPTIMIZERS = {"plain": Adam, "fast": lambda parameters: FastAdam(Adam(parameters))}
ALL_OPTIMIZERS = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def make(micro_batch_steps=None, seed=1, **network):
    """A model, and a batch that another policy collected."""
    model, acting = make_model(**network), make_model(**{**network, "seed": seed})
    batch = GAE()(make_buffer(acting)).rows(1)
    with torch.no_grad():
        batch = batch.replace(old=acting.distribution(batch.obs).detach())
    model.micro_batch_steps = micro_batch_steps
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
    model, batch = make(micro_batch_steps=11)
    model.auxiliary = Imitation(model)
    algorithm = PPOClip(ent_coef=0.01)
    terms = loss_terms(algorithm.loss, model, batch, 0.3, 0.5)
    assert len(terms) == 3 + 2
    assert model.auxiliary.drawn == [batch.num_rows]
    with torch.no_grad():
        total = float(algorithm.loss(model, batch, 0.3, 0.5) + model.auxiliary.loss(model))
        assert sum(float(term(model)) for term in terms) == pytest.approx(total, rel=1e-12)
    assert len(loss_terms(algorithm.loss, model, batch, 0.3, 0.5, auxiliary=False)) == 3
    assert len(model.auxiliary.drawn) == 1


@ALL_NETWORKS
@MICRO_BATCHES
@ALL_OPTIMIZERS
@pytest.mark.parametrize("loss", LOSSES)
def test_auxiliary_gradient_is_added_to_that_of_every_loss(loss, make_optimizer, micro_batch_steps, network):
    """∇(total) = ∇(objective) + ∇(auxiliary)."""
    model, batch = make(micro_batch_steps, **network)
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
@MICRO_BATCHES
def test_objective_is_the_surrogate_less_the_auxiliary_loss(micro_batch_steps, network):
    model, batch = make(micro_batch_steps, **network)
    model.auxiliary = Imitation(model)
    policy = FlatPolicy(model)
    objective, theta = policy.objective(surrogate, batch), policy.theta
    for point in (theta, theta + 0.1):
        policy.assign(point)
        total = surrogate(model.distribution(batch.obs), batch) - model.auxiliary.loss(model)
        value, g = objective.value_and_gradient(point)
        assert value == pytest.approx(total.item(), rel=1e-12)
        torch.testing.assert_close(g, flat_gradient(total, model.policy_parameters()), rtol=0, atol=1e-12)
        kl = mean_kl(model, batch).item()
        assert objective.value_and_kl(point) == pytest.approx((total.item(), kl), rel=1e-12)
        assert kl > 1e-3
    assert len(model.auxiliary.drawn) == 1, "one objective has one auxiliary loss, however often it is evaluated"


def gain(policy, batch):
    """An objective of one's own: the surrogate and a bonus for entropy."""
    return surrogate(policy, batch) + 0.05 * batch.mean(policy.entropy())


@MICRO_BATCHES
def test_an_objective_of_ones_own_is_evaluated_as_it_is(micro_batch_steps):
    model, batch = make(micro_batch_steps)
    policy = FlatPolicy(model)
    objective, moved = policy.objective(gain, batch), policy.theta + 0.1
    with torch.no_grad():
        at_moved = policy(moved, lambda model: model.distribution(batch.obs))
        expected = float(gain(at_moved, batch))
        assert expected - float(surrogate(at_moved, batch)) > 0.01
    assert objective.value_and_gradient(moved)[0] == pytest.approx(expected, rel=1e-12)
    assert objective.value_and_kl(moved)[0] == pytest.approx(expected, rel=1e-12)


def trpo_step(model, batch, gain, max_kl=0.01):
    """A step of TRPO on an objective of one's own."""
    policy = FlatPolicy(model)
    theta, objective = policy.theta, policy.objective(gain, batch)
    before, g = objective.value_and_gradient(theta)
    x, _ = conjugate_gradient(fisher_vector_product(policy, theta, batch, 0.1), g, 10)
    step, _ = trust_region_step(x, fisher_curvature(policy, theta, batch, x), max_kl)

    def accept(theta):
        after, kl = objective.value_and_kl(theta)
        return kl <= max_kl and after > before

    new, backtracks = line_search(accept, theta, step, 0.8, 10)
    policy.assign(new)
    return backtracks


def test_trpo_accepts_steps_by_an_objective_of_ones_own():
    """Without advantages the surrogate is 0 everywhere, and no step would improve it."""
    model = make_model()
    batch = GAE()(make_buffer(model)).rows(1)
    batch = batch.replace(advantage=torch.zeros_like(batch.advantage))
    for _ in range(5):
        batch = with_old(model, batch)
        batch = batch.replace(logp=batch.old.log_prob(batch.action))
        before = batch.mean(batch.old.entropy())
        assert trpo_step(model, batch, gain) < 10
        assert batch.mean(model.distribution(batch.obs).entropy()) > before
    assert trpo_step(model, with_old(model, batch), surrogate) == 10


def test_kl_and_fisher_products_leave_the_auxiliary_loss_out():
    model, batch = make()
    policy, imitation = FlatPolicy(model), Imitation(model)
    v, kls, products = torch.ones_like(policy.theta), [], []
    for model.auxiliary in (None, imitation):
        kls.append(policy.objective(surrogate, batch).value_and_kl(policy.theta + 0.1)[1])
        products.append(fisher_vector_product(policy, policy.theta, batch)(v))
    assert kls[0] == kls[1] > 0
    assert torch.equal(*products)


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
    """An auxiliary loss of one term."""

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
    batch = TRPO().estimator(buffer).rows(1).whitened
    model.auxiliary = Drawn(lambda model: 2 * surrogate(model.distribution(batch.obs), batch))
    metrics = trpo_update(model, buffer)
    assert metrics["accepted"]
    with torch.no_grad():
        assert surrogate(model.distribution(batch.obs), batch) < -0.01


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
    assert float(surrogate(batch.old, batch)) == pytest.approx(float(advantage.mean()), rel=1e-12)  # at ratio 1
    assert policy_statistics(model, batch).kl.abs().max() < 1e-15
    model, batch = make(seed=1)
    new, old = model.distribution(batch.obs), batch.old
    ratio = torch.exp(new.log_prob(batch.action) - old.log_prob(batch.action))
    expected = float((ratio * batch.advantage)[batch.mask].mean())
    assert float(surrogate(new, batch)) == pytest.approx(expected, rel=1e-12)
    kl = (old.log_probs.exp() * (old.log_probs - new.log_probs)).sum(-1)
    torch.testing.assert_close(policy_statistics(model, batch).kl, kl, rtol=1e-12, atol=0)


@pytest.mark.parametrize("has_old", [True, False])
@pytest.mark.parametrize("space", ["discrete", "box"])
def test_evaluated_policy_names_what_it_holds(space, has_old):
    model, batch = make(space=SPACES[space])
    after = policy_statistics(model, batch if has_old else batch.replace(old=None))
    policy = model.distribution(batch.obs)
    torch.testing.assert_close(after.log_prob, policy.log_prob(batch.action).detach())
    torch.testing.assert_close(after.entropy, policy.entropy().detach())
    assert (after.kl is not None) == has_old
    assert (after.std is not None) == (space == "box")
    if space == "box":
        torch.testing.assert_close(after.std, policy.std.mean(-1).detach())


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


@ALL_OPTIMIZERS
@MICRO_BATCHES
def test_kl_stop_is_that_of_the_whole_minibatch_before_the_step(micro_batch_steps, make_optimizer):
    model, batch = make(micro_batch_steps)
    with torch.no_grad():
        kl = float(batch.mean(k3(batch.logp, model.distribution(batch.obs).log_prob(batch.action))))
    assert kl > 0.001
    before = parameters(model)
    optimizer = make_optimizer(list(model.parameters()))
    for limit, steps in ((kl * (1 - 1e-6), 0), (kl * (1 + 1e-6), 1)):
        stop = KLStop(limit)
        args = PPOClip().loss, model, [batch], 0.2, 0.0
        assert optimizer.minimize_each(*args, learning_rate=0.01, stop=stop)[0] == steps
        assert torch.equal(parameters(model), before) == (steps == 0)


def test_the_kl_of_a_minibatch_does_not_count_for_the_next():
    one = torch.ones(1, 1, dtype=torch.float64)
    no = torch.zeros(1, 1, dtype=torch.bool)
    stop, batch = KLStop(1.0), Buffer(one, one, one, no, no, ~no, logp=0 * one)
    for _ in range(3):
        stop.add(batch, one)  # k3 = e − 2 = 0.718
        assert not stop.check()
    for _ in range(2):
        stop.add(batch, one)
    assert stop.check()
