"""What the native steps of models have in common: the tensors that they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic, TermView, unflatten


def pad(buffer: Buffer) -> list[Tensor]:
    """The tensors of a buffer that ends with masked rows of zeros.

    With them its rows are a power of two, so that few loops serve whole episodes, of which no two buffers are equal.
    """
    n, tensors = buffer.num_rows, buffer.tensors()
    rounded = 1 << (n - 1).bit_length()
    if rounded == n:
        return [x.flatten().view(x.shape) for x in tensors]  # with the strides that the others have
    return [torch.cat([x, x.new_zeros(rounded - n, *x.shape[1:])]) for x in tensors]


def other_tensors(model: ActorCritic, trained: Iterable[Tensor]) -> dict[str, Tensor]:
    """The parameters and buffers of a model that are not trained, by name."""
    mine = {id(p) for p in trained}
    return {name: x.detach() for name, x in [*model.named_parameters(), *model.named_buffers()] if id(x) not in mine}


def pure(model: ActorCritic, trained: Sequence[nn.Parameter], rest: Iterable[str]) -> Callable[..., Any]:
    """`(θ, tensors, term) -> term(model)`, a function of the trained parameters θ and of the tensors named in `rest`.

    A matrix of few columns lies by columns, so that autograd's gradient for it has long rows (see
    `rlzoo.optim.fast.tape.add_affine`).
    """
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    view = TermView(model, [*trained, *(tensors[name] for name in rest)])

    def evaluated(theta: Tensor, tensors: Sequence[Tensor], term: Callable[[ActorCritic], Any]) -> Any:
        own = unflatten(theta, trained)
        own = (x.t().contiguous().t() if x.dim() == 2 and x.shape[1] < x.shape[0] else x for x in own)
        return view.at([*own, *tensors], term)

    return evaluated
