"""Damaged suites: valid files with values, keys, nesting, anchors and bytes that do not belong there."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.faults.campaign.sandbox import Sandbox, watched
from tests.faults.campaign.values import damaged, scalar

SUITES = Path(__file__).parents[3] / "benchmarks" / "suites"
TEXTS = (
    "a: &a [*a]\n",
    "algorithms: &a\n  x: *a\nenvironments: [CartPole-v1]\nseeds: 0-1\n",
    "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nalgorithms: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
    "!!python/object/apply:os.system ['touch CANARY']\n",
    "algorithms: !!python/name:os.system\n",
    "algorithms: [trpo]\nenvironments: [CartPole-v1]\nseeds: 0-99999999999\n",
    "algorithms: [trpo]\nenvironments: [CartPole-v1]\nseeds: [2020-01-01]\n",
    "algorithms: [trpo]\nenvironments: {CartPole-v1: {total_steps: 1e400}}\nseeds: [0]\n",
    "[" * 100_000,
    "{" * 5_000,
    "? [a]\n: b\n",
    "? {a: b}\n: c\n",
    "<<: [1]\n",
    "---\na: 1\n---\nb: 2\n",
    "%YAML 9.9\n---\n",
    "\ufeffalgorithms: [trpo]\n",
    "a: !!int 0x\n",
    "seeds: !!timestamp x\n",
    "a: !!binary '@'\n",
    "a: 1:2:3:4:5:6:7:8\n",
    "1: 2\nnull: 3\n",
)


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Loads one hostile suite."""
    from rlzoo.benchmark.suite import load_suite
    from rlzoo.core.system.errors import ConfigError
    from rlzoo.lm.tasks import random_walks, reviews  # noqa: F401 - importing them takes long the first time

    path = sandbox.work / "suite.yaml"
    path.write_bytes(text(rng, str(sandbox.canary)))

    def act() -> int:
        try:
            load_suite(path)
        except ConfigError as error:
            return check(str(error))
        return 0

    def check(message: str) -> int:
        assert "\n" not in message, f"more than one line: {message!r}"
        assert message.startswith(f"{path}, line "), f"the line of the file is not named: {message!r}"
        return 0

    return watched(sandbox, act)


def text(rng: Random, canary: str) -> bytes:
    """The text of a hostile suite."""
    if rng.random() < 0.15:
        return rng.choice(TEXTS).replace("CANARY", canary).encode()
    original = rng.choice([p for p in sorted(SUITES.glob("*.yaml")) if "peers" not in p.name])
    if rng.random() < 0.4:
        return damaged(rng, original.read_bytes())
    content = yaml.safe_load(original.read_text())
    for _ in range(rng.randint(1, 3)):
        _change(rng, content, canary)
    return yaml.safe_dump(content, allow_unicode=True, sort_keys=False).encode(errors="replace")


def _change(rng: Random, content: dict[str, Any], canary: str) -> None:
    """Changes a value, a key or a kind somewhere in the tree."""
    nodes: list[tuple[Any, Any]] = []

    def walk(x: Any) -> None:
        for key in list(x) if isinstance(x, dict) else range(len(x)) if isinstance(x, list) else ():
            nodes.append((x, key))
            walk(x[key])

    walk(content)
    if not nodes:
        return
    parent, key = rng.choice(nodes)
    kind = rng.randrange(5)
    if kind == 0:
        parent[key] = _value(rng, canary)
    elif kind == 1:
        parent[key] = [copy.deepcopy(parent[key])] * rng.choice((0, 1, 3))
    elif kind == 2:
        parent[key] = {_key(rng, canary): copy.deepcopy(parent[key])}
    elif kind == 3 and isinstance(parent, dict):
        parent[_key(rng, canary)] = parent.pop(key)
    else:
        del parent[key]


def _value(rng: Random, canary: str) -> Any:
    word = scalar(rng, canary)
    with contextlib.suppress(yaml.YAMLError, ValueError, OverflowError):
        return yaml.safe_load(word) if rng.random() < 0.7 else word
    return word


def _key(rng: Random, canary: str) -> Any:
    value = _value(rng, canary)
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
