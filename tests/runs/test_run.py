"""The run directory."""

import json
import multiprocessing
import os
import tracemalloc

import numpy as np
import pytest
import safetensors.torch
import short_runs
import torch

import rlzoo
from rlzoo.control.task import ControlTask
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import ConfigError, RunError
from rlzoo.runs.checkpoint import Checkpoint
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.files import lock
from rlzoo.runs.run import Run

CONFIG = make_config("trpo", "CartPole-v1", gamma=0.9, hidden=(3, 4), env_kwargs={"sutton_barto_reward": True})


def checkpoint(step=0):
    state = {
        "step": step,
        "nested": {"list": [1, 2.5, None, "x", True], "array": np.arange(3)},
        "tensor": torch.ones(2, 2, dtype=torch.float64),
        "rng": np.random.default_rng(step).bit_generator.state,
        "bools": np.array([True, False]),
        "scalar": np.float64(0.1),
    }
    return Checkpoint({"weight": torch.full((2,), float(step)), "count": torch.tensor(3)}, state)


def save(run, step, saved):
    run.save(step, saved)


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", CONFIG)


def test_a_checkpoint_takes_no_memory_and_is_for_all_to_read(run):
    """Tensors go to their files without a copy: of 64 MiB, the largest allocation of Python is small.

    safetensors before 0.8 copies them once.
    """
    saved = Checkpoint({"weight": torch.zeros(2**24)}, {"step": 0})
    tracemalloc.start()
    save(run, 0, saved)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**21 + (0 if hasattr(safetensors.torch, "_flatten_as_ptr") else 2**26)
    modes = {path.stat().st_mode for path in (run.checkpoints / "0").iterdir()}
    assert len(modes) == 1


# The directory and its configuration


def test_configuration_survives(run):
    assert Run.open(run.path).read_config() == CONFIG
    assert run.objects == {}


def test_configuration_says_what_it_was_made_with(run):
    record = json.loads((run.path / "config.json").read_text())
    assert record["versions"]["rlzoo"] == rlzoo.__version__
    assert record["versions"]["torch"] == torch.__version__
    assert record["git_commit"] is None or len(record["git_commit"]) == 40
    assert record["algorithm"] == "trpo"
    assert record["hidden"] == [3, 4]


def test_a_new_run_replaces_nothing_unless_told_to(run):
    save(run, 1, checkpoint())
    run.mark_best(1, 5.0)
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n')
    (run.path / "start").mkdir()
    (run.path / "notes").mkdir()
    with pytest.raises(RunError, match=f"already holds a run: continue it with rlzoo resume {run.path}"):
        Run.create(run.path, CONFIG)
    Run.create(run.path, CONFIG, overwrite=True)
    assert run.steps() == run.metrics() == []
    assert run.best_step() is None
    assert [path.name for path in run.path.iterdir() if path.is_dir()] == ["notes"]


def test_commands_in_messages_are_quoted_for_the_shell(tmp_path):
    path = tmp_path / "my run"
    Run.create(path, CONFIG)
    with pytest.raises(RunError, match=f"continue it with rlzoo resume '{path}', or"):
        Run.create(path, CONFIG)


def test_a_new_run_takes_an_empty_directory(tmp_path):
    (tmp_path / ".config.json.tmp").write_text("left by one that was killed")
    assert Run.create(tmp_path, CONFIG).read_config() == CONFIG


def test_a_run_that_is_half_cleared_can_be_cleared(run):
    (run.checkpoints / "5").mkdir(parents=True)
    assert Run.create(run.path, CONFIG, overwrite=True).steps() == []


def test_a_name_in_another_encoding_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RunError, match=r"the name of the run directory is not UTF-8, '.*\\udcff': give another --out"):
        Run.create(tmp_path / os.fsdecode(b"a\xff"), CONFIG)
    assert not [*tmp_path.iterdir()]


def test_a_file_is_no_place_for_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        Run.create(tmp_path / "file", CONFIG)


def test_objects_that_json_cannot_hold_are_needed_again(tmp_path):
    config = make_config("trpo", "CartPole-v1", env_kwargs={"f": print, "g": 3})
    run = Run.create(tmp_path / "run", config)
    assert run.objects == {"env_kwargs": "pass env_kwargs=... (a function print of builtins)"}
    assert run.read_config(env_kwargs={"f": print, "g": 3}) == config
    with pytest.raises(RunError, match=r"cannot hold: pass env_kwargs=... \(a function print of builtins\)$"):
        run.read_config()


