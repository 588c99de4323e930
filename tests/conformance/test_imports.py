"""Who may import whom, read from the sources; and the public names."""

import ast
import functools
import graphlib
import importlib
import inspect
import re
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

MAY_IMPORT = {
    "core": set(),
    "optim": {"core"},
    "algorithms": {"core", "optim"},
    "control": {"core", "optim"},
    "lm": {"core"},
    "runs": {"core", "optim", "algorithms", "control", "lm"},
    "benchmark": {"core", "optim", "algorithms", "control", "lm", "runs"},
    "cli": {"core", "optim", "algorithms", "control", "lm", "runs", "benchmark"},
}
"""The rooms, and those that each may import. `rlzoo/__init__.py` and `__main__.py` stand outside."""

LM_MAY_IMPORT = {
    "model": set(),
    "reward": {"model"},
    "finetune": {"model", "reward"},
    "tasks": {"model", "reward", "finetune"},
    "fast": {"model"},
}
"""The same within `rlzoo.lm`."""

LM_SETTINGS = "rlzoo.lm.tasks.settings"
"""Pure data."""

WHEN_USED = ("rlzoo.runs.finetune",)
"""The commands sft and reward-model, imported when they are used."""


def imports(node, at_import=False):
    """Names of the modules that the code below `node` imports; with `at_import` only those at the import of the code.

    Type hints are included, and so are names in functions, unless `at_import`.
    """
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
        elif at_import and is_for_types(child):
            for branch in child.orelse:
                yield from imports(branch, at_import)
        elif not (at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)):
            yield from imports(child, at_import)


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


@functools.cache
def tree(module):
    return ast.parse(MODULES[module].read_text())


def room(module):
    return module.split(".")[1] if module.startswith("rlzoo.") else ""


def lm_room(module):
    return module.split(".")[2] if module.startswith("rlzoo.lm.") else ""


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_room_imports_only_what_it_may(name):
    mine = [module for module in MODULES if room(module) == name]
    assert mine
    for module in mine:
        used = {room(other) for other in imports(tree(module))} - {""}
        assert used <= MAY_IMPORT[name] | {name}, module


@pytest.mark.parametrize("name", LM_MAY_IMPORT)
def test_room_of_lm_imports_only_what_it_may(name):
    mine = [module for module in MODULES if lm_room(module) == name]
    assert mine
    for module in mine:
        used = {lm_room(other) for other in imports(tree(module))} - {""}
        assert used <= LM_MAY_IMPORT[name] | {name}, module


# One seam for speed


SEAM = "rlzoo.runs.acceleration"
"""The one module outside of the packages `fast` that imports them."""
SPEED = r"\b(Tape|Packed|mkldnn|FastAdam|FastMLP|numpy_actor|\w*fast\.\w+)\b"
"""What only makes a computation quicker."""
SLOW_MODULES = [module for module in MODULES if "fast" not in module.split(".") and module != SEAM]


@pytest.mark.parametrize("module", SLOW_MODULES)
def test_module_outside_of_the_seam_knows_no_faster_implementation(module):
    assert not [other for other in imports(tree(module)) if "fast" in other.split(".")]
    if room(module) in ("core", "optim", "algorithms", "control", "lm"):
        assert not re.search(SPEED, MODULES[module].read_text())


def test_seam_is_used_where_a_run_is_trained_where_it_is_loaded_and_where_its_defaults_are_chosen():
    users = {module for module in MODULES if SEAM in imports(tree(module))}
    assert users == {"rlzoo.runs.loop", "rlzoo.runs.evaluate", "rlzoo.runs.configuration.defaults"}


COLLECTIVES = {
    "broadcast",
    "broadcast_",
    "all_gather",
    "all_gather_shares_",
    "gather_shares",
    "all_reduce",
    "all_reduce_",
}
"""What processes exchange in the middle of an iteration stands in `optim` and in the collector."""


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in ("core", "algorithms", "control", "lm")])
def test_processes_exchange_numbers_in_optim_and_the_collector_alone(module):
    used = {node.attr for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute)}
    if not module.endswith((".processes", ".collector")):
        assert not used & (COLLECTIVES | {"rowwise"})


def test_buffer_knows_no_process():
    assert not any("processes" in other for other in imports(tree("rlzoo.core.buffer")))


def test_every_module_is_in_a_room():
    assert {room(module) for module in MODULES} - {"", "__main__"} == MAY_IMPORT.keys()
    assert {lm_room(module) for module in MODULES} - {""} == LM_MAY_IMPORT.keys()


