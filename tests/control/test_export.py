"""Exported policies act as the policy does: 10,000 observations of each kind of space, network and format."""

import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import SPACES, accelerated, make_model
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from torch import nn

from rlzoo.control.cnn import CNN
from rlzoo.control.deploy import ControlPolicy
from rlzoo.control.export import FORMATS
from rlzoo.control.networks import MLPPolicy
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import ConfigError

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
FLAGS = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,))
ACTIONS = {
    **SPACES,
    "start": spaces.Discrete(3, start=-1),
    "pendulum": spaces.Box(-2, 2, (1,)),
    "half-bounded": spaces.Box(np.float32([-np.inf, 0]), np.float32([0.5, np.inf])),
    "matrix": spaces.MultiDiscrete([[2, 3], [3, 2]]),
}
NETWORKS = {
    "plain": {"hidden": (64, 64)},
    "shared": {"hidden": (16, 8), "shared_trunk": True, "activation": "relu"},
    "normalised": {"hidden": (16,), "normalize_obs": True},
    "linear": {"hidden": (), "state_dependent_std": True},
}
MIXED = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2, 2)), "on": spaces.MultiBinary(2)})
ABOUT = {"env": "Test-v0 */ int x;", "algorithm": "trpo"}


def make_policy(action_space, obs_space=OBSERVATIONS, **network):
    size = spaces.flatdim(obs_space)
    model = make_model(action_space, size, dtype=torch.float32, spread=0.3, **network)
    if model.normalizer is not None:
        generator = torch.Generator().manual_seed(1)
        model.normalizer.mean.normal_(generator=generator)
        model.normalizer.var.uniform_(0.5, 3, generator=generator)
    return ControlPolicy(model, obs_space, action_space)


def onnx(data, folder):
    session = pytest.importorskip("onnxruntime").InferenceSession(data)
    (given,), (wanted,) = session.get_inputs(), session.get_outputs()
    assert (given.name, wanted.name) == ("obs", "action")
    return lambda obs: session.run(None, {"obs": obs})[0]


LOOP = """
#include "policy.h"
void act(const float *obs, {kind} *action, int n) {{
  for (int i = 0; i < n; ++i) rlzoo_policy(obs + i * RLZOO_OBS_SIZE, action + i * RLZOO_ACTION_SIZE);
}}
int action_size(void) {{ return RLZOO_ACTION_SIZE; }}
"""


def c(data, folder):
    if COMPILER is None:
        pytest.skip("there is no C compiler: neither cc, gcc nor clang")
    kind, number = ("float", np.float32) if b"float *action)" in data else ("int", np.int32)
    (folder / "policy.h").write_bytes(data)
    (folder / "policy.c").write_text(LOOP.format(kind=kind))
    subprocess.run(
        [COMPILER, *FLAGS, "-shared", "-fPIC", "-o", folder / "policy.so", folder / "policy.c", "-lm"], check=True
    )
    library = ctypes.CDLL(str(folder / "policy.so"))

    def act(obs):
        actions = np.zeros((len(obs), library.action_size()), number)
        library.act(*(x.ctypes.data_as(ctypes.c_void_p) for x in (obs, actions)), len(obs))
        return actions

    return act


LOADERS = {"onnx": onnx, "c": c}


def check_parity(policy, format, folder, obs):
    """Integers are the same, and other actions differ by less than 1e-5."""
    expected = policy(obs)
    actions = LOADERS[format](policy.export(format, ABOUT), folder)(policy.flatten(obs))
    if format != "c":
        assert actions.shape == expected.shape
    assert len(np.unique(expected, axis=0)) > 1
    difference = np.abs(actions.reshape(expected.shape).astype(np.float64) - expected)
    assert difference.max() < (1e-5 if expected.dtype.kind == "f" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("space", ACTIONS)
def test_exported_policy_acts_as_the_policy(space, network, format, tmp_path):
    obs = np.random.default_rng(0).normal(size=(10_000, 4)).astype(np.float32) * 2
    check_parity(make_policy(ACTIONS[space], **NETWORKS[network]), format, tmp_path, obs)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("space", [spaces.Discrete(7, start=2), MIXED], ids=["discrete", "dict"])
def test_exported_policy_takes_flat_observations(space, format, tmp_path):
    batched = batch_space(space, 10_000)
    batched.seed(0)
    check_parity(make_policy(ACTIONS["multidiscrete"], space), format, tmp_path, batched.sample())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint64])
