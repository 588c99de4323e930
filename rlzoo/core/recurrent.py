"""Networks with memory: a cell that is unrolled over the steps of a row."""

from __future__ import annotations

import abc
import contextlib
import weakref
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rlzoo.core.seen import Seen
from rlzoo.core.system.errors import require


class Cell(nn.Module, abc.ABC):
    """One step of a recurrent network, from `inputs` to `outputs` numbers.

    Its memory is a vector of `memory_size` numbers, zeros where an episode begins.
    """

    def __init__(self, inputs: int, outputs: int, memory_size: int) -> None:
        super().__init__()
        self.inputs, self.outputs, self.memory_size = inputs, outputs, memory_size

    def project(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch J"]:
        """The part of a step that needs no memory. It is computed for all steps at once."""
        return x

    @abc.abstractmethod
    def forward(
        self, projected: Float[Tensor, "R J"], memory: Float[Tensor, "R M"]
    ) -> tuple[Float[Tensor, "R O"], Float[Tensor, "R M"]]:
        """The output of a step, and the memory after it."""


class GRUCell(Cell):
    """Gated recurrent unit (Cho et al. 2014), in the form of PyTorch's `nn.GRUCell`. Its memory is its output.

    r = σ(W_ir·x + b_ir + W_hr·h + b_hr), z = σ(W_iz·x + b_iz + W_hz·h + b_hz),
    n = tanh(W_in·x + b_in + r·(W_hn·h + b_hn)), h ← (1 − z)·n + z·h.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__(inputs, size, size)
        self.into, self.across = _gates(3, inputs, size, generator)

    def project(self, x: Tensor) -> Tensor:
        return self.into(x)

    def forward(self, projected: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        size = self.outputs
        across = self.across(memory)
        gates = torch.sigmoid(projected[..., : 2 * size] + across[..., : 2 * size])
        reset, update = torch.split(gates, size, -1)
        new = torch.tanh(projected[..., 2 * size :] + reset * across[..., 2 * size :])
        h = torch.lerp(new, memory, update)
        return h, h


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997), in the form of PyTorch's `nn.LSTMCell`.

    Its memory is [h, c]: i, f, o = σ(…), g = tanh(…), each of W_i·x + b_i + W_h·h + b_h; c ← f·c + i·g,
    h ← o·tanh(c). The output is h.
    """

    def __init__(self, inputs: int, size: int, generator: torch.Generator | None = None) -> None:
        super().__init__(inputs, size, 2 * size)
        self.into, self.across = _gates(4, inputs, size, generator)

    def project(self, x: Tensor) -> Tensor:
        return self.into(x)

    def forward(self, projected: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        size = self.outputs
        h, c = torch.split(memory, size, -1)
        i, f, g, o = torch.split(projected + self.across(h), size, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, torch.cat([h, c], -1)


def _gates(gates: int, inputs: int, size: int, generator: torch.Generator | None) -> tuple[nn.Linear, nn.Linear]:
    """The linear maps from the input and from the memory, orthogonal for each gate; biases start at 0."""
    maps = nn.Linear(inputs, gates * size), nn.Linear(size, gates * size)
    for layer in maps:
        for weight in torch.split(layer.weight.data, size):
            nn.init.orthogonal_(weight, generator=generator)
        nn.init.zeros_(layer.bias)
    return maps


class Recurrent(nn.Module):
    """A cell over the steps of rows, as a network that an `ActorCritic` may contain anywhere.

    It takes a `Seen` of features (R, T, I), with the start (R, T) of episodes and the memory (R, T, M) of the whole
    model before each step, of which this network owns the columns `owned`. Only the memory before a row's first step is
    used. From there the cell is unrolled, with a memory of zeros where an episode begins.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell
        self.owned = slice(0, cell.memory_size)
        """The columns of the model's memory that belong to this network. The `ActorCritic` sets them."""

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        memory = seen.memory[:, 0, self.owned]
        kept = (~seen.start).to(memory.dtype).unsqueeze(-1)
        outputs = []
        for projected, keep in zip(self.cell.project(seen.obs).unbind(1), kept.unbind(1), strict=True):
            output, memory = self.cell(projected, memory * keep)
            outputs.append(output)
        return torch.stack(outputs, 1)


_models = weakref.WeakKeyDictionary[Recurrent, "weakref.ref[nn.Module]"]()
"""The last model in whose memory a network got columns."""


def share_memory(model: nn.Module) -> int:
    """Gives each recurrent network in `model` its own columns of the memory. Returns the number of columns.

    Raises:
        ConfigError: two networks share a cell, or one has other columns in the memory of another model.
    """
    size, nets = 0, [module for module in model.modules() if isinstance(module, Recurrent)]
    fault = "two recurrent networks share a cell, whose memory is that of one: give each its own, or use one network"
    require(len({id(net.cell) for net in nets}) == len(nets), fault)
    for net in nets:
        own = slice(size, size + net.cell.memory_size)
        other = _models[net]() if net in _models else None
        fault = "a recurrent network is that of a model with another memory: give a copy, such as by copy.deepcopy"
        require(other in (None, model) or net.owned == own, fault)
        net.owned, _models[net] = own, weakref.ref(model)
        size = own.stop
    return size


@contextlib.contextmanager
def memory_after(model: nn.Module, memory: Float[Tensor, "R M"]) -> Iterator[Float[Tensor, "R M"]]:
    """A copy of the memory, into which each recurrent network of `model` writes its own after each step."""
    after = memory.clone()

    def write(columns: slice, _cell: Cell, _args: tuple[Tensor, Tensor], step: tuple[Tensor, Tensor]) -> None:
        after[:, columns] = step[1]

    with contextlib.ExitStack() as stack:
        for net in model.modules():
            if isinstance(net, Recurrent):
                stack.callback(net.cell.register_forward_hook(partial(write, net.owned)).remove)
        yield after
