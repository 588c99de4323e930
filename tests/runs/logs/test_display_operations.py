"""What a display shows of long operations, and that it is never silent for long."""

import io
import re

import pytest

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


def test_lines_break_a_silence_and_say_what_is_left(clock):
    shown = LineDisplay(io.StringIO())
    for second in range(1, 13):
        clock.now = 100.0 + second
        shown.advance(second / 20, f"epoch 1/2: loss {second}")
    shown.advance(1.0, "end")
    assert shown._file.getvalue().splitlines() == [
        " 25%  epoch 1/2: loss 5  0:15 left",
        " 50%  epoch 1/2: loss 10  0:10 left",
    ]


def test_another_operation_has_a_time_of_its_own(clock):
    shown = LineDisplay(io.StringIO())
    shown.advance(0.9, "first")
    clock.now += 50
    shown.advance(0.1, "second")
    clock.now += 6
    shown.advance(0.4, "second")
    assert shown._file.getvalue().splitlines() == [" 10%  second", " 40%  second  0:12 left"]


def test_slow_run_has_a_line_before_its_tenth(clock):
    shown = LineDisplay(io.StringIO())
    shown.start(0, 1000)
    for step in range(10, 60, 10):
        clock.now += 3
        shown.update({"step": step, "mean_return": 1.0})
    assert [line.split("/")[0].strip() for line in shown._file.getvalue().splitlines()] == ["20", "40"]


def test_terminal_gets_a_bar_with_lines_above(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = LiveDisplay(Terminal())
    shown.advance(0.2, "epoch 1/2: loss 3")
    clock.now += 2
    shown.advance(0.4, "epoch 1/2: loss 2")
    shown.say("epoch 1/2: loss 2")
    shown.close()
    text = re.sub(r"\x1b\[[\d;?]*\w", "", shown._file.getvalue())
    assert "20%  epoch 1/2: loss 3" in text
    assert "40%  epoch 1/2: loss 2  0:06 left" in text
    assert re.search(r"[\r\n]epoch 1/2: loss 2", text)
    shown.say("after")
    assert shown._file.getvalue().endswith("after\n")


def test_display_for_a_switch_or_a_display(capsys):
    own = Display()
    assert display_for(own) is own
    display_for(False).say("nothing")
    display_for(True).say("something")
    assert capsys.readouterr().out == "something\n"


FOREIGN = "\x1b]0;title\x07 [red]x[/red] [/] :smile: \u202e \ud800"
SHOWN = r"\x1b]0;title\x07 [red]x[/red] [/] :smile: \u202e \ud800"


def test_text_of_others_is_shown_as_it_is(clock):
    shown = LineDisplay(io.StringIO())
    clock.now += 6
    shown.advance(0.5, FOREIGN)
    shown.say(FOREIGN)
    assert shown._file.getvalue() == f" 50%  {SHOWN}\n{SHOWN}\n"


def test_text_of_others_beside_a_bar_is_neither_a_command_nor_markup(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = LiveDisplay(Terminal())
    shown.say(FOREIGN)
    shown.advance(0.5, FOREIGN)
    shown.say(FOREIGN)
    shown.close()
    text = re.sub(r"\x1b\[[\d;?]*\w", "", shown._file.getvalue())
    assert text.count(SHOWN) >= 3
    assert not re.search(r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e\ud800]", text)
