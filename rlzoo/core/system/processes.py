"""The processes that train one run together (data parallel), by torch.distributed.

`torchrun` starts them. Each has the same model and its own rows of experience. Forwards, gradients and Fisher products
are over its own rows. Their results are gathered or summed, so that all processes hold the same numbers, in the same
bits, and take the same decisions. The first process has the run directory and says what comes next; the others follow.

With one process, every function here returns its argument. Collectives have the names of torch.distributed.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rlzoo.core.buffer import Buffer
from rlzoo.core.system.errors import OF_THE_FIRST, ProcessError, require
from rlzoo.core.system.launch import end_with_parent, rank_and_size
from rlzoo.core.tensors import leaves, map_leaves

_PATIENCE = datetime.timedelta(days=1)
"""How long a process waits for another: the first one may evaluate for hours. A death ends the wait at once."""
_END = ""


@dataclass
class _Group:
    """The processes of a run, from the view of one of them."""

    rank: int
    size: int
    busy: bool = True
    """Whether the first process has begun something in which the others take part. It begins with the set-up."""


_group: _Group | None = None
_joined = 0
"""Groups that this process has joined so far."""


def size() -> int:
    """Number of processes."""
    return 1 if _group is None else _group.size


def rank() -> int:
    """Number of this process, from 0. The first one has the run directory."""
    return 0 if _group is None else _group.rank


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Context in which the processes that `torchrun` started are one group. Without torchrun it does nothing.

    It begins with a set-up, which `ready` ends. At its end the first process tells the others to end, with its error if
    there is one. A process whose torchrun is gone ends.

    Raises:
        ProcessError: another process is gone. The message is empty if another process has reported the same error.
    """
    global _group, _joined
    if _group is not None or rank_and_size()[1] == 1:
        yield
        return
    if not _joined:
        end_with_parent()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # Imported later, it would hold the group as a default argument, and so its threads, which abort the process's end.
    importlib.import_module("torch.distributed.nn.functional")
    store, own, count = next(iter(rendezvous("env://")))
    store = PrefixStore(f"rlzoo{_joined}", store)
    _group, _joined = _Group(own, count), _joined + 1
    ended_by: Exception | None = None
    try:
        with _losses_named():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=store, rank=own, world_size=count, timeout=_PATIENCE)
            dist.all_reduce(torch.zeros(1))  # an early error must not end this process while others are connecting
        yield
    except Exception as error:
        ended_by = error
        if OF_THE_FIRST not in getattr(error, "__notes__", ()) and _is_reported(store, error):
            raise ProcessError("") from error
        raise
    finally:
        if own == 0 and not _group.busy:
            with contextlib.suppress(ProcessError):
                _tell_end(ended_by)
        _group = None
        if dist.is_initialized():
            dist.destroy_process_group()


def _tell_end(error: Exception | None) -> None:
    """Tells the other processes the end, and the error that it came by: as a `ProcessError` if it cannot be sent."""
    if error is None:
        broadcast(_END)
        return
    try:
        end = copy.copy(error)
        end.add_note(OF_THE_FIRST)
        broadcast(end)
    except ProcessError:
        raise
    except Exception:  # of any kind, from copying and pickling any error, before anything is sent
        end = ProcessError(str(error))
        end.add_note(OF_THE_FIRST)
        broadcast(end)


def _is_reported(store: Any, error: Exception) -> bool:
    """Whether another process has met the same error before, such as a wrong setting that all of them see."""
    try:
        return int(store.add(f"error: {error}", 1)) > 1
    except RuntimeError:  # the store is gone
        return False


@contextlib.contextmanager
def _losses_named() -> Iterator[None]:
    """Turns the error of a collective into a `ProcessError`. torchrun reports which process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessError("another process is gone; torchrun says which and why") from error


def check_gpu(device: torch.device) -> None:
    """Raises `ConfigError` if several processes would train on the same GPU."""
    if device.type != "cuda" or _group is None:
        return
    require(device.index is None, f"device must be cuda, of which each process takes its own; got {device}")
    here, count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    require(here <= count, f"each process needs a GPU of its own: there are {here} processes and {count} GPUs")


def check_same(settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if a process was started with other settings than the first."""
    if _group is None:
        return
    first, *others = all_gather_object(dict(settings))
    for number, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys()):
            one, two = first.get(name), other.get(name)
            require(one == two, f"{name} is {two!r} in process {number}, {one!r} in process 0: start all alike")


