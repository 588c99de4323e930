"""Convolutional networks for images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlzoo.control.networks import MLP, NetworkSettings, make_heads
from rlzoo.core.models import ActorCritic
from rlzoo.core.system.errors import ConfigError, require

_SMALLEST = 8
"""Height and width of the smallest image."""
_NATURE = ((8, 4, 0), (4, 2, 0), (3, 1, 0))
_SMALL = ((3, 2, 1), (3, 2, 1), (3, 1, 1))
"""(kernel, stride, padding) of each layer; those of Mnih et al. need an image of 36 pixels."""


def image_axes(space: gymnasium.Space[Any]) -> tuple[int, ...] | None:
    """The axes of height, width and, if it has any, channels of an image space; None if the space is none.

    Images are (H, W), (H, W, C), (C, H, W) or stacks (S, H, W, C), with bounds. Of the first and the last axis, the
    shorter one is that of the channels.
    """
    if not isinstance(space, spaces.Box) or not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return None
    match space.shape:
        case (_, _):
            axes: tuple[int, ...] = (0, 1)
        case (first, _, last):
            axes = (1, 2, 0) if first < last else (0, 1, 2)
        case (_, _, _, _):
            axes = (1, 2, 0, 3)
        case _:
            return None
    return axes if min(space.shape[axis] for axis in axes[:2]) >= _SMALLEST else None


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Whether a space is one of images of bytes."""
    return image_axes(space) is not None and space.dtype == np.uint8


class ConvNet(nn.Module):
    """Flat images (..., D) of any dtype -> features (..., F), scaled from the bounds of their space to [0, 1].

    Three convolutions with ReLU, then a linear layer with ReLU for each size in `hidden`, as in Mnih et al.,
    "Human-level control through deep reinforcement learning", 2015: 8×8 with stride 4, 4×4 with stride 2, 3×3. An
    image of less than 36 pixels has 3×3 with strides 2, 2 and 1 instead. Weights are orthogonal with gain √2.
    """

    def __init__(
        self, space: Any, channels: Sequence[int], hidden: Sequence[int], generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        axes = image_axes(space)
        if axes is None:
            wanted = f"images (H, W, C) or (C, H, W) with bounds, of at least {_SMALLEST} pixels"
            raise ConfigError(f"network cnn needs {wanted}, got {' '.join(str(space).split())}: use mlp")
        self.shape, self.axes = space.shape, axes
        self.low = float(space.low.min())
        self.range = float(space.high.max()) - self.low
        self.size = tuple(space.shape[axis] for axis in axes[:2])
        layers: list[nn.Module] = []
        inputs = self.inputs = math.prod(space.shape) // math.prod(self.size)
        plan = _NATURE if min(self.size) >= 36 else _SMALL
        for outputs, (kernel, stride, padding) in zip(channels, plan, strict=True):
            conv = nn.Conv2d(inputs, outputs, kernel, stride, padding)
            nn.init.orthogonal_(conv.weight, math.sqrt(2), generator=generator)
            nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
            layers += [conv, nn.ReLU()]
            inputs = outputs
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        with torch.no_grad():
            flat = self.convolutions(self._images(torch.zeros(1, math.prod(space.shape)))).shape[1]
        self.dense = MLP(flat, hidden, "relu", generator=generator)
        self.outputs = self.dense.outputs

    def forward(self, obs: Tensor) -> Tensor:
        features = self.convolutions(self._images(obs.reshape(-1, obs.shape[-1])))
        return self.dense(features).reshape(*obs.shape[:-1], self.outputs)

    def _images(self, obs: Tensor) -> Tensor:
        """(B, D) -> (B, C, H, W) in [0, 1]."""
        dtype = next(self.parameters()).dtype
        images = ((obs.to(dtype) - self.low) / self.range).reshape(-1, *self.shape)
        height, width, *channels = (axis + 1 for axis in self.axes)
        return images.permute(0, *channels, height, width).reshape(-1, self.inputs, *self.size)


@dataclass(frozen=True)
class CNN(NetworkSettings):
    """How to build a convolutional `ActorCritic` for images."""

    images: ClassVar[bool] = True
    channels: tuple[int, ...] = (32, 64, 64)
    """Channels of the three convolutions."""
    hidden: tuple[int, ...] = (512,)
    """Sizes of the layers after the convolutions."""
    shared_trunk: bool = True
    """Policy and value share the convolutions and the layers after them."""
    log_std_init: float = 0.0
    """Initial log standard deviation for Box actions, in half-widths of the action's bounds."""
    state_dependent_std: bool = False
    """Standard deviation as an output of the policy network, instead of one parameter for each action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.channels) == len(_NATURE), f"channels must be {len(_NATURE)} sizes, got {self.channels}")
        for name, sizes in (("channels", self.channels), ("hidden", self.hidden)):
            require(all(n >= 1 for n in sizes), f"{name} sizes must be at least 1, got {sizes}")

    def build(
        self, observation_space: Any, action_space: gymnasium.Space[Any], generator: torch.Generator | None = None
    ) -> ActorCritic:
        """Builds a model with orthogonal initialisation: gain √2 for hidden layers, 0.01 for π's output, 1 for V's."""

        def conv_net() -> ConvNet:
            return ConvNet(observation_space, self.channels, self.hidden, generator)

        trunk = conv_net() if self.shared_trunk else None

        def net(outputs: int, gain: float) -> nn.Module:
            below = trunk or conv_net()
            head = MLP(below.outputs, (), "relu", outputs, gain, generator)
            return head if trunk else nn.Sequential(below, head)

        policy, value = make_heads(net, action_space, self.log_std_init, self.state_dependent_std)
        return ActorCritic(policy, value, trunk)