def test_bounds_that_are_the_largest_numbers(dtype, format, tmp_path):
    kind = np.finfo(dtype) if np.issubdtype(dtype, np.floating) else np.iinfo(dtype)
    obs = np.random.default_rng(0).uniform(0, 4, (10_000, 4)).astype(dtype)
    for low in (kind.min, 0):
        check_parity(make_policy(ACTIONS["start"], spaces.Box(low, kind.max, (4,), dtype)), format, tmp_path, obs)


@pytest.mark.parametrize("format", FORMATS)
def test_bounds_in_double_precision_hold(format, tmp_path):
    """The nearest number to 0.1 in single precision is above it."""
    space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    obs = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32) * 100
    actions = LOADERS[format](make_policy(space).export(format, ABOUT), tmp_path)(obs)
    assert np.abs(actions.astype(np.float64)).max() == pytest.approx(0.1)
    assert all(space.contains(x) for x in actions.reshape(-1, 2).astype(np.float64))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("space", "expected"), [("pendulum", np.nan), ("start", -1)])
def test_no_action_comes_from_an_observation_that_is_no_number(space, expected, network, format, tmp_path):
    act = LOADERS[format](make_policy(ACTIONS[space], **NETWORKS[network]).export(format, ABOUT), tmp_path)
    actions = act(np.float32([[0, np.nan, 0, 0]]))
    np.testing.assert_array_equal(actions.reshape(-1), [expected])


@pytest.mark.parametrize("start", [-(2**31), 2**31 - 3])
def test_least_and_greatest_integers_of_c(start, tmp_path):
    obs = np.random.default_rng(0).normal(size=(10_000, 4)).astype(np.float32) * 2
    check_parity(make_policy(spaces.Discrete(3, start=start)), "c", tmp_path, obs)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2**40),
        spaces.Discrete(3, start=2**31 - 2),
        spaces.Discrete(3, start=-(2**31) - 1),
        spaces.MultiDiscrete([2, 3], start=[0, 2**31]),
    ],
)
def test_integers_beyond_those_of_c_are_refused(space):
    with pytest.raises(ConfigError, match=r"^the C header's actions are 32-bit integers, which \w+\(.*\) exceeds"):
        make_policy(space).export("c", ABOUT)


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: neither cc, gcc nor clang")
def test_program_of_the_documentation(tmp_path):
    page = (Path(__file__).parents[2] / "docs/use-your-policy.md").read_text()
    (program,) = re.findall(r"^```c\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    policy = make_policy(ACTIONS["discrete"])
    (tmp_path / "policy.h").write_bytes(policy.export("c", ABOUT))
    (tmp_path / "main.c").write_text(program)
    subprocess.run([COMPILER, *FLAGS, tmp_path / "main.c", "-o", tmp_path / "main", "-lm"], check=True)
    printed = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout
    assert int(printed) == policy(np.float32([0.02, -0.01, 0.03, 0.04]))


def test_any_number_of_observations_at_once(tmp_path):
    policy = make_policy(ACTIONS["box"])
    act = onnx(policy.export("onnx", ABOUT), tmp_path)
    for rows in (1, 2, 3, 64):
        obs = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        assert np.allclose(act(obs), policy(obs), atol=1e-5)


def test_files_say_where_they_come_from():
    policy = make_policy(ACTIONS["box"])
    model = pytest.importorskip("onnx").load_from_string(policy.export("onnx", ABOUT))
    assert {entry.key: entry.value for entry in model.metadata_props} == ABOUT
    header = policy.export("c", ABOUT).decode()
    assert "   algorithm: trpo\n" in header
    assert header.index("int x;") < header.index("*/"), "a name does not end the comment"
    header = policy.export("c", {"env": "*\\\n/ int x;"}).decode()
    assert "*\\ / int x;" in header, "a compiler joins lines that end with a backslash"


def test_names_are_escaped_like_their_values():
    header = make_policy(ACTIONS["box"]).export("c", {"*/\nint x; /*": "1"}).decode()
    assert "   * / int x; /*: 1\n" in header


class Doubled(MLPPolicy):
    """A policy of a user's own, that can be traced."""

    def forward(self, features, memory=None):
        return super().forward(2 * features, memory)


class Branching(MLPPolicy):
    def forward(self, features, memory=None):
        return super().forward(features if len(features) == 2 else -features, memory)


class Recurrent(MLPPolicy):
    def forward(self, features, memory=None):
        return super().forward(features)[0], features


class Standing(nn.Linear):
    """A trunk that no export format holds: it works on the values."""

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(super().forward(x)), n=4)


