"""What a display shows of long operations, and that it is never silent for long."""

import io
import re
import threading
import time

import pytest

from rlzoo.core.system.progress import Operation, operation
from rlzoo.runs.logs import display
from rlzoo.runs.logs.display import Display, LineDisplay, LiveDisplay, display_for


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    return clock


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at(clock, monkeypatch):
    """Sets the operations that run, each (name, total, done, start), and the time."""

    def at(now, *operations, unit="", note=""):
        clock.now = now
        new = [Operation(name, total, unit, done, note, start) for name, total, done, start in operations]
        monkeypatch.setattr(display, "running", new)

    return at


def test_lines_break_a_silence_and_say_what_is_left(at):
    shown = LineDisplay(io.StringIO())
    for second in range(1, 33):
        at(100.0 + second, ("update", None, 0, 100.0), ("minibatch", 40, second // 2, 100.0))
        shown.look()
    assert shown._file.getvalue().splitlines() == [
        "update: minibatch 5/40  2 s each  1:10 left",
        "update: minibatch 10/40  2 s each  1:00 left",
        "update: minibatch 15/40  2 s each  0:50 left",
    ]


@pytest.mark.parametrize(
    ("operations", "unit", "note", "line"),
    [
        ([("scoring", None, 0, 100.0)], "", "", "scoring  0:20"),
        ([("evaluation", 64, 0, 100.0), ("scoring", None, 0, 115.0)], "", "", "evaluation 0/64: scoring  0:20"),
        ([("sampling", 384, 100, 110.0)], "tokens", "", "sampling 100/384 tokens  10 tokens/s  0:28 left"),
        (
            [("evaluation", 60, 40, 100.0), ("scoring", 3, 2, 1.0)],
            "",
            "",
            "evaluation 40/60: scoring 2/3  2/s  0:10 left",
        ),
        ([("step", 8, 2, 100.0)], "", "loss 3.1", "step 2/8, loss 3.1  10 s each  1:00 left"),
    ],
)
def test_what_a_line_says(at, operations, unit, note, line):
    shown = LineDisplay(io.StringIO())
    at(120.0, *operations, unit=unit, note=note)
    shown.look()
    assert shown._file.getvalue() == f"{line}\n"


def test_short_work_has_no_line(at):
    shown = LineDisplay(io.StringIO())
    at(109.0, ("update", 9, 3, 100.0))
    shown.look()
    at(130.0)
    shown.look()
    assert shown._file.getvalue() == ""


def test_slow_iteration_has_a_line_before_its_tenth_and_after_a_line_of_its_operations(clock, at):
    shown = LineDisplay(io.StringIO())
    shown.start(0, 1000)
    for step in range(10, 60, 10):
        clock.now += 3
        shown.update({"step": step, "mean_return": 1.0})
    at(clock.now + 10, ("update", None, 0, clock.now))
    shown.look()
    shown.update({"step": 60, "mean_return": 1.0})
    lines = [line.split("/")[0].strip() for line in shown._file.getvalue().splitlines()]
    assert lines == ["20", "40", "update  0:10", "60"]


def test_display_looks_by_itself_until_it_is_left(monkeypatch):
    monkeypatch.setattr(LineDisplay, "patience", 0.0)
    monkeypatch.setattr(LineDisplay, "interval", 0.01)
    out = io.StringIO()
    with LineDisplay(out) as shown, operation("update"):
        deadline = time.monotonic() + 10
        while "update" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert out.getvalue().startswith("update  0:00\n")
    assert shown._watcher is None
    threads = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    assert not [thread for thread in threads if "_watch" in thread.name]


def plain(text):
    return re.sub(r"\x1b\[[\d;?]*\w", "", text)


def test_terminal_gets_a_bar_that_is_removed(at, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    shown = LiveDisplay(Terminal())
    at(101.0, ("step", 20, 1, 100.0))
    shown.look()
    assert shown._file.getvalue() == ""
    at(104.0, ("step", 20, 8, 100.0), note="loss 3.1")
    shown.look()
    shown.say("epoch 1/2: loss 3")
    assert "step 8/20, loss 3.1  2/s  0:06 left" in plain(shown._file.getvalue())
    assert re.search(r"[\r\n]epoch 1/2: loss 3 *\n", plain(shown._file.getvalue()))
    shown.close()
    assert shown._file.getvalue().endswith("\x1b[2K")  # the line of the bar is cleared
    shown.say("after")
    assert shown._file.getvalue().endswith("after\n")


def test_bar_of_a_run_shows_what_takes_long_and_then_the_iteration(at, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    shown = LiveDisplay(Terminal())
    shown.start(0, 1200)
    at(106.0, ("update", None, 0, 100.0), ("minibatch", 24, 3, 100.0))
    shown.look()
    assert "0/1,200  update: minibatch 3/24  2 s each  0:42 left" in plain(shown._file.getvalue())
    shown.update({"step": 400, "mean_return": 0.5, "kl_reference": 0.1})
    shown.close()
    lines = [line.strip() for line in plain(shown._file.getvalue()).splitlines()]
    assert "400/1,200 tokens  score      0.5  kl_ref 0.1       67 tokens/s  0:12 left" in lines
    assert " 400/1,200  score      0.5" in lines[-1]


def test_display_for_a_switch_or_a_display(capsys):
    own = Display()
    assert display_for(own) is own
    display_for(False).say("nothing")
    display_for(True).say("something")
    assert capsys.readouterr().out == "something\n"


FOREIGN = "\x1b]0;title\x07 [red]x[/red] [/] :smile: \u202e \ud800"
SHOWN = r"\x1b]0;title\x07 [red]x[/red] [/] :smile: \u202e \ud800"


def test_text_of_others_is_shown_as_it_is(at):
    shown = LineDisplay(io.StringIO())
    at(120.0, (FOREIGN, None, 0, 100.0))
    shown.look()
    shown.say(FOREIGN)
    assert shown._file.getvalue() == f"{SHOWN}  0:20\n{SHOWN}\n"


def test_text_of_others_beside_a_bar_is_neither_a_command_nor_markup(at, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = LiveDisplay(Terminal())
    shown.say(FOREIGN)
    at(120.0, (FOREIGN, None, 0, 100.0))
    shown.look()
    shown.say(FOREIGN)
    shown.close()
    text = plain(shown._file.getvalue())
    assert text.count(SHOWN) >= 3
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e\ud800]", text)
