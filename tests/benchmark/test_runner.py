"""Suites from the first job to the last: parallel, killed, broken, gone on with."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import short_runs
from builders import evaluate_model

from rlzoo.benchmark import runner, worker
from rlzoo.benchmark.job import Failure, Outcome, _Recorder, run_job
from rlzoo.benchmark.results import Results, Writer, finished_jobs
from rlzoo.benchmark.runner import run_suite
from rlzoo.benchmark.suite import load_suite
from rlzoo.cli import main
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import RunError
from rlzoo.core.system.progress import Progress
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.files import lock, write_atomically
from rlzoo.runs.loop import Trainer

TINY = """\
title: Tiny
algorithms: [trpo, ppo-clip]
environments:
  CartPole-v1: {total_steps: 2_000, eval_interval: 500}
overrides: {num_envs: 4}
seeds: 0-2
eval_episodes: 3
final_episodes: 5
"""

PEERS = """\
import os, sys, time
import numpy as np
from functools import partial
from rlzoo.control.evaluation import evaluate_actor


def left(obs, noise, starts):
    return np.zeros(len(obs), int)


class Peer:
    def __init__(self, act):
        self.act = act

    def settings(self, env):
        return {}

    def train(self, env, seed, settings, watch):
        evaluate = partial(evaluate_actor, left, env)
        watch(0, evaluate)
        self.act(seed)
        watch(settings["total_steps"], evaluate)


def fails(seed):
    if seed == 1:
        raise ValueError("a bad\\nday")


def dies(seed):
    if seed == 1:
        os.kill(os.getpid(), 9)


def stops(seed):
    if seed == 1:
        sys.exit("no licence")


fine, failing, dying, slow = Peer(lambda seed: None), Peer(fails), Peer(dies), Peer(lambda seed: time.sleep(60))
stopping = Peer(stops)


class Short(Peer):
    def train(self, env, seed, settings, watch):
        watch(0, partial(evaluate_actor, left, env))


class Walking(Peer):
    def train(self, env, seed, settings, watch):
        for step in (0, 700, 1600, 1700, 3100, 4000):
            watch(step, partial(evaluate_actor, left, env))


short, walking = Short(None), Walking(None)
"""


@pytest.fixture
def suite(tmp_path):
    return load(tmp_path, TINY)


def load(folder, text):
    (folder / "tiny.yaml").write_text(text)
    return load_suite(folder / "tiny.yaml")


def of_peers(folder, *names, seeds="0-2"):
    (folder / "peers.py").write_text(PEERS)
    entries = "".join(f"  {name}: {{peer: 'peers.py:{name}'}}\n" for name in names)
    environments = "environments: {CartPole-v1: {total_steps: 10}}\n"
    return load(folder, f"algorithms:\n{entries}{environments}seeds: {seeds}\neval_episodes: 2\nfinal_episodes: 2\n")


class Record(Progress):
    """Keeps the keys of the jobs and all other lines; `stop_after` so many jobs."""

    def __init__(self, stop_after=None):
        self.keys, self.lines, self.stop_after = [], [], stop_after

    def say(self, line):
        if job := re.match(r" *\d+/\d+  (\S+) (\S+) +seed (\d+)", line):
            self.keys.append((job[1], job[2], int(job[3])))
            if self.stop_after == len(self.keys):
                raise KeyboardInterrupt
        else:
            self.lines.append(line)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The tiny suite, never killed."""
    folder = tmp_path_factory.mktemp("whole")
    run_suite(load(folder, TINY), folder / "results", jobs=2)
    return folder / "results"


def test_what_a_suite_leaves(whole, suite):
    results = Results.read(whole)
    assert [outcome.key for outcome in results.outcomes] == [
        ("trpo", "CartPole-v1", 0), ("trpo", "CartPole-v1", 1), ("trpo", "CartPole-v1", 2),
        ("ppo-clip", "CartPole-v1", 0), ("ppo-clip", "CartPole-v1", 1), ("ppo-clip", "CartPole-v1", 2),
    ]  # fmt: skip
    assert (results.title, results.labels, results.seeds) == ("Tiny", ["trpo", "ppo-clip"], [0, 1, 2])
    assert results.environments == suite.environments
    assert not results.failures
    assert not results.missing
    assert results.record["versions"]["rlzoo"]
    assert results.record["command"] == f"rlzoo benchmark {whole.parent}/tiny.yaml --jobs 2"
    lines = (whole / "results.jsonl").read_text().splitlines()
    assert [tuple(json.loads(line)[name] for name in ("label", "env", "seed")) for line in lines] == [
        job.key for job in suite.jobs
    ]


