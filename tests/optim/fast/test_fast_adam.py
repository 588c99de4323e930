"""The faster Adam against the plain one."""

import logging

import numpy as np
import pytest
import torch
from builders import SPACES, Imitation, make_buffer, make_model, parameters

from rlzoo.algorithms import PPOClip
from rlzoo.core.errors import ConfigError, NonFiniteError
from rlzoo.core.estimators import GAE
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.fast import adam as fast
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer

NETWORKS = {
    "tanh": {},
    "relu": {"activation": "relu", "hidden": (7, 6)},
    "box": {"space": SPACES["box"], "normalize_obs": True},
    "box, state-dependent std": {"space": SPACES["box"], "state_dependent_std": True},
    "multidiscrete, shared trunk": {"space": SPACES["multidiscrete"], "shared_trunk": True},
    "no hidden layer": {"hidden": (), "shared_trunk": True},
}
ALL_NETWORKS = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def policy_loss(model, batch, scale):
    return -scale * batch.mean(model.distribution(batch.obs).log_prob(batch.action) * batch.advantage)


def make_batch(model):
    return GAE()(make_buffer(model)).rows(1)


@pytest.mark.parametrize("part_steps", [None, 11])
@ALL_NETWORKS
def test_steps_equal_those_of_the_plain_adam_to_rounding(network, part_steps):
    algorithm = PPOClip(ent_coef=0.01, clip_value=True)
    models = make_model(**network), make_model(**network)
    plain, faster = Adam(list(models[0].parameters())), FastAdam(Adam(list(models[1].parameters())))
    batch = make_batch(models[0])
    for model, optimizer in zip(models, (plain, faster), strict=True):
        model.part_steps, model.auxiliary = part_steps, Imitation(make_model(**network))
        for _ in range(5):
            norm = optimizer.minimize(algorithm.loss, model, batch, 0.2, 0.01, learning_rate=0.01, max_grad_norm=0.5)
            assert norm > 0
    for name in ("theta", "m", "v"):
        torch.testing.assert_close(getattr(faster.adam, name), getattr(plain, name), rtol=0, atol=1e-12)
    assert faster.adam.count == plain.count == 5


class Decay:
    """An auxiliary loss that no network computes: ½‖θ‖² of the model, as one term."""

    def draw(self, rows):
        return [lambda model: 0.5 * sum(p.square().sum() for p in model.parameters())]


def test_auxiliary_losses_without_a_network_add_up_with_those_that_have_one():
    models = make_model(), make_model()
    adams, batch = [Adam(list(model.parameters())) for model in models], make_batch(models[0])
    for model, optimizer in zip(models, (adams[0], FastAdam(adams[1])), strict=True):
        model.auxiliary = Decay()
        optimizer.minimize(policy_loss, model, batch, 1.0, learning_rate=0.01)
    torch.testing.assert_close(adams[1].m, adams[0].m, rtol=0, atol=1e-12)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_steps_in_blocks_equal_torch(block, monkeypatch):
    monkeypatch.setattr(fast, "_BLOCK", block)
    ours, theirs = make_model(), make_model()
    optimizer = FastAdam(Adam(list(ours.parameters())))
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    assert len(optimizer.adam.theta) % block or block == 1
    batch = make_batch(ours)
    for _ in range(10):
        optimizer.minimize(policy_loss, ours, batch, 3.0, learning_rate=0.01)
        reference.zero_grad()
        policy_loss(theirs, batch, 3.0).backward()
        reference.step()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-12)


def test_gradients_of_the_parameters_are_left_empty():
    model = make_model(hidden=(), shared_trunk=True)  # its heads alone are linear, and its trunk has no layer
    optimizer = FastAdam(Adam(list(model.parameters())))
    optimizer.minimize(policy_loss, model, make_batch(model), 1.0, learning_rate=0.1)
    assert all(p.grad is None for p in model.parameters())


SPACE_ENVS = {"discrete": "CartPole-v1", "box": "Pendulum-v1"}
SIZES = {
    "reinforce": {"vf_minibatch_size": 32, "vf_epochs": 2},
    "npg": {"vf_minibatch_size": 32, "vf_epochs": 2, "cg_damping": 0.1},
    "trpo": {"vf_minibatch_size": 32, "vf_epochs": 2, "cg_damping": 0.1},
    "ppo-penalty": {"minibatch_size": 32, "epochs": 2},
    "ppo-clip": {"minibatch_size": 32, "epochs": 2, "clip_value": True, "stop_kl": 1.0, "ent_coef": 0.01},
}
OPTIONS = {
    "plain": {},
    "shared trunk": {"shared_trunk": True, "activation": "relu"},
    "normalised": {"normalize_obs": True, "normalize_reward": True, "noise_correlation": 0.5},
}


