"""What lies in the current directory and can be named `file.py:Name`. Files are read and never imported."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from rlzoo.core.system.files import read_bytes
from rlzoo.runs.registry import ALGORITHMS, TASKS

_MOST, _LARGEST = 200, 2**20
"""Files that are read, and bytes of the largest."""
_BASES = {
    "algorithm": {"Algorithm", *(entry.path.rpartition(":")[2] for entry in ALGORITHMS.values())},
    "estimator": {"Estimator", "GAE", "MonteCarlo", "LeaveOneOut", "GroupMean", "GroupNorm"},
    "network": {"NetworkSettings", "Network", "CNN", "GRU", "LSTM"},
    "task": {*TASKS},
    "environment": {"Env"},
    "wrapper": {"Wrapper", "ObservationWrapper", "RewardWrapper", "ActionWrapper"},
}
"""Names of the classes that each kind of part inherits from. Other classes of tasks have names that end in Task."""
_ARGUMENTS = {"score": ["prompts", "responses"], "reply": ["conversations"]}
"""Names of the first arguments of functions."""


def parts_here() -> list[tuple[str, str]]:
    """(kind, name) of the parts in the Python files here, by the names of base classes and arguments."""
    parts = []
    for path in sorted(Path().glob("*.py"))[:_MOST]:
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse(read_bytes(path, _LARGEST))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        parts += [(kind, f"{path}:{name}") for kind, name in _parts(tree) if not name.startswith("_")]
    return parts


def _parts(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The parts of a file, of which a class may inherit from one above it."""
    kinds = {base: kind for kind, bases in _BASES.items() for base in bases}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [name for name in map(_last_name, node.bases) if name in kinds or name.endswith("Task")]
            kind = kinds.get(bases[0], "task") if bases else None
            if kind is not None:
                kinds[node.name] = kind
                yield kind, node.name
        elif isinstance(node, ast.FunctionDef):
            arguments = [x.arg for x in node.args.args]
            for kind, first in _ARGUMENTS.items():
                if arguments[: len(first)] == first:
                    yield kind, node.name
            if _last_name(node.returns) == "Env":
                yield "environment", node.name


def _last_name(node: ast.expr | None) -> str:
    """`Env` of `gymnasium.Env[int, int]`."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
