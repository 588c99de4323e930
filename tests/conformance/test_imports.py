"""Who may import whom, read from the sources."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import rlzoo

ROOT = Path(rlzoo.__file__).parent
MODULES = {
    ".".join(("rlzoo", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}

# A room that is not listed lies outside: it may import any, and none that is listed may import it.
MAY_IMPORT = {
    "errors": set(),
    "fields": {"errors"},
    "distributions": set(),
    "compilation": set(),
    "buffer": {"distributions"},
    "estimators": {"buffer", "fields", "errors"},
    "models": {"buffer", "distributions", "errors"},
    "networks": {"models", "distributions", "fields", "errors"},
    "first_order": {"buffer", "compilation", "models", "networks", "errors"},
    "second_order": {"buffer", "distributions", "models", "errors"},
    "algorithms": {
        "buffer", "distributions", "estimators", "models", "first_order", "second_order", "fields", "errors",
    },
    "presets": {"errors"},
    "envs": {"errors"},
    "actors": {"models", "networks", "fields", "errors"},
    "collect": {"actors", "buffer", "envs", "models", "errors"},
    "episodes": {"actors", "envs", "models", "errors"},
    "task": {"algorithms", "buffer", "collect", "episodes", "models"},
    "control": {"task", "lm", "actors", "collect", "episodes", "envs", "models", "networks", "fields", "errors"},
    "lm": {
        "task", "algorithms", "buffer", "collect", "compilation", "distributions", "episodes", "envs", "estimators",
        "models", "fields", "errors",
    },
    "config": {"control", "lm", "task", "algorithms", "estimators", "networks", "presets", "fields", "errors"},
    "checkpoint": set(),
    "files": {"errors"},
    "run": {"checkpoint", "config", "files", "errors"},
    "evaluate": {"episodes", "models", "run", "task", "errors"},
    "trainer": {"algorithms", "checkpoint", "collect", "config", "models", "task"},
}  # fmt: skip

# What others may import of the room of language models when they are imported: settings and names.
LIGHT = {"rlzoo.lm", "rlzoo.lm.tasks.settings"}


def is_for_types_alone(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports(node, at_import=False):
    """Names of the modules that the code below `node` imports; with `at_import` only when it is itself imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            submodules = [f"{child.module}.{alias.name}" for alias in child.names]
            found = [name for name in submodules if name in MODULES]
            yield from found
            if len(found) < len(submodules):
                yield child.module
        elif is_for_types_alone(child):
            for branch in child.orelse:
                yield from imports(branch, at_import)
        elif not (at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from imports(child, at_import)


def tree(module):
    return ast.parse(MODULES[module].read_text())


def room(module):
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_room_imports_only_what_it_may(name):
    mine = [module for module in MODULES if room(module) == name]
    assert mine
    for module in mine:
        used = {room(other) for other in imports(tree(module)) if other.startswith("rlzoo.")}
        assert used <= MAY_IMPORT[name] | {name}, module


def test_no_imports_go_round_in_a_circle():
    graph = {module: [m for m in imports(tree(module)) if m in MODULES] for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) != "lm"])
def test_transformers_is_imported_in_the_language_model_room_alone(module):
    at_import = set(imports(tree(module), at_import=True))
    assert not {m for m in at_import if m.split(".")[0] == "transformers" or room(m) == "lm"} - LIGHT


@pytest.mark.parametrize("module", ["rlzoo.runs.config", "rlzoo.control.task"])
def test_rooms_within_know_of_language_models_their_settings_alone(module):
    assert {m for m in imports(tree(module)) if room(m) == "lm"} <= LIGHT


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import rlzoo, rlzoo.runs.train, rlzoo.runs.evaluate, rlzoo.runs.play", "transformers"),
        ("from rlzoo.runs.config import make_config; make_config('ppo', 'RandomWalks')", "transformers"),
        ("import rlzoo.cli", "torch"),
        ("import rlzoo.lm", "torch"),
    ],
)
def test_import_leaves_the_heavy_library_alone(statement, absent):
    code = f"import sys; {statement}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
