"""What files and models say is shown as text: by every command that shows it."""

import json

import pytest
import short_runs

from rlzoo.cli import main

ESCAPE = "\x1b]0;title\x07\u202e\ud800[red]"
SHOWN = r"\x1b]0;title\x07\u202e\ud800[red]"


@pytest.fixture
def run(tmp_path):
    return short_runs.quick_run(tmp_path / "run", total_steps=100)


def change(run, **entries):
    path = run.path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def shown(capsys, *arguments):
    """The exit code, and the text on both screens, which holds nothing but text."""
    code = main([str(x) for x in arguments])
    out, err = capsys.readouterr()
    assert (out + err).replace("\n", "").isprintable()
    return code, out, err


def test_environment_of_a_config(run, capsys):
    change(run, env=f"{ESCAPE}\nsecond-v0")
    for command in (["eval", run.path], ["play", run.path], ["resume", run.path], ["train", "--config", run.path]):
        code, out, err = shown(capsys, *command)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert SHOWN in err


def test_settings_on_a_help_page(run, capsys):
    change(run, env_kwargs={ESCAPE: ESCAPE})
    _, out, _ = shown(capsys, "train", "--config", run.path, "--help-all")
    assert SHOWN in "".join(out.split())


def test_versions_and_names_in_a_report(run, capsys, tmp_path):
    change(run, versions={ESCAPE: ESCAPE}, wrappers=[ESCAPE])
    assert shown(capsys, "report", run.path, "--out", tmp_path / "report")[0] == 0
    for name in ("report.md", "report.html"):
        text = (tmp_path / "report" / name).read_text()
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert text.replace("&#92;", "\\").count(SHOWN) == 2


def test_command_line_itself(capsys):
    code, out, err = shown(capsys, "train", ESCAPE.replace("\ud800", ""), "CartPole-v1")
    assert (code, out, err.count("\n")) == (2, "", 1)
