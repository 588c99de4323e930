"""Faster implementations change no result but by rounding."""

from functools import partial

import pytest
import torch
from builders import parameters
from torch.nn.utils.parametrizations import spectral_norm

from rlzoo.algorithms import PPOClip
from rlzoo.control.acting import make_actor
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.fast.networks import FastMLP, FastRecurrentMLP
from rlzoo.control.networks import MLP
from rlzoo.core.collector import evaluate
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.fisher import Jacobian
from rlzoo.runs import acceleration
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import configure
from rlzoo.runs.loop import Trainer

SIZES = {
    "reinforce": {"vf_minibatch_size": 32, "vf_epochs": 2},
    "npg": {"vf_minibatch_size": 32, "vf_epochs": 2, "cg_damping": 0.1},
    "trpo": {"vf_minibatch_size": 32, "vf_epochs": 2, "cg_damping": 0.1},
    "ppo-penalty": {"minibatch_size": 32, "epochs": 2},
    "ppo-clip": {"minibatch_size": 32, "epochs": 2, "clip_value": True, "stop_kl": 1.0, "ent_coef": 0.01},
}
NETWORKS = {
    "mlp": {"env": "CartPole-v1"},
    "shared mlp": {
        "env": "Pendulum-v1",
        "shared_trunk": True,
        "activation": "relu",
        "normalize_obs": True,
        "normalize_reward": True,
        "noise_correlation": 0.5,
    },
    "gru": {"env": "CartPole-v1", "network": "gru", "cell_size": 6, "unroll": 8},
}


def trained(algorithm, env, iterations=3, **settings):
    """A trainer after some iterations, and their metrics."""
    settings = {"num_envs": 4, "num_steps": 16, "hidden": (8,), **SIZES[algorithm], **settings}
    trainer = Trainer(make_config(algorithm, env, **settings))
    return trainer, [trainer.iterate().metrics for _ in range(iterations)]


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("algorithm", SIZES)
def test_fast_changes_results_by_rounding_alone(algorithm, network):
    (plain, expected), (fast, metrics) = (trained(algorithm, fast=x, **network) for x in (False, True))
    start, _ = trained(algorithm, iterations=0, **network)
    moved = (parameters(plain.model) - parameters(start.model)).norm()
    assert (parameters(fast.model) - parameters(plain.model)).norm() < 1e-3 * moved  # relative to what training did
    for mine, theirs in zip(metrics, expected, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-2, abs=1e-3)
    assert fast.step == plain.step


@pytest.mark.parametrize("network", ["mlp", "gru"])
@pytest.mark.parametrize("fast", [True, False])
def test_without_fast_everything_is_plain(fast, network):
    trainer, _ = trained("ppo-clip", iterations=0, fast=fast, **NETWORKS[network])
    assert trainer.task.make_actor is (make_numpy_actor if fast else make_actor)
    assert all(isinstance(x, FastAdam) == fast for x in trainer.state.optimizers.values())
    kinds = {type(module) for module in trainer.model.modules()}
    assert (FastMLP in kinds) == fast
    assert (FastRecurrentMLP in kinds) == (fast and network == "gru")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("native") / "cache"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", SIZES)
