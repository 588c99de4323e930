"""Networks: `Policy`, `Value`, `ActorCritic`, and the normalisers that are part of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rlzoo.core.buffer import Buffer
from rlzoo.core.distributions import Distribution
from rlzoo.core.recurrent import memory_after, share_memory
from rlzoo.core.seen import Seen
from rlzoo.core.tensors import discounted_sum

T = TypeVar("T")


class Policy(nn.Module):
    """`(features, memory) -> (Distribution, memory)`.

    The memory is the state that acting keeps from step to step: None for an MLP, a key-value cache for a transformer,
    where each row starts without memory in training. Recurrent networks (`Recurrent`) have theirs in the features.
    """

    def forward(self, features: Any, memory: Any = None) -> tuple[Distribution, Any]:
        raise NotImplementedError


class Value(nn.Module):
    """`features (..., F) -> value (...)`: the expected discounted return from a state."""

    def forward(self, features: Tensor) -> Tensor:
        raise NotImplementedError


Term = Callable[["ActorCritic"], Tensor]
"""A scalar part of a loss, small enough for its gradient to fit into memory."""


class AuxiliaryLoss(Protocol):
    """A loss that is added to every objective of the policy, such as a pretraining loss (ptx).

    If it is a module, its parameters and buffers are part of the model: they are trained, and saved in checkpoints.
    Nothing else of it is saved. NPG and TRPO need one without parameters, since the policy does not depend on them.
    """

    def draw(self, rows: int) -> list[Term]:
        """Returns the next loss to add to an objective over `rows` rows, as terms to sum.

        Of several processes, each returns its own share of the terms (see `rlzoo.core.system.processes.share`).
        """


class ActorCritic(nn.Module):
    """A policy and a value, on a shared trunk or (without a trunk) on separate networks.

    `obs` is what the model sees: a tensor of observations, or a `Seen` where it sees more than the observation.
    """

    context = 1
    """Steps that the policy must see together; 0 means the whole row. With recurrent networks it is 32 by default."""
    micro_batch_steps: int | None = None
    """Maximum steps of a micro-batch; None for no limit (see `Buffer.micro_batches`)."""
    auxiliary: AuxiliaryLoss | None
    """Loss that is added to every objective of the policy."""
    memory_size = 0
    """Size of the memory of all recurrent networks together."""
    jacobian: Callable[..., Any] | None = None
    """Makes the Jacobians of natural gradients, if there is a faster way than `rlzoo.optim.fisher.Jacobian`."""

    def __init__(
        self, policy: Policy, value: Value, trunk: nn.Module | None = None, normalizer: Normalizer | None = None
    ) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.reward_scale: RewardScale | None = None
        self.auxiliary = None
        self.trunk = trunk
        self.policy = policy
        self.value = value
        self.memory_size = share_memory(self)
        if self.memory_size and self.context == 1:
            self.context = 32

    def inputs(self, obs: Any) -> Any:
        """What the networks see: the normalised observation; with recurrent networks a `Seen` of it."""
        seen = Seen.of(obs)
        normalized = seen.obs if self.normalizer is None else self.normalizer(seen.obs)
        return seen.replace(obs=normalized) if self.memory_size else normalized

    def features(self, obs: Any) -> Any:
        """The input of the policy and of the value."""
        inputs = self.inputs(obs)
        return inputs if self.trunk is None else self.trunk(inputs)

    def forward(self, obs: Any) -> tuple[Distribution, Tensor]:
        """(R, T, *obs) -> π(·|s) and V(s), both over (R, T)."""
        features = self.features(obs)
        return _restrict(self.policy(features)[0], obs), self.value(features)

    if TYPE_CHECKING:  # a module's call has no types of its own
        __call__ = forward

    def distribution(self, obs: Any) -> Distribution:
        """π(·|s) alone."""
        return _restrict(self.policy(self.features(obs))[0], obs)

    def value_features(self, obs: Any) -> Any:
        """The input of `self.value`, which does not depend on `value_parameters`."""
        return self.features(obs)

    def act(self, obs: Any, memory: Any = None) -> tuple[Distribution, Any]:
        """π(·|s) for one step of N rows, and the memory to pass on.

        Args:
            obs: (N, *obs), without a start and a memory.
            memory: what the last step passed on, cleared where an episode begins; None for an empty one.
        """
        if not self.memory_size:
            policy, memory = self.policy(self.features(obs), memory)
            return _restrict(policy, obs), memory
        seen = Seen.of(obs)
        rows = len(seen.obs)
        if memory is None:
            memory = next(self.parameters()).new_zeros(rows, self.memory_size)
        start = torch.zeros(rows, dtype=torch.bool, device=seen.obs.device)
        step = seen.replace(start=start, memory=memory).map(lambda x: x.unsqueeze(1))
        with memory_after(self, memory) as after:
            policy, _ = self(step)
        return policy.map(lambda x: x.squeeze(1)), after

    def policy_parameters(self) -> list[nn.Parameter]:
        """All parameters but those of `value_parameters`: also a shared trunk, and modules of a subclass."""
        value = {*self.value_parameters()}
        return [p for p in self.parameters() if p not in value]

    def value_parameters(self) -> list[nn.Parameter]:
        """The parameters of `value` that no other module has, so that only V depends on them."""
        others = (p for name, part in self.named_children() if name != "value" for p in part.parameters())
        shared = {*others, *self._parameters.values()}
        return [p for p in self.value.parameters() if p not in shared]


class TermView(nn.Module):
    """Calls `term(model)` with other values in the place of `tensors`, parameters or buffers of the model."""

    def __init__(self, model: ActorCritic, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.model = model
        position = {id(x): i for i, x in enumerate(tensors)}
        # A module is named once, because PyTorch does not restore it under a second name. A shared tensor is in each.
        self._places = {
            f"{prefix}.{name}": position[id(x)]
            for prefix, module in self.named_modules()
            for name, x in (*module._parameters.items(), *module._buffers.items())
            if id(x) in position
        }

    def forward(self, term: Callable[[ActorCritic], T]) -> T:
        return term(self.model)

    def at(self, values: Sequence[Tensor], term: Callable[[ActorCritic], T]) -> T:
        """`term(model)` with these values."""
        tensors = {name: values[i] for name, i in self._places.items()}
        return torch.func.functional_call(self, tensors, (term,), tie_weights=False)


def _restrict(policy: Distribution, obs: Any) -> Distribution:
    """The policy over the legal actions."""
    legal = Seen.of(obs).legal
    return policy if legal is None else policy.restrict(legal)


class Normalizer(nn.Module):
    """Normalises observations by running mean and variance, and clips them to ±10.

    The statistics are part of the model and are saved with it. `update` is called once for each buffer, after the
    algorithm's update. So the policy that is trained is the policy that acted.
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
        return ((obs - self.mean) * self.scale).clamp(-self.clip, self.clip)

    @property
    def scale(self) -> Tensor:
        """1/√var, for a variance that may be 0."""
        return torch.rsqrt(self.var + 1e-8)

    @torch.no_grad()
    def update(self, obs: Float[Tensor, "N T *obs"], mask: Bool[Tensor, "N T"]) -> None:
        """Adds a buffer's unmasked observations."""
        _add_to_statistics(self, obs[mask].double())


