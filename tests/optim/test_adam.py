"""Adam against PyTorch's, and the regression of a critic."""

import numpy as np
import pytest
import torch
from builders import SPACES, make_buffer, make_model, parameters

from rlzoo.core.errors import ConfigError, NonFiniteError
from rlzoo.core.estimators import GAE
from rlzoo.optim import adam as first_order
from rlzoo.optim.adam import Adam, fit_value, value_loss
from rlzoo.runs.config import make_config
from rlzoo.runs.loop import Trainer


def policy_loss(model, batch, scale):
    return -scale * batch.mean(model.distribution(batch.obs).log_prob(batch.action) * batch.advantage)


def make_batch(model, seed=0):
    return GAE()(make_buffer(model, seed=seed)).rows(1)


@pytest.mark.parametrize("max_grad_norm", [None, 0.05])
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_adam_equals_torch_over_many_steps(shared_trunk, max_grad_norm):
    ours, theirs = (make_model(shared_trunk=shared_trunk) for _ in range(2))
    optimizer = Adam(list(ours.parameters()))
    reference = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    batches = [make_batch(ours, seed) for seed in range(4)]

    def loss(model, batch, scale):
        seen = batch.replace(obs=model.value_features(batch.obs))
        return policy_loss(model, batch, scale) + value_loss(model, seen)

    for step in range(100):
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


@pytest.mark.parametrize("block", [1, 7, 64])
def test_steps_in_blocks_equal_torch(block, monkeypatch):
    monkeypatch.setattr(first_order, "_BLOCK", block)
    ours, theirs = make_model(), make_model()
    optimizer, reference = Adam(list(ours.parameters())), torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    assert len(optimizer.theta) % block or block == 1
    batch = make_batch(ours)
    for _ in range(10):
        optimizer.minimize(policy_loss, ours, batch, 3.0, learning_rate=0.01)
        reference.zero_grad()
        policy_loss(theirs, batch, 3.0).backward()
        reference.step()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-12)


def whitened_loss(model, batch):
    """Of policy and value, with means, a whitened advantage and demonstrations."""
    policy, value = model(batch.obs)
    logp = policy.log_prob(batch.action)
    error = torch.nn.functional.mse_loss(value, batch.return_, reduction="none")
    return batch.mean(error - logp * batch.whitened_advantage) - batch.demonstrated(logp)


@pytest.mark.parametrize("part_steps", [1, 12, 20, 31])
@pytest.mark.parametrize("network", [{}, {"shared_trunk": True}, {"space": SPACES["box"]}])
@pytest.mark.parametrize("context", [1, 4])
def test_a_batch_in_uneven_parts_has_the_same_gradient(network, part_steps, context):
    model = make_model(**network)
    batch = GAE()(make_buffer(model)).rows(context)
    demo = torch.where(batch.mask, 0.0, 0.3 * torch.arange(batch.mask.numel()).view(batch.mask.shape)).double()
    batch = batch.replace(demo=demo)
    expected = torch.autograd.grad(whitened_loss(model, batch), list(model.parameters()))
    expected = torch.cat([g.reshape(-1) for g in expected])
    assert len({part.num_rows for part in batch.parts(part_steps)}) == (1 if part_steps == 1 else 2)
    for model.part_steps in (None, part_steps):
        optimizer = Adam(list(model.parameters()))
        norm = optimizer.minimize(whitened_loss, model, batch, learning_rate=0.0)
        found = optimizer.m / (1 - optimizer.betas[0])  # the first moment starts from 0
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert norm == pytest.approx(float(expected.norm()), rel=1e-12)


def test_parameters_without_gradient_stay():
    model = make_model()
    optimizer = Adam(list(model.parameters()))
    before = [p.clone() for p in model.value_parameters()]
    optimizer.minimize(policy_loss, model, make_batch(model), 1.0, learning_rate=0.1)
    for p, old in zip(model.value_parameters(), before, strict=True):
        assert torch.equal(p, old)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_non_finite_gradient_is_named_and_changes_nothing(scale):
    model = make_model()
    optimizer, batch = Adam(list(model.parameters())), make_batch(model)
    optimizer.minimize(policy_loss, model, batch, 1.0, learning_rate=0.1)
    before = parameters(model), optimizer.m.clone(), optimizer.v.clone(), optimizer.count
    with pytest.raises(NonFiniteError, match="gradient of policy_loss is not finite"):
        optimizer.minimize(policy_loss, model, batch, scale, learning_rate=0.1, max_grad_norm=0.5)
    after = parameters(model), optimizer.m, optimizer.v, optimizer.count
    assert all(map(torch.equal, before[:3], after[:3]))
    assert before[3] == after[3]


def test_zero_gradient_moves_nothing():
    model = make_model()
    optimizer, before = Adam(list(model.parameters())), parameters(model)
    assert optimizer.minimize(policy_loss, model, make_batch(model), 0.0, learning_rate=0.1, max_grad_norm=0.5) == 0
    assert torch.equal(parameters(model), before)


def test_adam_goes_on_from_its_state():
    first, second = make_model(), make_model()
    batch = make_batch(first)
    optimizer = Adam(list(first.parameters()))
    for _ in range(3):
        optimizer.minimize(policy_loss, first, batch, 1.0, learning_rate=0.1)
    restored = Adam(list(second.parameters()))
    second.load_state_dict(first.state_dict())
    restored.load_state_dict(optimizer.state_dict())
    for model, adam in ((first, optimizer), (second, restored)):
        adam.minimize(policy_loss, model, batch, 1.0, learning_rate=0.1)
    assert torch.equal(parameters(first), parameters(second))


def test_value_loss_is_half_the_masked_mean_square():
    model = make_model()
    batch = make_batch(model)
    error = (batch.value - batch.return_)[batch.mask]
    torch.testing.assert_close(value_loss(model, batch), 0.5 * error.square().mean())


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_fit_value_lowers_the_loss_and_leaves_the_policy_alone(shared_trunk):
    model = make_model(shared_trunk=shared_trunk)
    batch = make_batch(model)
    optimizer = Adam(model.value_parameters())
    seen = batch.replace(obs=model.value_features(batch.obs).detach())
    policy, loss = [p.clone() for p in model.policy_parameters()], value_loss(model, seen)
    fit_value(model, optimizer, batch, 20, 8, 1e-2, np.random.default_rng(0))
    assert value_loss(model, seen) < 0.9 * loss
    assert optimizer.count == 20 * 4
    for p, old in zip(model.policy_parameters(), policy, strict=True):
        assert torch.equal(p, old)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env"), [("ppo-penalty", "Pendulum-v1"), ("trpo", "CartPole-v1")])
def test_compiled_steps_equal_eager_ones_to_rounding(algorithm, env, tmp_path, monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    size = "minibatch_size" if algorithm == "ppo-penalty" else "vf_minibatch_size"
    settings = {"num_envs": 4, "num_steps": 16, size: 32, "hidden": (8,), "normalize_obs": True}
    weights = []
    for compiled in (False, True):
        trainer = Trainer(make_config(algorithm, env, compile=compiled, **settings))
        trainer.iterate()  # one: from there on Adam and conjugate gradient amplify what rounding left
        weights.append(torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()]))
    assert list((tmp_path / "cache").glob("*.pt2")), "nothing was compiled"
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def test_whole_episodes_refuse_compilation():
    with pytest.raises(ConfigError, match="compile"):
        make_config("reinforce", "CartPole-v1", compile=True)
