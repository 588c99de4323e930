"""A GPU that is simulated on the CPU, so that what depends on the device runs where there is none.

Tensors on the device "meta" have values here. As on a GPU, an operation on tensors of two devices fails, a generator
draws numbers for its own device only, and NumPy cannot read the memory. Every operation for which the host waits for
the device is noted.
"""

import contextlib
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = "meta"
_aten = torch.ops.aten
_COPIES = {_aten._to_copy, _aten.copy_, _aten.copy}
_INDEXING = {_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_}
_SIZED_BY_VALUES = {_aten.nonzero, _aten.masked_select, _aten._unique2, _aten.repeat_interleave}
_READ = {_aten._local_scalar_dense, _aten.equal}
_PRODUCTS = {"linear", "addmm", "matmul", "__matmul__", "mm", "bmm", "scaled_dot_product_attention"}


class OnGpu(torch.Tensor):
    """A tensor on the simulated GPU. Its values are in `memory`."""

    @staticmethod
    def __new__(cls, memory):
        options = {"strides": memory.stride(), "storage_offset": memory.storage_offset(), "dtype": memory.dtype}
        self = torch.Tensor._make_wrapper_subclass(cls, memory.size(), device=GPU, **options)
        self.memory = memory
        return self

    is_meta = False

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func}: the simulation has ended")

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.data.__set__:
            args[0].memory = args[1].memory
        elif func is torch.Tensor.tolist:
            args = (args[0].cpu(),)
        elif func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            x, index, *value = args
            parts = index if isinstance(index, tuple) else (index,)
            parts = tuple(torch.tensor(part).to(GPU) if isinstance(part, list) else part for part in parts)
            args = x, parts, *value
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Generator(torch.Generator):
    """A generator that knows its device."""

    def __new__(cls, device="cpu"):
        self = super().__new__(cls)
        self.own_device = torch.device(device)
        return self

    @property
    def device(self):
        return self.own_device


class Simulation(TorchDispatchMode):
    """Computes on the simulated GPU. `waits` has the names of the operations for which the host waits for it."""

    def __init__(self):
        super().__init__()
        self.waits = []
        self.precision = None
        """Precision of products in autocast."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        here = [x for x in tensors if isinstance(x, OnGpu)]
        elsewhere = [x for x in tensors if not isinstance(x, OnGpu)]
        target = GPU if here else "cpu"
        if kwargs.get("device") is not None:
            target, kwargs["device"] = torch.device(kwargs["device"]).type, "cpu"
        if func.overloadpacket in _COPIES:
            into = args[0] if func.overloadpacket is _aten.copy_ else None
            target = target if into is None else GPU if isinstance(into, OnGpu) else "cpu"
            source = args[0] if into is None else args[1]
            on_gpu, asynchronous = isinstance(source, OnGpu), kwargs.get("non_blocking", args[2:3] == (True,))
            waits = source.numel() > 0 and (target == "cpu" if on_gpu else target == GPU and not asynchronous)
        else:
            changed = args[0] if func._schema.is_mutable else None
            if here and any(x.ndim or x is changed for x in elsewhere):
                raise RuntimeError(f"{func}: expected all tensors to be on the same device")
            waits = here and _waits(func, args)
        if waits:
            self.waits.append(func.overloadpacket.__name__)
        if func is _aten._efficientzerotensor.default:
            func = _aten.zeros.default
        args, kwargs = tree_map(lambda x: x.memory if isinstance(x, OnGpu) else x, (args, kwargs))
        same = {id(x.memory): x for x in here}

        def placed(x):
            if not isinstance(x, torch.Tensor) or target == "cpu":
                return x
            return same[id(x)] if id(x) in same else OnGpu(x)

        return tree_map(placed, func(*args, **kwargs))


def _waits(func, args):
    """Whether the host needs values of the GPU, or the size of a result that depends on them."""
    if func.overloadpacket in _INDEXING:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    return func.overloadpacket in _READ | _SIZED_BY_VALUES


class _Functions(TorchFunctionMode):
    """What cannot be seen in single operations: tensors from lists, the device of a generator, and autocast."""

    def __init__(self, simulation):
        super().__init__()
        self.simulation = simulation

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, precision = dict(kwargs or {}), self.simulation.precision
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == GPU:
            return func(*args, **{**kwargs, "device": "cpu"}).to(GPU)
        if precision is not None and func.__name__ in _PRODUCTS:
            args, kwargs = tree_map(lambda x: x.to(precision) if _is_single(x) else x, (args, kwargs))
        found, generator = func(*args, **kwargs), kwargs.get("generator")
        if generator is not None and generator.device.type != found.device.type:
            raise RuntimeError(f"{func}: a generator for {generator.device} draws numbers on {found.device}")
        return found


def _is_single(x):
    return isinstance(x, OnGpu) and x.dtype == torch.float32


@contextlib.contextmanager
def simulated():
    """Context in which the device `GPU` computes. Gives the `Simulation`."""
    simulation, real_autocast, real_apply = Simulation(), torch.autocast, nn.Module._apply

    @contextlib.contextmanager
    def autocast(device_type, dtype=None, enabled=True, **more):
        if device_type != GPU:
            with real_autocast(device_type, dtype, enabled, **more):
                yield
            return
        before, simulation.precision = simulation.precision, dtype if enabled else None
        yield
        simulation.precision = before

    def apply(self, *args, **kwargs):
        """Moves a module. Parameters keep their identity, so that modules still share them."""
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return real_apply(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch, Generator=Generator, autocast=autocast))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", apply))
        fused = "torch.optim.optimizer._get_fused_kernels_supported_devices"
        stack.enter_context(mock.patch(fused, return_value=["cpu", GPU]))
        stack.enter_context(_Functions(simulation))
        yield stack.enter_context(simulation)


REAL = torch.cuda.is_available()


class _HostNumbers(TorchFunctionMode):
    """Draws random numbers on the CPU, so that a GPU gets those of the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("generator") is None:
            return func(*args, **kwargs)
        if args and isinstance(args[0], torch.Tensor) and args[0].is_cuda:
            host = func(args[0].cpu(), *args[1:], **kwargs)
            return args[0].copy_(host) if func.__name__.endswith("_") else host.to(args[0].device)
        device = kwargs.pop("device", None)
        found = func(*args, **kwargs)
        return found if device is None else found.to(device)


@contextlib.contextmanager
def real():
    """Context in which a real GPU computes with the random numbers of the CPU."""
    with mock.patch.object(torch, "Generator", Generator), _HostNumbers():
        yield
