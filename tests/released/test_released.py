"""What released versions wrote can be used by this one: the fixtures beside this file, made by `make.py`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.core.system.version import __version__
from rlzoo.runs.checkpoint import FORMAT

HERE = Path(__file__).parent
RELEASES = sorted(path for path in HERE.iterdir() if (path / "expected.json").exists())

each_release = pytest.mark.parametrize("release", RELEASES, indirect=True, ids=lambda path: path.name)


@pytest.fixture
def release(request, tmp_path, monkeypatch):
    """A copy of a release's fixtures as the current directory, and what they are known to give."""
    monkeypatch.chdir(shutil.copytree(request.param, tmp_path / "release"))
    return json.loads(Path("expected.json").read_text())


def test_this_version_has_fixtures():
    assert HERE / __version__ in RELEASES, "run: python tests/released/make.py tests/released/VERSION"


@each_release
def test_everything_gives_what_it_gave(release, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    from make import said

    found = said()
    assert found.keys() == release.keys()
    for name, expected in release.items():
        if name in ("control", "boxes"):
            assert found[name]["evaluations"] == expected["evaluations"]
            for kind in ("returns", "best", "actions"):
                np.testing.assert_allclose(found[name][kind], expected[kind], rtol=1e-4, err_msg=f"{name}: {kind}")
        elif name == "scores":
            assert found[name] == pytest.approx(expected, rel=1e-4)
        else:
            assert found[name] == expected


@each_release
@pytest.mark.parametrize("name", ["control", "boxes", "language"])
def test_runs_can_be_resumed(release, name, capsys):
    run = rlzoo.Run.open(name)
    steps, metrics = run.steps()[-1], len(run.metrics())
    assert run.finished
    assert main(["resume", name, "--total-steps", str(steps + 200), "--quiet"]) == 0
    assert run.steps()[-1] >= steps + 200
    assert len(run.metrics()) > metrics


@each_release
@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "control", "--episodes", "2"],
        ["eval", "language", "--episodes", "2"],
        ["eval", "policy", "--episodes", "2"],
        ["play", "language", "--episodes", "2"],
        ["diagnose", "control"],
        ["report", "control", "boxes", "language", "--out", "report"],
        ["report", "results"],
        ["export", "control", "--format", "c", "--out", "policy.h"],
        ["train", "--config", "control", "--model", "control", "--out", "new", "--total-steps", "100", "--quiet"],
        ["sft", "prompts.txt", "--model", "sft", "--out", "more", "--epochs", "1"],
        ["sft", "prompts.txt", "--model", "language", "--out", "more", "--epochs", "1"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_take_them(release, arguments, capsys):
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@each_release
def test_a_suite_takes_its_results_or_says_what_to_do(release, capsys):
    code = main(["benchmark", "suite.yaml", "--out", "results", "--jobs", "1", "--quiet"])
    error = capsys.readouterr().err
    if code:
        assert code == 2
        assert error.count("\n") == 1
        assert "give another --out, or --overwrite" in error


@each_release
def test_models_need_only_transformers(release):
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    for name in ("sft", "language/start", "language/actor"):
        AutoModelForCausalLM.from_pretrained(name)
        assert AutoTokenizer.from_pretrained(name).decode(AutoTokenizer.from_pretrained(name)("a good day").input_ids)
    assert AutoModelForSequenceClassification.from_pretrained("reward").config.num_labels == 1


# What cannot be used says what can be done


@pytest.mark.parametrize(
    ("version", "entries", "written_by"),
    [
        (1, {}, "the rlzoo that wrote it"),
        (FORMAT + 1, {"versions": {"rlzoo": "9.1.0"}}, "the rlzoo that wrote it, 9.1.0"),
        (4, {"versions": {"rlzoo": "9.1.0"}, "git_commit": "ab"}, "the rlzoo that wrote it, 9.1.0 at commit ab"),
        (FORMAT + 1, {"versions": "none"}, "the rlzoo that wrote it"),
        ("3", {}, "the rlzoo that wrote it"),
    ],
)  # fmt: skip
def test_another_format_says_which_rlzoo_reads_it(version, entries, written_by, tmp_path):
    run = rlzoo.Run(shutil.copytree(RELEASES[0] / "control", tmp_path / "run"))
    record = json.loads((run.path / "config.json").read_text())
    for name in ("versions", "git_commit"):
        record.pop(name, None)
    (run.path / "config.json").write_text(json.dumps(record | {"format": version} | entries))
    with pytest.raises(RunError) as error:
        run.read_config()
    expected = f"config.json has format {version}; this rlzoo reads {FORMAT}: use {written_by}"
    assert str(error.value).endswith(expected)
