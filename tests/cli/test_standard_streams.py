"""Commands without a terminal: streams that are closed, full or of few letters."""

import io
import subprocess
import sys
from shlex import quote
from types import SimpleNamespace

import pytest

import rlzoo
from rlzoo.benchmark.seeds import create_runs
from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.runs.configuration.config import make_config

COMMAND = f"{sys.executable} -m rlzoo"


def shell(line):
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed):
    done = shell(f"{COMMAND} --version {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if closed.startswith(">&-") else f"rlzoo {rlzoo.__version__}\n")


def test_workers_have_the_streams_that_were_closed():
    code = "import os; from rlzoo.__main__ import _open_streams as f; f(); print(*map(os.get_inheritable, range(3)))"
    assert shell(f"{sys.executable} -c {quote(code)} <&- 2>&-").stdout == "True True True\n"


@pytest.mark.parametrize("stream", [">&-", "2>&-", "2>/dev/full"])
def test_an_error_without_a_stream_for_it(stream):
    done = shell(f"{COMMAND} lisst {stream}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == (stream == ">&-")


def test_a_full_disk_as_output():
    done = shell(f"{COMMAND} --help > /dev/full")
    assert (done.returncode, done.stderr) == (1, "rlzoo: [Errno 28] No space left on device\n")


def test_a_reader_that_has_gone():
    done = shell(f"{COMMAND} --help | true")
    assert (done.returncode, done.stderr) == (0, "")


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_a_search_goes_on_without_a_reader(monkeypatch):
    def search(*_, say, **__):
        say("trial 1")
        raise RunError("the trial after it")

    monkeypatch.setattr("rlzoo.benchmark.search.search", search)
    monkeypatch.setattr(sys, "stdout", Gone())
    assert main(["search", "ppo", "CartPole-v1"]) == 2


def test_failed_seeds_are_named_without_a_reader(tmp_path, monkeypatch, capsys):
    create_runs(tmp_path, make_config("ppo", "CartPole-v1"), [1, 2])
    failed = SimpleNamespace(error="no luck", traceback=None)
    monkeypatch.setattr("rlzoo.benchmark.seeds.train_seeds", lambda runs, **_: {1: failed, 2: failed})
    monkeypatch.setattr(sys, "stdout", Gone())
    assert main(["resume", str(tmp_path), "--json"]) == 1
    assert capsys.readouterr().err.count("no luck") == 2


def test_help_in_ascii():
    done = shell(f"PYTHONIOENCODING=ascii {COMMAND} train trpo CartPole-v1 --help")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\u03bb" in done.stdout


def test_text_without_any_stream(monkeypatch):
    from rlzoo.core.system.screen import complain, show

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    show("text")
    complain("text")
