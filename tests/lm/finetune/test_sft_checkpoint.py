"""The SFT checkpoint of a task: made once, by whichever process is first."""

import os
from dataclasses import replace

import pytest

from rlzoo.core.progress import SILENT, Progress
from rlzoo.lm.finetune import sft
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, small_gpt2
from rlzoo.lm.tasks.random_walks import WalkGraph


@pytest.fixture
def checkpoint(monkeypatch, tmp_path):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path))
    graph = WalkGraph.make()
    fit = sft.SFTSettings(epochs=1, batch_size=50, learning_rate=1e-3, held_out=0.1)
    return SFTCheckpoint(graph.walks[:60], graph.tokenizer, small_gpt2(1, 8, 1, 16), fit)


def test_it_is_made_once(checkpoint, tmp_path):
    said, shown = [], []

    class Shown(Progress):
        say = staticmethod(said.append)
        advance = staticmethod(lambda share, line: shown.append((share, line)))

    folder = checkpoint.path("walks", Shown())
    assert folder.parent == tmp_path
    assert said[0].startswith("walks: SFT on 60 texts, once; cached in ")
    assert said[1].startswith("walks: epoch 1/1: loss ")
    assert [share for share, _ in shown] == [0.5, 1.0, 1.0]
    assert shown[0][1].startswith("epoch 1/1: loss ")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert checkpoint.path("walks", Shown()) == folder
    assert len(said) == 2
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_another_recipe_is_another_checkpoint(checkpoint, tmp_path):
    others = [
        replace(checkpoint, texts=checkpoint.texts[1:]),
        replace(checkpoint, config=small_gpt2(1, 8, 1, 17)),
        replace(checkpoint, fit=replace(checkpoint.fit, held_out=0.0)),
    ]
    folders = {x.path("module:Walks", SILENT) for x in (checkpoint, *others)}
    assert len(folders) == 4
    assert all(folder.name.startswith("Walks-") for folder in folders)
    assert set(os.listdir(tmp_path)) == {folder.name for folder in folders}


def test_of_two_processes_that_make_it_the_first_counts(checkpoint, tmp_path, monkeypatch):
    train, first = sft.sft, []

    def overtaken(*arguments, **more):
        monkeypatch.setattr(sft, "sft", train)
        first.append(checkpoint.path("walks", SILENT))
        (first[0] / "mark").write_text("first")
        return train(*arguments, **more)

    monkeypatch.setattr(sft, "sft", overtaken)
    assert checkpoint.path("walks", SILENT) == first[0]
    assert (first[0] / "mark").read_text() == "first"
    assert list(tmp_path.iterdir()) == first
