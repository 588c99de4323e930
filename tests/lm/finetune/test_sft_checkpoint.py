"""The SFT checkpoint of a task: made once, by one process while others wait; and its tokenizer."""

import multiprocessing
import os
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.progress import SILENT, Progress
from rlzoo.lm.finetune import sft
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, character_tokenizer, small_gpt2

WALKS = ["bda", "cda", "bcbda", "dcbda"] * 15
LETTERS = character_tokenizer(string.ascii_lowercase)


@pytest.fixture
def checkpoint(monkeypatch, tmp_path):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path))
    fit = sft.SFTSettings(epochs=1, batch_size=50, learning_rate=1e-3, held_out=0.1)
    return SFTCheckpoint([*WALKS, "bcba", "cba"], lambda: LETTERS, small_gpt2(1, 8, 1, 16), fit)


def test_it_is_made_once(checkpoint, tmp_path):
    said = []

    class Shown(Progress):
        say = staticmethod(said.append)

    folder = checkpoint.path("walks", Shown())
    assert list(tmp_path.iterdir()) == [folder]
    assert said[0].startswith("walks: SFT on 62 texts, once; cached in ")
    assert said[1].startswith("walks: epoch 1/1: loss ")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert checkpoint.path("walks", Shown()) == folder
    assert len(said) == 2
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_another_recipe_is_another_checkpoint(checkpoint, tmp_path):
    chat = character_tokenizer(string.ascii_lowercase)
    chat.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    others = [
        replace(checkpoint, texts=checkpoint.texts[1:]),
        replace(checkpoint, config=small_gpt2(1, 8, 1, 17)),
        replace(checkpoint, fit=replace(checkpoint.fit, held_out=0.0)),
        replace(checkpoint, tokenizer=lambda: character_tokenizer(string.ascii_letters)),
        replace(checkpoint, tokenizer=lambda: chat),
    ]
    folders = {x.path("module:Walks", SILENT) for x in (checkpoint, *others)}
    assert len(folders) == 6
    assert all(folder.name.startswith("Walks-") for folder in folders)
    assert set(os.listdir(tmp_path)) == {folder.name for folder in folders}


def make(checkpoint, together, results):
    said = []

    class Said(Progress):
        say = staticmethod(said.append)

    together.wait()
    folder = checkpoint.path("walks", Said())
    results.put((folder, sorted(path.name for path in folder.iterdir()), len(said)))


def test_of_two_processes_one_makes_it_and_the_other_waits(checkpoint, tmp_path):
    context = multiprocessing.get_context("fork")
    together, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=make, args=(checkpoint, together, results)) for _ in range(2)]
    for process in processes:
        process.start()
    (first, names, said), (second, same_names, others) = (results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert first == second
    assert "model.safetensors" in names
    assert names == same_names
    assert sorted((said, others)) == [0, 2]
    assert list(tmp_path.iterdir()) == [first]


def test_a_failure_leaves_no_checkpoint_and_the_next_try_makes_it(checkpoint, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sft, "sft", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            checkpoint.path("walks", SILENT)
    assert (checkpoint.path("walks", SILENT) / "model.safetensors").is_file()


def test_a_cache_that_cannot_be_written_is_named(checkpoint, monkeypatch, tmp_path):
    """The line was that of the first directory that is missing, such as "/home/user: Permission denied"."""
    (tmp_path / "file").touch()
    for cache in (tmp_path / "file/cache", tmp_path / "file"):
        monkeypatch.setenv("RLZOO_CACHE", str(cache))
        with pytest.raises(ConfigError, match=f"the cache {cache} cannot be written: .*; set RLZOO_CACHE to another"):
            checkpoint.path("walks", SILENT)


@given(text=st.text(string.ascii_lowercase, max_size=12))
def test_character_tokenizer_gives_back_any_text(text):
    ids = LETTERS(text)["input_ids"]
    assert ids == [string.ascii_lowercase.index(letter) for letter in text]
    assert LETTERS.decode(ids) == text


def test_character_tokenizer_by_hand(tmp_path):
    LETTERS.save_pretrained(tmp_path)
    for tokenizer in (LETTERS, AutoTokenizer.from_pretrained(tmp_path)):
        assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id) == (28, 26, 27)
        assert tokenizer("ba<eos><pad>")["input_ids"] == [1, 0, 26, 27]
        assert tokenizer.decode([1, 3, 0, 26, 27]) == "bda<eos><pad>"
        assert tokenizer.decode([1, 3, 0, 26, 27], skip_special_tokens=True) == "bda"
        with pytest.raises(Exception, match="Missing \\[UNK\\]"):
            tokenizer("bXa")