class RewardScale(nn.Module):
    """Divides rewards by the running standard deviation of their discounted sum.

    Only the rewards used in training are scaled; episodes are reported in the environment's own units. It is part of
    the model, because the value is in the scaled units. The sum R_t = γ·R_{t−1} + r_t of each row continues from buffer
    to buffer.
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
        """`buffer` with scaled rewards. Its own rewards enter the statistics first."""
        x = torch.where(buffer.mask, buffer.reward, 0.0).double()
        continues = (~(buffer.terminated | buffer.truncated)).double()
        discount = self.gamma ** buffer.mask.double()  # a forced step in the middle of an episode takes no time
        carry = discount * torch.nn.functional.pad(continues[:, :-1], (1, 0), value=1.0)
        x[:, 0] += carry[:, 0] * self.running
        sums = discounted_sum(x.flip(1), carry.flip(1)).flip(1)  # forward in time
        self.running.copy_(sums[:, -1] * continues[:, -1])
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


@contextlib.contextmanager
def single_precision() -> Iterator[None]:
    """Context in which new tensors are float32, as observations are, whatever default the program has set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def flatten_parameters(parameters: Sequence[nn.Parameter], theta: Tensor | None = None) -> Float[Tensor, "P"]:
    """Copies the parameters into one flat tensor θ and makes them views of it; `theta` itself if they are views of it.

    They are no longer if a copy of the model, or another optimizer, has given them other memory.
    """
    if theta is not None and _lie_in(theta, parameters):
        return theta
    theta = torch.cat([p.detach().reshape(-1) for p in parameters])
    for p, view in zip(parameters, unflatten(theta, parameters), strict=True):
        p.data = view
    return theta


def _lie_in(theta: Tensor, parameters: Sequence[nn.Parameter]) -> bool:
    """Whether the parameters are views of θ. It is asked before every step of an optimizer, so it makes no views."""
    place, size = theta.data_ptr(), theta.element_size()
    for p in parameters:
        if p.data_ptr() != place:
            return False
        place += size * p.numel()
    return True


def unflatten(theta: Float[Tensor, "P"], like: Sequence[Tensor]) -> Iterator[Tensor]:
    """Views of θ in the shapes of `like`."""
    pieces = torch.split(theta, [p.numel() for p in like])
    return (piece.view(p.shape) for piece, p in zip(pieces, like, strict=True))
