"""Every dependency is declared with both bounds, and its oldest version is one that `.ci/run` tests."""

import ast
import itertools
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "pyproject.toml").read_text()
PROJECT = tomllib.loads(TEXT)["project"]
REQUIREMENTS = [*itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())]
MODULES = {"yaml": "pyyaml", "markdown_it": "markdown-it-py", "mlflow": "mlflow-skinny", "PIL": "matplotlib",
           "onnxscript": "onnx", "pandas": "datasets", "vl_convert": "vl-convert-python"}  # fmt: skip
"""Names of modules that are not those of their distributions."""
PEERS = {"stable_baselines3", "sb3_contrib", "tianshou", "rejax", "gymnax", "jax", "trl"}


def name_of(requirement):
    return re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-")


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_requirement_has_both_bounds(requirement):
    pinned = "==" in requirement
    part_of_another = re.fullmatch(r"(rlzoo|gymnasium)\[[\w,-]+\]", requirement)
    without_a_lowest = requirement == "gymnax<1"  # a part of rejax, which is pinned
    both = re.fullmatch(r"[\w-]+(\[\w+\])?>=[\d.]+,<[\d.]+", requirement)
    assert both or pinned or part_of_another or without_a_lowest


def test_imported_packages_are_declared():
    declared = {name_of(requirement) for requirement in REQUIREMENTS}
    found = set()
    for path in (ROOT / "rlzoo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module.partition(".")[0])
    others = found - set(sys.stdlib_module_names) - {"rlzoo"} - PEERS
    assert {"torch", "transformers", "joblib"} <= others
    assert {MODULES.get(name, name).lower().replace("_", "-") for name in others} <= declared


def test_oldest_versions_are_the_lower_bounds():
    oldest = runpy.run_path(str(ROOT / ".ci/oldest.py"))["oldest"](TEXT)
    lowest = dict(line.split("==") for line in oldest)
    assert "torch" not in lowest
    runtime = {name_of(requirement): requirement for requirement in PROJECT["dependencies"]}
    assert lowest.keys() >= runtime.keys() - {"torch"}
    for name in runtime.keys() - {"torch"}:
        assert f">={lowest[name]},<" in runtime[name]
