"""The `rlzoo` command, also `python -m rlzoo`."""

import collections
import io
import os
import signal
import sys
from typing import NoReturn

from rlzoo.runs.signals import INTERRUPTED, deferred_interrupts, interrupt_once


def main() -> NoReturn:
    """Runs the command and exits. Ctrl-C gives at most one line of text, whenever it comes."""
    code = None
    try:
        interrupt_once()
        _open_streams()
        with deferred_interrupts():
            from rlzoo.cli import main as run_command

        code = run_command()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # while the interpreter shuts down
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if code is None:
            print("rlzoo: interrupted", file=sys.stderr)
            code = INTERRUPTED
    try:
        sys.stdout.flush()
    except OSError:  # the other end is closed or the disk is full; Python would try again and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # A KeyboardInterrupt that left an `exec` of text makes `python -m` end by the signal, unless Python executes other
    # text after it, as for a named tuple.
    collections.namedtuple("Done", ())
    sys.exit(code)


def _open_streams() -> None:
    """Gives the process the standard streams that it lacks, and lets its output escape what an encoding lacks."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
            os.dup2(getattr(sys, name).fileno(), number)
            os.set_inheritable(number, True)  # by the processes that this one starts
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
