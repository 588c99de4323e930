"""Suites of training runs and their reports: `rlzoo benchmark` and `rlzoo report`."""

from __future__ import annotations

from pathlib import Path

_ROOTS = Path(__file__).parent, Path(__file__).parents[2] / "benchmarks"
"""Where the suites and the peers are: in an installed package, and in a checkout."""


def known_peers() -> dict[str, Path]:
    """Files of the peers, by the names of their libraries: sb3, tianshou, rejax."""
    return {path.stem.removeprefix("with_"): path for root in _ROOTS for path in sorted(root.glob("peers/with_*.py"))}


def known_suites() -> dict[str, Path]:
    """Files of the named suites, by name."""
    return dict(sorted((path.stem, path) for root in _ROOTS for path in root.glob("suites/*.yaml")))
