"""The built-in networks: MLPs for flat observations and every supported action space, and recurrent ones below them."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.control.spaces import action_columns, box_units, categories, is_product, leaves
from rlzoo.core.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical, Product
from rlzoo.core.models import ActorCritic, Normalizer, Policy, Value
from rlzoo.core.recurrent import Cell, GRUCell, LSTMCell, Recurrent
from rlzoo.core.seen import Seen
from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import Advanced, Checked, Count


class MLP(nn.Module):
    """A multilayer perceptron over the last axis.

    Hidden layers have the activation and orthogonal initialisation with gain √2. With `outputs`, a linear layer with
    gain `gain` follows. Biases start at 0.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        activation: Literal["tanh", "relu"] = "tanh",
        outputs: int | None = None,
        gain: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        sizes = [inputs, *hidden] + ([] if outputs is None else [outputs])
        gains = [math.sqrt(2)] * len(hidden) + [gain]
        layers = [nn.Linear(m, n) for m, n in pairwise(sizes)]
        for layer, layer_gain in zip(layers, gains, strict=False):
            nn.init.orthogonal_(layer.weight, layer_gain, generator=generator)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)
        self.activation = activation
        self.activated = [True] * len(hidden) + [False] * (outputs is not None)
        self.outputs = sizes[-1]

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        for layer, activated in zip(self.layers, self.activated, strict=True):
            x = layer(x)
            if activated:
                x = x.tanh() if self.activation == "tanh" else x.relu()
        return x