def test_the_estimator_of_an_algorithm_that_is_given_again_need_not_be(tmp_path):
    class OwnEstimator(rlzoo.GAE):
        pass

    class OwnAlgorithm(rlzoo.Reinforce):
        name = "own"

    own = OwnAlgorithm(estimator=OwnEstimator(gamma=0.9))
    run = Run.create(tmp_path / "run", make_config(own, "CartPole-v1"))
    assert run.objects.keys() == {"algorithm", "estimator"}
    assert run.read_config(algorithm=own).algorithm == own


def test_open_takes_a_run_or_a_path(run):
    assert Run.open(run).path == Run.open(str(run.path)).path == run.path
    assert repr(run) == f"Run({str(run.path)!r})"
    with pytest.raises(RunError, match="holds no run"):
        Run.open(run.path / "none")


def test_a_run_is_found_from_another_directory(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = Run("run")
    assert str(relative.path) == "run"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert relative.path == run.path
    assert relative.read_config() == CONFIG
    assert Run.open(relative).path == run.path


def _try_to_lock(path, result):
    try:
        with Run(path).lock():
            result.put("free")
    except RunError as error:
        result.put(str(error))


def test_a_run_is_one_process_at_a_time(run):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def ask():
        process = context.Process(target=_try_to_lock, args=(run.path, answers))
        process.start()
        process.join()
        return answers.get()

    with run.lock():
        assert ask() == f"{run.path} is in use by another process"
    assert ask() == "free"


# Checkpoints


def test_checkpoint_survives_to_the_last_bit(run):
    saved = checkpoint(7)
    save(run, 7, saved)
    loaded = run.load()
    assert torch.equal(loaded.model["weight"], saved.model["weight"])
    assert loaded.model["count"].shape == ()
    assert loaded.state["nested"]["list"] == [1, 2.5, None, "x", True]
    np.testing.assert_array_equal(loaded.state["nested"]["array"], [0, 1, 2])
    assert torch.equal(loaded.state["tensor"], saved.state["tensor"])
    assert loaded.state["bools"].dtype == bool
    assert loaded.state["scalar"] == 0.1
    generator = np.random.default_rng()
    generator.bit_generator.state = loaded.state["rng"]
    assert generator.random() == np.random.default_rng(7).random()


STATES = {
    "0-d": np.array(5),
    "names of marks": {"numpy": {"tensor": 3}, "other": {"numpy": np.arange(2)}, "both": {"numpy": "a", "tensor": "b"}},
    "keys like a path": {"a/b": np.zeros(1), "a": {"b": np.ones(1), "b/": np.full(1, 2.0)}, "a/b/": np.full(1, 3.0)},
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_a_state_comes_back_whatever_its_names(state, run):
    save(run, 0, Checkpoint({}, {"env": state}))
    assert repr(run.load().state["env"]) == repr(state)


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ({"tensor": "x"}, r"must not hold {'tensor': 'x'}, which stands for an array: rename the key"),
        *(
            (np.zeros(1, x), f"must hold arrays of numbers; it holds one of {x}")
            for x in ("complex128", "<U1", "object")
        ),
    ],
)
def test_a_state_that_would_not_come_back_is_not_saved(state, fault, run):
    with pytest.raises(ConfigError, match=f"^a state_dict {fault}$"):
        save(run, 0, Checkpoint({}, {"env": state}))
    assert run.steps() == []


def test_last_two_and_the_best_are_kept(run):
    for step in (10, 20, 30):
        save(run, step, checkpoint(step))
        if step == 10:
            run.mark_best(10, 1.0)
    assert run.steps() == [10, 20, 30]
    save(run, 40, checkpoint(40))
    assert run.steps() == [10, 30, 40]
    assert run.best_step() == 10
    run.mark_best(40, 2.0)
    assert run.steps() == [30, 40]
    assert not list(run.checkpoints.glob(".*"))


def test_saving_a_step_again_changes_nothing(run):
    save(run, 10, checkpoint(10))
    save(run, 10, checkpoint(99))
    assert run.load(10).state["step"] == 10


