"""A disk that fills up: one line, and the checkpoints that were there are intact."""

import errno
import os
from pathlib import Path

import pytest
import short_runs
from safetensors import SafetensorError

from rlzoo.cli import main
from rlzoo.core.system.errors import TrainingError
from rlzoo.runs import checkpoint
from rlzoo.runs.run import Run
from rlzoo.runs.train import resume


class FullDisk:
    """Lets so many bytes pass, then none. Everything is written through `Path.open`, but for tensors."""

    def __init__(self, monkeypatch, room):
        self.room = room
        self.open = Path.open
        monkeypatch.setattr(Path, "open", lambda path, *args, **kwargs: self.wrap(path, *args, **kwargs))
        self.save_file = checkpoint.save_file
        monkeypatch.setattr(checkpoint, "save_file", self.save)

    def save(self, tensors, path):
        self.room -= sum(x.nbytes for x in tensors.values())
        if self.room < 0:
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        self.save_file(tensors, path)

    def wrap(self, path, mode="r", *args, **kwargs):
        file = self.open(path, mode, *args, **kwargs)
        if mode in ("xb", "ab", "a"):
            write = file.write

            def limited(data):
                self.room -= len(data)
                if self.room < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a file that is open has no name
                return write(data)

            file = _Proxy(file, limited)
        return file


class _Proxy:
    def __init__(self, file, write):
        self.file, self.write = file, write

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


@pytest.mark.slow
@pytest.mark.parametrize("room", [8_000, 14_000, 20_000, 24_000, 28_000])
def test_full_disk_stops_the_run_and_spares_its_checkpoints(room, tmp_path):
    settings = {"checkpoint_interval": 100, "eval_interval": 100}
    reference = short_runs.outcome(short_runs.quick_run(tmp_path / "whole", **settings))
    path = tmp_path / "full"
    with pytest.MonkeyPatch.context() as patch:
        FullDisk(patch, room)
        with pytest.raises(TrainingError, match=r"step [\d,]+: cannot write .*: No space left on device; ") as error:
            short_runs.quick_run(path, **settings)
    run = Run(path)
    steps = run.steps()
    named = f"the last checkpoint is at step {steps[-1]:,}: rlzoo resume {path}" if steps else "there is no checkpoint"
    assert named in str(error.value)
    assert isinstance(error.value.__cause__, OSError)
    assert not list(run.checkpoints.glob(".*.tmp"))
    for step in steps:
        run.load(step)
    assert short_runs.outcome(resume(path)) == reference


def test_command_prints_one_line_and_exits_1(tmp_path, monkeypatch, capsys):
    FullDisk(monkeypatch, 20_000)
    settings = "--total-steps 600 --num-envs 4 --num-steps 25 --minibatch-size 50 --hidden 8 --quiet"
    assert main(["train", "ppo", "CartPole-v1", *settings.split(), "--out", str(tmp_path / "run")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_directory_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", "ppo", "CartPole-v1", "--out", str(tmp_path / "file" / "run")]) == 1
    assert capsys.readouterr().err == f"rlzoo: {tmp_path / 'file' / 'run'}: Not a directory\n"
