"""The `rlzoo` command, also `python -m rlzoo`."""

import sys
from typing import NoReturn

from rlzoo.runs.signals import INTERRUPTED, deferred_interrupts, ignore_interrupts, interrupt_once


def main() -> NoReturn:
    """Runs the command and exits. Ctrl-C gives at most one line of text, whenever it comes."""
    code = None
    try:
        interrupt_once()
        with deferred_interrupts():
            from rlzoo.cli import main as run_command

        code = run_command()
        ignore_interrupts()
    except KeyboardInterrupt:
        ignore_interrupts()
        if code is None:
            print("rlzoo: interrupted", file=sys.stderr)
            code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
