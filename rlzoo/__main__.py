"""The `rlzoo` command, also `python -m rlzoo`."""

import sys
from typing import NoReturn

from rlzoo.runs.signals import INTERRUPTED, deferred_interrupts, exit_on_lost_interrupts, exit_on_signals


def main() -> NoReturn:
    """Runs the command and exits. A signal gives at most one line of text, whenever it arrives."""
    exit_on_lost_interrupts()
    try:
        with deferred_interrupts():
            from rlzoo.cli import main as run_command

        code = run_command()
    except KeyboardInterrupt:
        print("rlzoo: interrupted", file=sys.stderr)
        code = INTERRUPTED
    exit_on_signals(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
