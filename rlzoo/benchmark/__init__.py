"""Suites of training runs and their reports: `rlzoo benchmark` and `rlzoo report`."""

from __future__ import annotations

from pathlib import Path

_FOLDERS = (Path(__file__).parent / "suites", Path(__file__).parents[2] / "benchmarks" / "suites")
"""Folders of named suites: in an installed package, and in a checkout."""


_PEERS = (Path(__file__).parent / "peers", Path(__file__).parents[2] / "benchmarks" / "peers")


def known_peers() -> dict[str, Path]:
    """Files of the peers, by the names of their libraries: sb3, tianshou, rejax."""
    return {path.stem.removeprefix("with_"): path for folder in _PEERS for path in sorted(folder.glob("with_*.py"))}


def known_suites() -> dict[str, Path]:
    """Files of the named suites, by name."""
    return {path.stem: path for folder in _FOLDERS for path in sorted(folder.glob("*.yaml"))}
