"""Damaged run directories: every file of a control or language run, damaged, replaced, missing, or no file at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import cache
from pathlib import Path
from random import Random

from tests.faults.campaign import tasks
from tests.faults.campaign.sandbox import Sandbox, attack
from tests.faults.campaign.values import MOST, damaged, scalar

EPISODES = ("--episodes", "1")
COMMANDS = (
    ("resume", "run"),
    ("resume", "run", "--total-steps", "320"),
    ("resume", "run", "--total-steps", "320", "--json"),
    ("resume", "run", "--checkpoint", "128"),
    ("eval", "run", *EPISODES),
    ("eval", "run", *EPISODES, "--checkpoint", "best", "--json"),
    ("play", "run", "--json", *EPISODES),
    ("diagnose", "run"),
    ("diagnose", "run", "--json"),
    ("report", "run", "--out", "page"),
    ("report", ".", "--out", "page"),
    ("export", "run", "--out", "policy.h"),
    ("export", "run", "--out", "policy.pt"),
    ("push", "run", "./shared"),
    ("train", "--config", "run", "--out", "new", "--total-steps", "64", "--quiet"),
    ("train", "ppo-clip", "CartPole-v1", "--model", "run", "--out", "new", "--total-steps", "64", "--num-envs", "2"),
    ("train", "--config", "run", "--out", "run", "--overwrite", "--total-steps", "64", "--quiet"),
)
LANGUAGE = (
    ("resume", "run"),
    ("resume", "run", "--total-steps", "60"),
    ("eval", "run", *EPISODES),
    ("eval", "run", *EPISODES, "--checkpoint", "best", "--json"),
    ("play", "run", *EPISODES),
    ("play", "run", *EPISODES, "--json"),
    ("diagnose", "run"),
    ("report", "run", "--out", "page"),
    ("export", "run", "--out", "policy.h"),
    ("push", "run", "./shared"),
    ("train", "--config", "run", "--out", "new", "--total-steps", "12", "--quiet"),
    ("sft", "texts.txt", "--model", "run", "--out", "new", "--epochs", "1", "--quiet"),
)


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Damages a run in one or two places, and uses it."""
    run, language = sandbox.work / "run", rng.random() < 0.3
    shutil.copytree(language_run() if language else control_run(), run)
    if language:
        (sandbox.work / "texts.txt").write_text("an aeon\nout of\nan idea, a one\n")
    for _ in range(rng.choice((1, 1, 2))):
        _damage(rng, run, sandbox)
    if rng.random() < 0.5:
        _vouch(run)
    return attack(sandbox, rng.choice(LANGUAGE if language else COMMANDS))


@cache
def control_run() -> Path:
    """A small run, which is copied into each sandbox."""
    from rlzoo import train

    path = tasks.scratch() / "control-run"
    small = {"num_envs": 2, "num_steps": 32, "minibatch_size": 32, "hidden": (8,), "final_eval_episodes": 3}
    train(
        "ppo-clip", "CartPole-v1", out=path, total_steps=256, checkpoint_interval=64, eval_episodes=2, epochs=1,
        normalize_obs=True, normalize_reward=True, **small,
    )  # fmt: skip
    return path


@cache
def language_run() -> Path:
    """A small run of a tiny language model."""
    from rlzoo import train

    path, data = tasks.scratch() / "language-run", tasks.data()
    small = {
        "responses_per_batch": 4,
        "responses_per_prompt": 2,
        "max_new_tokens": 3,
        "minibatch_responses": 4,
        "epochs": 1,
    }
    train(
        "ppo-clip", "Prompts", out=path, model=str(data / "model"), prompts=str(data / "prompts.txt"),
        reward=tasks.VOWELS, total_steps=40, eval_episodes=2, final_eval_episodes=2, **small,
    )  # fmt: skip
    return path


def _damage(rng: Random, run: Path, sandbox: Sandbox) -> None:
    files = sorted(
        p
        for p in run.rglob("*")
        if p.is_file() and not p.is_symlink() and p.stat().st_size < MOST and ".tfevents." not in p.name
    )
    folders = sorted(p for p in run.rglob("*") if p.is_dir() and not p.is_symlink())
    paths = folders if rng.random() < 0.05 or not files else files
    if not paths:  # an earlier damage removed them
        return
    path = rng.choice(paths)
    kind = rng.randrange(9)
    if path.is_dir():
        shutil.rmtree(path)
        if kind > 2:
            other_kind(rng, path, sandbox)
    elif kind <= 2:
        path.write_bytes(damaged(rng, path.read_bytes()))
    elif kind <= 4 and path.suffix in (".json", ".jsonl"):
        change_json(rng, path, str(sandbox.canary))
    elif kind == 5:
        path.unlink()
    else:
        path.unlink()
        other_kind(rng, path, sandbox)


def change_json(rng: Random, path: Path, canary: str) -> None:
    """Puts a value that does not belong there into a JSON file, or into a line of a JSON-lines file."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    i = rng.randrange(len(lines))
    try:
        record = json.loads(lines[i])
    except ValueError:  # it is damaged already
        return
    if not (isinstance(record, dict) and record):
        return
    parent, key = record, rng.choice(sorted(record))
    while isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.8:
        parent = parent[key]
        key = rng.choice(sorted(parent) if isinstance(parent, dict) else range(len(parent)))
    numbers = (0, -1, 2**31, 2**63, 10**40, 10**400, 1e308, -1e308, float("inf"), float("nan"), True, None)
    parent[key] = rng.choice((*numbers, [], {}, [[]], {"numpy": "/x"}, {"tensor": []}, scalar(rng, canary)))
    lines[i] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n", errors="replace")


def other_kind(rng: Random, path: Path, sandbox: Sandbox) -> None:
    """Puts something in the place of a file that is none, or a huge one."""
    kind = rng.randrange(7)
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
    elif kind == 5:
        path.symlink_to(sandbox.outside)
    else:
        with path.open("wb") as file:
            file.truncate(rng.choice((2**30 + 1, 200 * 2**30)))


def _vouch(run: Path) -> None:
    """Writes manifests with the checksums of whatever is there."""
    for manifest in run.glob("checkpoints/*/manifest.json"):
        names = ("model.safetensors", "state.safetensors", "state.json")
        files = [manifest.with_name(name) for name in names]
        if all(p.is_file() and not p.is_symlink() and p.stat().st_size < 2**24 for p in (manifest, *files)):
            sums = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
            manifest.write_text(json.dumps(sums))
