"""The processes that train one run together, and what they exchange.

`torchrun` starts them. Each has the same model and a share of the rows of experience. Forwards, gradients and Fisher
products are over its share. What comes of them is gathered or summed, so that all processes hold the same numbers, in
the same bits, and take the same decisions. The first process has the run directory and says what comes next; the others
follow it.

With one process, every function here returns its argument.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rlzoo.core.errors import ProcessError, require
from rlzoo.core.launch import launched

_PATIENCE = datetime.timedelta(days=1)
"""How long a process waits for another: the first one may evaluate for hours. A death ends the wait at once."""
_INQUIRY = 3.0
"""Seconds to find out which process has died."""
_END = ""


class _Group:
    """The processes of a run, from the view of one of them."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.busy = True
        """Whether the first process has begun something that the others take part in. The first such is the set-up."""


_group: _Group | None = None
_joined = 0
"""Groups that this process has joined so far."""


def size() -> int:
    """Number of processes."""
    return 1 if _group is None else _group.size


def rank() -> int:
    """Number of this process, from 0. The first one has the run directory."""
    return 0 if _group is None else _group.rank


# The life of a group --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Context in which the processes that `torchrun` started are one group. Without torchrun it does nothing.

    It begins with a set-up, which `ready` ends. At its end the first process tells the others to end.

    Raises:
        ProcessError: another process has died, or has stopped with an error. The message is empty if this process has
            failed like the first one, which says so.
    """
    global _group, _joined
    if _group is not None or launched()[1] == 1:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # Imported later, it would hold the group as a default argument, and so its threads, which abort the process's end.
    importlib.import_module("torch.distributed.nn.functional")
    store, own, count = next(iter(rendezvous("env://")))
    _group, _joined = _Group(PrefixStore(f"rlzoo{_joined}", store), own, count), _joined + 1
    try:
        with _deaths_named():
            _group.store.set(f"process{own}", json.dumps([socket.gethostname(), os.getpid()]))
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=_group.store, rank=own, world_size=count, timeout=_PATIENCE)
        yield
    except Exception as error:
        if _said_by_first(error):
            raise ProcessError("") from error
        raise
    finally:
        if own == 0 and not _group.busy:
            with contextlib.suppress(ProcessError):
                from_first(_END)
        _group = None
        if dist.is_initialized():
            dist.destroy_process_group()


def _said_by_first(error: Exception) -> bool:
    """Lets the other processes know of an error. Whether it is also that of the first process, and this is another."""
    assert _group is not None
    text = " ".join(str(error).split()) or type(error).__name__
    with contextlib.suppress(RuntimeError):
        if not isinstance(error, ProcessError):
            _blame(f"process {_group.rank} has stopped: {text}")
        if _group.rank == 0:
            _group.store.set("failure", text)
            return False
        end = time.monotonic() + _INQUIRY
        while time.monotonic() < end:
            if _group.store.check(["failure"]):
                return text in _group.store.get("failure").decode()
            time.sleep(0.05)
    return False


def check_gpu(device: torch.device) -> None:
    """Raises `ConfigError` if several processes would train on the same GPU."""
    if device.type != "cuda" or _group is None:
        return
    require(device.index is None, f"device must be cuda, of which each process takes its own; got {device}")
    here, count = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    require(here <= count, f"each process needs a GPU of its own: there are {here} processes and {count} GPUs")


@contextlib.contextmanager
def together(name: str) -> Iterator[None]:
    """Context of something that all processes take part in. The first one tells the others its name."""
    if _group is None or _group.rank > 0:
        yield
        return
    _group.busy = True
    from_first(name)
    yield
    _group.busy = False


def ready(x: Any) -> Any:
    """Ends the set-up: from now on the first process says what comes next. Returns its `x`."""
    found = from_first(x)
    if _group is not None:
        _group.busy = False
    return found


def told() -> str:
    """The name of what the first process begins next (see `together`); empty at the end."""
    return str(from_first(None))


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Context in which each process computes the whole, without messages: what takes less time than they do."""
    global _group
    group, _group = _group, None
    try:
        yield
    finally:
        _group = group


def check_same(settings: Mapping[str, Any]) -> None:
    """Raises `ConfigError` if a process was started with other settings than the first."""
    if _group is None:
        return
    first, *others = _everyone(dict(settings))
    for number, other in enumerate(others, 1):
        for name in sorted(first.keys() | other.keys()):
            one, two = first.get(name), other.get(name)
            require(one == two, f"{name} is {two!r} in process {number}, {one!r} in process 0: start all alike")


