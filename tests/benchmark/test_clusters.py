"""Suites on clusters: the same results as on this machine, and killed jobs run again."""

import contextlib
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from rlzoo.benchmark import clusters
from rlzoo.benchmark.clusters import on_cluster
from rlzoo.benchmark.job import Failure
from rlzoo.benchmark.runner import run_suite
from rlzoo.benchmark.suite import load_suite
from rlzoo.core.system.errors import ConfigError

PACKAGES = {"ray": "ray", "slurm": "submitit", "dask": "distributed"}
SUITE = """\
algorithms:
  trpo:
  killed-once: {peer: 'peers.py:once'}
  killed-always: {peer: 'peers.py:always'}
environments:
  CartPole-v1: {total_steps: 400, eval_interval: 200}
seeds: [0]
eval_episodes: 2
final_episodes: 2
"""
PEERS = """\
import os
from functools import partial
from pathlib import Path
import numpy as np
from rlzoo.control.evaluation import evaluate_actor

def left(obs, noise, starts):
    return np.zeros(len(obs), int)

class Peer:
    def __init__(self, times):
        self.times = times

    def settings(self, env):
        return {}

    def train(self, env, seed, settings, watch):
        log = Path("FOLDER", f"killed-{self.times}")
        with log.open("a") as file:
            file.write("x")
        if log.stat().st_size <= self.times:
            os.kill(os.getpid(), 9)
        for step in (0, settings["total_steps"]):
            watch(step, partial(evaluate_actor, left, env))

once, always = Peer(1), Peer(9)
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "peers.py").write_text(PEERS.replace("FOLDER", str(tmp_path)))
    return load_suite(tmp_path / "suite.yaml")


@pytest.mark.slow
@pytest.mark.parametrize("backend", list(PACKAGES))
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_suite_on_a_cluster(backend, suite, tmp_path, monkeypatch):
    pytest.importorskip(PACKAGES[backend], reason=f"needs the extra {backend}")
    monkeypatch.setattr(clusters, "SLURM", "local")
    if backend == "slurm":  # it waits so long for the file of a killed job, on disks that are shared
        monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 1)
    results = run_suite(suite, tmp_path / "cluster", jobs=2, backend=backend)
    (failure,) = results.failures
    assert failure.key == ("killed-always", "CartPole-v1", 0)
    assert [(tmp_path / f"killed-{times}").read_text() for times in (1, 9)] == ["xx", "xx"]
    run_suite(suite, tmp_path / "here", jobs=2)
    files = [tmp_path / folder / "results.jsonl" for folder in ("cluster", "here")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert len(files[0].read_bytes().splitlines()) == 2


def test_a_job_without_a_result_is_submitted_once_more():
    jobs = [SimpleNamespace(key=(name, "CartPole-v1", 0)) for name in ("a", "b", "c", "d")]
    lost, submitted, most = {"b": 1, "d": 2}, [], []

    def submit(job):
        name = job.key[0]
        submitted.append(name)

        def result():
            most.append(len(submitted))
            if submitted.count(name) <= lost.get(name, 0):
                raise RuntimeError("node\nlost")
            return name

        return SimpleNamespace(done=lambda: True, result=result)

    @contextlib.contextmanager
    def connect(workers):
        yield submit, workers

    outcomes = list(on_cluster(connect, jobs, 2))
    assert submitted == ["a", "b", "b", "c", "d", "d"]
    assert most[:2] == [2, 2]  # no more than two at a time
    *others, failure = outcomes
    assert others == ["a", "b", "c"]
    assert isinstance(failure, Failure)
    assert failure.key == jobs[3].key
    assert failure.error == "RuntimeError: node lost"


@pytest.mark.parametrize("backend", list(PACKAGES))
def test_a_package_that_is_not_installed(backend, suite, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[backend], None)
    message = rf"'{backend}' needs the package {PACKAGES[backend]}: pip install 'rlzoo\[{backend}\]'"
    with pytest.raises(ConfigError, match=message):
        run_suite(suite, tmp_path / "out", backend=backend)


def test_slurm_without_slurm(suite, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="backend 'slurm' needs a machine with Slurm"):
        run_suite(suite, tmp_path / "out", backend="slurm")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_slurm_jobs_end_with_a_suite_that_is_stopped(suite, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    monkeypatch.setattr(clusters, "SLURM", "local")
    with clusters.slurm(1) as (submit, room):
        handle = submit(suite.jobs[0])
        assert room == 1
    assert handle.state != "RUNNING" or os.waitid(os.P_PID, int(handle.job_id), os.WEXITED).si_status == signal.SIGINT
