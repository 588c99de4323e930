"""Damaged run directories: every file of a run, damaged, replaced, missing, or another kind of file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from random import Random

from tests.faults.campaign.commands import finished_run
from tests.faults.campaign.sandbox import Sandbox, attack
from tests.faults.campaign.values import damaged, scalar

COMMANDS = (
    ["resume", "run"],
    ["resume", "run", "--total-steps", "320"],
    ["eval", "run", "--episodes", "1"],
    ["eval", "run", "--episodes", "1", "--checkpoint", "best"],
    ["play", "run", "--json"],
)


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Damages a run in one or two places, and uses it."""
    run = sandbox.work / "run"
    shutil.copytree(finished_run(), run)
    for _ in range(rng.choice((1, 1, 2))):
        _damage(rng, run, sandbox)
    if rng.random() < 0.5:
        _vouch(run)
    return attack(sandbox, rng.choice(COMMANDS))


def _damage(rng: Random, run: Path, sandbox: Sandbox) -> None:
    files = sorted(p for p in run.rglob("*") if p.is_file() and not p.is_symlink() and not p.name.startswith("."))
    path = rng.choice(files)
    kind = rng.randrange(8)
    if kind <= 2:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind == 3 and path.suffix == ".json":
        _change_json(rng, path, str(sandbox.canary))
    elif kind == 4:
        path.unlink()
    else:
        path.unlink()
        _other_kind(rng, path, sandbox)


def _change_json(rng: Random, path: Path, canary: str) -> None:
    record = json.loads(path.read_text())
    parent, key = record, rng.choice(sorted(record))
    while isinstance(parent[key], dict) and parent[key] and rng.random() < 0.8:
        parent = parent[key]
        key = rng.choice(sorted(parent))
    numbers = (0, -1, 2**31, 2**63, 10**40, 1e308, -1e308, float("inf"), float("nan"), True, None)
    parent[key] = rng.choice((*numbers, [], {}, [[]], {"numpy": "/x"}, {"tensor": []}, scalar(rng, canary)))
    path.write_text(json.dumps(record), errors="replace")


def _other_kind(rng: Random, path: Path, sandbox: Sandbox) -> None:
    kind = rng.randrange(6)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        path.symlink_to(path.name)
    elif kind == 4:
        path.symlink_to(sandbox.outside / "precious.txt")
    else:
        with path.open("wb") as file:
            file.truncate(rng.choice((2**30, 200 * 2**30)))


def _vouch(run: Path) -> None:
    """Writes manifests with the checksums of whatever is there."""
    for manifest in run.glob("checkpoints/*/manifest.json"):
        names = ("model.safetensors", "state.safetensors", "state.json")
        files = [manifest.with_name(name) for name in names]
        if manifest.is_file() and all(p.is_file() and not p.is_symlink() and p.stat().st_size < 2**24 for p in files):
            sums = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
            manifest.write_text(json.dumps(sums))
