"""Every dependency is declared with both bounds, and its oldest version is one that `.ci/run` tests."""

import ast
import importlib.metadata
import itertools
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import gguf_files
import pytest
import short_runs
from packaging.requirements import Requirement

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


def distributions(requirements, known=()):
    """The installed distributions that requirements ask for, with those that these ask for, by name and extra."""
    found = set(known)
    for requirement in map(Requirement, requirements):
        name = requirement.name.lower()
        for extra in {"", *requirement.extras}:
            if (name, extra) not in found:
                found.add((name, extra))
                own = PROJECT["optional-dependencies"][extra] if name == "rlzoo" else importlib.metadata.requires(name)
                asks = [x for x in own or () if name == "rlzoo" or is_asked(Requirement(x).marker, extra)]
                found |= distributions(asks, found)
    return found


def is_asked(marker, extra):
    plain = marker is None or marker.evaluate({"extra": ""})
    return plain if not extra else not plain and marker.evaluate({"extra": extra})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "arguments"),
    [
        ("gguf", ["chat", "tiny.gguf", "--max-new-tokens", "2"]),
        ("mlflow", ["resume", "run", "--total-steps", "800"]),
        ("onnx", ["export", "run", "--format", "onnx"]),
        ("report", ["report", "run", "--out", "report"]),
        ("video", ["play", "run", "--video", "video.mp4"]),
    ],
)
def test_an_extra_brings_all_that_it_needs(extra, arguments, tmp_path, monkeypatch):
    """In a Python that sees what `pip install rlzoo[extra]` installs, and nothing else."""
    monkeypatch.chdir(tmp_path)
    gguf_files.write("tiny.gguf")
    short_runs.quick_run("run", track="mlflow" if extra == "mlflow" else None)
    Path("packages").mkdir()
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra]]
    for name in {name for name, _ in distributions(needed)} - {"rlzoo"}:
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__", "docs"}:
            link, here = Path("packages", top), Path(distribution.locate_file(top)).resolve()
            if here.exists() and not link.exists():
                link.symlink_to(here)
    environment = {**os.environ, "PYTHONPATH": f"packages{os.pathsep}{ROOT}", "RLZOO_CACHE": "cache"}
    command = [sys.executable, "-S", "-m", "rlzoo", *arguments]
    done = subprocess.run(command, input="Hello\n", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if extra == "report":
        assert Path("report/curves.csv").exists()
        assert "still figures" not in done.stdout + done.stderr
