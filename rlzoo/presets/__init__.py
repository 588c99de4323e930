"""Tuned settings for pairs of algorithm and environment, as data: one TOML file an algorithm."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def find_preset(algorithm: str, env: str) -> dict[str, Any] | None:
    """Flat settings for `make_config`, or None if the pair has no preset."""
    file = resources.files(__name__) / f"{algorithm}.toml"
    if not file.is_file():
        return None
    return tomllib.loads(file.read_text()).get(env)


def environments() -> dict[str, list[str]]:
    """Environments that have presets, each with the algorithms that it has them for."""
    found: dict[str, list[str]] = {}
    for file in sorted(resources.files(__name__).iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            for env in tomllib.loads(file.read_text()):
                found.setdefault(env, []).append(file.name.removesuffix(".toml"))
    return dict(sorted(found.items()))
