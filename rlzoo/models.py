"""Networks: `Policy`, `Value`, `ActorCritic`, and the normalisers that are part of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rlzoo.buffer import Buffer
from rlzoo.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical
from rlzoo.errors import ConfigError, require


class Policy(nn.Module):
    """`(features, memory) -> (Distribution, memory)`.

    Memory is what acting carries from step to step: None for a network without any, a cache of keys and
    values for a transformer. Training starts each row without memory.
    """

    def forward(self, features: Tensor, memory: Any = None) -> tuple[Distribution, Any]:
        raise NotImplementedError


class Value(nn.Module):
    """`features (..., F) -> value (...)`: the expected discounted return from a state."""

    def forward(self, features: Tensor) -> Tensor:
        raise NotImplementedError


class ActorCritic(nn.Module):
    """A policy and a value, on a shared trunk or (with no trunk) on networks of their own."""

    context = 1
    """Steps that the policy must see together; 0 means the whole row."""

    def __init__(
        self,
        policy: Policy,
        value: Value,
        trunk: nn.Module | None = None,
        normalizer: Normalizer | None = None,
        reward_scale: RewardScale | None = None,
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.reward_scale = reward_scale
        self.trunk = trunk
        self.policy = policy
        self.value = value

    def features(self, obs: Tensor) -> Tensor:
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        return obs if self.trunk is None else self.trunk(obs)

    def forward(self, obs: Tensor) -> tuple[Distribution, Tensor]:
        """(R, T, *obs) -> π(·|s) and V(s), both over (R, T)."""
        features = self.features(obs)
        return self.policy(features)[0], self.value(features)

    def distribution(self, obs: Tensor) -> Distribution:
        """π(·|s) alone."""
        return self.policy(self.features(obs))[0]

    def act(self, obs: Tensor, memory: Any = None) -> tuple[Distribution, Any]:
        """π(·|s) for one step of N rows, and the memory to pass on."""
        return self.policy(self.features(obs), memory)

    def policy_parameters(self) -> list[nn.Parameter]:
        """All that π depends on, a shared trunk included."""
        trunk = [] if self.trunk is None else list(self.trunk.parameters())
        return trunk + list(self.policy.parameters())

    def value_parameters(self) -> list[nn.Parameter]:
        """What V alone depends on: disjoint from `policy_parameters`."""
        return list(self.value.parameters())


class Normalizer(nn.Module):
    """Observations shifted and scaled by running statistics, clipped to ±10.

    The statistics are part of the model and saved with it. `update` is called once for each buffer, after the
    algorithm's update, so that the policy that is trained is the policy that acted.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    clip = 10.0

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(*shape))
        self.register_buffer("var", torch.ones(*shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self.mean) * torch.rsqrt(self.var + 1e-8)).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, obs: Float[Tensor, "N T *obs"], mask: Bool[Tensor, "N T"]) -> None:
        """Adds a buffer's unmasked observations."""
        _add_to_statistics(self, obs[mask].double())


