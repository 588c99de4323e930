"""A loop over a pure function of tensors as one call of native code."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rlzoo.core.fast.library import Build, say, short
from rlzoo.core.system.progress import operation
from rlzoo.optim.fast.codegen import Place, Program, TorchCall, write_loop
from rlzoo.optim.fast.recording import copy_of

Tensors = Sequence[Tensor]
TensorFunction = Callable[..., tuple[Tensor, ...]]
Signature = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]

_log = logging.getLogger("rlzoo")
_OPTIONS = "-O2", "-fopenmp-simd", "-fno-strict-aliasing", "-fno-trapping-math", "-ffp-contract=fast"
_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)
_FAILED, _OUTSIDE = 1, 2


class Compilation:
    """A loop `for i in range(count): carry = step(i, *carry, *inputs)` as one call of native code.

    Its code is written here (see `write_loop`) and compiled by another process while this one goes on (see `Build`).

    Args:
        step: a pure function of tensors, free of branches on their values. `i` is a scalar tensor. Everything that it
            reads besides its arguments becomes a constant of the compiled code.
        carry, inputs: tensors with the dtypes, shapes and strides of all that will be given.
    """

    def __init__(self, step: TensorFunction, carry: Tensors, inputs: Tensors) -> None:
        self._example: Tensors = (*carry, *inputs)
        self._build: Build | None = None
        self._loop: TensorFunction | None = None
        try:
            if any(tensor.device.type != "cpu" for tensor in self._example):
                raise RuntimeError("only updates on the CPU are compiled")
            i = torch.zeros((), dtype=torch.int64)
            self._program = write_loop(step, len(carry), (i, *self._example))
            self._carried = len(carry)
            self._build = Build(self._program.code, Path(__file__).parent, _OPTIONS)
            if self._build.is_new:
                say(logging.INFO, "compiling the update in the background, once on this machine")
        except Exception as error:
            _warn_failure(error)

    def loop(self) -> TensorFunction | None:
        """(count, *carry, *inputs) -> carry, new tensors without gradient.

        Waits until it is compiled. None if that failed, after a warning with the reason. ValueError for arguments of
        other dtypes, shapes or strides than the example.
        """
        if self._build is not None:
            try:
                with operation("waiting for the compiler"):
                    library = self._build.library()
                self._loop = _with_check(_loop(library, self._program, self._carried), self._example)
            except Exception as error:
                _warn_failure(error)
            self._build, self._example = None, ()
        return self._loop


def _warn_failure(error: Exception) -> None:
    say(logging.WARNING, f"compilation failed, so updates run in eager mode: {short(error)}")
    _log.debug("compilation failed", exc_info=True)


def _loop(library: ctypes.CDLL, program: Program, carried: int) -> TensorFunction:
    gemms = _products()

    def loop(count: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        carry = tuple(copy_of(x) for x in given[:carried])
        tensors, memory = (*carry, *given[carried:]), torch.empty(program.memory, dtype=torch.uint8)
        pointers = (ctypes.c_void_p * len(tensors))(*(x.data_ptr() for x in tensors))
        failures: list[BaseException] = []
        calls = _torch_calls(program, tensors, memory)

        def call(k: int) -> int:
            try:
                calls[k]()
            except BaseException as error:  # an interruption too: it must not be lost in native code
                failures.append(error)
            return len(failures)

        start = ctypes.c_void_p(memory.data_ptr())
        status = library.run(ctypes.c_int64(int(count)), pointers, start, *gemms, _CALL(call))
        if status == _FAILED:
            raise failures[0]
        if status == _OUTSIDE:
            raise IndexError("the update reads or writes an element that its tensor does not have")
        return carry

    return torch.no_grad()(loop)


def _torch_calls(program: Program, tensors: Tensors, memory: Tensor) -> list[Callable[[], None]]:
    """What native code leaves to PyTorch."""

    def tensor(place: Place) -> Tensor:
        base = memory.view(place.dtype) if place.base < 0 else tensors[place.base]
        return base.as_strided(place.shape, place.strides, base.storage_offset() + place.offset)

    def do(x: TorchCall, args: Any, kwargs: Any, results: list[tuple[int, Tensor]]) -> None:
        with torch.set_grad_enabled(x.with_gradient):
            values = x.function(*args, **kwargs)
        for k, place in results:
            place.copy_(values if isinstance(values, Tensor) else values[k])

    found = [(x, *tree_map_only(Place, tensor, (x.args, x.kwargs, list(x.results)))) for x in program.calls]
    return [functools.partial(do, *call) for call in found]


@functools.cache
def _products() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    """The matrix products of the BLAS that PyTorch has, or else SciPy: `sgemm` and `dgemm`, in Fortran's convention."""
    try:
        (path,) = Path(torch.__file__).parent.glob("lib/libtorch_cpu.*")
        blas = ctypes.CDLL(str(path))
        sgemm, dgemm = (ctypes.cast(function, ctypes.c_void_p) for function in (blas.sgemm_, blas.dgemm_))
    except (ValueError, OSError, AttributeError):
        from scipy.linalg import cython_blas

        address = ctypes.pythonapi.PyCapsule_GetPointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        name = ctypes.pythonapi.PyCapsule_GetName
        name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
        capsules = (cython_blas.__pyx_capi__[function] for function in ("sgemm", "dgemm"))
        sgemm, dgemm = (ctypes.c_void_p(address(capsule, name(capsule))) for capsule in capsules)
    return sgemm, dgemm


def signature(tensor: Tensor) -> Signature:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _with_check(run: TensorFunction, example: Tensors) -> TensorFunction:
    """`run` with a check of its arguments: native code would read past the end of a smaller tensor."""
    signatures, text = [signature(x) for x in example], "shape {}, stride {}, {} on {}"

    def call(count: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        if len(given) != len(signatures):
            raise ValueError(f"compiled for {len(signatures)} tensors, called with {len(given)}")
        for i, (own, x) in enumerate(zip(signatures, map(signature, given), strict=True)):
            if x != own:
                raise ValueError(f"tensor {i} was compiled for {text.format(*own)}; called with {text.format(*x)}")
        return run(count, *given)

    return call
