"""The built-in networks in as few operations as possible, with their backward passes and those of forward mode.

A step of a small recurrent network is a few tiny products, which cost less than autograd's record of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from rlzoo.control.fast import mlp
from rlzoo.control.fast.mlp import Affine
from rlzoo.control.networks import MLP, RecurrentMLP
from rlzoo.core.recurrent import GRUCell, LSTMCell, Recurrent
from rlzoo.core.seen import Seen
from rlzoo.optim.fast.tape import PullBack, Tape, add_affine


class FastMLP(MLP):
    """An `MLP` in native code, whose backward and forward-mode passes are written out where a tape records it."""

    @property
    def affine(self) -> Affine:
        """The parameters of each layer. A functional call may have replaced them by tensors for its time."""
        return [(layer._parameters["weight"], layer._parameters["bias"]) for layer in self.layers]

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        tape = Tape.current()
        if not self.activated or x.requires_grad or (tape is None and not _is_plain(x)):
            return super().forward(x)
        affine = self.affine
        layers = evaluate(self, affine, x.reshape(-1, x.shape[-1]))
        output = layers[-1].view(*x.shape[:-1], self.outputs)
        if tape is None:
            return output

        def push(directions: Mapping[int, Tensor]) -> Tensor:
            moving = [(_direction(weight, directions), _direction(bias, directions)) for weight, bias in affine]
            return push_forward(self, affine, layers, moving).view(*x.shape[:-1], self.outputs)

        def pull(grad: Tensor) -> None:
            pull_back(self, affine, layers, grad.reshape(-1, self.outputs))

        return tape.record(output, pull, push)


class FastRecurrentMLP(RecurrentMLP):
    """A `RecurrentMLP` whose backward pass through time is written out where a tape records it."""

    def forward(self, seen: Seen) -> Float[Tensor, "R T O"]:
        recurrent, net = self.recurrent, self.mlp
        assert isinstance(net, FastMLP)
        tape = Tape.current()
        if tape is None or tape.both_ways or seen.obs.requires_grad:
            return super().forward(seen)
        affine = net.affine
        hidden, into_cell = unroll(recurrent, seen)
        layers = evaluate(net, affine, hidden.reshape(-1, hidden.shape[-1]))

        def into_parameters(grad: Tensor) -> None:
            into_hidden = pull_back(net, affine, layers, grad.reshape(-1, net.outputs), to_input=True)
            assert into_hidden is not None
            into_cell(into_hidden.view(hidden.shape))

        return tape.record(layers[-1].view(*hidden.shape[:-1], net.outputs), into_parameters)


def evaluate(net: FastMLP, affine: Affine, x: Float[Tensor, "B I"]) -> list[Tensor]:
    """x and then the output of each layer (B, ·), without gradient."""
    layers = mlp.forward(net, affine, x)
    if layers is not None:
        return layers
    layers = [x]
    with torch.no_grad():
        for (weight, bias), activated in zip(affine, net.activated, strict=True):
            x = torch.addmm(bias, x, weight.t())
            if activated:
                x = x.tanh_() if net.activation == "tanh" else x.relu_()
            layers.append(x)
    return layers


@torch.no_grad()
def push_forward(net: FastMLP, affine: Affine, layers: list[Tensor], moving: Affine) -> Float[Tensor, "B O"]:
    """The derivative of the output, given the result of `evaluate` and the derivatives of the parameters."""
    x = None
    for i, ((weight, _), (moving_weight, moving_bias)) in enumerate(zip(affine, moving, strict=True)):
        following = torch.addmm(moving_bias, layers[i], moving_weight.t())
        if x is not None:
            following.addmm_(x, weight.t())
        x = _slope(net, following, layers[i + 1]) if net.activated[i] else following
    assert x is not None
    return x


def pull_back(
    net: FastMLP, affine: Affine, layers: list[Tensor], grad: Float[Tensor, "B O"], to_input: bool = False
) -> Float[Tensor, "B I"] | None:
    """Adds the gradients of the parameters, given the result of `evaluate` and the gradient of the last output.

    Returns the gradient for x with `to_input`.
    """
    into_input = torch.empty_like(layers[0]) if to_input else None
    if mlp.backward(net, affine, layers, grad.contiguous(), into_input):
        return into_input
    with torch.no_grad():
        for i in reversed(range(len(affine))):
            (weight, bias), x = affine[i], layers[i]
            if net.activated[i]:
                grad = _slope(net, grad, layers[i + 1])
            add_affine(weight, bias, x, grad)
            if i or to_input:
                grad = grad @ weight
    return grad if to_input else None


def _is_plain(x: Tensor) -> bool:
    """Whether tensors are values alone: without derivatives, and nothing records what is done with them."""
    derived = torch.is_grad_enabled() or forward_ad._current_level >= 0
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    recorded = torch._C._len_torch_dispatch_stack() > 0 or torch._C._get_tracing_state() is not None
    return type(x) is Tensor and not (derived or transformed or recorded)


def _direction(p: Tensor, directions: Mapping[int, Tensor]) -> Tensor:
    return directions[id(p)] if id(p) in directions else torch.zeros_like(p)  # of a frozen one


def _slope(net: MLP, vector: Tensor, output: Tensor) -> Tensor:
    """The derivative of the activation where it has this output, times the vector."""
    return torch.ops.aten.tanh_backward(vector, output) if net.activation == "tanh" else vector * (output > 0)


Rows = Float[Tensor, "T R H"]
"""Time comes first, so that the numbers of one step lie together."""


@torch.no_grad()
def unroll(net: Recurrent, seen: Seen) -> tuple[Float[Tensor, "R T O"], PullBack]:
    """The output of `net`, and its backward pass. The input gets no gradient."""
    cell: Any = net.cell
    rows, steps = seen.obs.shape[:2]
    x = seen.obs.transpose(0, 1).reshape(-1, cell.inputs)
    projected = torch.addmm(cell.into.bias, x, cell.into.weight.t()).view(steps, rows, -1)
    kept = (~seen.start).to(x.dtype).unsqueeze(-1).transpose(0, 1)
    output, into_gates = _CELLS[type(cell)](cell, projected, seen.memory[:, 0, net.owned], kept)

    @torch.no_grad()
    def pull_back(grad: Float[Tensor, "R T O"]) -> None:
        into, across, before = into_gates(grad.transpose(0, 1))
        add_affine(cell.into.weight, cell.into.bias, x, into.flatten(0, 1))
        add_affine(cell.across.weight, cell.across.bias, before.flatten(0, 1), across.flatten(0, 1))

    return output.transpose(0, 1), pull_back


IntoGates = Callable[[Rows], tuple[Tensor, Tensor, Tensor]]
"""From the gradient for the outputs to those for W_i·x + b_i and W_h·h + b_h (T, R, J), and h before each step."""


def _gru(cell: GRUCell, projected: Tensor, memory: Tensor, kept: Tensor) -> tuple[Rows, IntoGates]:
    """The outputs of a `GRUCell`, in its notation."""
    (steps, rows, _), size = projected.shape, cell.outputs
    weight, bias = cell.across.weight, cell.across.bias
    across, gates = torch.empty_like(projected), projected.new_empty(steps, rows, 2 * size)
    new, output = projected.new_empty(2, steps, rows, size).unbind()
    begins = _begins(kept)
    h, transposed = memory, weight.t()
    all_across = across.unbind()
    into_gates, into_new = projected[..., : 2 * size].unbind(), projected[..., 2 * size :].unbind()
    across_gates, across_new = across[..., : 2 * size].unbind(), across[..., 2 * size :].unbind()
    reset, update = gates[..., :size].unbind(), gates[..., size:].unbind()
    for t, (gate, n, out) in enumerate(zip(gates.unbind(), new.unbind(), output.unbind(), strict=True)):
        if begins[t]:
            h = h * kept[t]
        torch.addmm(bias, h, transposed, out=all_across[t])
        torch.add(into_gates[t], across_gates[t], out=gate).sigmoid_()
        torch.addcmul(into_new[t], reset[t], across_new[t], out=n).tanh_()
        h = torch.lerp(n, h, update[t], out=out)

    def pull_back(grad: Rows) -> tuple[Tensor, Tensor, Tensor]:
        before = torch.cat([memory[None], output[:-1]]) * kept
        r, z = torch.split(gates, size, -1)
        # Everything is linear in the gradient for h: these are its factors for r, z and the product in n.
        into_n = (1 - z) * (1 - new * new)
        factors = torch.stack(
            [into_n * across[..., 2 * size :] * r * (1 - r), (before - new) * z * (1 - z), into_n * r], 2
        )
        into_across, into_h = torch.empty_like(factors), torch.empty_like(output)
        into_h[-1] = grad[-1]
        flat = into_across.view(steps, rows, -1).unbind()
        grads, slots, from_h, parts = grad.unbind(), into_h.unbind(), factors.unbind(), into_across.unbind()
        for t in reversed(range(steps)):
            torch.mul(slots[t].unsqueeze(1), from_h[t], out=parts[t])
            if t:
                back = torch.addmm(slots[t] * update[t], flat[t], weight)
                back = back * kept[t] if begins[t] else back
                torch.add(back, grads[t - 1], out=slots[t - 1])
        into_across = into_across.view(steps, rows, -1)
        into_x = torch.cat([into_across[..., : 2 * size], into_h * into_n], -1)
        return into_x, into_across, before

    return output, pull_back


def _lstm(cell: LSTMCell, projected: Tensor, memory: Tensor, kept: Tensor) -> tuple[Rows, IntoGates]:
    """The outputs of an `LSTMCell`, in its notation."""
    (steps, rows, _), size = projected.shape, cell.outputs
    weight, bias = cell.across.weight, cell.across.bias
    gates = torch.empty_like(projected)
    cells, squashed, output = projected.new_empty(3, steps, rows, size).unbind()
    begins = _begins(kept)
    h, c = torch.split(memory, size, -1)
    first_h, first_c, transposed = h, c, weight.t()
    i, f, g, o = (part.unbind() for part in torch.split(gates, size, -1))
    sigmoids, all_gates, into_gates = gates[..., : 2 * size].unbind(), gates.unbind(), (projected + bias).unbind()
    for t, (c_t, squash, out) in enumerate(zip(cells.unbind(), squashed.unbind(), output.unbind(), strict=True)):
        if begins[t]:
            h, c = h * kept[t], c * kept[t]
        torch.addmm(into_gates[t], h, transposed, out=all_gates[t])
        sigmoids[t].sigmoid_()
        g[t].tanh_()
        o[t].sigmoid_()
        c = torch.addcmul(torch.mul(f[t], c, out=c_t), i[t], g[t], out=c_t)
        h = torch.mul(o[t], torch.tanh(c, out=squash), out=out)

    def pull_back(grad: Rows) -> tuple[Tensor, Tensor, Tensor]:
        before = torch.cat([first_h[None], output[:-1]]) * kept
        c_before = torch.cat([first_c[None], cells[:-1]]) * kept
        i, f, g, o = torch.split(gates, size, -1)
        # The gradients for i, f and g are linear in the gradient for c, and that for o in the gradient for h.
        factors = torch.stack([g * i * (1 - i), c_before * f * (1 - f), i * (1 - g * g)], 2)
        h_to_o, h_to_c = (squashed * o * (1 - o)).unbind(), (o * (1 - squashed * squashed)).unbind()
        into = grad.new_empty(steps, rows, 4, size)
        into_ifg, into_o, forget, grads = into[:, :, :3].unbind(), into[:, :, 3].unbind(), f.unbind(), grad.unbind()
        from_c = factors.unbind()
        into = into.view(steps, rows, -1)
        into_h, into_c, into_all = grads[-1], torch.zeros_like(first_c), into.unbind()
        for t in reversed(range(steps)):
            into_c = torch.addcmul(into_c, into_h, h_to_c[t])
            torch.mul(into_c.unsqueeze(1), from_c[t], out=into_ifg[t])
            torch.mul(into_h, h_to_o[t], out=into_o[t])
            if t:
                into_c, through = into_c * forget[t], into_all[t]
                if begins[t]:
                    into_c, through = into_c * kept[t], through * kept[t]
                into_h = torch.addmm(grads[t - 1], through, weight)
        return into, into, before

    return output, pull_back


def _begins(kept: Float[Tensor, "T R 1"]) -> list[bool]:
    """For each step, whether an episode begins in any row."""
    return (kept == 0).flatten(1).any(1).tolist()


_CELLS: dict[type, Callable[..., tuple[Rows, IntoGates]]] = {GRUCell: _gru, LSTMCell: _lstm}
