"""Run directories that were damaged, or made by someone with bad intentions: one clear error, nothing executed."""

import hashlib
import json
import os
import pickle
import shutil

import pytest
import short_runs
import torch

import rlzoo
from rlzoo.cli import main
from rlzoo.core.system.errors import RunError
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume


@pytest.fixture(scope="module")
def good_run(tmp_path_factory):
    return short_runs.quick_run(tmp_path_factory.mktemp("good") / "run")


@pytest.fixture
def run(good_run, tmp_path):
    """A copy to spoil, unfinished so that it can be resumed."""
    shutil.copytree(good_run.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    (run.path / "evaluations.jsonl").unlink()
    return run


def last(run):
    return run.checkpoints / str(run.steps()[-1])


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def sign(folder):
    """A manifest that vouches for whatever is there."""
    files = ("model.safetensors", "state.safetensors", "state.json")
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    (folder / "manifest.json").write_text(json.dumps(sums))


def edit_state(folder, edit):
    record = json.loads((folder / "state.json").read_text())
    edit(record)
    (folder / "state.json").write_text(json.dumps(record))
    sign(folder)


def truncate(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def flip_a_bit(folder):
    data = bytearray((folder / "state.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "state.safetensors").write_bytes(data)


def put_directory(folder):
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()


def signed(spoil):
    def spoil_and_sign(folder):
        spoil(folder)
        sign(folder)

    return spoil_and_sign


DAMAGE = {
    "truncated weights": truncate,
    "truncated weights, signed": signed(truncate),
    "empty weights, signed": signed(lambda folder: (folder / "model.safetensors").write_bytes(b"")),
    "flipped bit": flip_a_bit,
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "manifest of something else": lambda folder: (folder / "manifest.json").write_text("[1, 2]"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "a directory for a file": put_directory,
    "state is no JSON": signed(lambda folder: (folder / "state.json").write_text("{")),
    "state is a list": signed(lambda folder: (folder / "state.json").write_text("[]")),
    "state nests too deep": signed(lambda folder: (folder / "state.json").write_text("[" * 100_000)),
    "state of another format": lambda folder: edit_state(folder, lambda r: r.update(format=99)),
    "huge header": signed(lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64)),
    "array that is not there": lambda folder: edit_state(
        folder, lambda r: r["state"]["task"].update(obs={"numpy": "../../etc/passwd"})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_checkpoint_is_named_with_an_older_one(run, damage, capsys):
    steps = run.steps()
    damage(last(run))
    with pytest.raises(
        RunError, match=f"cannot read checkpoint .*{steps[-1]}: .*use --checkpoint {steps[-2]}"
    ) as error:
        resume(run)
    assert "\n" not in str(error.value)
    assert main(["eval", str(run.path)]) == 2
    assert capsys.readouterr().err.startswith("rlzoo: cannot read checkpoint")
    assert resume(run, checkpoint=steps[-2]).finished


ABSENT = object()
ODD_STATE = {
    "step": ("far", 3),
    "task": (ABSENT,),
    "task collector env elapsed": (3, [], [1, 2, 3], float("nan")),
    "task collector env forced": (True, []),
    "task collector obs": (0.5, [], "x"),
    "task collector forced": (True, None),
    "task collector returns": ([], "x", {}),
    "task collector lengths": (10**400, [1], None),
    "task noise used": (-1, 2**31, float("inf"), "x"),
    "task noise z": ([], None),
    "algorithm": (3,),
    "algorithm rng bit_generator": ("MT19937",),
    "algorithm optimizers all count": (-1, 10**400, float("inf"), None),
    "logger": ([], ABSENT),
    "logger returns": (["x"], 3),
    "logger lengths": ([float("inf")], [None]),
}
"""Places in the state of a checkpoint, and values that cannot be there."""


@pytest.mark.parametrize(("place", "value"), [(place, x) for place, odd in ODD_STATE.items() for x in odd])
def test_state_that_does_not_fit(run, place, value):
    def edit(record):
        *path, name = place.split()
        parent = record["state"]
        for part in path:
            parent = parent[part]
        assert name in parent
        parent[name] = value
        if value is ABSENT:
            del parent[name]

    edit_state(last(run), edit)
    with pytest.raises(RunError, match=r"the checkpoint does not fit config.json: \w+Error: ") as error:
        resume(run)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "entry",
    [{"versions": None}, {"versions": "x"}, {"versions": -1}, {"spaces": "x"}, {"spaces": None}, {"git_commit": []}],
)
def test_entries_of_another_kind(run, entry, tmp_path, capsys):
    path, (name,) = run.path / "config.json", entry
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    out = str(tmp_path / "out")
    for arguments in (["report"], ["eval"], ["push", out], ["export", "--format", "c", "--out", out], ["resume"]):
        assert main([arguments[0], str(run.path), *arguments[1:]]) == 2
        assert f"config.json cannot be used: {name} is {entry[name]!r}, which is of the" in capsys.readouterr().err


def test_weights_of_another_network(run):
    config = json.loads((run.path / "config.json").read_text())
    (run.path / "config.json").write_text(json.dumps({**config, "hidden": [16]}))
    for use in (resume, rlzoo.evaluate):
        with pytest.raises(RunError, match=r"another run: hidden was \[8\] there, and is \[16\] here"):
            use(run)


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("writer", [pickle.dump, torch.save], ids=["pickle", "torch"])
def test_pickle_in_disguise_is_not_executed(run, name, writer, tmp_path):
    with (last(run) / name).open("wb") as file:
        writer(Bomb(tmp_path / "executed"), file)
    if name != "manifest.json":
        sign(last(run))
    with pytest.raises(RunError):
        resume(run)
    with pytest.raises(RunError):
        rlzoo.evaluate(run)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "\x80",
        "[" * 100_000,
        "{}",
        '{"format": 1}',
        '{"format": "3"}',
        '{"format": 2}',
        '{"format": 4}',
        '{"format": 3}',
        '{"format": 3, "algorithm": "ppo-clip"}',
        '{"format": 3, "algorithm": 3, "env": "CartPole-v1"}',
        '{"format": 3, "algorithm": ["ppo-clip"], "env": "CartPole-v1"}',
        '{"format": 3, "algorithm": "os:system", "env": "CartPole-v1"}',
        '{"format": 3, "algorithm": ":", "env": "CartPole-v1"}',
        '{"format": 3, "algorithm": "ppo-clip", "env": 3}',
        '{"format": 3, "algorithm": "ppo-clip", "env": "CartPole-v1", "gamma": "high"}',
        '{"format": 3, "algorithm": "ppo-clip", "env": "CartPole-v1", "hidden": 5}',
        '{"format": 3, "algorithm": "ppo-clip", "env": "CartPole-v1", "estimator": "os:system"}',
        '{"format": 3, "algorithm": "ppo-clip", "env": "CartPole-v1", "gama": 0.9}',
        '{"format": 3, "algorithm": "ppo-clip", "env": "CartPole-v1", "env_kwargs": []}',
        '{"format": 3, "algorithm": "ppo-clip", "env": "CartPole-v1", "network": {}}',
    ],
)
def test_damaged_configuration(run, text, capsys):
    (run.path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=r"config\.json"):
        resume(run)
    assert main(["eval", str(run.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["1e9", "-5", "../1", "latest", ".200.tmp", "200.bak"])
def test_only_plain_numbers_are_checkpoints(tmp_path, name):
    run = Run(tmp_path)
    (run.checkpoints / name).mkdir(parents=True)
    assert run.steps() == []


@pytest.mark.parametrize("text", ["", "[]", '{"step": "../../x"}', '{"step": 7}', '{"step": null}'])
def test_best_that_names_nothing(run, text):
    (run.checkpoints / "best.json").write_text(text)
    with pytest.raises(RunError, match="has no best checkpoint"):
        rlzoo.evaluate(run, checkpoint="best")
    assert rlzoo.evaluate(run, 3).returns.size == 3


@pytest.mark.parametrize("garbage", ["{", "\x00\x01", "[1]\n", '{"step": "x"}\n', '{"no": 1}\n', '{"step": 5}\n'])
def test_garbage_in_the_records_is_left_out(good_run, tmp_path, garbage):
    shutil.copytree(good_run.path, tmp_path / "run")
    run = Run(tmp_path / "run")
    before = run.evaluations()
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        with (run.path / name).open("a") as file:
            file.write(garbage)
    assert run.evaluations() == before
    assert resume(run, total_steps=800).finished


def test_foreign_directory(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    for arguments in (["resume", str(tmp_path)], ["eval", str(tmp_path)], ["play", str(tmp_path), "--video", "x.gif"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err == f"rlzoo: {tmp_path} holds no run (no config.json)\n"
    assert main(["train", "ppo", "CartPole-v1", "--out", str(tmp_path), "--overwrite"]) == 2
    assert capsys.readouterr().err == f"rlzoo: {tmp_path} is not empty, and its files are not those of a run\n"
    assert (tmp_path / "thesis.tex").read_text() == "ten years of work"


def test_the_directory_of_a_model_is_not_overwritten(tmp_path):
    """It has a `config.json` too, which was deleted with the data beside it."""
    files = {"config.json": '{"model_type": "gpt2"}', "data.jsonl": "{}"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for overwrite in (False, True):
        with pytest.raises(RunError, match="is not empty, and its files are not those of a run"):
            short_runs.quick_run(tmp_path, overwrite=overwrite)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_overwriting_leaves_other_files_alone(run):
    for name in ("notes.txt", "data.jsonl"):
        (run.path / name).write_text("mine")
    short_runs.quick_run(run.path, overwrite=True)
    assert (run.path / "notes.txt").read_text() == (run.path / "data.jsonl").read_text() == "mine"


def test_checkpoint_that_is_a_link_is_not_followed_when_it_is_let_go(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    (run.checkpoints / "1").symlink_to(elsewhere)
    resume(run)
    assert (elsewhere / "precious").exists()


def test_metrics_that_are_no_numbers(run, capsys):
    path = run.path / "metrics.jsonl"
    first, *rest = path.read_text().splitlines()
    odd = {**json.loads(first), "kl": {}, "entropy": "x", "mean_return": [1], "policy_loss": 10**400}
    path.write_text("\n".join([json.dumps(odd), json.dumps({**json.loads(first), "kl": {}}), *rest, ""]))
    assert main(["diagnose", str(run.path)]) == 0
    assert capsys.readouterr().err == ""
    assert len(run.metrics()) == len(rest) + 1


@pytest.mark.parametrize(
    "damage", [{"mean_return": "high"}, {"std_return": None}, {"episodes": []}, {"final": 1}, {"episodes": 0}]
)
def test_evaluations_with_other_kinds_of_value_are_left_out(good_run, tmp_path, damage):
    run = Run(shutil.copytree(good_run.path, tmp_path / "run"))
    *others, last = map(json.loads, (run.path / "evaluations.jsonl").read_text().splitlines())
    lines = [json.dumps(x) for x in (*others, {**last, **damage})]
    (run.path / "evaluations.jsonl").write_text("\n".join(lines) + "\n")
    assert len(run.evaluations()) == len(others)
    assert resume(run).evaluations()[-1] == {**last, "seconds": run.evaluations()[-1]["seconds"]}


@pytest.mark.parametrize("record", ["[1]", "3", '{"step": "x"}', "[" * 9_000])
def test_last_metrics_that_are_none(run, record):
    last = run.last_metrics()
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(f"{record}\n")
    assert run.last_metrics() == last


@pytest.mark.parametrize("name", ["extra.txt", "checkpoints/{step}/extra.txt"])
def test_only_files_of_the_run_are_pushed(run, tmp_path, name):
    (tmp_path / "secret.txt").write_text("secret")
    (run.path / name.format(step=run.steps()[-1])).symlink_to(tmp_path / "secret.txt")
    rlzoo.push(run, tmp_path / "shared")
    assert not list((tmp_path / "shared").rglob("extra.txt"))


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "config.json", "checkpoints/{step}/state.json", "start/chat_template.jinja"]
)
def test_a_link_that_leaves_the_run_is_not_pushed(run, tmp_path, name):
    path, elsewhere = run.path / name.format(step=run.steps()[-1]), tmp_path / "elsewhere"
    path.parent.mkdir(exist_ok=True)
    elsewhere.write_bytes(path.read_bytes() if path.exists() else b"secret")
    path.unlink(missing_ok=True)
    path.symlink_to(elsewhere)
    with pytest.raises(RunError, match=f"{path.name} is a link to a file outside of the run"):
        rlzoo.push(run, tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


def test_a_run_that_is_reached_by_a_link_or_downloaded_is_pushed(run, tmp_path):
    """The hub's cache has links to files with other names."""
    (tmp_path / "link").symlink_to(run.path)
    rlzoo.push(tmp_path / "link", tmp_path / "shared")
    copy = shutil.copytree(run.path, tmp_path / "cache/snapshots/1")
    (tmp_path / "cache/blobs").mkdir()
    (copy / "metrics.jsonl").rename(tmp_path / "cache/blobs/2")
    (copy / "metrics.jsonl").symlink_to("../../blobs/2")
    rlzoo.push(copy, tmp_path / "again")
    assert (tmp_path / "again/metrics.jsonl").read_bytes() == (tmp_path / "shared/metrics.jsonl").read_bytes()


def test_a_lock_that_is_a_link_makes_no_file(run, tmp_path, capsys):
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(tmp_path / "new")
    assert main(["resume", str(run.path)]) == 1
    assert capsys.readouterr().err == f"rlzoo: {run.path}/.lock: it is a link, through which nothing is written\n"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["checkpoints", "start", "actor"])
def test_nothing_is_written_through_a_directory_that_is_a_link(name, tmp_path):
    run = short_runs.quick_run(tmp_path / "run")
    outside = tmp_path / "outside"
    if (run.path / name).exists():
        (run.path / name).rename(outside)
    else:
        outside.mkdir()
    before = sorted(outside.rglob("*"))
    (run.path / name).symlink_to(outside)
    with pytest.raises(RunError, match=f"{name} is a link"):
        resume(run.path, total_steps=5000)
    assert sorted(outside.rglob("*")) == before
