"""Two processes in one place: one of them wins, or they come one after the other. What is left is never a mixture."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rlzoo.runs.run import Run
from rlzoo.runs.train import train
from tests.faults.campaign import again, tasks
from tests.faults.campaign.again import contents, words, wrong
from tests.faults.campaign.kill import cache, differences, go_on, left, whole
from tests.faults.campaign.processes import Process, command
from tests.faults.campaign.sandbox import Sandbox

QUICK = [
    *("--total-steps", "400", "--num-envs", "4", "--num-steps", "25", "--minibatch-size", "50", "--epochs", "2"),
    *("--hidden", "8", "--eval-episodes", "2", "--final-eval-episodes", "2", "--checkpoint-interval", "100"),
    *("--quiet", "--threads", "1"),
]


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Starts two processes, and looks at what they say and leave."""
    attack = rng.choices((_train, _resume, _benchmark, _sft, _cold_cache), (6, 3, 1, 3, 2))[0]
    return [f"{attack.__name__[1:]}: {fault}" for fault in attack(rng, sandbox)] + sandbox.faults()


def _both(
    rng: Random, sandbox: Sandbox, works: list[Callable[[], int | None]], codes: tuple[int, ...] = (0, 1, 2)
) -> tuple[list[int | None], list[str]]:
    """The exit codes of two processes, the second started with the first or a little later; and their faults."""
    first = Process(works[0], sandbox.root)
    early = first.wait(0 if rng.random() < 0.6 else rng.uniform(0, 0.5))
    second = Process(works[1], sandbox.root)
    ended = [early or first.end(120), second.end(120)]
    faults = [fault for x in ended for fault in x.faults(codes)]
    if not faults and all(x.code for x in ended):
        faults = [f"neither ended well: {[x.errors for x in ended]}"]
    return [x.code for x in ended], faults


def _train(rng: Random, sandbox: Sandbox) -> list[str]:
    """Two seeds, into a new directory or over an old run."""
    out = sandbox.work / "run"
    if replaced := rng.random() < 0.4:
        shutil.copytree(trained(2), out)
    works = []
    for seed in (0, 1):
        overwrite = ["--overwrite"] * (replaced or rng.random() < 0.4)
        words = ["train", "ppo-clip", "CartPole-v1", "--seed", seed, "--out", out, *QUICK, *overwrite]
        works.append(command(*words))
    codes, faults = _both(rng, sandbox, works)
    if faults:
        return faults
    seed = Run(out).record["seed"]
    if codes[seed] != 0:
        return [f"the config.json left is that of seed {seed}, which ended with code {codes[seed]}"]
    return differences(out, left(trained(seed)))


@functools.cache
def trained(seed: int) -> Path:
    out = tasks.scratch() / f"twin-{seed}"
    words = ["train", "ppo-clip", "CartPole-v1", "--seed", seed, "--out", out, *QUICK]
    assert not (faults := Process(command(*words), tasks.scratch()).end().faults()), faults
    return out


def _resume(rng: Random, sandbox: Sandbox) -> list[str]:
    """Two resumptions of a stopped run, or one beside a command that reads."""
    name = rng.choice(list(tasks.CONTROL))
    expected, path = whole(name).outcome, sandbox.work / "run"
    shutil.copytree(_stopped(name), path)
    other = rng.choice((["resume"], ["resume"], ["eval", "--episodes", "2"], ["diagnose"]))
    works = [command(words[0], path, *words[1:]) for words in (["resume"], other)]
    _, faults = _both(rng, sandbox, works)
    if faults:
        return faults
    return differences(path, expected)


@functools.cache
def _stopped(name: str) -> Path:
    out = tasks.scratch() / f"stopped-{name}"

    def kill_after(trainer: Any, _: object) -> None:
        if trainer.step > 150:
            os.kill(os.getpid(), signal.SIGKILL)

    assert Process(lambda: train(**tasks.CONTROL[name], out=out, on_iteration=kill_after), tasks.scratch()).end().killed
    return out


def _benchmark(rng: Random, sandbox: Sandbox) -> list[str]:
    """A suite, twice."""
    out = sandbox.work / "out"
    work = command(*words("benchmark", out))
    _, faults = _both(rng, sandbox, [work, work])
    return faults or wrong("benchmark", out)


def _sft(rng: Random, sandbox: Sandbox) -> list[str]:
    """Two seeds, into a new directory or over an old model."""
    out = sandbox.work / "model"
    if replaced := rng.random() < 0.4:
        shutil.copytree(again.whole("sft", 2)[0], out)
    overwrite = [["--overwrite"] * (replaced or rng.random() < 0.4) for _ in (0, 1)]
    codes, faults = _both(rng, sandbox, [command(*words("sft", out, seed), *overwrite[seed]) for seed in (0, 1)])
    found = contents(out)
    same = [seed for seed in (0, 1) if codes[seed] == 0 and found == contents(again.whole("sft", seed)[0])]
    return faults or ([] if same else [f"the model is that of neither process, codes {codes}: {sorted(found)}"])


def _cold_cache(rng: Random, sandbox: Sandbox) -> list[str]:
    """Two runs that make their SFT checkpoint in one empty cache."""
    name = rng.choice([name for name in tasks.language() if name.startswith("walks")])
    with cache(tasks.scratch() / "cache"):
        expected = whole(name).outcome
    folders = [sandbox.work / "a", sandbox.work / "b"]
    with cache(sandbox.root / "cache"):
        works = [functools.partial(go_on, folder, tasks.language()[name]) for folder in folders]
        _, faults = _both(rng, sandbox, works, codes=(0,))
    return faults or [fault for folder in folders for fault in differences(folder, expected)]
