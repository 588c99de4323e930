"""Rollouts in native code against the environments and actors of NumPy, which are tested against Gymnasium's."""

import copy
import functools
import os

import numpy as np
import pytest
import torch

import rlzoo
from rlzoo.control.fast.acting import make_numpy_actor
from rlzoo.control.fast.rollout import _library, has_rollouts
from rlzoo.core.actors import rollout
from rlzoo.core.collector import Collector
from rlzoo.core.fast.library import build_library

ENVIRONMENTS = {
    "CartPole-v1": {},
    "CartPole-v0": {"sutton_barto_reward": True},
    "Acrobot-v1": {"max_episode_steps": 60},
    "MountainCar-v0": {"goal_velocity": 0.02, "max_episode_steps": 70},
    "MountainCarContinuous-v0": {"goal_velocity": 0.01, "max_episode_steps": 50},
    "Pendulum-v1": {"g": 9.81, "max_episode_steps": 40},
}
NETWORKS = {
    "tanh": {},
    "relu, of odd sizes": {"activation": "relu", "hidden": (5, 33)},
    "shared": {"shared_trunk": True, "hidden": (17,)},
    "linear, normalised": {"hidden": (), "normalize_obs": True},
}


def make_task(env, settings=None, num_envs=3, **further):
    """A task whose policy is far from uniform, and whose observations are normalised by what it has seen."""
    settings = {"num_envs": num_envs, "num_steps": 16, "minibatch_size": "all", **(settings or {}), **further}
    trainer = rlzoo.Trainer(rlzoo.make_config("ppo-clip", env, fast=False, seed=3, **settings))
    trainer.iterate()
    with torch.no_grad():
        for p in trainer.model.parameters():
            p.add_(0.5 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return trainer.task


@pytest.mark.parametrize("env", ENVIRONMENTS)
@pytest.mark.parametrize("network", NETWORKS)
def test_rollouts_equal_numpy(env, network):
    task = make_task(env, NETWORKS[network], env_kwargs=ENVIRONMENTS[env])
    task.env._elapsed[1] = 30  # an episode that began before
    replayed, noise, steps = copy.deepcopy(task.env), copy.deepcopy(task.noise), 400
    obs = task.collector._obs
    actor = make_numpy_actor(task.model, task.noise)
    action, seen, *results = actor.rollout(task.env, obs, steps)
    act = make_numpy_actor(task.model, noise)
    for t in range(steps):
        own = act(seen[t], None, None)
        np.testing.assert_allclose(action[t], own, rtol=1e-5, atol=1e-5 * (action.dtype != np.int64))
        for x, y in zip((seen[t + 1], *(x[t] for x in results)), replayed.step(action[t]), strict=True):
            np.testing.assert_array_equal(x, y, strict=True)  # bit for bit
    ends = sum(x.sum() for x in results[1:3])
    assert ends >= 3
    assert [*map(str, task.env.state_dict().values())] == [*map(str, replayed.state_dict().values())]
    assert task.noise.state_dict()["used"] == noise.state_dict()["used"]


def test_collected_buffers_and_their_state_are_those_of_single_steps():
    task = make_task("CartPole-v1")
    other = copy.deepcopy(task)
    native = make_numpy_actor(task.model, task.noise)
    single = functools.partial(make_numpy_actor(other.model, other.noise))  # has no rollout
    for whole_episodes in (False, True):
        for t in (task, other):
            t.collector = Collector(t.env, 1 if whole_episodes else 50, whole_episodes)
        for _ in range(3):
            mine, theirs = task.collector.collect(native), other.collector.collect(single)
            for x, y in zip(mine.buffer.tensors(), theirs.buffer.tensors(), strict=True):
                assert torch.equal(x, y)
            assert mine.episodes == theirs.episodes
            assert str(task.collector.state_dict()) == str(other.collector.state_dict())


@pytest.mark.parametrize("deterministic", [False, True])
def test_evaluations_are_those_of_single_steps(deterministic):
    task = make_task("MountainCar-v0", env_kwargs={"max_episode_steps": 90})
    before = str(task.state_dict())
    plain = task.evaluate(7, seed=5, deterministic=deterministic)
    task.make_actor = make_numpy_actor
    assert has_rollouts(task.env)
    native = task.evaluate(7, seed=5, deterministic=deterministic)
    assert (native.returns.tolist(), native.lengths.tolist()) == (plain.returns.tolist(), plain.lengths.tolist())
    assert str(task.state_dict()) == before


def test_the_hyperbolic_tangent_is_that_of_numpy():
    task = make_task("Pendulum-v1", {"hidden": (1,)}, num_envs=4001)
    model, env = task.model, task.env
    with torch.no_grad():
        for p in model.policy.parameters():
            p.zero_()
        hidden, output = model.policy.net.layers
        hidden.weight[0, 2], output.weight[0, 0] = 1, 0.5  # the bounds of actions are ±2
    obs = np.zeros((4001, 3), np.float32)
    obs[:, 2] = np.linspace(-12, 12, 4001)
    action, *_ = make_numpy_actor(model, task.noise.zeros()).rollout(env, obs, 1)
    np.testing.assert_allclose(action[0, :, 0], np.tanh(obs[:, 2]), rtol=0, atol=3e-7)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        ("CartPoleNoVel-v1", {}),
        ("CartPole-v1", {"wrappers": ("gymnasium.wrappers:TimeAwareObservation",)}),
        ("CartPole-v1", {"network": "gru"}),
        ("Pendulum-v1", {"state_dependent_std": True}),
    ],
)
def test_other_environments_and_networks_act_step_by_step(env, settings):
    task = make_task(env, settings)
    actor = make_numpy_actor(task.model, task.noise)
    assert rollout(task.env, actor, task.collector._obs, 4) is None
    assert len(task.collector.collect(actor).buffer.mask) == 3


