"""What the native steps of models have in common: the tensors that they are given, and what else they depend on."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
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
    return [torch.cat([x, x.new_zeros(rounded - n, *x.shape[1:])]) for x in tensors] if rounded > n else tensors


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


def identity(function: Callable[..., Any], model: ActorCritic, settings: Any) -> str:
    """Identifies what a step depends on besides its tensors: settings, attributes of modules, source code.

    Args:
        function: what it computes of the model, such as a loss.
        settings: what the function depends on, with a `repr`.
    """
    names = {id(x): name for name, x in [*model.named_parameters(), *model.named_buffers()]}
    code = [inspect.unwrap(function), *(type(module) for module in model.modules())]
    of_user = [x for x in code if not x.__module__.startswith(("rlzoo.", "torch."))]
    common = vars(nn.Module()).keys()

    def held(module: nn.Module) -> dict[str, Any]:
        """What a module holds besides its tensors; of one of this package, what was given to it."""
        own = {k: x for k, x in vars(module).items() if k not in common}
        return {k: _as_text(x, names) for k, x in own.items() if k[0] != "_" or type(module) in of_user}

    modules = [(name, type(module), held(module)) for name, module in model.named_modules()]
    files = {Path(inspect.getfile(x)) for x in of_user if x.__module__ != "__main__"}
    files |= {*Path(__file__).parents[2].rglob("*.py"), *(_files_of_the_user(of_user) if of_user else [])}
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()
    interactive = not hasattr(sys.modules["__main__"], "__file__")
    if interactive and any(x.__module__ == "__main__" for x in of_user):  # of a notebook, in no file
        source += os.urandom(8).hex()
    return repr((function.__qualname__, settings, list(names.values()), modules, source))


def _as_text(x: Any, names: Mapping[int, str]) -> Any:
    """A module's attribute as something whose `repr` identifies it: of a tensor of the model its name."""
    if id(x) in names:
        return names[id(x)]
    if isinstance(x, Mapping):
        return [(key, _as_text(value, names)) for key, value in x.items()]
    if isinstance(x, list | tuple):
        return [_as_text(value, names) for value in x]
    by_value = callable(x) or isinstance(x, Tensor | np.ndarray)
    return hashlib.sha256(cloudpickle.dumps(x)).hexdigest() if by_value else x


def _files_of_the_user(code: Sequence[Any]) -> set[Path]:
    """The source files that this process has imported: those of the packages of `code`, and those not installed."""
    installed = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
    packages = {x.__module__.partition(".")[0] for x in code}
    modules = [(name, getattr(module, "__file__", None) or "") for name, module in list(sys.modules.items())]
    files = {x for name, x in modules if name.partition(".")[0] in packages or not x.startswith(installed)}
    return {Path(x) for x in files if x.endswith(".py") and os.path.isfile(x)}
