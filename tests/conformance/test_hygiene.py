"""No code that runs what a file says, and no printing past `rlzoo.core.system.screen`, read from the sources."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("rlzoo", "benchmarks", "docs")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)
UNPICKLING = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib.load", "pandas.read_pickle",
    "pd.read_pickle", "torch.package",
}  # fmt: skip
"""Modules and functions that unpickle."""
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.hub.load", "builtins.eval"}
SAFE_LOADERS = {"SafeLoader", "CSafeLoader", "yaml.SafeLoader", "yaml.CSafeLoader"}


def faults(text: str) -> list[str]:
    """What in a module could run the contents of a file."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(text))
        if _imports(node) or (isinstance(node, ast.Call) and _runs(node))
    ]


def _imports(node: ast.AST) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
    if isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
    return any(name in UNPICKLING or name.partition(".")[0] in UNPICKLING for name in names)


def _runs(call: ast.Call) -> bool:
    """Whether a call unpickles, evaluates text, starts a shell, or loads code or objects with a file."""
    name = ast.unparse(call.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    method = name.rpartition(".")[2]
    unsafe_yaml = name.startswith("yaml.") and method in {
        "unsafe_load", "full_load", "unsafe_load_all", "full_load_all", "load_all", "load",
    }  # fmt: skip
    if unsafe_yaml and method in ("load", "load_all"):
        loader = given.get("Loader") or (ast.unparse(call.args[1]) if len(call.args) > 1 else "")
        unsafe_yaml = loader not in SAFE_LOADERS
    return (
        name in CALLS
        or name in UNPICKLING
        or (name == "torch.load" and given.get("weights_only") != "True")
        or given.get("trust_remote_code", "False") != "False"
        or given.get("allow_pickle", "False") != "False"
        or given.get("shell", "False") != "False"
        or unsafe_yaml
    )


def test_nothing_runs_what_a_file_says():
    assert {path.relative_to(ROOT).parts[0] for path in SOURCES} == {"rlzoo", "benchmarks", "docs"}
    found = {(path.relative_to(ROOT).as_posix(), fault) for path in SOURCES for fault in faults(path.read_text())}
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as d",
        "from joblib import load",
        "import joblib\njoblib.load(f)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "os.system(text)",
        "subprocess.run(text, shell=True)",
        "subprocess.run(text, shell=shell)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=trusted)",
        "yaml.load(text)",
        "yaml.load(text, yaml.Loader)",
        "yaml.load(text, Loader=yaml.FullLoader)",
        "yaml.unsafe_load(text)",
    ],
)
def test_each_of_these_is_a_fault(text):
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "torch.load(f, weights_only=True)",
        "np.load(f)",
        "subprocess.run(['git', 'log'])",
        "yaml.safe_load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "AutoModel.from_pretrained(name, trust_remote_code=False)",
        "re.compile(text)",
    ],
)
def test_none_of_these_is(text):
    assert not faults(text)


def test_loader_of_suites_is_safe():
    import yaml

    from rlzoo.benchmark.suite import _Loader

    assert issubclass(_Loader, yaml.SafeLoader)
    constructors = {tag for tag in _Loader.yaml_constructors if tag is not None and "python" in tag}
    assert not constructors


def test_models_of_the_hub_bring_no_code():
    """Every model, configuration and tokenizer that is loaded says that it does not want the code beside it."""
    trees = [ast.parse(path.read_text()) for path in SOURCES if path.is_relative_to(ROOT / "rlzoo")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [x for x in nodes if re.search(r"(?i)\bauto\w*\.from_(pretrained|config)$", ast.unparse(x.func))]
    assert len(calls) == 6
    assert all("trust_remote_code" in {keyword.arg for keyword in call.keywords} for call in calls)


def test_screen_is_reached_by_one_way():
    """`print` and writing to standard output show only what the package says itself."""
    found = []
    for path in SOURCES:
        if not path.is_relative_to(ROOT / "rlzoo") or path == ROOT / "rlzoo/core/system/screen.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            constant = all(isinstance(x, ast.Constant) for x in node.args)
            if (name == "print" and not constant) or name in ("sys.stdout.write", "sys.stderr.write", "console.print"):
                found.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert found == []
