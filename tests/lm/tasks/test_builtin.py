"""The supervised starts of the built-in tasks: made once, whoever makes them."""

from dataclasses import replace

import pytest

from rlzoo.core.task import silent
from rlzoo.lm.finetune import sft
from rlzoo.lm.tasks.builtin import built_in


@pytest.fixture
def task(monkeypatch, tmp_path):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path))
    walks = built_in("RandomWalks")
    return replace(walks, texts=walks.texts[:60], fit=replace(walks.fit, epochs=1))


def test_a_start_is_made_once(task, tmp_path):
    said = []
    folder = task.start(said.append)
    assert folder.parent == tmp_path
    assert len(said) == 2
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert task.start(said.append) == folder
    assert len(said) == 2
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_of_two_processes_that_make_it_the_first_counts(task, tmp_path, monkeypatch):
    train, first = sft.sft, []

    def overtaken(*arguments):
        monkeypatch.setattr(sft, "sft", train)
        first.append(task.start(silent))
        (first[0] / "mark").write_text("first")
        return train(*arguments)

    monkeypatch.setattr(sft, "sft", overtaken)
    assert task.start(silent) == first[0]
    assert (first[0] / "mark").read_text() == "first"
    assert list(tmp_path.iterdir()) == first
