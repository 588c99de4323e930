"""Adam, plain and fast, against PyTorch's, and the regression of a value function."""

import copy

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model, parameters

from rlzoo.algorithms import PPOClip
from rlzoo.core.estimators import GAE
from rlzoo.core.system.errors import NonFiniteError
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.objective import value_loss

OPTIMIZERS = {"plain": Adam, "fast": lambda parameters: FastAdam(Adam(parameters))}
ALL = pytest.mark.parametrize("make_optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def adam_of(optimizer):
    """The Adam that holds the parameters and moments."""
    return getattr(optimizer, "adam", optimizer)


def policy_loss(model, batch, scale):
    return -scale * batch.mean(model.distribution(batch.obs).log_prob(batch.action) * batch.advantage)


def make_batch(model, seed=0):
    return GAE()(make_buffer(model, seed=seed)).rows(1)


@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
@pytest.mark.parametrize("shared_trunk", [False, True])
@ALL
def test_adam_equals_torch_over_many_steps(make_optimizer, shared_trunk, max_grad_norm):
    ours, theirs = (make_model(shared_trunk=shared_trunk) for _ in range(2))
    optimizer = make_optimizer(list(ours.parameters()))
    reference = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    batches = [make_batch(ours, seed) for seed in range(4)]

    def loss(model, batch, scale):
        features = batch.replace(obs=model.value_features(batch.obs))
        return policy_loss(model, batch, scale) + value_loss(model, features)

    for step in range(40):
        batch, learning_rate = batches[step % 4], 1e-2 / (1 + step)
        norm = optimizer.minimize(loss, ours, batch, 3.0, learning_rate=learning_rate, max_grad_norm=max_grad_norm)
        reference.zero_grad()
        loss(theirs, batch, 3.0).backward()
        bound = float("inf") if max_grad_norm is None else max_grad_norm
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), bound)), rel=1e-4)
        for group in reference.param_groups:
            group["lr"] = learning_rate
        reference.step()
    # PyTorch divides by norm + 1e-6 where it clips
    torch.testing.assert_close(
        parameters(ours), parameters(theirs), rtol=0, atol=1e-9 if max_grad_norm is None else 1e-5
    )


@pytest.mark.parametrize("shared_trunk", [False, True])
@pytest.mark.parametrize("rates", [(1e-2, 1e-3), (0.0, 1e-2)])
def test_value_parameters_have_a_learning_rate_of_their_own(rates, shared_trunk):
    ours, theirs = (make_model(shared_trunk=shared_trunk) for _ in range(2))
    value = ours.value_parameters()
    optimizer = FastAdam(Adam(list(ours.parameters()), value=value))
    own = {id(p) for p in theirs.value_parameters()}
    rest = [p for p in theirs.parameters() if id(p) not in own]
    groups = [{"params": rest, "lr": rates[0]}, {"params": theirs.value_parameters(), "lr": rates[1]}]
    reference = torch.optim.Adam(groups, eps=1e-5)
    for seed in range(20):
        batch = make_batch(ours, seed % 4)
        optimizer.minimize(joint_loss, ours, batch, learning_rate=rates[0], vf_learning_rate=rates[1])
        reference.zero_grad()
        joint_loss(theirs, batch).backward()
        reference.step()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-9)


def joint_loss(model, batch):
    """Of policy and value."""
    policy, value = model(batch.obs)
    logp = policy.log_prob(batch.action)
    error = torch.nn.functional.mse_loss(value, batch.return_, reduction="none")
    return batch.mean(error - logp * batch.advantage)


@pytest.mark.parametrize("micro_batch_steps", [1, 12, 20, 31])
@pytest.mark.parametrize("network", [{}, {"shared_trunk": True}, {"space": SPACES["box"]}])
@pytest.mark.parametrize("context", [1, 4])
@ALL
def test_a_batch_in_uneven_micro_batches_has_the_same_gradient(make_optimizer, network, micro_batch_steps, context):
    model = make_model(**network)
    batch = GAE()(make_buffer(model)).rows(context).whitened
    expected = torch.autograd.grad(joint_loss(model, batch), list(model.parameters()))
    expected = torch.cat([g.reshape(-1) for g in expected])
    sizes = {part.num_rows for part in batch.micro_batches(micro_batch_steps)}
    assert len(sizes) == (1 if micro_batch_steps == 1 else 2)
    for model.micro_batch_steps in (None, micro_batch_steps):
        optimizer = make_optimizer(list(model.parameters()))
        norm = optimizer.minimize(joint_loss, model, batch, learning_rate=0.0)
        gradient = adam_of(optimizer).m / (1 - adam_of(optimizer).betas[0])  # the first moment starts from 0
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
        assert norm == pytest.approx(float(expected.norm()), rel=1e-12)


@ALL
def test_parameters_without_gradient_stay(make_optimizer):
    model = make_model()
    optimizer = make_optimizer(list(model.parameters()))
    before = [p.clone() for p in model.value_parameters()]
    optimizer.minimize(policy_loss, model, make_batch(model), 1.0, learning_rate=0.1)
    for p, old in zip(model.value_parameters(), before, strict=True):
        assert torch.equal(p, old)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
