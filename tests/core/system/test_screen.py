"""Text on the screen: what commands a terminal is shown as text."""

import io

import pytest

from rlzoo.core.system.screen import complain, one_line, printable, show

ATTACKS = {
    "colour": ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
    "title of the window": ("\x1b]0;pwned\x07", r"\x1b]0;pwned\x07"),
    "clipboard": ("\x1b]52;c;cm0=\x1b\\", r"\x1b]52;c;cm0=\x1b" + "\\"),
    "link": ("\x1b]8;;http://x\x1b\\a", r"\x1b]8;;http://x\x1b" + "\\a"),
    "eight-bit CSI": ("\x9b2J", r"\x9b2J"),
    "carriage return": ("bad\rgood", r"bad\rgood"),
    "backspace": ("bad\b\b\bgood", r"bad\x08\x08\x08good"),
    "delete": ("a\x7f", r"a\x7f"),
    "null": ("a\0b", r"a\x00b"),
    "right to left": ("\u202egnp.exe", r"\u202egnp.exe"),
    "isolate": ("\u2066a\u2069", r"\u2066a\u2069"),
    "invisible": ("\u200ba\ufeff\u00adb", r"\u200ba\ufeff\xadb"),
    "tag characters": ("\U000e0041", r"\U000e0041"),
    "surrogate": ("\ud800", r"\ud800"),
    "line separator": ("a\u2028b", r"a\u2028b"),
    "tab": ("a\tb", r"a\tb"),
}


@pytest.mark.parametrize(("text", "shown"), ATTACKS.values(), ids=ATTACKS)
def test_commands_are_shown_as_in_python(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    "text",
    ["plain [red] :smile: <b>", "two\nlines", "naïve 日本語\u3000全角", "👩\u200d🔬", "می\u200cروم", "1\u202f000"],
)
def test_ordinary_text_is_kept(text):
    assert printable(text) == text


def test_one_line_has_no_line_breaks():
    assert one_line("a\nb\r\nc\u2028d\x1b") == r"a b c d\x1b"
    assert one_line(ValueError("x\ny")) == "x y"


def test_what_the_encoding_lacks_is_escaped():
    box = io.TextIOWrapper(io.BytesIO(), "ascii")
    show("π ± \ud800 \x1b", box)
    assert box.buffer.getvalue() == rb"\u03c0 \xb1 \ud800 \x1b" + b"\n"


def test_an_error_cannot_look_like_two(capsys):
    complain("no file 'a\nrlzoo: all is well\x1b[2K'")
    assert capsys.readouterr() == ("", "rlzoo: no file 'a rlzoo: all is well\\x1b[2K'\n")
