"""Files of a run that another program deletes or replaces while it trains: said, restored, and the run can go on."""

import json
import shutil
from concurrent.futures import Future

import pytest
import short_runs
import tiny

from rlzoo.cli import main
from rlzoo.core.errors import RunError
from rlzoo.runs import guard, session
from rlzoo.runs.files import lock
from rlzoo.runs.logs import logger
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train


class AtOnce:
    """An executor that does at once what it is given."""

    def __init__(self, workers):
        self.shutdown = lambda: None

    def submit(self, work, *arguments):
        done = Future()
        done.set_result(work(*arguments))
        return done


@pytest.fixture(autouse=True)
def at_every_iteration(monkeypatch):
    """Files are written and checked after every iteration, and checkpoints in the foreground."""
    monkeypatch.setattr(session, "ThreadPoolExecutor", AtOnce)
    monkeypatch.setattr(guard, "_INTERVAL", -1.0)
    now = iter(range(10**9))
    monkeypatch.setattr(logger.time, "monotonic", lambda: 10.0 * next(now))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return short_runs.outcome(short_runs.quick_run(tmp_path_factory.mktemp("whole") / "run"))


def link(path):
    outside = path.parents[1] / "outside.txt"
    outside.write_text("precious\n")
    path.unlink()
    path.symlink_to(outside)


def replaced(path):
    path.unlink()
    path.write_text("{}\n")


def moved(path):
    path.rename(path.with_name("elsewhere"))


def tampered(path, change, at=350, **settings):
    """A run in `path` whose files are changed once after step `at`, and what it said."""
    lines, done = [], []

    def tamper(trainer, iteration):
        if iteration.step > at and not done:
            done.append(iteration.step)
            change(path)

    short_runs.quick_run(path, progress=tiny.Said(lines), on_iteration=tamper, **settings)
    return [line for line in lines if "another program" in line]


def delete(path):
    path.unlink()


CHANGES = [
    ("metrics.jsonl", delete),
    ("metrics.jsonl", link),
    ("metrics.jsonl", replaced),
    ("metrics.jsonl", moved),
    ("evaluations.jsonl", link),
    ("config.json", delete),
    ("config.json", link),
    ("checkpoints/best.json", delete),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_a_file(name, change, whole, tmp_path):
    path = tmp_path / "run"
    (line,) = tampered(path, lambda run: change(run / name))
    assert str(path / name) in line
    assert "it was written again" in line
    assert not (path / name).is_symlink()
    assert short_runs.outcome(Run(path)) == whole
    assert resume(path, total_steps=800).finished
    outside = tmp_path / "outside.txt"
    assert not outside.exists() or outside.read_text() == "precious\n"


def test_a_log_that_was_cut(tmp_path):
    path = tmp_path / "run"
    (line,) = tampered(path, lambda run: (run / "metrics.jsonl").write_text(""))
    assert line == f"another program cut {path / 'metrics.jsonl'}: some of its lines are lost"
    assert Run(path).metrics()[0]["step"] > 350
    assert resume(path, total_steps=800).finished


def spoil(path):
    last = max(path.glob("checkpoints/*[0-9]"), key=lambda p: int(p.name))
    (last / "model.safetensors").write_bytes(b"")


CHECKPOINTS = {
    "all": lambda run: shutil.rmtree(run / "checkpoints"),
    "last": lambda run: shutil.rmtree(max((run / "checkpoints").glob("*[0-9]"), key=lambda p: int(p.name))),
    "weights": spoil,
}


@pytest.mark.parametrize("change", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints(change, whole, tmp_path):
    path = tmp_path / "run"
    (line,) = tampered(path, change, checkpoint_interval=200, eval_interval=10_000)
    assert "another checkpoint is written" in line
    run = Run(path)
    assert run.finished
    assert short_runs.weights(run) == whole["model"]
    at = run.steps()[0]
    assert 350 < at < run.steps()[-1]
    resume(run, checkpoint=at)
    assert short_runs.weights(run) == whole["model"]


def test_everything(whole, tmp_path):
    path = tmp_path / "run"
    lines = tampered(path, shutil.rmtree)
    for name in ("config.json", "metrics.jsonl", "evaluations.jsonl", "best.json"):
        assert any(name in line for line in lines)
    found = short_runs.outcome(Run(path))
    assert found.pop("steps") == whole["steps"][1:]
    assert found == {key: x for key, x in whole.items() if key != "steps"}
    assert resume(path, total_steps=800).finished


def test_a_new_run_in_the_place_of_a_deleted_one_is_left_alone(tmp_path):
    path, held = tmp_path / "run", []

    def another(trainer, iteration):
        if iteration.step > 300 and not held:
            shutil.rmtree(path)
            held.append(lock(path))
            held[0].__enter__()
            (path / "config.json").write_text("another run")

    with pytest.raises(RunError, match="run is in use by another process"):
        short_runs.quick_run(path, on_iteration=another)
    assert (path / "config.json").read_text() == "another run"
    held[0].__exit__(None, None, None)


def test_hidden_links_in_a_run_lead_nowhere(tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious.txt").write_text("precious")
    names = (".config.json.tmp", ".metrics.jsonl.tmp", ".evaluations.jsonl.tmp", "checkpoints/.best.json.tmp")
    for name in names:
        (run.path / name).symlink_to(precious)
    (run.checkpoints / ".800.tmp").symlink_to(tmp_path / "elsewhere")
    assert resume(run, total_steps=800).finished
    assert precious.read_text() == "precious"
    assert (tmp_path / "elsewhere" / "precious.txt").read_text() == "precious"
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(precious)
    assert main(["resume", str(run.path), "--total-steps", "900"]) == 1
    assert precious.read_text() == "precious"


def length(prompts, responses):
    return [len(x) for x in responses]


def test_the_initial_model_of_a_language_run(tmp_path):
    tiny.save_lm(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("ab\nhello\n")
    path, lines = tmp_path / "run", []

    def tamper(trainer, iteration):
        if not lines_of_interest():
            shutil.rmtree(path / "start", ignore_errors=True)

    def lines_of_interest():
        return [line for line in lines if "another program" in line]

    given = {"model": str(tmp_path / "model"), "prompts": str(tmp_path / "prompts.txt"), "reward": f"{__file__}:length"}
    small = {"responses_per_batch": 4, "max_new_tokens": 3, "total_steps": 40, "eval_episodes": 2}
    small |= {"final_eval_episodes": 2, "epochs": 1, "minibatch_responses": 4}
    train("ppo-clip", "Prompts", out=path, progress=tiny.Said(lines), on_iteration=tamper, **given, **small)
    assert lines_of_interest() == [f"another program deleted {path / 'start'}: it was written again"]
    before = (path / "config.json").read_text()
    assert resume(path, total_steps=60).finished
    assert json.loads(before)["total_steps"] == 40
