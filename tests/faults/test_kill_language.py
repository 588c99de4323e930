"""A language run that is killed at any instant and resumed is the run that was never killed."""

import dataclasses
import os
import random
import shutil
import signal
import time

import pytest
import short_runs
from short_language_runs import KINDS, save_data, settings

from rlzoo.lm.tasks.random_walks import RandomWalks
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train

ALL = pytest.mark.parametrize(("algorithm", "more"), KINDS.values(), ids=KINDS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    save_data(folder)
    return folder


def go_on(path, given):
    if (path / "config.json").exists():
        resume(path)
    else:
        train(**given, out=path)


@ALL
def test_stopped_and_resumed(algorithm, more, data, tmp_path):
    given = settings(data, algorithm, **more)
    whole = short_runs.outcome(train(**given, out=tmp_path / "whole"))
    path = tmp_path / "stopped"
    train(**given, out=path, on_iteration=lambda trainer, _: trainer.step > 60)
    assert Run(path).steps()[-1] < 140
    resume(path, checkpoint=Run(path).steps()[-2])
    assert short_runs.outcome(Run(path)) == whole


@pytest.mark.slow
@ALL
def test_killed_at_random_instants(algorithm, more, data, tmp_path):
    given = settings(data, algorithm, **more)
    start = time.perf_counter()
    whole = short_runs.outcome(train(**given, out=tmp_path / "whole"))
    duration = time.perf_counter() - start
    rng = random.Random(0)
    path = tmp_path / "killed"
    for _ in range(8):
        short_runs.in_child(lambda: go_on(path, given), kill_after=rng.uniform(0, duration))
    go_on(path, given)
    assert short_runs.outcome(Run(path)) == whole


class Walks(RandomWalks):
    """A task whose SFT checkpoint is quickly made."""

    def own_sft(self):
        given = super().own_sft()
        return dataclasses.replace(given, texts=given.texts[:100], fit=dataclasses.replace(given.fit, epochs=1))


@pytest.mark.parametrize("algorithm", ["trpo", "ppo-clip"])
def test_the_same_from_a_cold_cache_a_warm_cache_and_killed_once_or_twice(algorithm, tmp_path, monkeypatch):
    """Files differ in alignment; killed before the first checkpoint, a run starts anew from its own copy."""
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    small = {"responses_per_batch": 20, "total_steps": 300, "eval_episodes": 3, "epochs": 1, "vf_epochs": 1}
    given = {name: x for name, x in small.items() if name not in {"trpo": ["epochs"]}.get(algorithm, ["vf_epochs"])}
    given = {"algorithm": algorithm, "env": f"{__name__}:Walks", "critic": "actor", **given}
    cold, warm = (short_runs.outcome(train(**given, out=tmp_path / name)) for name in ("cold", "warm"))
    assert cold == warm

    def kill(trainer, iteration):
        os.kill(os.getpid(), signal.SIGKILL)

    path = tmp_path / "killed"
    short_runs.in_child(lambda: train(**given, out=path, on_iteration=kill))
    assert (path / "start").is_dir()
    assert not Run(path).steps()
    shutil.copytree(path, tmp_path / "twice")
    resume(path)
    assert short_runs.outcome(Run(path)) == cold

    def kill_later(trainer, iteration):
        if trainer.step > 150:
            os.kill(os.getpid(), signal.SIGKILL)

    path = tmp_path / "twice"
    short_runs.in_child(lambda: resume(path, on_iteration=kill_later))
    assert Run(path).steps()
    assert not Run(path).finished
    resume(path)
    assert short_runs.outcome(Run(path)) == cold