class MLPPolicy(Policy):
    """A network, such as an MLP, whose outputs parametrise the distribution of an action space.

    Box actions are Gaussian, in units of the bounds (see `box_units`). `log_std` is the initial value of one parameter
    for each action; with None, the log standard deviation is the second half of the network's outputs.
    """

    centre: Tensor
    log_scale: Tensor

    def __init__(self, net: nn.Module, space: gymnasium.Space[Any], log_std: float | None = 0.0) -> None:
        super().__init__()
        self.net = net
        self.nvec = categories(space)
        self.log_std: nn.Parameter | None = None
        self.box = space if isinstance(space, spaces.Box) else None
        if self.box is not None:
            self.register_buffer("centre", None, persistent=False)
            self.register_buffer("log_scale", None, persistent=False)
            self._set_units()
            if log_std is not None:
                self.log_std = nn.Parameter(torch.full(self.centre.shape, float(log_std)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._set_units()
        return self

    def _set_units(self) -> None:
        """Computes `centre` and `log_scale` in the precision of the network, so that they are rounded only once."""
        if self.box is not None:
            like = next(self.net.parameters())
            centre, scale = box_units(self.box, np.float64 if like.dtype == torch.float64 else np.float32)
            self.centre, self.log_scale = (torch.from_numpy(x).to(like) for x in (centre, np.log(scale)))

    def forward(self, features: Tensor, memory: Any = None) -> tuple[Distribution, Any]:
        return self.distribution(self.net(features)), memory

    def distribution(self, outputs: Tensor) -> Distribution:
        """The distribution with the network's outputs (..., O) as parameters."""
        if len(self.nvec) == 1:
            return Categorical(outputs)
        if self.nvec:
            return MultiCategorical(tuple(map(Categorical, torch.split(outputs, self.nvec, dim=-1))))
        if self.log_std is None:
            outputs, log_std = outputs.chunk(2, dim=-1)
        else:
            log_std = self.log_std.expand_as(outputs)
        return DiagGaussian(self.centre + self.log_scale.exp() * outputs, self.log_scale + log_std)


class ProductPolicy(Policy):
    """Independent policies for the parts of a `Dict` or `Tuple` of actions."""

    def __init__(self, parts: Sequence[MLPPolicy], columns: Sequence[int]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.columns = tuple(columns)

    def forward(self, features: Tensor, memory: Any = None) -> tuple[Distribution, Any]:
        return Product(tuple(part(features)[0] for part in self.parts), self.columns), memory


class MLPValue(Value):
    """A network with one output."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, features: Tensor) -> Tensor:
        return self.net(features).squeeze(-1)


def make_heads(
    net: Callable[[int, float], nn.Module], action_space: gymnasium.Space[Any], log_std: float, state_dependent: bool
) -> tuple[Policy, MLPValue]:
    """The policy of an action space, and the value. Each part of a `Dict` or `Tuple` of actions has its own network.

    Args:
        net: makes a network with a number of outputs and a gain of its last layer.
        log_std, state_dependent: `log_std_init` and `state_dependent_std` of `Network`.
    """
    each = leaves(action_space)
    parts = []
    for space in each:
        outputs = sum(categories(space)) or action_columns(space)
        if state_dependent and isinstance(space, spaces.Box):
            body = net(2 * outputs, 0.01)
            list(body.parameters())[-1].data[outputs:] = log_std
            parts.append(MLPPolicy(body, space, None))
        else:
            parts.append(MLPPolicy(net(outputs, 0.01), space, log_std))
    policy = ProductPolicy(parts, [*map(action_columns, each)]) if is_product(action_space) else parts[0]
    return policy, MLPValue(net(1, 1.0))


@dataclass(frozen=True)
class NetworkSettings(Checked, abc.ABC):
    """A kind of network: settings, and how to build an `ActorCritic` from them. A subclass is a frozen dataclass."""

    images: ClassVar[bool] = False
    """Whether `build` gets the observation space as it is, and the model flat pixels as bytes. Otherwise both are flat
    and float32."""

    @abc.abstractmethod
    def build(
        self, observation_space: Any, action_space: gymnasium.Space[Any], generator: torch.Generator | None = None
    ) -> ActorCritic:
        """Builds a new model, initialised with `generator`.

        Raises:
            ConfigError: the network cannot be built for these spaces.
        """


@dataclass(frozen=True)
class Network(NetworkSettings):
    """How to build an MLP `ActorCritic`."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer sizes of the policy and of the value."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the hidden layers."""
    shared_trunk: Advanced[bool] = False
    """Policy and value share the hidden layers."""
    normalize_obs: bool = False
    """Normalise observations by running mean and variance, saved with the model."""
    log_std_init: Advanced[float] = 0.0
    """Initial log standard deviation for Box actions, in half-widths of the action's bounds."""
    state_dependent_std: Advanced[bool] = False
    """Standard deviation as an output of the policy network, instead of one parameter for each action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(n >= 1 for n in self.hidden), f"hidden sizes must be at least 1, got {self.hidden}")

    def build(
        self, observation_space: Any, action_space: gymnasium.Space[Any], generator: torch.Generator | None = None
    ) -> ActorCritic:
        """Builds a model with orthogonal initialisation: gain √2 for hidden layers, 0.01 for π's output, 1 for V's."""
        trunk = self.body(math.prod(observation_space.shape), generator=generator) if self.shared_trunk else None

        def net(outputs: int, gain: float) -> nn.Module:
            if trunk is not None:
                return MLP(trunk.outputs, (), self.activation, outputs, gain, generator)
            return self.body(math.prod(observation_space.shape), outputs, gain, generator)

        policy, value = make_heads(net, action_space, self.log_std_init, self.state_dependent_std)
        normalizer = Normalizer(observation_space.shape) if self.normalize_obs else None
        return ActorCritic(policy, value, trunk, normalizer)

    def body(
        self, inputs: int, outputs: int | None = None, gain: float = 1.0, generator: torch.Generator | None = None
    ) -> Any:
        """A network from observations: the hidden layers, and with `outputs` a linear layer of that gain.

        The module has its number of outputs as `outputs`.
        """
        return MLP(inputs, self.hidden, self.activation, outputs, gain, generator)


class RecurrentMLP(nn.Module):
    """A recurrent network, and an MLP on its outputs."""

    def __init__(self, cell: Cell, mlp: MLP) -> None:
        super().__init__()
        self.recurrent = Recurrent(cell)
        self.mlp = mlp
        self.outputs = mlp.outputs

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        return self.mlp(self.recurrent(seen))


@dataclass(frozen=True)
class GRU(Network):
    """How to build a recurrent `ActorCritic`. Policy and value each have a memory, unless they share the trunk."""

    cell: ClassVar[Callable[..., Cell]] = GRUCell

    hidden: tuple[int, ...] = (64,)
    """Sizes of the layers above the memory."""
    cell_size: Count = 64
    """Outputs of the recurrent cell."""
    unroll: Advanced[Count] = 32
    """Steps of a training row, through which gradients flow. A row starts with the memory that acting had there."""

    def build(
        self, observation_space: Any, action_space: gymnasium.Space[Any], generator: torch.Generator | None = None
    ) -> ActorCritic:
        model = super().build(observation_space, action_space, generator)
        model.context = self.unroll
        return model

    def body(
        self, inputs: int, outputs: int | None = None, gain: float = 1.0, generator: torch.Generator | None = None
    ) -> RecurrentMLP:
        mlp = MLP(self.cell_size, self.hidden, self.activation, outputs, gain, generator)
        return RecurrentMLP(type(self).cell(inputs, self.cell_size, generator), mlp)


@dataclass(frozen=True)
class LSTM(GRU):
    """The same with an LSTM."""

    cell: ClassVar[Callable[..., Cell]] = LSTMCell