def iterated(algorithm, env, **settings):
    """Weights and metrics after one iteration: later, Adam and conjugate gradient amplify what rounding left."""
    settings = {"num_envs": 4, "num_steps": 16, "hidden": (8,), **SIZES[algorithm], **settings}
    trainer = Trainer(make_config(algorithm, env, **settings))
    metrics = trainer.iterate().metrics
    return parameters(trainer.model), metrics, trainer


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("env", SPACE_ENVS.values(), ids=SPACE_ENVS)
@pytest.mark.parametrize("algorithm", SIZES)
def test_the_setting_fast_changes_results_by_rounding_alone(algorithm, env, options):
    slow, fast_ = (iterated(algorithm, env, fast=x, **options) for x in (False, True))
    assert not [x for x in slow[2].state.optimizers.values() if isinstance(x, FastAdam)]
    assert all(isinstance(x, FastAdam) for x in fast_[2].state.optimizers.values())
    torch.testing.assert_close(fast_[0], slow[0], rtol=1e-4, atol=1e-5)
    assert fast_[1] == pytest.approx(slow[1], rel=1e-2, abs=1e-4)
    assert fast_[2].step == slow[2].step


def test_state_is_that_of_the_adam_within():
    adam = Adam(list(make_model().parameters()))
    optimizer = FastAdam(adam)
    assert optimizer.state_dict().keys() == {"m", "v", "count"}
    assert optimizer.state_dict()["m"] is adam.m
    other = FastAdam(Adam(list(make_model().parameters())))
    other.load_state_dict({"m": adam.m + 1, "v": adam.v + 2, "count": 3})
    assert (other.adam.m == 1).all()
    assert (other.adam.v == 2).all()
    assert other.adam.count == 3


def test_compiled_step_without_a_compiler_is_the_pure_step(tmp_path, monkeypatch, caplog):
    """All of a compiled step but the compilation: scalars, other parameters, clipping, state."""
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "missing-compiler")
    algorithm = PPOClip(ent_coef=0.01)
    models = make_model(), make_model()
    plain, pure = Adam(list(models[0].parameters())), FastAdam(Adam(list(models[1].parameters())), compile=True)
    batch = make_batch(models[0])
    with caplog.at_level(logging.WARNING):
        for step in range(4):
            settings = {"learning_rate": 0.01 / (1 + step), "max_grad_norm": 0.5}
            norms = [
                optimizer.minimize(algorithm.loss, model, batch, 0.2 / (1 + step), 0.01, **settings)
                for model, optimizer in zip(models, (plain, pure), strict=True)
            ]
            assert norms[1] == pytest.approx(norms[0], rel=1e-12)
    torch.testing.assert_close(parameters(models[1]), parameters(models[0]), rtol=0, atol=1e-9)
    assert len(caplog.records) == 1
    for model, optimizer in zip(
        models,
        (Adam(models[0].value_parameters()), FastAdam(Adam(models[1].value_parameters()), compile=True)),
        strict=True,
    ):
        fit_value(model, optimizer, batch, 2, 8, 1e-2, np.random.default_rng(0))
    torch.testing.assert_close(parameters(models[1]), parameters(models[0]), rtol=0, atol=1e-9)


def test_non_finite_gradient_of_a_compiled_step_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "missing-compiler")
    model = make_model()
    optimizer, before = FastAdam(Adam(list(model.parameters())), compile=True), parameters(model)
    with pytest.raises(NonFiniteError, match="gradient of policy_loss is not finite"):
        optimizer.minimize(policy_loss, model, make_batch(model), float("nan"), learning_rate=0.1)
    assert torch.equal(parameters(model), before)
    assert optimizer.adam.count == 0


def test_steps_with_an_auxiliary_loss_are_not_compiled(monkeypatch):
    monkeypatch.setattr(fast, "compiled", lambda *_: pytest.fail("compiled"))
    model = make_model()
    model.auxiliary = Imitation(model)
    optimizer = FastAdam(Adam(list(model.parameters())), compile=True)
    optimizer.minimize(policy_loss, model, make_batch(model), 1.0, learning_rate=0.1)
    assert model.auxiliary.drawn == [32]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env"), [("ppo-penalty", "Pendulum-v1"), ("trpo", "CartPole-v1")])
def test_compiled_steps_equal_eager_ones_to_rounding(algorithm, env, tmp_path, monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    settings = {"epochs": 10} if algorithm == "ppo-penalty" else {"vf_epochs": 10}
    weights = [iterated(algorithm, env, compile=x, normalize_obs=True, **settings)[0] for x in (False, True)]
    assert list((tmp_path / "cache").glob("*.pt2")), "nothing was compiled"
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def test_whole_episodes_refuse_compilation():
    with pytest.raises(ConfigError, match="compile cannot be used with reinforce"):
        make_config("reinforce", "CartPole-v1", compile=True)