@contextlib.contextmanager
def _deaths_named() -> Iterator[None]:
    """Turns the error of an exchange into a `ProcessError`, which names the process that is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(_culprit(error)) from error


def _culprit(error: RuntimeError) -> str:
    """Which process is gone, in the words of the first one that found out."""
    assert _group is not None
    end = time.monotonic() + _INQUIRY
    try:
        while time.monotonic() < end:
            if _group.store.check(["culprit"]):
                return str(_group.store.get("culprit").decode())
            for number in range(_group.size):
                known = number != _group.rank and _group.store.check([f"process{number}"])
                if known and _is_dead(*json.loads(_group.store.get(f"process{number}"))):
                    return _blame(f"process {number} has died")
            time.sleep(0.05)
    except RuntimeError:
        return "process 0 or torchrun has died"
    return f"another process has gone: {str(error).strip().splitlines()[0]}"


def _blame(line: str) -> str:
    """Tells all processes the line. Returns that of the first one to do so."""
    assert _group is not None
    return str(_group.store.compare_set("culprit", "", line).decode())


def _is_dead(host: str, pid: int) -> bool:
    """Whether a process of this machine has ended, and its parent knows."""
    if host == socket.gethostname():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
    return False


# Shares ---------------------------------------------------------------------------------------------------------------


def share(n: int) -> slice:
    """This process's part of n things. The parts differ by at most one."""
    return _cuts(n)[rank()]


def rows(n: int, name: str = "the rows of a buffer") -> slice:
    """This process's part of n rows.

    Raises:
        ConfigError: the number of processes does not divide n.
    """
    require(n % size() == 0, f"{name} must be a multiple of the {size()} processes, got {n}")
    return share(n)


# Exchanges ------------------------------------------------------------------------------------------------------------


def from_first(x: Any) -> Any:
    """The `x` of the first process."""
    if _group is None:
        return x
    box = [x]
    with _deaths_named():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def _everyone(x: Any) -> list[Any]:
    """The `x` of each process."""
    found = [None] * size()
    with _deaths_named():
        dist.all_gather_object(found, x)
    return found


def gathered(*tensors: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """The tensors of all processes, of the same shapes, joined along a dimension. They take one message."""
    if _group is None:
        return tensors
    own = torch.cat([_bytes(x) for x in tensors])
    messages = [torch.empty_like(own) for _ in range(size())]
    with _deaths_named():
        dist.all_gather(messages, own)
    parts = zip(*(torch.split(message, [x.nbytes for x in tensors]) for message in messages), strict=True)
    return tuple(
        torch.cat([part.clone().view(x.dtype).view(x.shape) for part in of_all], dim)
        for x, of_all in zip(tensors, parts, strict=True)
    )


def _bytes(x: Tensor) -> Tensor:
    """A tensor as bytes, since gloo does not know all dtypes."""
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def total(x: float) -> float:
    """The sum of a number over all processes."""
    return x if _group is None else float(sum_(torch.tensor(x, dtype=torch.float64)))


def sum_(x: Tensor) -> Tensor:
    """The sum of a tensor over all processes, in place."""
    if _group is not None:
        with _deaths_named():
            dist.all_reduce(x)
    return x


def copy_from_first_(x: Tensor) -> None:
    """Gives a tensor the values that it has in the first process."""
    if _group is not None:
        given = _bytes(x)
        with _deaths_named():
            dist.broadcast(given, src=0)
        x.copy_(given.view(x.dtype).view(x.shape))


def spread_(x: Tensor) -> None:
    """Fills the parts of a vector with those of the processes whose shares they are, in place."""
    if _group is not None:
        with _deaths_named():
            for sending in [dist.broadcast(x[cut], owner, async_op=True) for owner, cut in enumerate(_cuts(len(x)))]:
                sending.wait()


def whole(part: Tensor, n: int) -> Tensor:
    """In the first process, the vector of n numbers of which each process has its share. In the others, their share."""
    if _group is None:
        return part
    with _deaths_named():
        if _group.rank > 0:
            dist.send(part, dst=0)
            return part
        found = part.new_empty(n)
        found[share(n)] = part
        for owner, cut in list(enumerate(_cuts(n)))[1:]:
            dist.recv(found[cut], src=owner)
    return found


def _cuts(n: int) -> list[slice]:
    """The parts of n things of all processes."""
    return [slice(n * r // size(), n * (r + 1) // size()) for r in range(size())]
