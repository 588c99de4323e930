"""Writes a loop over a pure function of tensors as C++.

The function is called once, and the operations of PyTorch that it consists of are recorded, those of its gradients too.
Operations on elements become loops, and those on tensors of one shape share a loop. Matrix products go to the BLAS.
Other operations call PyTorch. What is the same in each iteration is computed once, before the loop.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rlzoo.optim.fast.formulas import ELEMENTWISE, SUMS
from rlzoo.optim.fast.recording import Operation, copy_of, record

_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.bool: "bool", torch.int64: "int64_t",
    torch.int32: "int32_t", torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t",
}  # fmt: skip
_FLOATING = (torch.float32, torch.float64)
_STEPS_OF_A_PART = 24
"""Loops and statements of one function: a compiler takes much longer for long functions."""
_SIMD = '_Pragma("omp simd") '

Step = tuple[int, int]
"""Phase, which is 0 before the loop and 1 in it, and position in the phase."""


@dataclass(frozen=True)
class _View:
    """Where the elements of a tensor lie in one of the memories. Dimensions of size 1 are left out.

    With an `index`, they lie `scale` times its elements farther, which are below `size`.
    """

    memory: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    index: _View | None = None
    scale: int = 0
    size: int = 0


@dataclass
class _Loop:
    """Operations on the elements of tensors of one shape."""

    shape: tuple[int, ...]
    loads: dict[_View, str] = field(default_factory=dict)
    """The variable that has the element of a tensor that is read from memory."""
    values: dict[_View, str] = field(default_factory=dict)
    """The variable that has the element of a tensor that is computed here."""
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A tensor: of the loop's tensors the one at `base`, or part of its memory if `base` is -1. In elements."""

    base: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class TorchCall:
    """A call of PyTorch. Each `Place` in its arguments is a tensor; results are copied to places, by their position."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[int, Place], ...]
    with_gradient: bool


@dataclass(frozen=True)
class Program:
    """C++ of a function `run(count, tensors, memory, sgemm, dgemm, call)` and what it needs (see `loop.h`)."""

    code: str
    memory: int
    """Bytes."""
    calls: tuple[TorchCall, ...]


def write_loop(step: Callable[..., tuple[Tensor, ...]], carried: int, example: Sequence[Tensor]) -> Program:
    """The program of `for i in range(count): carry = step(i, *carry, *inputs)`.

    Args:
        step: a pure function of tensors, free of branches on their values. Others that it reads become constants.
        carried: number of tensors of the carry.
        example: i, carry and inputs.
    """
    own = [copy_of(x) for x in example]  # if a tensor were given twice, the two could not be told from each other
    operations, results = record(step, own)
    with torch.no_grad():
        return _Writer(operations, own, carried, results).program()


class _Writer:
    """Writes the loop of a step that was recorded.

    Each operation gets its place first: a loop that it shares, or statements of its own. The code of the loops follows,
    when it is known what is read from memory.
    """

    def __init__(
        self, operations: Sequence[Operation], inputs: Sequence[Tensor], carried: int, results: Sequence[Tensor]
    ) -> None:
        self.inputs, self.carried, self.results = inputs, carried, results
        self.number: dict[int, int] = {}
        """Of a memory, by its address."""
        self.memories: list[Tensor] = []
        """A tensor in each: first in those of the inputs."""
        for x in inputs:
            self._memory(x)
        self.constants: set[int] = set()
        self.operations: list[Operation] = []
        """Those that compute more than a view of what is there."""
        for operation in operations:
            self.constants.update(self._memory(x) for x in operation.tensors() if not self._is_known(x))
            if operation.writes or not all(self._is_known(x) for _, x in operation.results()):
                self.operations.append(operation)
                for _, x in operation.results():
                    self._memory(x)
        self.constants.update(self._memory(x) for x in results if not self._is_known(x))
        self._drop_unused()
        self.fixed = self._fixed()
        self.phases: tuple[list[_Loop | str], list[_Loop | str]] = [], []
        self.uses: dict[int, list[Step]] = {}
        """When a memory is read or written."""
        self.written: dict[int, Step] = {}
        """When it is written last."""
        self.read: set[int] = set()
        """Which are read."""
        self.calls: list[tuple[Operation, list[tuple[int, Tensor]]]] = []
        self.scratch = 0

    def program(self) -> Program:
        for operation in self.operations:
            self._add(operation)
        results = [self._view(x) for x in self.results]
        carry = [self._view(x) for x in self.inputs[1 : 1 + self.carried]]
        memories = [view.memory for view in results]
        self.read.update(memories)
        bases = {k: (k - 1, 0) for k in range(len(self.inputs))}
        for view, old in zip(results, carry, strict=True):
            if memories.count(view.memory) == 1 and self._may_replace(view, old, bases):
                bases[view.memory] = bases[old.memory]
        copied = [(view, old) for view, old in zip(results, carry, strict=True) if view.memory not in bases]
        size = self._place_memory(bases, {view.memory for view, _ in copied})
        scratch = f"double* const scratch = (double*)(loop.memory + {size});"
        before, inside = ([*filter(None, map(self._code, steps))] for steps in self.phases)
        inside += [self._copy(view, old) for view, old in copied]
        code, calls = ['#include "loop.h"'], ["", ""]
        for phase, steps in enumerate((before, inside)):
            for first in range(0, len(steps), _STEPS_OF_A_PART):
                body = "\n".join(steps[first : first + _STEPS_OF_A_PART])
                named = sorted({int(k) for k in re.findall(r"\bb(\d+)\b", body)})
                pointers = "\n".join(self._pointer(k, *bases.get(k, (-1, 0))) for k in named)
                calls[phase] += f"if (part{len(code)}(loop)) return 1;\n"
                code.append(f"PART part{len(code)}(Loop& loop) {{\n{scratch}\n{pointers}\n{body}\nreturn 0;\n}}")
        code.append(f"RUN({calls[0]}, {calls[1]})\n")
        torch_calls = tuple(self._torch_call(*call, bases) for call in self.calls)
        return Program("\n".join(code), size + 8 * self.scratch, torch_calls)

    def _is_known(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.number

    def _memory(self, tensor: Tensor) -> int:
        """The number of the memory that a tensor lies in."""
        number = self.number.setdefault(tensor.untyped_storage().data_ptr(), len(self.memories))
        if number == len(self.memories):
            self.memories.append(tensor)
        if tensor.dtype not in _TYPES or tensor.dtype != self.memories[number].dtype:
            raise TypeError(f"there is no native code for tensors of {tensor.dtype}")
        return number

    def _drop_unused(self) -> None:
        needed, used = {self._memory(x) for x in self.results}, []
        for operation in reversed(self.operations):
            if operation.writes or not needed.isdisjoint(self._memory(x) for _, x in operation.results()):
                needed.update(map(self._memory, operation.tensors()))
                used.append(operation)
        self.operations = used[::-1]

    def _fixed(self) -> set[Operation]:
        """What gives the same in each iteration. Nothing, if anything writes in place or draws random numbers."""
        if any(operation.writes or operation.is_random for operation in self.operations):
            return set()
        known = {*self.constants, *range(1 + self.carried, len(self.inputs))}
        fixed = set()
        for operation in self.operations:
            if known.issuperset(map(self._memory, operation.tensors())):
                fixed.add(operation)
                known.update(self._memory(x) for _, x in operation.results())
        return fixed

    def _view(self, x: Tensor, shape: Sequence[int] | None = None) -> _View:
        """The elements of a tensor, expanded to `shape`."""
        expanded = x if shape is None else x.expand(tuple(shape))
        return _view(self._memory(x), int(x.storage_offset()), expanded.shape, expanded.stride())

    # Operations, each of which gets a place.

    def _add(self, operation: Operation) -> None:
        if operation.name.startswith(("empty", "new_empty")):
            return
        for way in (_Writer._elementwise, _Writer._sum, self._SPECIAL.get(operation.name)):
            if way is not None and way(self, operation):
                return
        self._call(operation)

    def _elementwise(self, operation: Operation) -> bool:
        out, args = operation.result, operation.named_args
        if not isinstance(out, Tensor) or args.get("rounding_mode") is not None or args.get("reduction"):
            return False
        kind = operation.name.removesuffix("_") if operation.writes else operation.name
        kind = kind.replace("bitwise", "logical") if out.dtype == torch.bool else kind
        text, type_ = ELEMENTWISE.get(kind), out.dtype
        if kind in ("eq", "ne", "lt", "le", "gt", "ge"):
            type_ = torch.result_type(args["self"], args["other"])
        elif kind.startswith("logical"):
            type_ = torch.bool
        if chosen := self._chosen(kind, args, out):
            text, operands = "{self}", {"self": chosen}
        elif text is None:
            return False
        else:
            names = re.findall(r"{(\w+)}", text) if isinstance(text, str) else text.__annotations__
            args = {key: x for key, x in args.items() if key in names}
            operands = {key: self._view(x, out.shape) for key, x in args.items() if isinstance(x, Tensor)}
        target = self._view(out)
        step, loop = self._loop_for(operation, target, list(operands.values()))
        words = {key: f"T({_literal(x)})" for key, x in args.items() if isinstance(x, int | float)}
        for key, view in operands.items():
            words[key] = f"{'bool' if key in ('condition', 'mask') else 'T'}({self._load(view, step, loop)})"
        value = text(**words) if callable(text) else text.format(**words)
        value = re.sub(r"\bT\(", f"{_TYPES[type_]}(", value)
        own, variable = _TYPES[out.dtype], f"v{len(loop.values)}"
        loop.lines.append(f"const {own} {variable} = {own}({value});")
        loop.values[target] = variable
        self._use(target.memory, step, writes=True)
        if target.memory < len(self.inputs):  # what is written into them is read after the loop
            self.read.add(target.memory)
        return True

    def _chosen(self, kind: str, args: dict[str, Any], out: Tensor) -> _View | None:
        """The elements of a tensor that an index chooses."""
        if kind not in ("index_select", "gather", "embedding"):
            return None
        source, index = (args[x] for x in (("weight", "indices") if kind == "embedding" else ("self", "index")))
        dim = args.get("dim", 0) % max(source.dim(), 1)
        if kind == "index_select":
            index = index.reshape(-1, *(1,) * (source.dim() - dim - 1))
        elif kind == "embedding":
            index, source = index.unsqueeze(-1), source.view(-1, *(1,) * (index.dim() - 1), source.shape[1])
        if not 0 < source.dim() == out.dim() or not self._is_known(index):
            return None
        strides = [0 if d == dim or source.shape[d] == 1 else stride for d, stride in enumerate(source.stride())]
        view = _view(self._memory(source), source.storage_offset(), out.shape, strides)
        return replace(view, index=self._view(index, out.shape), scale=source.stride(dim), size=source.shape[dim])

    def _sum(self, operation: Operation) -> bool:
        """A sum, or anything else that runs over the elements along some dimensions."""
        out, args = operation.result, operation.named_args
        name = {"max": "amax", "min": "amin"}.get(operation.name, operation.name)
        if name not in SUMS or not isinstance(out, Tensor) or args.get("ord", 2) != 2 or "other" in args:
            return False
        x, (running, start, update, end) = args["self"], SUMS[name]
        floating = x.dtype in _FLOATING
        if not x.numel() or not (floating or name in ("sum", "any", "all")):
            return False
        if name == "sum" and floating and out.dtype not in _FLOATING:
            return False
        dims = args.get("dim")
        dims = list(range(x.dim())) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        dims = {dim % max(x.dim(), 1) for dim in dims}
        whole = out.reshape([1 if d in dims else size for d, size in enumerate(x.shape)])
        steps = [0 if d in dims else step for d, step in enumerate(whole.stride())]
        reads = [self._view(x), *([self._view(args["tensor"])] if name == "dot" else [])]
        views = [*reads, _view(self._memory(out), int(out.storage_offset()), x.shape, steps)]
        along = [d in dims for d, size in enumerate(x.shape) if size != 1]
        if name == "argmax" and sum(along) > 1:  # the loops may go in any order
            return False
        kept, summed = (_nest(views, [a is which for a in along]) for which in (False, True))
        a_x, *a_y, a_out = (self._at(view, k, {"k": kept, "r": summed}) for k, view in enumerate(views))
        running = {"T": _TYPES[x.dtype], "S": "double" if floating else "int64_t"}.get(running, running)
        own, update = _TYPES[out.dtype], re.sub(r"\bS\(", f"{running}(", update)
        words = {"x": a_x, "y": "".join(a_y), "n": x.numel() // out.numel(), "a": "a"}
        if len(kept) == 1 and kept[0][1][0] == 1 and summed and summed[-1][1][0] > 1 and name in ("sum", "mean"):
            # By rows, so that all sums grow at a time.
            words["a"], self.scratch = "scratch[k0]", max(self.scratch, kept[0][0])
            rows = _for({"r": summed}, _for({"k": kept}, update.format(**words) + ";", _SIMD))
            last = f"{a_out} = {own}({end.format(**words)});"
            code = [_for({"k": kept}, "scratch[k0] = 0;", _SIMD), rows, _for({"k": kept}, last, _SIMD)]
        else:
            simd = '_Pragma("omp simd reduction(+:a)") ' if update.startswith("{a} +=") else ""
            inner = _for({"r": summed}, f"{{ {update.format(**words)}; }}", simd)
            first = f"{running} a = {start};" + (" int64_t position = 0, best = 0;" if name == "argmax" else "")
            code = [_for({"k": kept}, f"{{ {first} {inner} {a_out} = {own}({end.format(**words)}); }}")]
        return self._statements(operation, code, reads, [out])

    def _product(self, operation: Operation) -> bool:
        """`mm`, `addmm` or `bmm`."""
        out, args, name = operation.result, operation.named_args, operation.name
        a, b = args["mat1" if name == "addmm" else "self"], args["mat2"]
        of_a, of_b = _layout(a), _layout(b)
        if of_a is None or of_b is None or out.dtype not in _FLOATING or not (out.is_contiguous() and a.numel()):
            return False
        type_, code, reads, beta = _TYPES[out.dtype], [], [self._view(a), self._view(b)], 0
        if name == "addmm" and args["beta"]:
            added, beta = self._view(args["self"], out.shape), 1
            code, reads = [self._copy(added, self._view(out), args["beta"])], [*reads, added]
        at, each = [f"b{self._memory(x)} + {x.storage_offset()}" for x in (a, b, out)], ""
        if name == "bmm":
            at = [f"{text} + k * {x.stride(0)}" for text, x in zip(at, (a, b, out), strict=True)]
            each = f"for (int64_t k = 0; k < {len(out)}; ++k) "
        (a_is, lda), (b_is, ldb) = of_a, of_b
        sizes = f"{out.shape[-2]}, {out.shape[-1]}, {a.shape[-1]}, {type_}({_literal(args.get('alpha', 1))})"
        gemm = {"float": "loop.sgemm", "double": "loop.dgemm"}[type_]
        given = f"{at[0]}, '{a_is}', {lda}, {at[1]}, '{b_is}', {ldb}, {type_}({beta}), {at[2]}"
        return self._statements(operation, [*code, f"{each}product<{type_}>({gemm}, {sizes}, {given});"], reads, [out])

    def _joined(self, operation: Operation) -> bool:
        """`cat` or `stack`."""
        out, args, at, code, reads = operation.result, operation.named_args, 0, [], []
        stack, dim = operation.name == "stack", args["dim"]
        for k, x in enumerate(args["tensors"]):
            if x.dtype != out.dtype:
                return False
            if x.numel():
                part = out.select(dim, k) if stack else out.narrow(dim, at, x.shape[dim])
                reads.append(self._view(x))
                code.append(self._copy(reads[-1], self._view(part)))
                at += 0 if stack else x.shape[dim]
        return self._statements(operation, code, reads, [out])

    def _padded(self, operation: Operation) -> bool:
        """The gradient of a slice or of a row: zero elsewhere."""
        out, args = operation.result, operation.named_args
        grad, dim = self._view(args["grad_output"]), args["dim"]
        if operation.name == "select_backward":
            part = out.select(dim, args["index"])
        else:
            part = torch.ops.aten.slice.Tensor(out, dim, args["start"], args["end"], args["step"])
        zero = f"std::memset(b{self._memory(out)}, 0, {out.untyped_storage().nbytes()});"
        return self._statements(operation, [zero, self._copy(grad, self._view(part))], [grad], [out])

    def _scattered(self, operation: Operation) -> bool:
        """`scatter_add`."""
        out, args = operation.result, operation.named_args
        index, dim = args["index"], args["dim"]
        if out.dim() == 0 or not index.numel():
            return False
        source = args["src"][tuple(slice(size) for size in index.shape)]
        reads = [self._view(x) for x in (source, index, args["self"])]
        strides = [0 if d == dim % out.dim() else step for d, step in enumerate(out.stride())]
        views = [*reads[:2], _view(self._memory(out), int(out.storage_offset()), index.shape, strides)]
        nest = {"k": _nest(views)}
        a_source, a_index, a_out = (self._at(view, k, nest) for k, view in enumerate(views))
        chosen = f"{out.stride(dim)} * checked({a_index}, {out.shape[dim]}, loop.bad)"
        add = _for(nest, f"{a_out[:-1]} + {chosen}] += {a_source};")
        return self._statements(operation, [self._copy(reads[2], self._view(out)), add], reads, [out])

    _SPECIAL: ClassVar[dict[str, Callable[[_Writer, Operation], bool]]] = {
        "mm": _product, "addmm": _product, "bmm": _product, "cat": _joined, "stack": _joined,
        "slice_backward": _padded, "select_backward": _padded, "scatter_add": _scattered,
    }  # fmt: skip

    def _call(self, operation: Operation) -> None:
        """Any other operation."""
        given = {self._memory(x) for x in operation.tensors()}
        results = [(k, x) for k, x in operation.results() if not operation.writes or self._memory(x) not in given]
        reads = [self._view(x) for x in operation.tensors()]
        self.calls.append((operation, results))
        code = [f"if (loop.call({len(self.calls) - 1})) return 1;"]
        writes = [*(operation.tensors() if operation.writes else ()), *(x for _, x in results)]
        self._statements(operation, code, reads, writes)

    # Places: when something is computed.

    def _loop_for(self, operation: Operation, target: _View, operands: Sequence[_View]) -> tuple[Step, _Loop]:
        """The first loop over the shape of `target` where its operands are known, or a new one."""
        phase, first = int(operation not in self.fixed), 0
        steps = self.phases[phase]
        for view in operands:
            for source in (view, view.index):
                written = self.written.get(source.memory, (-1, 0)) if source else (-1, 0)
                if written[0] == phase:
                    loop = steps[written[1]]
                    joins = isinstance(loop, _Loop) and loop.shape == target.shape and source in loop.values
                    first = max(first, written[1] + (not joins or source is not view))
        for k in range(len(steps) if operation.writes else first, len(steps)):
            loop = steps[k]
            if isinstance(loop, _Loop) and loop.shape == target.shape:
                return (phase, k), loop
        steps.append(new := _Loop(target.shape))
        return (phase, len(steps) - 1), new

    def _load(self, view: _View, step: Step, loop: _Loop) -> str:
        """The variable of the loop that has the element of `view`."""
        if view in loop.values:
            return loop.values[view]
        for source in (view.index, view):
            if source is not None:
                self._use(source.memory, step)
                loop.loads.setdefault(source, f"x{len(loop.loads)}")
        return loop.loads[view]

    def _statements(
        self, operation: Operation, code: Sequence[str], reads: Sequence[_View], writes: Sequence[Tensor]
    ) -> bool:
        phase = int(operation not in self.fixed)
        step = phase, len(self.phases[phase])
        self.phases[phase].append("\n".join(code))
        for view in reads:
            self._use(view.memory, step)
        for x in writes:
            self._use(self._memory(x), step, writes=True)
            self.read.add(self._memory(x))
        return True

    def _use(self, memory: int, step: Step, writes: bool = False) -> None:
        self.uses.setdefault(memory, []).append(step)
        if writes:
            self.written[memory] = step
        else:
            self.read.add(memory)

    # Memory.

    def _may_replace(self, result: _View, old: _View, bases: dict[int, tuple[int, int]]) -> bool:
        """Whether a result may be written over the carry, of which nothing is read later but its own element."""
        new = result.memory
        if new in bases or self.written.get(new, (0, 0))[0] == 0:
            return False
        step = self.written[new]
        loop = self.phases[1][step[1]]
        return (
            isinstance(loop, _Loop)
            and result in loop.values
            and result == replace(old, memory=new)
            and self.memories[new].untyped_storage().nbytes() == self.memories[old.memory].untyped_storage().nbytes()
            and self.uses[new][0] == step
            and all(use <= step for use in self.uses.get(old.memory, []))
            and all(view == old for view in loop.loads if view.memory == old.memory)
        )

    def _place_memory(self, bases: dict[int, tuple[int, int]], last: set[int]) -> int:
        """Adds where the other memories begin, which are used again when they are free; returns the number of bytes."""
        end, total = (2, 0), 0
        live: list[tuple[int, int, Step]] = []  # first byte, its end, last use
        for memory, uses in sorted(self.uses.items(), key=lambda item: min(item[1])):
            if memory in bases or memory in self.constants or memory not in self.read:
                continue
            born, dies = min(uses), max(uses)
            if memory in last or (born[0] == 0 and dies[0] == 1):
                dies = end
            size = -(-self.memories[memory].untyped_storage().nbytes() // 64) * 64
            live = sorted(x for x in live if x[2] >= born)
            start = 0
            for begin, stop, _ in live:
                if start + size <= begin:
                    break
                start = max(start, stop)
            live.append((start, start + size, dies))
            bases[memory] = -1, start
            total = max(total, start + size)
        return total

    def _pointer(self, memory: int, base: int, start: int) -> str:
        tensor, name = self.memories[memory], f"b{memory}"
        type_ = _TYPES[tensor.dtype]
        if memory in self.constants:
            elements = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).tolist()
            return f"static const {type_} {name}[] = {{{', '.join(map(_literal, elements))}}};"
        if memory == 0:
            return f"const int64_t* const {name} = &loop.i;"
        return f"{type_}* const {name} = ({type_}*)" + (
            f"loop.tensors[{base}];" if base >= 0 else f"(loop.memory + {start});"
        )

    def _torch_call(
        self, operation: Operation, results: Sequence[tuple[int, Tensor]], bases: dict[int, tuple[int, int]]
    ) -> TorchCall:
        def place(x: Tensor) -> Any:
            memory = self._memory(x)
            if memory in self.constants:
                return x
            if memory == 0:
                raise TypeError(f"there is no native code for {operation.function} of the number of an iteration")
            base, start = bases[memory]
            offset = start // x.element_size() + int(x.storage_offset())
            return Place(base, offset, tuple(x.shape), x.stride(), x.dtype)

        args, kwargs = tree_map_only(Tensor, place, (operation.args, operation.kwargs))
        into = tuple((k, place(x)) for k, x in results)
        return TorchCall(operation.function, args, kwargs, into, operation.with_gradient)

    # Code.

    def _code(self, step: _Loop | str) -> str:
        if isinstance(step, str):
            return step
        targets = [view for view in step.values if view.memory in self.read]
        if not targets:
            return ""
        views = [*step.loads, *targets]
        nest = {"k": _nest(views)}
        at = {view: self._at(view, k, nest) for k, view in enumerate(views)}
        indices = {view.index for view in step.loads if view.index}
        chosen: list[str] = []  # positions
        lines: list[str] = []
        for view, variable in step.loads.items():
            where = at[view]
            if view.index is not None:
                position = f"{view.scale} * checked({step.loads[view.index]}, {view.size}, loop.bad)"
                chosen.append(f"const int64_t p{variable} = {position};")
                where = f"{where[:-1]} + p{variable}]"
            load = f"const {_TYPES[self.memories[view.memory].dtype]} {variable} = {where};"
            (chosen if view in indices else lines).append(load)
        lines += [*step.lines, *(f"{at[view]} = {step.values[view]};" for view in targets)]
        if nest["k"] and not any(nest["k"][-1][1][views.index(view)] for view in indices):
            return _for(nest, "{\n" + "\n".join(lines) + "\n}", _SIMD, "\n".join(chosen))
        return _for(nest, "{\n" + "\n".join([*chosen, *lines]) + "\n}")

    def _copy(self, source: _View, target: _View, factor: float = 1) -> str:
        nest = {"k": _nest([source, target])}
        value = self._at(source, 0, nest) + ("" if factor == 1 else f" * {_literal(factor)}")
        return _for(nest, f"{self._at(target, 1, nest)} = {value};", _SIMD)

    def _at(self, view: _View, number: int, nests: dict[str, Nest]) -> str:
        """The element of the view with this `number` in loops."""
        loops = [(f"{name}{d}", steps[number]) for name, nest in nests.items() for d, (_, steps) in enumerate(nest)]
        terms = [str(view.offset), *(f"{variable} * {step}" for variable, step in loops if step)]
        return f"b{view.memory}[{' + '.join(terms)}]"


Nest = list[tuple[int, tuple[int, ...]]]
"""Loops, the outermost first: the size of each, and the step of each view in it."""


def _nest(views: Sequence[_View], which: Sequence[bool] | None = None) -> Nest:
    """As few loops as possible over the elements of views of one shape, along `which` dimensions (all by default).

    The innermost has the smallest steps, so that vectors of the processor can be loaded.
    """
    nest: Nest = []
    dims = [d for d in range(len(views[0].shape)) if which is None or which[d]]
    for d in sorted(dims, key=lambda d: (sum(view.strides[d] for view in views), -d)):
        steps, size = tuple(view.strides[d] for view in views), views[0].shape[d]
        if nest and steps == tuple(nest[-1][0] * step for step in nest[-1][1]):
            nest[-1] = nest[-1][0] * size, nest[-1][1]
        else:
            nest.append((size, steps))
    return nest[::-1]


def _for(nests: dict[str, Nest], body: str, simd: str = "", before: str = "") -> str:
    """Loops around `body`, the innermost of which has the pragma `simd`, and code before it."""
    loops = [(f"{name}{d}", size) for name, nest in nests.items() for d, (size, _) in enumerate(nest)]
    for k, size in reversed(loops):
        body = f"{{ {before}{simd}for (int64_t {k} = 0; {k} < {size}; ++{k}) {body} }}"
        simd = before = ""
    return body


def _view(memory: int, offset: int, shape: Sequence[int], strides: Sequence[int]) -> _View:
    kept = [d for d, size in enumerate(shape) if size != 1]
    return _View(memory, offset, tuple(shape[d] for d in kept), tuple(strides[d] for d in kept))


def _layout(x: Tensor) -> tuple[str, int] | None:
    """Of a matrix, or matrices: whether it lies by rows (N) or by columns (T), and the distance of these."""
    (rows, columns), (down, right) = x.shape[-2:], x.stride()[-2:]
    if (right == 1 or columns == 1) and (down >= columns or rows == 1):
        return "N", max(down, columns)
    if (down == 1 or rows == 1) and (right >= rows or columns == 1):
        return "T", max(right, rows)
    return None


def _literal(x: float) -> str:
    if isinstance(x, bool):
        return str(x).lower()
    if isinstance(x, float) and not math.isfinite(x):
        return "NAN" if math.isnan(x) else "INFINITY" if x > 0 else "-INFINITY"
    return repr(x)