def own(cls):
    policy = make_policy(ACTIONS["box"])
    policy.model.policy.__class__ = cls
    return policy


def test_model_of_the_users_own_is_traced(tmp_path):
    check_parity(own(Doubled), "onnx", tmp_path, np.random.default_rng(0).normal(size=(10_000, 4)).astype(np.float32))


def test_model_that_has_been_trained_is_still_of_built_in_parts():
    policy = make_policy(ACTIONS["box"])
    accelerated(policy.model)
    assert policy.export("c", {})


def make_cnn_policy(shared):
    images = spaces.Box(0, 255, (12, 12, 3), np.uint8)
    network = CNN(channels=(4, 4, 4), hidden=(16,), shared_trunk=shared)
    model = network.build(images, ACTIONS["discrete"], torch.Generator().manual_seed(0))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    return ControlPolicy(model, images, ACTIONS["discrete"])


@pytest.mark.parametrize("shared", [True, False])
def test_convolutional_network_takes_flat_images(shared, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (10_000, 12, 12, 3), np.uint8)
    check_parity(make_cnn_policy(shared), "onnx", tmp_path, images)


@pytest.mark.parametrize("shared", [True, False])
def test_convolutional_network_has_no_c_header(shared):
    message = "^the C header holds MLPs only, and a part of this policy is a ConvNet: export it as onnx$"
    with pytest.raises(ConfigError, match=message):
        make_cnn_policy(shared).export("c", ABOUT)


@pytest.mark.parametrize(
    ("cls", "format", "message"),
    [
        (Doubled, "c", "the C header holds MLPs only, and a part of this policy is a Doubled: export it as onnx"),
        (Branching, "onnx", "Branching cannot be exported to onnx: its forward pass branches on its input"),
        (Recurrent, "onnx", "Recurrent has a memory, which no export format holds: use load_policy"),
        (Recurrent, "c", "Recurrent has a memory, which no export format holds: use load_policy"),
        (Doubled, "pickle", "format must be onnx or c, got 'pickle'"),
    ],
)
def test_part_that_cannot_be_exported_is_named(cls, format, message):
    with pytest.raises(ConfigError) as error:
        own(cls).export(format, ABOUT)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shared", [True, False])
def test_network_of_several_modules_is_named_by_its_first(shared):
    model = make_model(ACTIONS["box"], 4, dtype=torch.float32)
    trunk = nn.Sequential(nn.LayerNorm(4)) if shared else None
    if not shared:
        model.policy.net = nn.Sequential(nn.LayerNorm(4), model.policy.net)
    model = ActorCritic(model.policy, model.value, trunk)
    policy = ControlPolicy(model, OBSERVATIONS, ACTIONS["box"])
    with pytest.raises(ConfigError, match="a part of this policy is a LayerNorm: export it as onnx"):
        policy.export("c", ABOUT)


def test_operation_that_onnx_does_not_have_is_named_with_its_part():
    model = make_model(ACTIONS["box"], 4, dtype=torch.float32)
    model = ActorCritic(model.policy, model.value, Standing(4, 4))
    policy = ControlPolicy(model, OBSERVATIONS, ACTIONS["box"])
    with pytest.raises(ConfigError, match=r"^Standing cannot be exported to onnx: .*fft.*$"):
        policy.export("onnx", ABOUT)


def test_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"^exporting to onnx needs .*: pip install onnx onnxruntime"):
        make_policy(ACTIONS["box"]).export("onnx", ABOUT)


def test_c_needs_no_further_package(monkeypatch):
    for name in ("onnx", "onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    assert make_policy(ACTIONS["box"]).export("c", ABOUT)


def test_onnx_does_not_need_onnxscript(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert make_policy(ACTIONS["box"]).export("onnx", ABOUT)
