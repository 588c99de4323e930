"""A language run that is killed at any instant and resumed is the run that was never killed."""

import random
import sys
import time

import pytest
import runs
import tiny

from rlzoo.runs.run import Run
from rlzoo.runs.train import resume, train


def vowels(prompts, responses):
    """A score: the share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in responses]


@pytest.fixture(autouse=True)
def few_final_episodes(monkeypatch):
    monkeypatch.setattr(sys.modules["rlzoo.runs.train"], "FINAL_EPISODES", 5)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    (folder / "texts.txt").write_text("an aeon\nout of\nan idea, a one\n")
    return folder


def settings(data, algorithm, **more):
    """A run of six iterations with everything that has a state: β, statistics of scores, orders, noise."""
    return {
        "algorithm": algorithm,
        "env": "Prompts",
        "model": str(data / "model"),
        "prompts": str(data / "prompts.txt"),
        "reward": f"{__file__}:vowels",
        "ptx": str(data / "texts.txt"),
        "ptx_rows": 2,
        "num_envs": 6,
        "max_new_tokens": 4,
        "total_steps": 140,
        "eval_episodes": 3,
        "beta": 0.1,
        "beta_target": 1.0,
        "beta_horizon": 50.0,
        "score_normalization": "running",
        **more,
    }


PPO = {"minibatch_size": 24, "epochs": 2, "learning_rate": 1e-3}
TRPO = {"cg_iters": 2, "vf_epochs": 2, "vf_minibatch_size": 24, "score_normalization": "reference"}
KINDS = [("ppo-clip", PPO), ("trpo", TRPO), ("ppo-clip", {**PPO, "lora_rank": 2, "critic": "actor"})]
ALL = pytest.mark.parametrize(("algorithm", "more"), KINDS, ids=["ppo-clip", "trpo", "lora"])


def go_on(path, given):
    if (path / "config.json").exists():
        resume(path)
    else:
        train(**given, out=path)


@ALL
def test_stopped_and_resumed(algorithm, more, data, tmp_path):
    given = settings(data, algorithm, **more)
    whole = runs.outcome(train(**given, out=tmp_path / "whole"))
    path = tmp_path / "stopped"
    train(**given, out=path, on_iteration=lambda trainer, _: trainer.step > 60)
    assert Run(path).steps()[-1] < 140
    resume(path, checkpoint=Run(path).steps()[-2])
    assert runs.outcome(Run(path)) == whole


@pytest.mark.slow
@ALL
def test_killed_at_random_instants(algorithm, more, data, tmp_path):
    given = settings(data, algorithm, **more)
    start = time.perf_counter()
    whole = runs.outcome(train(**given, out=tmp_path / "whole"))
    duration = time.perf_counter() - start
    rng = random.Random(0)
    path = tmp_path / "killed"
    for _ in range(8):
        runs.in_child(lambda: go_on(path, given), kill_after=rng.uniform(0, duration))
    go_on(path, given)
    assert runs.outcome(Run(path)) == whole
