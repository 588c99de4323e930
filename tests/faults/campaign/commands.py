"""Odd command lines: every command, with values that nobody would give, unknown options and wrong orders."""

from __future__ import annotations

import gc
import os
import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from tests.faults.campaign import tasks
from tests.faults.campaign.directories import control_run
from tests.faults.campaign.sandbox import Sandbox, attack
from tests.faults.campaign.values import scalar

ALGORITHMS = ("reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip", "ppo", "rlzoo.algorithms:TRPO")
SMALL = {"total_steps": "64", "num_envs": "2", "eval_episodes": "1", "final_eval_episodes": "1", "num_steps": "32",
         "minibatch_size": "32", "vf_minibatch_size": "32"}  # fmt: skip
"""Options of every run: without them a legal command would take long."""
ILLEGAL = ("0", "-1", "1e400", "-1e400", "nan", "inf", "2.5", "", " ", "x", "1e-3", "½", "9" * 400, "9" * 5000, "1,5")
"""Values of options of which a legal large one would take long, or fill the memory."""
FITTING = {
    int: ("0", "1", "2", "3", "1e0", "-1"),
    float: ("0", "1", "-1", "0.5", "3e38", "1e38", "-3e38", "1e-320", "1e-45", "1e308", "1e20", "-0.0"),
    str: ("none", "tanh", "relu", "cpu", "cuda", "all", "gae", "rloo", "grpo", "mlp", "cnn", "linear:1:0", "math:exp",
          "linear:3e38:0", "linear:0:1e308", "math:log", "math:lgamma", "os:abort:x", "json:loads", "builtins:eval",
          "time:sleep", "sys:exit", "this:nothing", "reward.py:score", "run", "all"),
}  # fmt: skip
"""Values of the right kind for an option, most of which no training withstands."""
LONG = {
    *SMALL, "epochs", "vf_epochs", "episodes", "trials", "cg_iters", "backtrack_iters", "hidden", "checkpoint_interval",
    "eval_interval", "jobs", "batch_size", "validation_seeds", "seeds",
}  # fmt: skip
PAIR = ("ppo-clip", "CartPole-v1")
SEARCH = {"trials": "1", "total_steps": "64", "seeds": "0", "validation_seeds": "1", "jobs": "1"}
FIT = {"model": "data/model", "out": "new", "epochs": "1"}
FITS = (
    "learning_rate", "warmup", "weight_decay", "max_grad_norm", "held_out", "seed", "batch_size", "micro_batch_tokens",
    "device", "overwrite",
)  # fmt: skip
FORMS = {
    "resume": ("run", {}, ("total_steps", "checkpoint", "jobs", "threads", "json", "quiet")),
    "eval": ("run", {"episodes": "1"}, ("episodes", "seed", "checkpoint", "deterministic", "json", "threads")),
    "play": ("run", {"episodes": "1"}, ("episodes", "seed", "checkpoint", "video", "json", "threads", "deterministic")),
    "export": ("run", {"format": "c"}, ("format", "out", "checkpoint")),
    "push": ("run ./new", {}, ("private", "checkpoint")),
    "report": ("run", {"out": "new"}, ("out", "json")),
    "diagnose": ("run", {}, ("json", "run", "out")),
    "benchmark": ("suite.yaml", {"jobs": "1"}, ("out", "jobs", "backend", "overwrite", "quiet")),
    "search": (" ".join(PAIR), SEARCH, (*SEARCH, "out", "set", "try", "quiet", "json")),
    "sft": ("data/texts.txt", FIT, (*FIT, *FITS, "max_tokens", "vocab_size", "tokenizer")),
    "reward-model": ("data/pairs.jsonl", FIT, (*FIT, *FITS, "centring", "json")),
    "list": ("", {}, ("json", "quiet")),
}
"""Arguments and options of commands as they should be, and options that get odd values."""
SUITE = "algorithms: [npg]\nenvironments: {CartPole-v1: {total_steps: 64}}\nseeds: [0]\nfinal_episodes: 1\n"


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Runs one odd command."""
    import torch

    shutil.copytree(prepared(), sandbox.work, dirs_exist_ok=True)
    words = command(rng, str(sandbox.canary))
    with mock.patch.dict(os.environ), mock.patch("rlzoo.core.system.threads._chosen", None):
        try:
            return [f"{fault}: {words}"[:600] for fault in attack(sandbox, words)]
        finally:
            torch.set_num_threads(1)
            gc.unfreeze()


def command(rng: Random, canary: str) -> list[str]:
    """The arguments of an odd command."""
    kind = rng.random()
    if kind < 0.5:
        words = _train(rng, canary)
    elif kind < 0.85:
        words = _other(rng, canary)
    else:
        words = [rng.choice((*FORMS, "train", "-x", scalar(rng, canary))) for _ in range(rng.randint(1, 4))]
        words = words if words[:2] != ["train", "--help"] else words[:1]
    return [word for word in words if "\x00" not in word]  # no process can be given one


def _train(rng: Random, canary: str) -> list[str]:
    algorithm, env = rng.choice(ALGORITHMS), rng.choice(("CartPole-v1", "Pendulum-v1", "FrozenLake-v1"))
    names = options(algorithm)
    odd = {name: _setting(rng, name, algorithm, canary) for name in rng.sample(names, rng.choice((1, 1, 2)))}
    pair = [algorithm, env]
    for i in range(2):
        if rng.random() < 0.05:
            pair[i] = scalar(rng, canary)
    small = {name: x for name, x in SMALL.items() if name in names and name not in odd}
    return ["train", *pair, *_mixed(rng, {"out": "new", **odd}, canary), *_flags({**small, "quiet": ""})]


def _other(rng: Random, canary: str) -> list[str]:
    name = rng.choice(sorted(FORMS))
    if name in ("benchmark", "search") and rng.random() < 0.9:  # a good one starts other processes
        return [name, scalar(rng, canary), *_flags({x: _value(rng, x, canary) for x in rng.sample(FORMS[name][2], 2)})]
    arguments, given, known = FORMS[name]
    odd = {x: _value(rng, x, canary) for x in rng.sample(known, rng.randint(0, min(2, len(known))))}
    positional = arguments.split()
    if positional and rng.random() < 0.3:
        positional[rng.randrange(len(positional))] = rng.choice(("absent", "run/config.json", scalar(rng, canary)))
    if name == "push" and not positional[-1].startswith("."):
        positional[-1] = "./new"
    return [name, *positional, *_mixed(rng, odd, canary), *_flags({k: x for k, x in given.items() if k not in odd})]


def _setting(rng: Random, name: str, algorithm: str, canary: str) -> str:
    """A value for a setting: most often of its kind."""
    kind = type(table(algorithm)[name].value) if name in table(algorithm) else str
    if rng.random() < 0.3:
        return _value(rng, name, canary)
    return "" if kind is bool else rng.choice(FITTING.get(kind, FITTING[rng.choice((int, float, str))]))


def _value(rng: Random, name: str, canary: str) -> str:
    if name in LONG:
        return rng.choice(ILLEGAL)
    if name == "env_kwargs":
        key = rng.choice(("max_episode_steps", "sutton_barto_reward", "g", "is_slippery", "x"))
        return f"{key}={scalar(rng, canary)}"
    value = rng.choice(FITTING[float]) if name in FITS and rng.random() < 0.5 else scalar(rng, canary)
    return "new" if name == "out" and "precious" in value else value


def _mixed(rng: Random, given: dict[str, str], canary: str) -> list[str]:
    """The options, with words that do not belong there."""
    words = _flags(given)
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 2))):
        words.insert(rng.randrange(len(words) + 1), scalar(rng, canary))
    return words


def _flags(given: dict[str, str]) -> list[str]:
    pairs = ((f"--{name.replace('_', '-')}", value) for name, value in given.items())
    return [word for name, value in pairs for word in ((name,) if value == "" else (name, value))]


@cache
def table(algorithm: str) -> dict[str, Any]:
    from rlzoo.runs.configuration.config import assemble

    return assemble(algorithm, "CartPole-v1", {}).table


@cache
def options(algorithm: str) -> list[str]:
    names = {"threads", "config", "preset", "estimator", "network", "wrapper", "no_preset", "overwrite"}
    return sorted({*table(algorithm), *names} - {"env", "compile"})  # compiling takes a minute


@cache
def prepared() -> Path:
    """A folder with a run, a suite, a language model, texts and pairs. All that commands import is then imported."""
    import rlzoo.benchmark.reports.report
    import rlzoo.benchmark.search
    import rlzoo.runs.finetune  # noqa: F401

    folder = tasks.scratch() / "commands"
    shutil.copytree(control_run(), folder / "run")
    (folder / "suite.yaml").write_text(SUITE)
    shutil.copytree(tasks.data(), folder / "data")
    return folder
