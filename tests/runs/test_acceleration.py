"""Faster implementations change no result but by rounding."""

import pytest
import torch
from builders import parameters

from rlzoo.control.acting import make_actor
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.fast.mlp import FastMLP, FastRecurrentMLP
from rlzoo.core.system.errors import ConfigError
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.runs.configuration.config import make_config
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


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("algorithm", SIZES)
def test_fast_changes_results_by_rounding_alone(algorithm, network):
    (plain, expected), (fast, metrics) = (trained(algorithm, fast=x, **network) for x in (False, True))
    torch.testing.assert_close(parameters(fast.model), parameters(plain.model), rtol=1e-3, atol=1e-4)
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


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "env"), [("ppo-penalty", "Pendulum-v1"), ("trpo", "CartPole-v1")])
def test_compiled_steps_equal_eager_ones_to_rounding(algorithm, env, tmp_path, monkeypatch):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    settings = {"epochs": 10} if algorithm == "ppo-penalty" else {"vf_epochs": 10}
    models = [trained(algorithm, env, 1, compile=x, normalize_obs=True, **settings)[0].model for x in (False, True)]
    assert list((tmp_path / "cache").glob("*.pt2")), "nothing was compiled"
    torch.testing.assert_close(*map(parameters, models), rtol=1e-4, atol=1e-5)


def test_whole_episodes_refuse_compilation():
    with pytest.raises(ConfigError, match="compile cannot be used with reinforce"):
        make_config("reinforce", "CartPole-v1", compile=True)