def test_ten_compiled_updates_equal_eager_ones_to_rounding(algorithm, cache, monkeypatch, capsys):
    """Both see the buffers of the eager one, since one action that is rounded the other way would change the rest.

    The measure is the norm, relative to what training moved: Adam divides by the size of a gradient, so a single
    parameter whose gradient is near 0 shows its rounding as a step. Measured: 1.2e-5 for REINFORCE, whose baseline
    moves far, 2.6e-7 for PPO, 6.5e-5 for NPG and 2.4e-5 for TRPO. Conjugate gradient amplifies rounding: with seed 3,
    two eager implementations of NPG differ by 6.3e-4. There a KL of TRPO is within 2e-5 of its bound, so that
    rounding decides how far its line search goes.
    """
    monkeypatch.setenv("RLZOO_CACHE", str(cache))
    settings = {"normalize_obs": True, "num_envs": 4, "num_steps": 64, "seed": 4} | SIZES[algorithm]
    settings.pop("stop_kl", None)
    eager, native = (Trainer(make_config(algorithm, "Pendulum-v1", compile=x, **settings)) for x in (False, True))
    native.state.progress = 0.5
    start = parameters(eager.model).clone()
    for _ in range(10):
        buffer = evaluate(eager.model, eager.task.collect().buffer)
        for trainer in (eager, native):
            trainer.algorithm.update(trainer.model, trainer.state, buffer)
    assert list(cache.glob("*-library")), "nothing was compiled"
    assert not any(capsys.readouterr()), "compilation failed"
    expected, compiled = (parameters(x.model) for x in (eager, native))
    bound = 2e-3 if eager.algorithm.second_order else 1e-4
    assert (compiled - expected).norm() < bound * (expected - start).norm()


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "expected"),
    [
        ("ppo-clip", "CartPole-v1", {"total_steps": 500_000}, True),
        ("trpo", "CartPole-v1", {"total_steps": 500_000}, True),
        ("ppo-clip", "CartPole-v1", {}, False),
        ("ppo-clip", "CartPole-v1", {"total_steps": 500_000, "compile": False}, False),
        ("ppo-clip", "CartPole-v1", {"total_steps": 500_000, "fast": False}, False),
        ("ppo-clip", "CartPole-v1", {"total_steps": 500_000, "network": "gru"}, False),
        ("ppo-clip", "CartPole-v1", {"total_steps": 500_000, "stop_kl": 0.02}, False),
        ("reinforce", "CartPole-v1", {"total_steps": 500_000}, False),
        ("ppo-clip", "RandomWalks", {"total_steps": 500_000}, False),
    ],
)
def test_long_runs_are_compiled_by_default_and_say_so(algorithm, env, settings, expected, monkeypatch):
    monkeypatch.setattr(acceleration, "compilers", lambda: ["g++"])
    config, lines = configure(algorithm, env, None, True, settings)
    assert config.compile is expected
    assert any(line.startswith("compile=True") for line in lines) is expected
    monkeypatch.setattr(acceleration, "compilers", list)
    assert not configure(algorithm, env, None, True, settings)[0].compile


class Own(PPOClip):
    """Somebody's algorithm, whose loss may read what changes."""

    name = "own"


def test_an_algorithm_of_ones_own_is_not_compiled_by_default(monkeypatch):
    monkeypatch.setattr(acceleration, "compilers", lambda: ["g++"])
    assert not configure(Own(), "CartPole-v1", None, True, {"total_steps": 500_000})[0].compile


@pytest.mark.parametrize(
    "register",
    [
        lambda net: net.layers[0].weight.register_hook(torch.zeros_like),
        lambda net: net.layers[0].weight.register_post_accumulate_grad_hook(lambda p: p.grad.__setitem__(..., 0)),
        lambda net: net.layers[1].register_full_backward_hook(lambda layer, into, _: (torch.zeros_like(into[0]),)),
    ],
)
def test_hooks_on_gradients_are_called(register):
    trainer, _ = trained("ppo-clip", iterations=0, fast=False, **NETWORKS["mlp"])
    net = trainer.model.policy.net
    register(net)
    acceleration.accelerate(trainer.task, trainer.state)
    first, last = (layer.weight.detach().clone() for layer in net.layers)
    trainer.iterate()
    assert torch.equal(net.layers[0].weight, first)
    assert not torch.equal(net.layers[1].weight, last)


def test_what_a_user_replaced_is_left_as_it_is():
    class OwnAdam(Adam):
        eps = 1e-8

    trainer, _ = trained("ppo-clip", iterations=0, fast=False, **NETWORKS["mlp"])
    trainer.state.optimizers["all"].__class__ = OwnAdam
    trainer.task.make_actor = own_actor = partial(make_actor)
    trainer.model.jacobian = OwnJacobian = type("OwnJacobian", (Jacobian,), {})
    spectral_norm(trainer.model.value.net.layers[0])
    trainer.model.policy.net.layers[0].register_forward_hook(lambda layer, x, y: 2 * y)
    acceleration.accelerate(trainer.task, trainer.state)
    assert type(trainer.state.optimizers["all"]) is OwnAdam
    assert (trainer.task.make_actor, trainer.model.jacobian) == (own_actor, OwnJacobian)
    assert {type(trainer.model.policy.net), type(trainer.model.value.net)} == {MLP}