def test_folders_hold_at_most_14_modules():
    for folder in {path.parent for path in MODULES.values()}:
        assert len(list(folder.glob("*.py"))) <= 14, folder


def test_top_of_the_package_has_at_most_ten_entries():
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__", "py.typed", "__init__.pyi"}
    assert len(entries) <= 10, entries


def test_no_imports_go_round_in_a_circle():
    graph = {module: [m for m in imports(tree(module)) if m in MODULES] for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) != "lm" and not m.startswith(WHEN_USED)])
def test_transformers_is_imported_in_lm_alone(module):
    found = {m for m in imports(tree(module), at_import=True) if m.split(".")[0] == "transformers" or room(m) == "lm"}
    assert found <= {LM_SETTINGS}
    assert not any(m.startswith(WHEN_USED) for m in imports(tree(module), at_import=True))


# Nothing but the registry knows a kind of task by name.


def test_registry_names_tasks_by_strings_alone():
    assert {room(m) for m in imports(tree("rlzoo.runs.registry"))} - {""} == {"core"}
    modules = {entry.path.split(":")[0] for entry in importlib.import_module("rlzoo.runs.registry").TASKS.values()}
    assert modules <= MODULES.keys()


KNOWING = {"rlzoo", "rlzoo.runs.registry"}


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) != "lm" and m not in KNOWING])
def test_no_other_module_knows_a_language_task(module):
    source = MODULES[module].read_text()
    assert not re.search(r"RandomWalks|Reviews|\bPrompts\b|LanguageTask|\bLanguage\(", source)


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in ("core", "optim", "algorithms", "runs")])
def test_no_module_asks_for_a_kind_of_task(module):
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            assert not re.search(r"Control|Language|LMEnv|GymnasiumEnv", ast.unparse(node.args[1])), ast.unparse(node)


# What an import costs


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import rlzoo, rlzoo.runs.train, rlzoo.runs.evaluate, rlzoo.runs.loop", "transformers"),
        ("from rlzoo.runs.configuration.config import make_config; make_config('ppo', 'CartPole-v1')", "transformers"),
        ("import rlzoo", "torch"),
        ("import rlzoo.cli", "torch"),
        ("import rlzoo.cli; rlzoo.cli.main(['--help'])", "torch"),
        ("import rlzoo.runs.registry", "torch"),
        ("import rlzoo.lm", "torch"),
    ],
)
def test_import_leaves_the_heavy_library_alone(statement, absent):
    code = f"import sys; {statement}; sys.exit({absent!r} in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_control_training_never_imports_transformers(tmp_path):
    code = f"""
import sys, rlzoo
small = dict(total_steps=200, num_envs=2, num_steps=50, minibatch_size=50, hidden=(4,), eval_episodes=2)
run = rlzoo.train("ppo-clip", "CartPole-v1", out={str(tmp_path / "run")!r}, preset=False, **small)
rlzoo.evaluate(run, 2)
sys.exit("transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The public names


def homes():
    """name -> module, as `rlzoo/__init__.pyi` has it, which type checkers and lazy imports read."""
    stub = ast.parse(Path(rlzoo.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: f"rlzoo.{node.module}" for node in imports for alias in node.names}


def test_public_names_are_those_of_the_stub():
    assert sorted(rlzoo.__all__) == sorted(homes())


@pytest.mark.parametrize("name", rlzoo.__all__)
def test_public_name_can_be_imported(name):
    value = getattr(rlzoo, name)
    assert name in dir(rlzoo)
    assert value is getattr(importlib.import_module(homes()[name]), name)
    if name != "__version__":
        assert value.__doc__, "it is documented"


def test_functions_are_not_hidden_by_modules_of_the_same_name():
    importlib.import_module("rlzoo.runs.train")
    importlib.import_module("rlzoo.runs.evaluate")
    assert inspect.isfunction(rlzoo.train)
    assert inspect.isfunction(rlzoo.evaluate)
    assert inspect.isfunction(rlzoo.play)


def test_packages_are_plain_modules():
    for name in (*MODULES, "rlzoo"):
        if name != "rlzoo.__main__" and name in sys.modules:
            assert type(sys.modules[name]) is type(sys), name


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"attribute.*trian"):
        _ = rlzoo.trian


@pytest.mark.parametrize("module", [m for m in MODULES if "\n__all__ = " in MODULES[m].read_text()])
def test_every_name_of_all_exists(module):
    package = importlib.import_module(module)
    assert all(hasattr(package, name) for name in package.__all__)