@ALL
def test_non_finite_gradient_is_named_and_changes_nothing(make_optimizer, scale):
    model = make_model()
    optimizer, batch = make_optimizer(list(model.parameters())), make_batch(model)
    optimizer.minimize(policy_loss, model, batch, 1.0, learning_rate=0.1)
    adam = adam_of(optimizer)
    before = parameters(model), adam.m.clone(), adam.v.clone(), adam.count
    with pytest.raises(NonFiniteError, match="gradient of policy_loss is not finite"):
        optimizer.minimize(policy_loss, model, batch, scale, learning_rate=0.1, max_grad_norm=0.5)
    after = parameters(model), adam.m, adam.v, adam.count
    assert all(map(torch.equal, before[:3], after[:3]))
    assert before[3] == after[3]


@ALL
def test_adam_goes_on_from_its_state(make_optimizer):
    first, second = make_model(), make_model()
    batch = make_batch(first)
    optimizer = make_optimizer(list(first.parameters()))
    for _ in range(3):
        optimizer.minimize(policy_loss, first, batch, 1.0, learning_rate=0.1)
    restored = make_optimizer(list(second.parameters()))
    second.load_state_dict(first.state_dict())
    restored.load_state_dict(optimizer.state_dict())
    for model, either in ((first, optimizer), (second, restored)):
        either.minimize(policy_loss, model, batch, 1.0, learning_rate=0.1)
    assert torch.equal(parameters(first), parameters(second))


@pytest.mark.parametrize("shared_trunk", [False, True])
@ALL
def test_fit_value_lowers_the_loss_and_leaves_the_policy_alone(make_optimizer, shared_trunk):
    model = make_model(shared_trunk=shared_trunk)
    batch = make_batch(model)
    optimizer = make_optimizer(model.value_parameters())
    features = batch.replace(obs=model.value_features(batch.obs).detach())
    policy, loss = [p.clone() for p in model.policy_parameters()], value_loss(model, features)
    fit_value(model, optimizer, batch, 20, 8, 1e-2, np.random.default_rng(0))
    assert value_loss(model, features) < 0.9 * loss
    assert adam_of(optimizer).count == 20 * 4
    for p, old in zip(model.policy_parameters(), policy, strict=True):
        assert torch.equal(p, old)


def test_nothing_to_train():
    model = make_model()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"^there is no parameter to train: the policy or the value is frozen"):
        Adam(list(model.parameters()))


@ALL
@pytest.mark.parametrize("moved", ["copied", "flattened", "last layer replaced"])
def test_parameters_that_were_moved_are_trained(make_optimizer, moved):
    """A copy of a trainer, another trainer of the same model or a user's `p.data = x` gives them other memory."""
    model = make_model()
    expected, other = copy.deepcopy(model), None
    optimizer = make_optimizer(list(model.parameters()))
    if moved == "copied":
        model, optimizer = copy.deepcopy((model, optimizer))
    elif moved == "last layer replaced":
        last = model.policy_parameters()[-1]
        last.data = last.data.clone()
    else:
        other = make_optimizer(list(model.parameters()))
    batch = make_batch(model)
    for some, own in ((optimizer, model), (make_optimizer(list(expected.parameters())), expected)):
        some.minimize_each(policy_loss, own, [batch, batch], 1.0, learning_rate=0.01)
    assert torch.equal(parameters(model), parameters(expected))
    if other is not None:
        other.minimize(policy_loss, model, batch, 1.0, learning_rate=0.01)
        assert not torch.equal(parameters(model), parameters(expected))


def test_a_step_marks_the_parameters_as_changed():
    model = make_model()
    optimizer, p = Adam(list(model.parameters())), next(model.parameters())
    before, batch = p._version, PPOClip().estimator(make_buffer(model)).rows(1)
    optimizer.minimize(PPOClip().loss, model, batch, 0.2, 0.0, learning_rate=0.01)
    assert p._version > before


def test_a_frozen_parameter_of_the_value_is_left_out_of_its_learning_rate():
    model = make_model()
    model.value_parameters()[0].requires_grad_(False)
    optimizer = Adam(list(model.parameters()), value=model.value_parameters())
    before = [p.clone() for p in model.policy_parameters()]
    batch = GAE()(make_buffer(model)).rows(1)
    optimizer.minimize(PPOClip().loss, model, batch, 0.2, 0.0, learning_rate=0.0, vf_learning_rate=0.1)
    assert all(map(torch.equal, model.policy_parameters(), before))


def test_minibatches_without_a_step_are_not_drawn():
    buffer = make_buffer(make_model()).rows(1)
    buffer = buffer.replace(mask=buffer.mask & (torch.arange(32) < 4)[:, None])
    drawn, taken = (Epochs(buffer, 3, 2, np.random.default_rng(0)) for _ in range(2))
    assert [len(rows) for rows in drawn.draw()] == [batch.num_rows for batch in taken]
