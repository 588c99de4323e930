"""The operations of PyTorch that a function consists of, with those of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of PyTorch, with aliases of its tensors: the shape of one does not change later, as by `transpose_`."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    with_gradient: bool
    """Whether autograd was on, on which it depends what an LSTM keeps for its gradient."""

    @property
    def name(self) -> str:
        return str(self.function._schema.name.partition("::")[2])

    @property
    def named_args(self) -> dict[str, Any]:
        parameters = self.function._schema.arguments
        default = {x.name: x.default_value for x in parameters if x.has_default_value()}
        return {**default, **dict(zip((x.name for x in parameters), self.args, strict=False)), **self.kwargs}

    @property
    def writes(self) -> bool:
        """Whether it does more than to return a result, such as to change an argument, and not just its shape."""
        in_place = self.function._schema.is_mutable and torch.Tag.inplace_view not in self.function.tags
        of_statistics = self.name == "native_batch_norm" and self.named_args["training"]  # its schema does not say it
        return bool(in_place or of_statistics) or not self.function._schema.returns

    @property
    def is_random(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.function.tags

    def tensors(self) -> list[Tensor]:
        """Of its arguments."""
        return [x for x in tree_leaves((self.args, self.kwargs)) if isinstance(x, Tensor)]

    def results(self) -> list[tuple[int, Tensor]]:
        return [(k, x) for k, x in enumerate(tree_leaves(self.result)) if isinstance(x, Tensor) and x.numel()]


def record(function: Callable[..., Sequence[Tensor]], args: Sequence[Tensor]) -> tuple[list[Operation], list[Tensor]]:
    """The operations of `function(*args)`, and its results, of which none shares memory with an argument.

    Raises `RuntimeError` if an operation makes the values of a tensor decide what follows, or reads a parameter that is
    trained, which would be a constant.
    """
    with torch.random.fork_rng(devices=[]), _KeepsValues(), _Recorder() as recorder:
        results = function(*args)
        memories = {x.untyped_storage().data_ptr() for x in args}
        results = [x.clone() if x.untyped_storage().data_ptr() in memories else x for x in results]
    return recorder.operations, results


def copy_of(x: Tensor) -> Tensor:
    """A copy with the same strides, at the start of a memory of its own."""
    if not x.numel():
        return x.new_zeros(1).as_strided(x.shape, x.stride())
    extent = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.detach().as_strided((extent,), (1,)).clone().as_strided(x.shape, x.stride())


class _KeepsValues(TorchFunctionMode):
    """Refuses what takes the values of tensors out of PyTorch, of which a `_Recorder` sees nothing."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__):
            raise RuntimeError(f"{function.__name__} makes what follows depend on the values of a tensor")
        return function(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations that are done while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # PyTorch would import its compiler to keep it out of here

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _SIMPLER:
            with self:
                return _SIMPLER[function](*args, **(kwargs or {}))
        by_mask = any(isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8) for x in tree_leaves(args[1:]))
        of_unknown_shape = torch.Tag.dynamic_output_shape in function.tags and (function is not _INDEX or by_mask)
        given = args, kwargs or {}
        if any(isinstance(x, nn.Parameter) and x.requires_grad for x in tree_leaves(given)):
            raise RuntimeError("a trained parameter is read where PyTorch's functional_call does not exchange it")
        own_args, own_kwargs = _aliases(given)
        result = function(*args, **given[1])
        if of_unknown_shape or isinstance(result, bool | int | float):
            raise RuntimeError(f"{function} makes what follows depend on the values of a tensor")
        self.operations.append(Operation(function, own_args, own_kwargs, _aliases(result), torch.is_grad_enabled()))
        return result


def _aliases(x: Any) -> Any:
    return tree_map_only(Tensor, Tensor.detach, x)


def _log_softmax(x: Tensor, dim: int, _: bool) -> Tensor:
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _softmax(x: Tensor, dim: int, _: bool) -> Tensor:
    powers = (x - x.amax(dim, keepdim=True)).exp()
    return powers / powers.sum(dim, keepdim=True)


def _softmax_backward(grad: Tensor, out: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return out * (grad - (grad * out).sum(dim, keepdim=True))


def _log_softmax_backward(grad: Tensor, out: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return grad - out.exp() * grad.sum(dim, keepdim=True)


_SIMPLER: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten._log_softmax.default: _log_softmax,
    torch.ops.aten._log_softmax_backward_data.default: _log_softmax_backward,
    torch.ops.aten._softmax.default: _softmax,
    torch.ops.aten._softmax_backward_data.default: _softmax_backward,
}
"""Operations that are recorded as simpler ones."""

_INDEX = torch.ops.aten.index.Tensor
