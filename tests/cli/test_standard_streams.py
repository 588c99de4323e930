"""Commands without a terminal: streams that are closed, full or of few letters."""

import subprocess
import sys

import pytest

import rlzoo

COMMAND = f"{sys.executable} -m rlzoo"


def shell(line):
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed):
    done = shell(f"{COMMAND} --version {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if closed.startswith(">&-") else f"rlzoo {rlzoo.__version__}\n")


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