@pytest.mark.parametrize("label", [pytest.param("trpo", marks=pytest.mark.slow), "ppo-clip"])
def test_evaluations_leave_no_trace_in_the_training(label, suite):
    job = next(job for job in suite.jobs if job.label == label)
    outcome = run_job(job)
    settings = dict(job.settings)
    trainer = Trainer(make_config(settings.pop("algorithm"), job.env, seed=job.seed, **settings))
    steps = [0]
    while not trainer.done:
        trainer.iterate()
        steps.append(trainer.step)
    assert {*outcome.steps} <= {*steps}
    assert outcome.steps[-1] == trainer.step
    seed = int(np.random.SeedSequence(job.seed, spawn_key=(5, 0)).generate_state(1)[0])
    for deterministic, found in ((False, outcome.final_stochastic), (True, outcome.final_deterministic)):
        evaluation = evaluate_model(trainer.model, job.env, 5, seed=seed, deterministic=deterministic)
        assert found == pytest.approx(evaluation.mean_return, abs=1e-6)
    assert len(outcome.stochastic) == len(outcome.deterministic) == len(outcome.seconds) == len(outcome.steps)
    assert outcome.seconds == sorted(outcome.seconds)
    assert outcome.seconds[0] == 0


def test_the_seconds_of_a_job_are_those_of_training_alone(suite, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("rlzoo.benchmark.job.time", SimpleNamespace(perf_counter=lambda: clock.now))
    job = replace(suite.jobs[0], settings={**suite.jobs[0].settings, "total_steps": 1500}, eval_interval=500)
    recorder = _Recorder(job)

    def evaluate(episodes, *, seed, deterministic):
        clock.now += 100
        return Evaluation(np.ones(episodes), np.ones(episodes, int), deterministic, seed)

    for step in (0, 250, 500, 1000, 1250, 1500):
        clock.now += 1
        recorder(step, evaluate)
    assert recorder.outcome().seconds == [0, 2, 3, 5]


def test_a_job_starts_from_the_run_that_its_settings_name(suite, tmp_path):
    run = short_runs.quick_run(tmp_path / "run", total_steps=4000, learning_rate=0.01, hidden=(64, 64))
    job = next(job for job in suite.jobs if job.label == "ppo-clip")
    plain, warm = (run_job(replace(job, settings=job.settings | more)) for more in ({}, {"model": str(run.path)}))
    assert warm.stochastic[0] != plain.stochastic[0]


def test_evaluations_fall_on_the_first_update_past_each_interval(tmp_path):
    job = replace(of_peers(tmp_path, "walking").jobs[0], eval_interval=1_500, settings={"total_steps": 4_000})
    assert run_job(job).steps == [0, 1600, 3100, 4000]


def test_a_job_that_ends_early_is_a_failure(tmp_path):
    outcome = run_job(of_peers(tmp_path, "short").jobs[0])
    assert isinstance(outcome, Failure)
    assert outcome.error == "RuntimeError: training ended before step 10"


@pytest.mark.slow
def test_a_suite_that_was_stopped_goes_on(suite, whole, tmp_path):
    after = 3
    out = tmp_path / "results"
    with pytest.raises(KeyboardInterrupt, match="of 6 jobs done; the same command resumes"):
        run_suite(suite, out, jobs=2, progress=Record(after))
    done = {outcome.key for outcome in Results.read(out).outcomes}
    assert len(done) == after
    assert len(Results.read(out).missing) == 6 - after
    record = Record()
    run_suite(suite, out, jobs=2, progress=record)
    assert record.lines == [f"{after} of 6 jobs are done already"]
    assert not done & {*record.keys}
    assert (out / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


@pytest.mark.slow
def test_a_suite_killed_at_any_moment_ends_with_the_same_results(suite, whole, tmp_path):
    command = [sys.executable, "-m", "rlzoo", "benchmark", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out")]
    results = tmp_path / "out" / "results.jsonl"
    for jobs in (1, 3):
        process = subprocess.Popen([*command, "--jobs", "2"], start_new_session=True, stdout=subprocess.DEVNULL)
        while process.poll() is None and not (results.exists() and results.read_bytes().count(b"\n") >= jobs):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    run_suite(suite, tmp_path / "out", jobs=1)
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


@pytest.mark.slow
def test_half_written_lines_are_run_again(suite, whole, tmp_path):
    out = tmp_path / "results"
    out.mkdir()
    for path in whole.glob("*.json*"):
        (out / path.name).write_bytes(path.read_bytes())
    lines = (whole / "results.jsonl").read_bytes().splitlines(keepends=True)
    (out / "results.jsonl").write_bytes(b"".join([lines[0], lines[1][:70] + b"\n", b"7\n", *lines[3:5], lines[5][:-1]]))
    record = Record()
    run_suite(suite, out, jobs=2, progress=record)
    assert len(record.keys) == 3
    *damaged, _ = record.lines
    assert [line.split("results.jsonl, ")[1].split(":")[0] for line in damaged] == ["line 2", "line 3", "line 6"]
    assert all("its job will run again" in line for line in damaged)
    assert (out / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()


@pytest.mark.slow
def test_results_of_other_settings_are_run_again(whole, tmp_path):
    out = tmp_path / "results"
    out.mkdir()
    for path in whole.glob("*.json*"):
        (out / path.name).write_bytes(path.read_bytes())
    changed = TINY.replace("[trpo, ppo-clip]", "{trpo: , ppo-clip: {overrides: {clip_coef: 0.1}}}")
    record = Record()
    run_suite(load(tmp_path, changed), out, jobs=2, progress=record)
    assert {key[0] for key in record.keys} == {"ppo-clip"}
    assert len(record.keys) == 3
    assert len(Results.read(out).outcomes) == 6
    assert "3 results have other settings or were not measured: they are run again" in record.lines[0]


def test_results_of_another_device_are_kept(tmp_path):
    suite = load(tmp_path, TINY)
    jobs = {job.key: job for job in suite.jobs}
    outcomes = {
        key: Outcome(*key, {**job.settings, "device": "cuda"}, [0], [1.0], [1.0], 1.0, 1.0, seconds=[0.0])
        for key, job in jobs.items()
    }
    Writer(tmp_path, suite, "command", outcomes).rewrite()
    assert finished_jobs(tmp_path, suite, pytest.fail) == outcomes


def test_a_suite_that_is_continued_elsewhere_names_both_machines_and_commits(tmp_path, monkeypatch):
    suite = load(tmp_path, TINY)
    outcomes = {x.key: Outcome(*x.key, x.settings, [0], [1.0], [1.0], 1.0, 1.0, seconds=[0.0]) for x in suite.jobs}
    some = dict([*outcomes.items()][:2])
    sessions = (("A", "A1", {}), ("B", "B1", some), ("A", "A1", some), ("B", None, some), ("C", "C1", outcomes))
    for machine, commit, kept in sessions:
        monkeypatch.setattr("rlzoo.benchmark.results._machine", lambda machine=machine: {"cores": 2, "system": machine})
        monkeypatch.setattr("rlzoo.benchmark.results.git_commit", lambda commit=commit: commit)
        Writer(tmp_path, suite, "command", kept).rewrite()
    record = Results.read(tmp_path).record
    assert (record["machine"], record["git_commit"]) == ({"cores": 2, "system": "A; B"}, "A1; B1")


@pytest.mark.parametrize(
    ("old", "new", "again"),
    [
        ("final_episodes: 5", "final_episodes: 6", 6),
        ("eval_interval: 500", "eval_interval: 600", 6),
        ("eval_episodes: 3", "eval_episodes: 3 # three", 0),
        ("title: Tiny", "measure_updates: true", 6),
    ],
)
def test_results_of_other_evaluations_are_run_again(old, new, again, whole, tmp_path):
    suite = load(tmp_path, TINY.replace(old, new))
    assert len(finished_jobs(whole, suite, print)) == 6 - again


@pytest.mark.parametrize("room", range(4))
def test_a_full_disk_leaves_no_results_of_other_evaluations(room, tmp_path, monkeypatch):
    """There is room for so many of the four files."""
    suite, out = load(tmp_path, TINY), tmp_path / "results"
    outcomes = {x.key: Outcome(*x.key, x.settings, [0], [1.0], [1.0], 1.0, 1.0, seconds=[0.0]) for x in suite.jobs}
    Writer(out, suite, "command", outcomes).rewrite()
    changed = load(tmp_path, TINY.replace("final_episodes: 5", "final_episodes: 6"))
    written = []

    def write(path, data):
        if len(written) == room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        write_atomically(path, data)

    monkeypatch.setattr("rlzoo.benchmark.results.write_atomically", write)
    with pytest.raises(OSError, match="No space left"):
        run_suite(changed, out)
    assert not finished_jobs(out, changed, print)


@pytest.mark.parametrize(
    ("name", "seeds", "message"),
    [("other", "0-2", "holds results of the suite tiny"), ("tiny", "0-1", "holds 2 results that the suite lacks")],
)
def test_results_that_the_suite_does_not_have_are_not_deleted(name, seeds, message, whole, tmp_path):
    (tmp_path / f"{name}.yaml").write_text(TINY.replace("0-2", seeds))
    before = (whole / "results.jsonl").read_bytes()
    with pytest.raises(RunError, match=f"{message}.*: give another --out, or --overwrite"):
        run_suite(load_suite(tmp_path / f"{name}.yaml"), whole)
    assert (whole / "results.jsonl").read_bytes() == before


def test_a_job_that_ends_its_program_does_not_stop_the_others(tmp_path):
    results = run_suite(of_peers(tmp_path, "stopping"), tmp_path / "results", jobs=2)
    assert len(results.outcomes) == 2
    assert [failure.error for failure in results.failures] == ["SystemExit: no licence"]


def test_a_failed_job_does_not_stop_the_others(tmp_path, capsys):
    suite = of_peers(tmp_path, "failing", "fine")
    results = run_suite(suite, tmp_path / "results", jobs=2)
    assert len(results.outcomes) == 5
    (failure,) = results.failures
    assert failure.key == ("failing", "CartPole-v1", 1)
    assert failure.error == "ValueError: a bad day"
    assert "peers.py" in failure.details
    assert not results.missing
    record = Record()
    run_suite(suite, tmp_path / "results", jobs=2, progress=record)
    assert record.keys == [failure.key]
    assert main(["benchmark", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "results"), "--jobs", "2"]) == 1
    shown = capsys.readouterr()
    assert "failing CartPole-v1 seed 1 failed: ValueError: a bad day" in shown.err
    assert "5 of 6 jobs are done; show them with: rlzoo report" in shown.out


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_process_that_is_killed_does_not_stop_the_others(jobs, tmp_path):
    results = run_suite(of_peers(tmp_path, "dying", "fine", seeds="0-3"), tmp_path / "results", jobs=jobs)
    assert len(results.outcomes) == 7
    (failure,) = results.failures
    assert failure.key == ("dying", "CartPole-v1", 1)
    assert failure.error == "its process was killed; memory may have run out"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_suite_and_its_processes(number, code, tmp_path):
    of_peers(tmp_path, "fine", "slow", seeds="[0]")
    command = [sys.executable, "-m", "rlzoo", "benchmark", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [*command, "--jobs", "2"], start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if "fine" in line:
            break
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert errors == "rlzoo: stopped with 1 of 2 jobs done; the same command resumes\n"
    for _ in range(100):
        if not alive(process.pid):
            break
        time.sleep(0.1)
    assert not alive(process.pid)


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path):
    of_peers(tmp_path, "fine", "slow", seeds="[0]")
    command = [sys.executable, "-m", "rlzoo", "benchmark", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen([*command, "--jobs", "2"], start_new_session=True, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "fine" in line:
            break
    assert len(alive(process.pid)) >= 2
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(600):
        if not (left := alive(process.pid)):
            break
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert not left


def test_no_more_processes_than_jobs(monkeypatch):
    parallel = mock.Mock(return_value=[("a", 1), ("b", 2)])
    monkeypatch.setattr(runner, "_parallel", parallel)
    assert dict(runner.each(len, {"a": [0], "b": [0, 0]}, 64)) == {"a": 1, "b": 2}
    assert parallel.call_args.args[2] == 2


def test_a_worker_watches_its_parent_before_it_imports_pytorch():
    code = "import sys, rlzoo.benchmark.worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert worker.begin.__module__ == "rlzoo.benchmark.worker"


def alive(group):
    """Processes of a group, but those that are dead and not yet waited for."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], check=True, capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(group) and "Z" not in line]


def test_one_process_at_a_time(suite, tmp_path):
    with lock(tmp_path / "out"), pytest.raises(RunError, match="is in use by another process"):
        run_suite(suite, tmp_path / "out")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else(overwrite, suite, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(RunError, match="holds something other than results of a suite"):
            run_suite(suite, path, overwrite=overwrite)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.fixture
def edited(whole, tmp_path):
    """A copy of the results whose suite.json says something else."""

    def copy(**changes):
        out = tmp_path / "edited"
        out.mkdir()
        for path in whole.glob("*.jsonl"):
            (out / path.name).write_bytes(path.read_bytes())
        (out / "suite.json").write_text(json.dumps(json.loads((whole / "suite.json").read_text()) | changes))
        return out

    return copy


def test_results_of_a_later_format_are_refused(suite, edited):
    out = edited(format=9)
    with pytest.raises(RunError, match="has format 9; this rlzoo reads 1: use the rlzoo that wrote it"):
        Results.read(out)
    with pytest.raises(RunError, match="has format 9; this rlzoo reads 1: use the rlzoo that wrote it"):
        run_suite(suite, out)


def test_results_of_other_versions_are_read_but_not_gone_on_with(suite, edited):
    out = edited(versions={"rlzoo": "0.0.9", "python": "3", "torch": "2", "numpy": "1"})
    assert len(Results.read(out).outcomes) == 6
    with pytest.raises(RunError, match=r"holds results of other versions \(rlzoo 0.0.9 then, .* or --overwrite"):
        run_suite(suite, out)


@pytest.mark.slow
def test_overwriting_runs_all_jobs_again(suite, edited):
    record = Record()
    run_suite(suite, edited(versions={}), jobs=2, overwrite=True, progress=record)
    assert len(record.keys) == 6


def test_a_damaged_suite_json(edited, suite):
    out = edited(suite={})
    with pytest.raises(RunError, match=r"suite\.json is damaged: KeyError"):
        Results.read(out)
    with pytest.raises(RunError, match=r"suite\.json is damaged: KeyError"):
        run_suite(suite, out)


@pytest.mark.parametrize("line", ['{"label": "trpo"}', '{"label": [], "env": "E", "seed": 0, "error": ""}'])
def test_a_damaged_line_of_failures(line, edited):
    out = edited()
    (out / "failures.jsonl").write_text(line + "\n")
    with pytest.raises(RunError, match=r"failures\.jsonl is damaged: TypeError"):
        Results.read(out)


def test_a_line_for_each_job(suite, tmp_path, monkeypatch):
    clock = iter([100.0, 110.0, 140.0, 150.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    ended = [
        Outcome("trpo", "CartPole-v1", 0, {}, [0, 9], [1, 2], [1, 2], 1234.5, 2, {}, [0, 8.25]),
        Failure("ppo-clip", "CartPole-v1", 1, "ValueError: no"),
    ]
    monkeypatch.setitem(runner.BACKENDS, "loky", lambda jobs, workers: (x for x in ended))
    lines = []
    progress = mock.Mock(say=lines.append)
    run_suite(suite, tmp_path / "out", progress=progress)
    assert lines == [
        "1/6  trpo CartPole-v1      seed 0    return  1,234.50  in   8.2 s  0:50 left",
        "2/6  ppo-clip CartPole-v1  seed 1    failed: ValueError: no  1:20 left",
    ]
