"""A language run that is killed at any instant and resumed is the run that was never killed."""

import os
import random
import shutil
import signal

import pytest
import short_runs
from short_language_runs import CONTAINED, KINDS, save_data, settings

from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train
from tests.faults.campaign.kill import killed_at


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    save_data(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CONTAINED])
def test_stopped_and_killed_at_random_moments(kind, data, tmp_path):
    algorithm, more = KINDS[kind]
    quick = settings(data, algorithm, **more)
    whole = short_runs.outcome(train(**quick, out=tmp_path / "whole"))

    path = tmp_path / "stopped"
    train(**quick, out=path, on_iteration=lambda trainer, _: trainer.step > 60)
    assert Run(path).steps()[-1] < 140
    resume(path, checkpoint=Run(path).steps()[-2])
    assert short_runs.outcome(Run(path)) == whole

    rng, path = random.Random(0), tmp_path / "killed"
    for most in (90, 30, 30, 30):
        assert killed_at(path, quick, "operation", rng.randint(1, most))
    short_runs.go_on(path, quick)
    assert short_runs.outcome(Run(path)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["trpo", "ppo-clip"])
def test_the_same_from_a_cold_cache_a_warm_cache_and_killed_once_or_twice(algorithm, tmp_path, monkeypatch):
    """Files differ in alignment; killed before the first checkpoint, a run starts anew from its own copy."""
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    small = {
        "responses_per_batch": 20,
        "responses_per_prompt": 1,
        "estimator": "gae",
        "total_steps": 300,
        "eval_episodes": 3,
        "critic": "actor",
    }
    small |= {"trpo": {"vf_epochs": 1}, "ppo-clip": {"epochs": 1}}[algorithm]
    small |= {"algorithm": algorithm, "env": "short_language_runs:Walks"}
    cold, warm = (short_runs.outcome(train(**small, out=tmp_path / name)) for name in ("cold", "warm"))
    assert cold == warm

    def kill_after(step):
        def kill(trainer, iteration):
            if trainer.step > step:
                os.kill(os.getpid(), signal.SIGKILL)

        return kill

    path = tmp_path / "killed"
    short_runs.in_child(lambda: train(**small, out=path, on_iteration=kill_after(0)))
    assert (path / "start").is_dir()
    assert not Run(path).steps()
    shutil.copytree(path, tmp_path / "twice")
    resume(path)
    assert short_runs.outcome(Run(path)) == cold

    path = tmp_path / "twice"
    short_runs.in_child(lambda: resume(path, on_iteration=kill_after(150)))
    assert Run(path).steps()
    assert not Run(path).finished
    resume(path)
    assert short_runs.outcome(Run(path)) == cold
