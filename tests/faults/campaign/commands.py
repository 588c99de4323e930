"""Odd command lines: known options with values that nobody would give, unknown ones, and wrong orders."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from tests.faults.campaign.sandbox import Sandbox, attack
from tests.faults.campaign.values import scalar

SMALL = ("--total-steps", "64", "--num-envs", "2", "--eval-episodes", "1", "--final-eval-episodes", "1")
COMMANDS = (
    "train",
    "resume",
    "eval",
    "play",
    "list",
    "report",
    "benchmark",
    "sft",
    "reward-model",
    "--version",
    "nothing",
)
LONG = {"total_steps", "eval_episodes", "final_eval_episodes", "num_steps", "epochs", "vf_epochs"}
"""Options that are not given: a legal large value of theirs would take long."""


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Runs one odd command."""
    shutil.copytree(finished_run(), sandbox.work / "run")
    return attack(sandbox, command(rng, str(sandbox.canary)))


def command(rng: Random, canary: str) -> list[str]:
    """The arguments of an odd command."""
    kind = rng.random()
    if kind < 0.6:
        algorithm = rng.choice(("reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"))
        words = ["train", algorithm, rng.choice(("CartPole-v1", "Pendulum-v1")), "--out", "new", *SMALL]
        names = options(algorithm)
        for _ in range(rng.randint(1, 3)):
            words += [f"--{rng.choice(names).replace('_', '-')}", scalar(rng, canary)]
    elif kind < 0.85:
        words = [rng.choice(COMMANDS), rng.choice(("run", "run/config.json", "absent", scalar(rng, canary)))]
        flags = ("--episodes", "--seed", "--checkpoint", "--json", "--quiet", "--threads", "--video", "--out")
        for _ in range(rng.randint(0, 2)):
            words += [rng.choice(flags), scalar(rng, canary)]
    else:
        words = [rng.choice((*COMMANDS, "-x", scalar(rng, canary))) for _ in range(rng.randint(0, 4))]
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        i = rng.randrange(len(words) + 1)
        words[i : i + rng.randrange(2)] = [scalar(rng, canary)]
    return [word for word in words if "\x00" not in word]  # no process can be given one


@cache
def options(algorithm: str) -> list[str]:
    from rlzoo.runs.configuration.config import assemble

    return sorted(set(assemble(algorithm, "CartPole-v1", {}).table) - LONG - {"env"})


@cache
def finished_run() -> Path:
    """A small run, which is copied into each sandbox."""
    import rlzoo

    path = Path(mkdtemp()) / "run"
    rlzoo.train("ppo-clip", "CartPole-v1", out=path, total_steps=256, num_envs=2, num_steps=32, checkpoint_interval=64)
    return path
