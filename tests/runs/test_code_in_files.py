"""Parts of a run that are named `file.py:Name`: found again by a later process, and listed."""

import json
import subprocess
import sys

import pytest
import short_runs

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import ConfigError, UnknownEnv
from rlzoo.core.system.functions import import_source, load_function

CODE = """
from dataclasses import dataclass

import gymnasium

from rlzoo import GAE, PPOClip
from rlzoo.control.networks import Network
from parts_helper import HALF


@dataclass(frozen=True)
class Mine(PPOClip):
    extra: float = HALF


class MyGAE(GAE):
    pass


@dataclass(frozen=True)
class Small(Network):
    pass


class Keep(gymnasium.Wrapper):
    pass


def make(length=50):
    return gymnasium.make("CartPole-v1", max_episode_steps=length)


def rate(progress):
    return 1e-3 * (1 - progress)
"""
PARTS = {
    "algorithm": "code/parts.py:Mine", "env": "code/parts.py:make", "estimator": "code/parts.py:MyGAE",
    "network": "code/parts.py:Small", "wrappers": ("code/parts.py:Keep",), "learning_rate": "code/parts.py:rate",
}  # fmt: skip


def test_a_module_of_the_directory_before_is_not_taken_for_that_of_this_one(tmp_path, monkeypatch):
    for folder, score in (("first", 1), ("second", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own_scores.py").write_text(f"def score(prompts, responses): return [{score}]\n")
    monkeypatch.chdir(tmp_path / "first")
    assert load_function("reward", "own_scores:score")([], []) == [1]
    monkeypatch.chdir(tmp_path / "second")
    with pytest.raises(ConfigError, match=r"own_scores was imported from .*first.* before: name the file, own_scores"):
        load_function("reward", "own_scores:score")
    assert load_function("reward", "own_scores.py:score")([], []) == [2]


def test_files_of_two_folders_have_a_helper_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, rate in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "its_helper.py").write_text(f"class Rate: x = {rate}\n")
        for name in ("peer", "other"):
            (tmp_path / folder / f"{name}.py").write_text("from its_helper import Rate\n")
    peers, others = ([import_source(f"{folder}/{x}.py").Rate for folder in ("one", "two")] for x in ("peer", "other"))
    assert [peer.x for peer in peers] == [1, 2]
    assert others == peers
    assert sys.modules["its_helper"].Rate is peers[0]


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "parts.py").write_text(CODE)
    (tmp_path / "code" / "parts_helper.py").write_text("HALF = 0.5\n")
    return {**short_runs.QUICK, "minibatch_size": 50, "epochs": 1, **PARTS, "out": "run"}


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_of_parts_in_a_file(asynchronous, parts, tmp_path):
    few = {"num_envs": 2, "eval_episodes": 2, "final_eval_episodes": 2}
    run = rlzoo.train(**parts | few, async_envs=asynchronous)
    record = json.loads((run.path / "config.json").read_text())
    assert {name: record[name] for name in PARTS} == PARTS | {"wrappers": list(PARTS["wrappers"])}
    assert record["extra"] == 0.5
    assert record["objects"] == {}
    command = [sys.executable, "-m", "rlzoo", "resume", "run", "--total-steps", "700", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert rlzoo.Run("run").steps()[-1] >= 700


@pytest.mark.parametrize("folder", ["./code", "code", "../{}/code"])
def test_a_path_may_begin_with_dots(folder, parts, tmp_path):
    network = f"{folder.format(tmp_path.name)}/parts.py:Small"
    run = rlzoo.train(**parts | {"network": network, "total_steps": 1})
    assert run.record["network"] == network
    assert rlzoo.evaluate(run, 1).lengths.size == 1


def test_a_file_is_read_again_when_it_has_changed(parts, tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    first = import_source("a.py")
    assert import_source("a.py") is first
    path.write_text("x = 22\n")
    assert import_source("a.py").x == 22
    (tmp_path / "code" / "a.py").write_text("x = 3\n")
    assert import_source("code/a.py").x == 3
    assert import_source("a.py").x == 22


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"algorithm": "code/part.py:Mine"}, ConfigError, "algorithm 'code/part.py:Mine': no file 'code/part.py'; did"),
        ({"algorithm": "code/parts.py:Yours"}, ConfigError, "algorithm 'code/parts.py:Yours': .*'Yours'"),
        ({"estimator": "code/parts.py:Mine"}, ConfigError, "'code/parts.py:Mine' is no Estimator"),
        ({"env": "code/parts.py:mak"}, ConfigError, "has no Task or function of this name"),
        ({"env": "code/none.py:make"}, UnknownEnv, "no file 'code/none.py'"),
        ({"wrappers": ["code/none.py:Keep"]}, ConfigError, "wrapper 'code/none.py:Keep': no file"),
        ({"learning_rate": "code/none.py:rate"}, ConfigError, "schedule 'code/none.py:rate': no file"),
        ({"env": "a" * 300 + ".py:make"}, UnknownEnv, "a.py cannot be read: File name too long"),
    ],
)
def test_what_a_file_does_not_have(change, kind, message, parts):
    with pytest.raises(kind, match=message):
        rlzoo.train(**parts | change)


def test_list_shows_the_parts_in_the_current_directory(parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path / "code")
    more = ["class Other(Mine): pass", "class _Own(Mine): pass", "def made() -> gymnasium.Env[int, int]: ..."]
    more += ["def score(prompts, responses, answer): ...", "def tool(conversations): ..."]
    (tmp_path / "code" / "parts.py").write_text("\n".join([CODE, *more]))
    (tmp_path / "code" / "broken.py").write_text("def (:")
    (tmp_path / "code" / "raises.py").write_text("raise SystemExit('imported')\nclass A(rlzoo.Task[int]): '\\d'\n")
    assert main(["list", "--json"]) == 0
    here = [(x["kind"], x["name"]) for x in json.loads(capsys.readouterr().out)["here"]]
    named = {"algorithm": "Mine", "estimator": "MyGAE", "network": "Small", "wrapper": "Keep"}
    expected = [(kind, f"parts.py:{name}") for kind, name in named.items()]
    expected += [("algorithm", "parts.py:Other"), ("environment", "parts.py:made")]
    expected += [("score", "parts.py:score"), ("reply", "parts.py:tool"), ("task", "raises.py:A")]
    assert here == expected
    assert main(["list"]) == 0
    assert "in the files of this directory\n  algorithm    parts.py:Mine\n" in capsys.readouterr().out