def test_checkpoints_are_found_by_step_and_as_the_best(run):
    with pytest.raises(RunError, match="has no checkpoint yet"):
        run.step_of()
    for step in (9, 10):
        save(run, step, checkpoint(step))
    assert run.step_of() == run.step_of(10) == 10
    with pytest.raises(RunError, match="has no best checkpoint; it has 9, 10"):
        run.step_of("best")
    run.mark_best(9, 0.0)
    assert run.step_of("best") == 9
    with pytest.raises(RunError, match="has no checkpoint 11; it has 9, 10"):
        run.load(11)


def test_what_another_process_left_half_written_is_cleared(run):
    save(run, 10, checkpoint(10))
    (run.checkpoints / ".20.tmp").mkdir()
    (run.checkpoints / ".20.tmp" / "model.safetensors").write_bytes(b"half")
    save(run, 20, checkpoint(20))
    assert run.load(20).state["step"] == 20
    (run.checkpoints / ".30.tmp").mkdir()
    run.forget_after(20)
    assert not list(run.checkpoints.glob(".*"))


# What the run reported


def write(run, name, records):
    (run.path / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def evaluation(step, final=False, deterministic=False):
    scores = {"mean_return": 1.0, "std_return": 0.0, "episodes": 1}
    return {"step": step, "final": final, "deterministic": deterministic, **scores}


def test_forgetting_cuts_everything_back_to_a_step(run):
    for step in (10, 20, 30):
        save(run, step, checkpoint(step))
    run.mark_best(30, 1.0)
    write(run, "metrics.jsonl", [{"step": s} for s in (5, 10, 15, 20, 25, 30)])
    write(run, "evaluations.jsonl", [evaluation(s) for s in (10, 20, 30)])
    run.forget_after(20)
    assert run.steps() == [20]
    assert [r["step"] for r in run.metrics()] == [5, 10, 15, 20]
    assert [r["step"] for r in run.evaluations()] == [10, 20]
    assert run.best_step() is None


def test_final_evaluations_are_kept_one_at_a_time(run):
    save(run, 20, checkpoint(20))
    write(run, "evaluations.jsonl", [evaluation(20), evaluation(20, final=True)])
    assert not run.finished
    run.forget_after(20)
    assert run.evaluations() == [evaluation(20), evaluation(20, final=True)]

    both = [evaluation(20), evaluation(20, final=True), evaluation(20, final=True, deterministic=True)]
    write(run, "evaluations.jsonl", both)
    assert run.finished
    run.forget_after(20)
    assert run.evaluations() == both


def test_half_a_line_is_left_out(run):
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "kl"')
    assert run.metrics() == [{"step": 1}]
    run.forget_after(5)
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_run_that_reported_nothing(run):
    assert run.metrics() == run.evaluations() == run.steps() == []
    assert not run.finished


def test_files_of_a_whole_run(tmp_path):
    run = short_runs.quick_run(tmp_path / "run", seed=3)
    names = {"config.json", "metrics.jsonl", "evaluations.jsonl", "checkpoints", ".lock"}
    others = {p.name for p in run.path.iterdir()} - names
    assert len(others) == 1
    assert others.pop().startswith("events.out.tfevents.")
    assert run.finished
    assert run.read_config().seed == 3


def test_a_new_run_is_locked_before_its_configuration_is_written(tmp_path, monkeypatch):
    """Else the configuration of a second process, which is then refused, could replace that of the first."""
    write, written = Run.write_config, []

    def write_locked(run, *args):
        with pytest.raises(RunError, match="in use by another process"), lock(run.path):
            pass
        write(run, *args)
        written.append(run.path)

    monkeypatch.setattr(Run, "write_config", write_locked)
    run = rlzoo.train(out=tmp_path / "run", **{**short_runs.PPO, "total_steps": 100})
    assert written == [run.path]


def test_the_best_checkpoint_stays_the_best_when_the_run_goes_back_to_it(tmp_path):
    run = short_runs.quick_run(tmp_path, eval_interval=100, checkpoint_interval=100)
    step = run.best_step()
    run.forget_after(step)
    assert run.best_step() == step


def test_of_equal_evaluations_the_first_is_the_best(tmp_path, monkeypatch):
    evaluation = Evaluation(np.full(3, 7.0), np.full(3, 7), False, 0)
    monkeypatch.setattr(ControlTask, "evaluate", lambda *_, **__: evaluation)
    run = short_runs.quick_run(tmp_path, eval_interval=200)
    assert run.best_step() == run.evaluations()[0]["step"]
