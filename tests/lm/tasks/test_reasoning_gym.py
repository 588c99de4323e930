"""The example of a task in one file, docs/examples/reasoning_gym_task.py, with a stand-in for the package."""

import importlib
import sys
from pathlib import Path

import pytest
import tiny

import rlzoo

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
STAND_IN = """
import os
import time


class Sums:
    def __init__(self, size, seed, largest=9):
        self.size, self.seed, self.largest = size, seed, largest

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i >= self.size:
            raise IndexError(i)
        a, b = (i + self.seed) % self.largest, i + self.seed
        return {"question": f"{a}+{b}=", "metadata": {"pair": (a, b)}}

    def score_answer(self, answer, entry):
        print("noise on the standard output")
        if answer == "hang":
            time.sleep(1000)
        if answer == "die":
            os._exit(1)
        return 1.0 if int(answer) == sum(entry["metadata"]["pair"]) else 0.01


def create_dataset(name, size, seed, **options):
    return {"sums": Sums}[name](size, seed, **options)
"""


@pytest.fixture
def example(tmp_path, monkeypatch):
    (tmp_path / "reasoning_gym.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("reasoning_gym_task")
    yield module
    module.worker().terminate()
    for name in ("reasoning_gym_task", "reasoning_gym"):
        del sys.modules[name]


@pytest.mark.slow
def test_a_run_and_hostile_answers(example, tmp_path, monkeypatch, capfd):
    run = rlzoo.train(
        "ppo-clip", "reasoning_gym_task:ReasoningGym", model=str(tiny.save_lm(tmp_path / "model")), dataset="sums",
        options={"largest": 5}, questions=6, eval_questions=2, max_new_tokens=4, responses_per_batch=4,
        responses_per_prompt=2, total_steps=8, minibatch_responses=2, final_eval_episodes=2, out=tmp_path / "run",
    )  # fmt: skip
    task = rlzoo.Trainer(run.read_config()).task
    assert task.env.prompts.texts == ["0+0=", "3+3=", "4+4=", "0+5="]  # without the two for evaluations
    assert task.eval_texts == ["1+1=", "2+2="]
    source = [x.columns["source"] for x in task.eval_texts]
    assert example.score(task.eval_texts, ["2", "7"], source, [0, 1]) == [1.0, 0.01]
    assert example.score(task.eval_texts, ["no number", "4"], source, [0, 1]) == [0, 1]
    monkeypatch.setattr(example, "SECONDS", 0.5)
    assert example.score(task.eval_texts, ["hang", "die"], source, [0, 1]) == [0, 0]
    monkeypatch.setattr(example, "SECONDS", 60.0)
    assert example.score(task.eval_texts, ["2", "4"], source, [0, 1]) == [1, 1]
    assert "noise" not in capfd.readouterr().out
