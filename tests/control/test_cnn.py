"""Convolutional networks: what they see, every action space, every algorithm, and a task that needs them."""

import gymnasium
import numpy as np
import pytest
import torch
from builders import SPACES
from gymnasium import spaces

from rlzoo.control.cnn import CNN, ConvNet, image_axes, is_image
from rlzoo.control.networks import make_heads
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.progress import Progress
from rlzoo.core.task import Setup
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer
from rlzoo.runs.registry import ALGORITHMS

SMALL = {"channels": (4, 8, 8), "hidden": (16,)}


def images(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


class Dot(gymnasium.Env):
    """A bright dot to the left or right in a dark image; the action that names its side pays 1. The best return is the
    number of steps."""

    observation_space = images(16, 16, 1)
    action_space = spaces.Discrete(2)

    def __init__(self, length=8, size=16):
        self.length, self.size = length, size
        self.observation_space = images(size, size, 1)

    def _observe(self):
        self.side = int(self.np_random.integers(2))
        image = np.zeros((self.size, self.size, 1), np.uint8)
        row, column = self.np_random.integers(1, self.size - 1), self.np_random.integers(1, self.size // 2 - 1)
        image[row - 1 : row + 2, column + self.side * self.size // 2 - 1 :][:, :3] = 255
        return image

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        reward = float(action == self.side)
        self.steps += 1
        return self._observe(), reward, False, self.steps == self.length, {}


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((16, 20), (0, 1)),
        ((16, 20, 3), (0, 1, 2)),
        ((4, 16, 20), (1, 2, 0)),
        ((4, 16, 20, 3), (1, 2, 0, 3)),
        ((7, 20, 3), None),
        ((300,), None),
        ((2, 2, 16, 16, 3), None),
    ],
)
def test_axes_of_images(shape, axes):
    assert image_axes(images(*shape)) == axes
    assert is_image(images(*shape)) is (axes is not None)


def test_what_is_no_image():
    assert image_axes(spaces.Box(-np.inf, np.inf, (16, 16, 3))) is None
    assert image_axes(spaces.Discrete(3)) is None
    assert image_axes(spaces.Box(0, 1, (16, 16, 3))) == (0, 1, 2)
    assert not is_image(spaces.Box(0, 1, (16, 16, 3)))


@pytest.mark.parametrize("shape", [(10, 12), (10, 12, 3), (3, 10, 12), (4, 10, 12, 3), (40, 36, 3)])
def test_convolutions_see_the_image_in_its_place(shape):
    space = images(*shape)
    net = ConvNet(space, (2, 2, 2), (3,))
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    seen = net._images(torch.from_numpy(pixels.reshape(5, -1)))
    scaled = pixels / np.float32(255)
    expected = {2: lambda x: x[:, None], 4: lambda x: x.transpose(0, 1, 4, 2, 3).reshape(5, -1, *shape[1:3])}
    channels_last = len(shape) == 3 and shape[-1] == 3
    wanted = scaled.transpose(0, 3, 1, 2) if channels_last else expected.get(len(shape), lambda x: x)(scaled)
    torch.testing.assert_close(seen, torch.from_numpy(np.ascontiguousarray(wanted)))


def test_bytes_and_numbers_give_the_same_features():
    net = ConvNet(images(16, 16, 3), (2, 2, 2), (3,))
    pixels = torch.randint(0, 256, (2, 3, 768), dtype=torch.uint8)
    assert net(pixels).shape == (2, 3, 3)
    assert torch.equal(net(pixels), net(pixels.float()))


def test_other_observations_are_an_error():
    with pytest.raises(ConfigError) as error:
        Trainer(make_config("ppo", "CartPole-v1", network="cnn"))
    assert str(error.value).startswith("network cnn needs images (H, W, C) or (C, H, W) with bounds")
    assert str(error.value).endswith(": use mlp")


@pytest.mark.parametrize("settings", [{"channels": (4, 4)}, {"channels": (4, 4, 0)}, {"hidden": (0,)}])
def test_wrong_sizes_are_an_error(settings):
    with pytest.raises(ConfigError, match=rf"^{next(iter(settings))} "):
        CNN(**settings)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("settings", [{}, {"shared_trunk": False}, {"state_dependent_std": True}])
def test_every_action_space(space, settings):
    model = CNN(**SMALL, **settings).build(images(12, 12, 3), space, torch.Generator().manual_seed(0))
    obs = torch.randint(0, 256, (2, 5, 432), dtype=torch.uint8)
    policy, value = model(obs)
    assert value.shape == (2, 5)
    assert policy.log_prob(policy.sample(torch.Generator().manual_seed(0))).shape == (2, 5)
    shared = {id(p) for p in model.policy_parameters()} & {id(p) for p in model.value_parameters()}
    assert not shared
    same = CNN(**SMALL, **settings).build(images(12, 12, 3), space, torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


QUICK = {"env": Dot, "network": "cnn", **SMALL, "num_envs": 4, "num_steps": 16, "total_steps": 128}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_one_on_bytes(algorithm):
    small = {"reinforce": {}, "trpo": {"cg_iters": 3}, "npg": {"cg_iters": 3}}.get(algorithm, {"epochs": 2})
    vf = {} if algorithm.startswith("ppo") else {"vf_minibatch_size": 32}
    mini = {"minibatch_size": 32} if algorithm.startswith("ppo") else {}
    trainer = Trainer(make_config(algorithm, **QUICK, **small, **vf, **mini))
    before = torch.cat([p.detach().reshape(-1).clone() for p in trainer.model.parameters()])
    experience = trainer.task.collector.collect(trainer.task.actor())
    assert experience.buffer.obs.dtype == torch.uint8
    metrics = trainer.iterate().metrics
    after = torch.cat([p.detach().reshape(-1) for p in trainer.model.parameters()])
    assert all(np.isfinite(x) for x in metrics.values())
    assert (after != before).float().mean() > 0.5
    trainer.task.close()


def test_gradient_is_that_of_plain_pytorch():
    slow, fast = (Trainer(make_config("ppo", **QUICK, minibatch_size=32, epochs=2, fast=x)) for x in (False, True))
    for trainer in (slow, fast):
        trainer.iterate()
    for a, b in zip(slow.model.parameters(), fast.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


class Pixels(torch.nn.Linear):
    """A network for which the numbers of bytes are others."""

    def forward(self, x):
        return super().forward(x - 127.5 if x.dtype == torch.uint8 else 127.5 - x)


def test_own_network_gets_bytes_where_it_is_used_too():
    torch.manual_seed(0)
    heads = make_heads(lambda outputs, gain: torch.nn.Linear(4, outputs), Dot.action_space, 0.0, False)
    task = ControlTask(Control(num_envs=1, network=CNN()), Setup(Dot), ActorCritic(*heads, Pixels(256, 4)))
    obs = np.random.default_rng(0).integers(0, 256, (50, 16, 16, 1), np.uint8)
    expected = task.model.act(torch.from_numpy(obs.reshape(50, -1)))[0].mode.numpy()
    assert set(expected) == {0, 1}
    policy = task.policy()
    np.testing.assert_array_equal(policy(obs), expected)
    session = pytest.importorskip("onnxruntime").InferenceSession(policy.export("onnx", {}))
    np.testing.assert_array_equal(session.run(None, {"obs": policy.flatten(obs)})[0], expected)


def test_image_with_an_mlp_is_said_once():
    said = []
    task = Trainer(make_config("ppo", Dot, num_envs=2, num_steps=32), progress=Said(said)).task
    assert said == ["the observations are images, which an MLP learns from slowly: try --network cnn"]
    assert task.env.observation_space.dtype == np.float32
    said.clear()
    Trainer(make_config("ppo", **QUICK, minibatch_size=32), progress=Said(said))
    Trainer(make_config("ppo", "CartPole-v1"), progress=Said(said))
    assert said == []


class Said(Progress):
    """Keeps the lines that are shown."""

    def __init__(self, lines):
        self.say = lines.append


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_ppo_finds_the_dot(seed):
    """The optimum is 8 and chance is 4. Of the seeds 1 to 20, 18 reached 7.8 with this budget, and these two 8.0."""
    settings = {**QUICK, "channels": (8, 16, 16), "hidden": (64,), "num_envs": 8, "num_steps": 32}
    trainer = Trainer(
        make_config("ppo", **{**settings, "total_steps": 8192}, seed=seed, learning_rate="linear:1e-3:0", epochs=4)
    )
    while not trainer.done:
        trainer.iterate()
    assert trainer.task.evaluate(50, seed=0, deterministic=True).mean_return > 7.5