@contextlib.contextmanager
def together(name: str) -> Iterator[None]:
    """Context of something in which all processes take part. The first one tells the others its name."""
    if _group is None or _group.rank > 0:
        yield
        return
    _group.busy = True
    broadcast(name)
    yield
    _group.busy = False


def ready(x: Any) -> Any:
    """Ends the set-up: from now on the first process says what comes next. Returns the `x` of the first process."""
    x = broadcast(x)
    if _group is not None:
        _group.busy = False
    return x


def next_name() -> str:
    """In a process that is not the first: the name of what comes next (see `together`); empty at the end.

    Raises the error with which the first process has ended.
    """
    name = broadcast(None)
    if isinstance(name, Exception):
        raise name
    return str(name)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Context in which each process computes the whole, without messages, which would take longer."""
    global _group
    group, _group = _group, None
    try:
        yield
    finally:
        _group = group


def share(n: int) -> slice:
    """This process's share of n things. The shares of the processes differ by at most one."""
    return _shares(n)[rank()]


def _shares(n: int) -> list[slice]:
    return [slice(n * r // size(), n * (r + 1) // size()) for r in range(size())]


def own_rows(n: int, name: str = "the rows of a buffer") -> slice:
    """This process's share of n rows. Raises `ConfigError` if the number of processes does not divide n."""
    require(n % size() == 0, f"{name} must be a multiple of the {size()} processes, got {n}")
    return share(n)


def rowwise(fn: Callable[[Buffer], Any], buffer: Buffer) -> Any:
    """`fn(buffer)`: a structure of tensors with one entry for each row (see `map_leaves`).

    A process computes its own rows, and gets results of all.
    """
    if _group is None:
        return fn(buffer)
    rows = own_rows(buffer.num_rows)
    own = fn(buffer.map(lambda x: x[rows]))
    of_all = iter(all_gather(*leaves(own)))
    return map_leaves(lambda _: next(of_all), own)


def broadcast(x: Any) -> Any:
    """The `x` of the first process, any object that can be pickled."""
    if _group is None:
        return x
    box = [x]
    with _losses_named():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def all_gather_object(x: Any) -> list[Any]:
    """The `x` of all processes, any objects that can be pickled."""
    of_all = [x] * size()
    if _group is not None:
        with _losses_named():
            dist.all_gather_object(of_all, x)
    return of_all


def broadcast_(x: Tensor) -> None:
    """Gives a tensor the values that it has in the first process, in place."""
    if _group is not None:
        data = _bytes(x)
        with _losses_named():
            dist.broadcast(data, src=0)
        x.copy_(data.view(x.dtype).view(x.shape))


def all_gather(*tensors: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The tensors of all processes, of the same shapes, joined along a dimension. They take one message."""
    if _group is None or not tensors:
        return tensors
    own = torch.cat([_bytes(x) for x in tensors])
    messages = [torch.empty_like(own) for _ in range(size())]
    with _losses_named():
        dist.all_gather(messages, own)
    parts = zip(*(torch.split(message, [x.nbytes for x in tensors]) for message in messages), strict=True)
    return tuple(
        torch.cat([part.clone().view(x.dtype).view(x.shape) for part in of_all], dim)
        for x, of_all in zip(tensors, parts, strict=True)
    )


def _bytes(x: Tensor) -> Tensor:
    """A tensor as bytes, since gloo does not know all dtypes."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def all_reduce(x: float) -> float:
    """The sum of a number over all processes."""
    return x if _group is None else float(all_reduce_(torch.tensor(x, dtype=torch.float64)))


def all_reduce_(x: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in place."""
    if _group is not None:
        with _losses_named():
            dist.all_reduce(x)
    return x


def all_gather_shares_(x: Tensor) -> None:
    """Fills each share of a vector with the values of the process that owns it, in place."""
    if _group is not None:
        with _losses_named():
            for sending in [dist.broadcast(x[cut], owner, async_op=True) for owner, cut in enumerate(_shares(len(x)))]:
                sending.wait()


def gather_shares(own: Tensor, n: int) -> Tensor:
    """In the first process, the vector of n numbers of which each process has its share. In the others, their share."""
    if _group is None:
        return own
    with _losses_named():
        if _group.rank > 0:
            dist.send(own, dst=0)
            return own
        vector = own.new_empty(n)
        vector[share(n)] = own
        for owner, cut in list(enumerate(_shares(n)))[1:]:
            dist.recv(vector[cut], src=owner)
    return vector