@pytest.fixture
def new_library(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    _library.cache_clear()
    yield tmp_path / "cache"
    _library.cache_clear()


def test_without_a_compiler_actors_act_step_by_step(new_library, monkeypatch, caplog):
    monkeypatch.setattr("rlzoo.core.fast.library.compilers", list)
    task = make_task("CartPole-v1")
    assert rollout(task.env, make_numpy_actor(task.model, task.noise), task.collector._obs, 4) is None
    assert not caplog.text


def test_the_library_is_built_once_and_again_if_it_is_damaged(new_library, monkeypatch, caplog):
    env = make_task("CartPole-v1").env
    assert has_rollouts(env)
    with monkeypatch.context() as without:
        without.setattr("rlzoo.core.fast.library.compilers", list)
        _library.cache_clear()
        assert has_rollouts(env)
    (library,) = new_library.rglob("library.so")
    whole = library.read_bytes()
    library.unlink()  # not written to: this process has it in memory
    library.write_bytes(whole[:1000])
    _library.cache_clear()
    assert has_rollouts(env)
    assert "compiling again" in caplog.text
    assert library.read_bytes() == whole


def test_a_library_whose_files_are_gone_is_built_again(new_library, caplog):
    assert has_rollouts(make_task("CartPole-v1").env)
    (library,) = new_library.rglob("library.so")
    for path in library.parent.iterdir():
        path.unlink()
    _library.cache_clear()
    assert has_rollouts(make_task("CartPole-v1").env)
    assert library.exists()
    assert "compiling again" in caplog.text


@pytest.fixture
def source(tmp_path):
    source = tmp_path / "right.cpp"
    source.write_text("int f() { return 1; }")
    return source


def moved_behind_a_link(path):
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


SPOILT = {
    "folder that others may write": lambda library: library.parent.chmod(0o770),
    "file that others may write": lambda library: library.chmod(0o666),
    "link to a folder": lambda library: moved_behind_a_link(library.parent),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_library_that_another_user_could_have_written_is_built_again(spoil, source, new_library, caplog):
    before = os.umask(0o002)  # of systems where each user has a group
    try:
        assert build_library(source) is not None
        assert build_library(source) is not None
        assert not caplog.text
        (library,) = new_library.rglob("library.so")
        spoil(library)
        assert build_library(source) is not None
    finally:
        os.umask(before)
    assert "belongs to another user or others may write to it" in caplog.text
    assert [path.is_symlink() or path.stat().st_mode & 0o022 for path in (library, library.parent)] == [0, 0]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "file" / "cache"))
    source = tmp_path / "right.cpp"
    source.write_text("int f() { return 1; }")
    assert build_library(source) is None
    assert "there is no native code, so results are rounded differently: the cache " in caplog.text
    assert "set RLZOO_CACHE to another directory" in caplog.text


def test_a_file_that_does_not_compile_is_no_library(tmp_path, monkeypatch, caplog):
    caplog.set_level("DEBUG", "rlzoo")
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "wrong.cpp"
    source.write_text("int f() { return x; }")
    assert build_library(source) is None
    assert "wrong.cpp:1" in caplog.text
    assert not [*(tmp_path / "cache").rglob("library.so")]
