"""Compiles a pure function of tensors ahead of time, once per machine, and keeps it for later processes.

Capture sees through `torch.autograd.grad`, so a whole training step becomes one call into native code.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import shutil
import stat
import sys
import tempfile
import textwrap
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rlzoo.core.system.cache import cache_directory

__all__ = ["compiled"]

TensorFunction = Callable[..., tuple[Tensor, ...]]
Signature = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]

_log = logging.getLogger("rlzoo")

# Inductor's names; a release that lacks one compiles without it.
_OPTIONS: dict[str, object] = {
    # tanh from one vectorised exp: a quarter of the time of the library's tanh, and 1e-7 from it.
    "cpp.use_decompose_tanh": True,
    # Precompiled headers would leave 400 MB in the temporary directory to save a second or two.
    "aot_inductor.precompile_headers": False,
}


def compiled(fn: TensorFunction, example: tuple[Tensor, ...], key: str) -> TensorFunction:
    """`fn` compiled for CPU tensors with the dtypes, shapes and strides of `example`, from the cache if there.

    `fn` must be pure and free of branches on tensor values. Everything that it reads besides its arguments becomes a
    constant of the compiled code, so `key` must identify all of that: the settings and the source of `fn`. Compiled
    packages are kept in `$RLZOO_CACHE`, or else `$XDG_CACHE_HOME/rlzoo`, or else `~/.cache/rlzoo`.

    The result changes none of its arguments, returns new tensors without gradient, and raises ValueError for arguments
    of other dtypes, shapes or strides. It is not thread-safe. If compilation fails, a warning gives the reason and the
    result is `fn` itself.
    """
    try:
        package = _private(cache_directory()) / f"{_digest(example, key)}.pt2"
        run = _cached(package)
        if run is None:
            _compile(fn, example, package)
            run = _load(package)
    except Exception as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = textwrap.shorten(first_line, 200, placeholder=" ...")
        _log.warning("compilation failed, so steps run in eager mode: %s", reason)
        _log.debug("compilation failed", exc_info=True)
        return fn
    return _checked(run, example)


def _private(directory: Path) -> Path:
    """Creates `directory` if needed; PermissionError if another user could write native code into it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours(directory.stat()):
        raise PermissionError(
            f"the cache {directory} belongs to another user or others may write to it; "
            "give it mode 700, or name another one in RLZOO_CACHE"
        )
    return directory


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _digest(example: Sequence[Tensor], key: str) -> str:
    """File name of a package. It depends on everything that affects the native code or where it can run."""
    parts = [
        key,
        [_signature(tensor) for tensor in example],
        torch.__version__,
        torch.get_num_threads(),
        sys.version,
        sys.platform,
        _processor(),
        Path(__file__).read_text(),
    ]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _signature(tensor: Tensor) -> Signature:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


@functools.cache
def _processor() -> str:
    """The instruction sets, because machines that share a cache may have different processors."""
    features = ""
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {features}"


def _cached(package: Path) -> Callable[[list[Tensor]], Sequence[Tensor]] | None:
    """The function in `package`; None if there is no such file, or it was damaged or unsafe and is deleted."""
    try:
        status = package.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode) and _is_ours(status):
        try:
            # The loader itself verifies no checksum and would run damaged code.
            with zipfile.ZipFile(package) as archive:
                if archive.testzip() is None:
                    return _load(package)
        except Exception:
            _log.debug("cannot load %s", package, exc_info=True)
        fault = "is damaged"
    else:
        fault = "belongs to another user or others may write to it"
    _log.warning("compiling again: %s %s", package, fault)
    package.unlink(missing_ok=True)
    return None


def _load(package: Path) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    try:
        loader = torch._C._aoti.AOTIModelPackageLoader
    except AttributeError:
        # The public loader imports the compiler, which takes longer than a short run.
        from torch._inductor import aoti_load_package

        model = aoti_load_package(str(package), run_single_threaded=True)
        return lambda tensors: model(*tensors)
    model_name, run_single_threaded, num_runners, device_index = "model", True, 1, -1
    return loader(str(package), model_name, run_single_threaded, num_runners, device_index).run


def _compile(fn: TensorFunction, example: tuple[Tensor, ...], package: Path) -> None:
    """Compiles `fn` and writes `package` atomically; other processes may compile the same function."""
    if any(tensor.device.type != "cpu" for tensor in example):
        raise RuntimeError("only steps on the CPU are compiled")
    candidates = [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]
    compiler = next((name for name in candidates if shutil.which(name)), None)
    if compiler is None:
        raise RuntimeError(f"there is no C++ compiler (looked for {', '.join(candidates)})")

    from torch._inductor import aoti_compile_and_package, config
    from torch.fx.experimental.proxy_tensor import make_fx

    _log.info("compiling the training step (about ten seconds, once)")
    start = time.perf_counter()
    supported = config.get_config_copy()
    options = {name: value for name, value in _OPTIONS.items() if name in supported}
    options |= {"cpp.threads": torch.get_num_threads(), "cpp.cxx": (None, compiler)}
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=package.parent) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(make_fx(_without_aliases(fn))(*example), example, strict=False)
        written = Path(scratch) / package.name
        aoti_compile_and_package(program, package_path=str(written), inductor_configs=options)
        written.chmod(0o600)
        written.replace(package)
    _log.info("compiled in %.0f s", time.perf_counter() - start)


def _without_aliases(fn: TensorFunction) -> TensorFunction:
    """`fn`, with each output that shares memory with an input replaced by a copy."""

    def copied(*inputs: Tensor) -> tuple[Tensor, ...]:
        memory = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        return tuple(
            output.clone() if output.untyped_storage().data_ptr() in memory else output for output in fn(*inputs)
        )

    return copied


def _checked(run: Callable[[list[Tensor]], Sequence[Tensor]], example: tuple[Tensor, ...]) -> TensorFunction:
    """`run` with a check of its arguments: native code would read past the end of a smaller tensor."""
    expected = [_signature(tensor) for tensor in example]

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        actual = [_signature(tensor) for tensor in inputs]
        if actual != expected:
            raise ValueError(_difference(actual, expected))
        return tuple(run(list(inputs)))

    return call


def _difference(actual: Sequence[Signature], expected: Sequence[Signature]) -> str:
    if len(actual) != len(expected):
        return f"compiled for {len(expected)} tensors, called with {len(actual)}"
    index = next(i for i, pair in enumerate(zip(actual, expected, strict=True)) if pair[0] != pair[1])
    described = [
        f"shape {tuple(shape)}, stride {stride}, {dtype} on {device}"
        for shape, stride, dtype, device in (expected[index], actual[index])
    ]
    return f"tensor {index} was compiled for {described[0]}; called with {described[1]}"
