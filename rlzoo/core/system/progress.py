"""Progress of long operations, for a display that may show it."""

from __future__ import annotations


class Progress:
    """Callbacks for the progress of long operations. This class shows nothing; a display overrides its methods."""

    def say(self, line: str) -> None:
        """Shows a line of text."""

    def advance(self, share: float, line: str) -> None:
        """Shows how far an operation is. It is called often, and a display shows some of the calls.

        Args:
            share: the part of the operation that is done, from 0 to 1.
            line: the operation and its state, such as "epoch 2/3: loss 3.14".
        """


SILENT = Progress()
"""Shows nothing."""
