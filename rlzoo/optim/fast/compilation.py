"""Compiles a loop over a pure function of tensors ahead of time, once per machine, and keeps it for later processes.

Capture sees through `torch.autograd.grad`, so all gradient steps of an update become one call into native code.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import cloudpickle
import torch
from filelock import FileLock
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from rlzoo.core.system.cache import cache_directory, make_once, writing
from rlzoo.core.system.errors import first_line
from rlzoo.core.system.files import check_sealed, seal
from rlzoo.core.system.progress import operation

Tensors = Sequence[Tensor]
TensorFunction = Callable[..., tuple[Tensor, ...]]
Signature = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]

_log = logging.getLogger("rlzoo")
_LIBRARY = "library.so"
_NOT_OURS = "belongs to another user or others may write to it"

# Inductor's names; a release that lacks one compiles without it.
_OPTIONS: dict[str, object] = {
    # tanh from one vectorised exp: a quarter of the time of the library's tanh, and 1e-7 from it.
    "cpp.use_decompose_tanh": True,
    # Precompiled headers would leave 400 MB in the temporary directory to save a second or two.
    "aot_inductor.precompile_headers": False,
    # What the processor says of its vector instructions holds: to compile a test of them takes a sixth of the time.
    "cpp.vec_isa_ok": True,
    # The code between the products and loops: to optimise it costs seconds and gains nothing.
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.enable_line_tables": False,
}


class Compilation:
    """A loop `for i in range(count): carry = step(i, *carry, *inputs)` as one call of native code.

    It is taken from the cache (see `cache_directory`), or compiled by another process while this one goes on, and then
    kept in the cache. Of several processes that need the same loop, one compiles it and the others wait.

    Args:
        step: a pure function of tensors, free of branches on their values. `i` is a scalar tensor. Everything that it
            reads besides its arguments becomes a constant of the compiled code.
        carry, inputs: tensors with the dtypes, shapes and strides of all that will be given.
        key: returns what identifies that which `step` reads besides its arguments: settings and source code.
    """

    def __init__(self, step: TensorFunction, carry: Tensors, inputs: Tensors, key: Callable[[], str]) -> None:
        self._example = (torch.zeros((), dtype=torch.int64), *carry, *inputs)
        self._process: subprocess.Popen[str] | None = None
        self._loop: TensorFunction | None = None
        try:
            self._package = _private(cache_directory()) / f"{_digest(self._example, key())}.pt2"
            run = _load_cached(self._package)
            if run is not None:
                self._loop = _with_check(run, self._example)
                return
            _check_possible(self._example)
            _say(logging.INFO, "compiling the update in the background, once on this machine")
            # The current directory last: it may have the user's modules, which must not hide Python's own.
            path = os.pathsep.join([*filter(None, sys.path), os.getcwd()])
            with tempfile.TemporaryFile() as job:
                job.write(cloudpickle.dumps((step, len(carry), self._example, self._package)))
                job.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, str(torch.get_num_threads())],
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=job, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                    start_new_session=True,
                )  # fmt: skip
            weakref.finalize(self, _end, self._process)
        except Exception as error:
            _warn_failure(error)

    def loop(self) -> TensorFunction | None:
        """(count, *carry, *inputs) -> carry, new tensors without gradient; it is not thread-safe.

        Waits until it is compiled. None if that failed, after a warning with the reason. ValueError for arguments of
        other dtypes, shapes or strides than the example.
        """
        if self._process is not None:
            try:
                with operation("waiting for the compiler"):
                    _, fault = self._process.communicate()
                if self._process.returncode:
                    raised = re.findall(r"^[\w.]+(?:Error|Exception|Exit):.*", fault, re.MULTILINE)  # advice may follow
                    raise RuntimeError(["its process was killed", *fault.strip().splitlines()[-1:], *raised][-1])
                self._loop = _with_check(_load(self._package), self._example)
            except Exception as error:
                _warn_failure(error)
            self._process = None
        return self._loop


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a compilation that nobody waits for, which removes its own files."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)


def _warn_failure(error: Exception) -> None:
    _say(logging.WARNING, f"compilation failed, so updates run in eager mode: {_short(error)}")
    _log.debug("compilation failed", exc_info=True)


def _short(error: Exception) -> str:
    return textwrap.shorten(first_line(error), 200, placeholder=" ...")


@functools.cache
def _say(level: int, message: str) -> None:
    """Logs what no other compilation of this process has said: NPG and TRPO have two, which fail for one reason."""
    _log.log(level, message)


def _private(directory: Path) -> Path:
    """Creates `directory` if needed; PermissionError if another user could write native code into it."""
    with writing(directory):
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
    tensors, source = [_signature(tensor) for tensor in example], Path(__file__).read_text()
    machine = torch.get_num_threads(), sys.platform, _processor()
    parts = [key, tensors, source, torch.__version__, sys.version, machine]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()


def _signature(tensor: Tensor) -> Signature:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


@functools.cache
def _processor() -> str:
    """The instruction sets, because machines that share a cache may have different processors."""
    features = ""
    if sys.platform == "linux":
        with open("/proc/cpuinfo") as lines:
            features = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {features}"


def _load_cached(package: Path) -> Callable[[list[Tensor]], Sequence[Tensor]] | None:
    """The function in `package`; None if there is no such file, or it was damaged or unsafe and is deleted."""
    try:
        status = package.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISREG(status.st_mode) and _is_ours(status):
        if _is_whole(package):
            return _load(package)
        fault = "is damaged"
    else:
        fault = _NOT_OURS
    _log.warning("compiling again: %s %s", package, fault)
    package.unlink(missing_ok=True)
    return None


def _is_whole(package: Path) -> bool:
    """Whether the checksums are right. The loader itself verifies none and would run damaged code."""
    try:
        with zipfile.ZipFile(package) as archive:
            return archive.testzip() is None
    except Exception:
        _log.debug("cannot read %s", package, exc_info=True)
        return False


def _load(package: Path) -> Callable[[list[Tensor]], Sequence[Tensor]]:
    # torch._inductor.aoti_load_package imports the compiler, which takes longer than a short run.
    model_name, run_single_threaded, num_runners, device_index = "model", True, 1, -1
    loader = torch._C._aoti.AOTIModelPackageLoader
    try:
        return loader(str(package), model_name, run_single_threaded, num_runners, device_index).run
    except Exception as error:
        raise RuntimeError(f"{package} cannot be loaded: {first_line(error)}") from error


def compilers() -> list[str]:
    """The C++ compilers of this machine."""
    if sys.platform == "darwin" and subprocess.run(["xcode-select", "-p"], capture_output=True).returncode:
        return []  # the names are there, but lead to a dialog that offers to install the compiler
    return [name for name in (os.environ.get("CXX"), "g++", "clang++") if name and shutil.which(name)]


def _check_possible(example: Tensors) -> None:
    if any(tensor.device.type != "cpu" for tensor in example):
        raise RuntimeError("only updates on the CPU are compiled")
    _compiler()


def _compiler() -> str:
    if names := compilers():
        return names[0]
    raise RuntimeError("there is no C++ compiler: neither g++ nor clang++, nor one that CXX names")


def build_library(source: Path, fused: bool = False) -> ctypes.CDLL | None:
    """The functions of a C++ file, compiled once per machine, in 2 seconds; None if that is not possible.

    Args:
        fused: whether a product and a sum may become one operation, whose results are not those of NumPy.
    """

    def build(folder: Path) -> None:
        native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
        contract = "fast" if fused else "off"
        options = ["-std=c++17", "-O3", native, f"-ffp-contract={contract}", "-fno-math-errno", "-shared", "-fPIC"]
        folder.mkdir(mode=0o700)
        command = [_compiler(), *options, "-o", str(folder / _LIBRARY), str(source)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            faults = [line for line in result.stderr.splitlines() if "error" in line]
            raise RuntimeError(f"{command[0]}: {faults[0] if faults else result.returncode}")
        seal(folder)
        for path in folder.iterdir():
            path.chmod(0o600)

    try:
        code = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
        folder = _private(cache_directory()) / f"{_digest((), json.dumps([code, fused]))}-library"
        try:
            for path in (folder, *folder.glob("*")) if os.path.lexists(folder) else ():
                if path.is_symlink() or not _is_ours(path.stat()):
                    raise OSError(f"{path} {_NOT_OURS}")
            check_sealed(folder, always=folder.is_dir())
        except OSError as error:
            _log.warning("compiling again: %s", error)
            if folder.is_symlink():
                folder.unlink()
            else:
                shutil.rmtree(folder)
        return ctypes.CDLL(str(make_once(folder, build) / _LIBRARY))
    except Exception as error:
        _log.debug("cannot build %s", source, exc_info=True)
        if compilers():  # else it is nothing that could be mended
            _say(logging.WARNING, f"there is no native code, so results are rounded differently: {_short(error)}")
        return None


def _compile(step: TensorFunction, carried: int, example: Tensors, package: Path) -> None:
    """Compiles the loop over `step` and writes `package` atomically."""
    from torch._inductor import aoti_compile_and_package, config
    from torch.fx.experimental.proxy_tensor import make_fx

    example = tuple(x.detach() for x in example)  # a tensor that is given twice would be one input of what is traced
    traced = make_fx(_without_aliases(step))(*example)
    once = _products_of_inputs(traced, carried, example)

    class Loop(torch.nn.Module):
        def forward(self, count: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            def unfinished(i: Tensor, *rest: Tensor) -> Tensor:
                return i < rest[-1]

            def body(i: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
                known = dict(zip(once, rest[len(tensors) : -1], strict=True))
                return i + 1, *Interpreter(traced).run(i, *rest[: len(tensors)], initial_env=known)

            start = torch.zeros((), dtype=torch.int64)
            carry = start, *(x.clone() for x in tensors[:carried])
            before = Interpreter(traced, garbage_collect_values=False)
            if once:
                before.run(start, *tensors)
            inputs = *tensors[carried:], *(before.env[node] for node in once), count
            # The operator itself: `while_loop` would first capture both functions once more, in more than a second.
            return tuple(torch.ops.higher_order.while_loop(unfinished, body, carry, inputs)[1:])

    supported = config.get_config_copy()
    options = {name: value for name, value in _OPTIONS.items() if name in supported}
    options |= {"cpp.threads": torch.get_num_threads(), "cpp.cxx": (None, _compiler())}
    with tempfile.TemporaryDirectory(prefix="unfinished-", dir=package.parent) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        written = Path(scratch) / package.name
        with _quicker_inductor():
            program = torch.export.export(Loop(), tuple(example), strict=False)
            aoti_compile_and_package(program, package_path=str(written), inductor_configs=options)
        written.chmod(0o600)
        written.replace(package)


def _products_of_inputs(traced: GraphModule, carried: int, example: Tensors) -> list[Node]:
    """The results of matrix products, and of what follows them, that are the same in each iteration and needed there.

    They are computed once, before the loop. A view of one is made in the loop. None of a step that writes in place.
    """
    run = Interpreter(traced, garbage_collect_values=False)
    run.run(*example)
    memory = {node: x.untyped_storage().data_ptr() for node, x in run.env.items() if isinstance(x, Tensor)}
    owners: dict[int, Node] = {}
    fixed: set[Node] = set()
    following: dict[Node, None] = {}
    for k, node in enumerate(traced.graph.nodes):
        if node.op == "call_function" and getattr(node.target, "_schema", None) and node.target._schema.is_mutable:
            return []
        if node in memory:
            owners.setdefault(memory[node], node)
        sources, is_input = node.all_input_nodes, node.op == "placeholder" and k > carried
        if is_input or (node.op == "call_function" and fixed.issuperset(sources)):
            fixed.add(node)
            is_product = str(node.target).startswith(("aten.mm.", "aten.addmm.", "aten.bmm.", "aten.convolution."))
            if is_product or not following.keys().isdisjoint(sources):
                following[node] = None
    needed = (node for node in following if node in memory and not fixed.issuperset(node.users))
    return list(dict.fromkeys(owners[memory[node]] for node in needed))


@contextlib.contextmanager
def _quicker_inductor() -> Iterator[None]:
    """Inductor that asks torch which vector instructions there are, and compiles two files at once.

    It would compile and load six small libraries to see whether instructions work that float32 does not use, and start
    on its kernels when their caller is done.
    """
    from torch._inductor import cpu_vec_isa
    from torch._inductor.cpp_builder import CppBuilder

    instructions = {"AVX512": cpu_vec_isa.VecAVX512, "AVX2": cpu_vec_isa.VecAVX2}
    known = instructions.get(torch.backends.cpu.get_cpu_capability())
    unfinished: list[Future[None]] = []

    def build(builder: CppBuilder) -> None:
        if builder.get_target_file_path().endswith(".wrapper.o"):
            unfinished.append(pool.submit(build_one, builder))
            return
        if builder.get_target_file_path().endswith(".so"):
            for other in unfinished:
                other.result()
        build_one(builder)

    build_one = CppBuilder.build
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as changes:
        if known is not None:
            changes.enter_context(patch.object(known, "check_build", lambda *_: True))
            changes.enter_context(patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: [known()]))
        changes.enter_context(patch.object(CppBuilder, "build", build))
        yield


def _without_aliases(fn: TensorFunction) -> TensorFunction:
    """`fn`, with each output that shares memory with an input replaced by a copy."""

    def copied(*inputs: Tensor) -> tuple[Tensor, ...]:
        memory = {x.untyped_storage().data_ptr() for x in inputs}
        outputs = fn(*inputs)
        return tuple(x.clone() if x.untyped_storage().data_ptr() in memory else x for x in outputs)

    return copied


def _with_check(run: Callable[[list[Tensor]], Sequence[Tensor]], example: tuple[Tensor, ...]) -> TensorFunction:
    """`run` with a check of its arguments: native code would read past the end of a smaller tensor."""
    signatures, text = [_signature(x) for x in example], "shape {}, stride {}, {} on {}"

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        if len(inputs) != len(signatures):
            raise ValueError(f"compiled for {len(signatures)} tensors, called with {len(inputs)}")
        for i, (own, x) in enumerate(zip(signatures, map(_signature, inputs), strict=True)):
            if x != own:
                raise ValueError(f"tensor {i} was compiled for {text.format(*own)}; called with {text.format(*x)}")
        return tuple(run(list(inputs)))

    return call


def _main(threads: str) -> None:
    """Compiles what a `Compilation` sends to standard input, unless another process does or has."""
    torch.set_num_threads(int(threads))
    gc.disable()  # of the many small objects that are made, few can go before the end
    step, carried, example, package = cloudpickle.load(sys.stdin.buffer)
    with FileLock(package.with_suffix(".lock"), mode=0o600):
        if _load_cached(package) is None:
            _compile(step, carried, example, package)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _main(*sys.argv[1:])
