"""Text for the screen and for pages. A model, a file or an environment may have supplied parts of it.

Everything that the package prints goes through `show`, so no text commands the terminal.
"""

from __future__ import annotations

import contextlib
import sys
import unicodedata
from typing import Any, TextIO

_COMMANDS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories: controls such as ESC, marks of direction and other invisible characters, surrogates, line and
paragraph separators."""
_KEPT = "\n\u200c\u200d"
"""Line breaks, and the joiners that Persian and emoji are written with."""


def printable(text: str) -> str:
    r"""Text without characters that command a terminal or reorder what it shows: they are written as in Python, \x1b.

    Line breaks are kept.
    """
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in _COMMANDS and c not in _KEPT else c for c in text)


def one_line(text: Any) -> str:
    """`printable` text in which spaces take the place of line breaks."""
    return printable(" ".join(str(text).splitlines()))


def show(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Prints `printable` text on a file, by default standard output. Escapes what its encoding lacks as Python does."""
    file = file or sys.stdout
    encoding = getattr(file, "encoding", None) or "utf-8"  # a process without a terminal may have no stream
    print(printable(text).encode(encoding, "backslashreplace").decode(encoding), file=file, end=end, flush=True)


def complain(line: str) -> None:
    """Prints an error or a warning as one line on standard error, if that can be written to."""
    with contextlib.suppress(OSError):
        show(f"rlzoo: {one_line(line)}", sys.stderr)