class RewardScale(nn.Module):
    """Rewards divided by the running standard deviation of their discounted sum.

    Only what trains is scaled; episodes are reported in the environment's own units. Part of the model, because
    the value is in the scaled units. The sum R_t = γ·R_{t−1} + r_t runs on from buffer to buffer, row by row.
    """

    running: Tensor
    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("running", torch.zeros(num_envs, dtype=torch.float64))
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("var", torch.ones((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def forward(self, buffer: Buffer) -> Buffer:
        """`buffer` with scaled rewards, once its own rewards are in the statistics."""
        sums = torch.empty_like(buffer.reward, dtype=torch.float64)
        for t in range(sums.shape[1]):
            sums[:, t] = self.gamma * self.running + buffer.reward[:, t]
            self.running.copy_(sums[:, t] * ~(buffer.terminated | buffer.truncated)[:, t])
        _add_to_statistics(self, sums[buffer.mask])
        return buffer.replace(reward=buffer.reward / float(torch.sqrt(self.var + 1e-8)))


def _add_to_statistics(statistics: Normalizer | RewardScale, batch: Tensor) -> None:
    """Adds (B, *) samples to a running mean and variance (Chan et al. 1979)."""
    if not len(batch):
        return
    count, total = float(statistics.count), float(statistics.count) + len(batch)
    delta = batch.mean(0) - statistics.mean
    var = (statistics.var * count + batch.var(0, unbiased=False) * len(batch)) / total
    statistics.var.copy_(var + delta.square() * count * len(batch) / total**2)
    statistics.mean.add_(delta * len(batch) / total)
    statistics.count.fill_(total)


def tanh(x: Tensor) -> Tensor:
    """tanh(x) = 2σ(2x) − 1: PyTorch's sigmoid is four times as fast as its tanh on a CPU."""
    return 2 * torch.sigmoid(2 * x) - 1


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": tanh, "relu": F.relu, "silu": F.silu}


def orthogonal(layer: nn.Linear, gain: float, generator: torch.Generator | None = None) -> nn.Linear:
    """`layer` with an orthogonal weight of that gain and no bias."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class MLP(nn.Module):
    """A multilayer perceptron over the last axis: activated `hidden` layers, orthogonal with gain √2."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], activation: str, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        sizes = [inputs, *hidden]
        self.layers = nn.ModuleList(
            orthogonal(nn.Linear(m, n), math.sqrt(2), generator) for m, n in zip(sizes, hidden, strict=False)
        )
        self.activation = activation
        self.outputs = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.activation]
        for layer in self.layers:
            x = activation(layer(x))
        return x


class MLPPolicy(Policy):
    """An MLP and one linear layer that parametrises the distribution of an action space."""

    log_std: nn.Parameter | None = None

    def __init__(
        self, body: MLP, head: nn.Linear, space: gymnasium.Space, log_std: float | Literal["state"] = 0.0
    ) -> None:
        super().__init__()
        self.body = body
        self.head = head
        self.nvec = categories(space)
        if isinstance(space, spaces.Box):
            centre, scale = box_units(space)
            self.register_buffer("centre", torch.from_numpy(centre), persistent=False)
            self.register_buffer("log_scale", torch.from_numpy(np.log(scale)), persistent=False)
            if log_std != "state":
                self.log_std = nn.Parameter(torch.full((centre.size,), float(log_std)))

    def forward(self, features: Tensor, memory: Any = None) -> tuple[Distribution, Any]:
        return self.distribution(self.head(self.body(features))), memory

    def distribution(self, outputs: Tensor) -> Distribution:
        """The distribution that the head's outputs (..., O) stand for."""
        if len(self.nvec) == 1:
            return Categorical(outputs)
        if self.nvec:
            return MultiCategorical(tuple(map(Categorical, outputs.split(self.nvec, dim=-1))))
        if self.log_std is None:
            outputs, log_std = outputs.chunk(2, dim=-1)
        else:
            log_std = self.log_std.expand_as(outputs)
        return DiagGaussian(self.centre + self.log_scale.exp() * outputs, self.log_scale + log_std)


class MLPValue(Value):
    """An MLP and one linear layer to a scalar."""

    def __init__(self, body: MLP, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.body(features)).squeeze(-1)


def categories(space: gymnasium.Space) -> list[int]:
    """Sizes of the categorical factors of an action space; [] for a Box."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.reshape(-1)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return []
    raise ConfigError(f"action space {space} is not supported; use Discrete, MultiDiscrete, MultiBinary or Box")


def box_units(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Centre and half-width (A,) of a Box's bounds; 0 and 1 where it has none.

    A Gaussian policy starts with mean 0 and standard deviation 1 in these units.
    """
    low, high = space.low.reshape(-1).astype(np.float32), space.high.reshape(-1).astype(np.float32)
    bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(bounded, low, -1), np.where(bounded, high, 1)
    return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)


@dataclass(frozen=True)
class Network:
    """How to build an MLP `ActorCritic`."""

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layer sizes of the policy and of the value."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation of the hidden layers."""
    shared_trunk: bool = False
    """Policy and value share the hidden layers."""
    normalize_obs: bool = False
    """Normalise observations by running mean and variance, saved with the model."""
    log_std_init: float = 0.0
    """Initial log standard deviation for Box actions, in half-widths of the action's bounds."""
    state_dependent_std: bool = False
    """Standard deviation as an output of the policy network, instead of one parameter an action."""

    def __post_init__(self) -> None:
        require(all(n > 0 for n in self.hidden), f"hidden sizes must be positive, got {self.hidden}")
        require(
            self.activation in ACTIVATIONS,
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}",
        )

    def build(
        self,
        observation_space: spaces.Box,
        action_space: gymnasium.Space,
        generator: torch.Generator | None = None,
    ) -> ActorCritic:
        """A model with orthogonal initialisation: √2 for hidden layers, 0.01 for π's head, 1 for V's."""

        def mlp(inputs: int, hidden: Sequence[int]) -> MLP:
            return MLP(inputs, hidden, self.activation, generator)

        inputs = math.prod(observation_space.shape)
        trunk = mlp(inputs, self.hidden) if self.shared_trunk else None
        body = () if self.shared_trunk else self.hidden
        inputs = inputs if trunk is None else trunk.outputs
        outputs = sum(categories(action_space)) or math.prod(action_space.shape or ())
        state_std = self.state_dependent_std and isinstance(action_space, spaces.Box)
        policy_body = mlp(inputs, body)
        head = orthogonal(nn.Linear(policy_body.outputs, outputs * (1 + state_std)), 0.01, generator)
        if state_std:
            nn.init.constant_(head.bias[outputs:], self.log_std_init)
        policy = MLPPolicy(policy_body, head, action_space, "state" if state_std else self.log_std_init)
        value_body = mlp(inputs, body)
        value = MLPValue(value_body, orthogonal(nn.Linear(value_body.outputs, 1), 1.0, generator))
        normalizer = Normalizer(observation_space.shape) if self.normalize_obs else None
        return ActorCritic(policy, value, trunk, normalizer)


def flatten_parameters(parameters: Sequence[nn.Parameter]) -> Float[Tensor, "P"]:
    """Moves the parameters into one flat tensor θ, which they become views of: writing θ writes them all."""
    theta = torch.cat([p.detach().reshape(-1) for p in parameters])
    for p, view in zip(parameters, unflatten(theta, parameters), strict=True):
        p.data = view
    return theta


def unflatten(theta: Float[Tensor, "P"], like: Sequence[Tensor]) -> Iterator[Tensor]:
    """Views of θ in the shapes of `like`."""
    pieces = theta.split([p.numel() for p in like])
    return (piece.view(p.shape) for piece, p in zip(pieces, like, strict=True))
