"""A language task at work, through the trainer: all five algorithms, evaluation, and the settings that change how."""

import json

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

import rlzoo
from rlzoo.algorithms import ALGORITHMS
from rlzoo.core.errors import ConfigError
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.runs.loop import Trainer


def vowels(prompts, responses):
    """A score: the share of vowels."""
    return [sum(c in "aeiou" for c in text) / max(len(text), 1) for text in responses]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    return folder


def config(data, algorithm="ppo-clip", **settings):
    given = {
        "model": str(data / "model"),
        "prompts": str(data / "prompts.txt"),
        "reward": f"{__file__}:vowels",
        "num_envs": 8,
        "max_new_tokens": 5,
        "gamma": 1.0,
        **settings,
    }
    return rlzoo.make_config(algorithm, "Prompts", **given)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_a_language_model(algorithm, data):
    trainer = Trainer(config(data, algorithm))
    before = {name: p.clone() for name, p in trainer.model.state_dict().items()}
    for _ in range(2):
        metrics = trainer.iterate().metrics
    moved = [name for name, p in trainer.model.state_dict().items() if not torch.equal(p, before[name])]
    assert any(name.startswith("trunk") for name in moved)
    assert any(name.startswith("value") for name in moved)
    assert metrics["kl_reference"] != 0
    assert np.isfinite(list(metrics.values())).all()


@pytest.mark.parametrize("estimator", ["leave-one-out", "group-norm"])
@pytest.mark.parametrize("algorithm", ["reinforce", "trpo", "ppo-clip"])
def test_advantages_within_groups_train_too(algorithm, estimator, data):
    trainer = Trainer(config(data, algorithm, estimator=estimator, responses_per_prompt=4))
    buffer = trainer.task.collect().buffer
    rows = trainer.algorithm.estimator(buffer)
    totals = (rows.advantage * rows.mask).sum(1) / rows.mask.sum(1)
    torch.testing.assert_close(totals.view(2, 4).sum(1), torch.zeros(2), rtol=0, atol=1e-5)
    trainer.iterate()


def test_accepted_trpo_steps_stay_within_max_kl(data):
    trainer = Trainer(config(data, "trpo", max_kl=0.003, num_envs=16))
    accepted = [m for m in (trainer.iterate().metrics for _ in range(6)) if m["accepted"]]
    assert len(accepted) >= 4
    assert all(0 < m["kl"] <= 0.003 for m in accepted)


def test_the_ratio_is_1_before_the_first_step(data):
    trainer = Trainer(config(data, "ppo-clip"))
    trainer.iterate()  # off the start
    batch = trainer.task.collect().buffer.rows(0)
    with torch.no_grad():
        ratio = torch.exp(trainer.model.distribution(batch.obs).log_prob(batch.action) - batch.logp)
    assert (ratio - 1).abs().max() < 1e-5


@pytest.mark.parametrize("algorithm", ["trpo", "ppo-penalty"])
def test_parts_change_no_update(algorithm, data):
    weights = []
    for part_tokens in (None, 16):
        trainer = Trainer(config(data, algorithm, part_tokens=part_tokens, **STEADY[algorithm]))
        trainer.iterate()
        weights.append(torch.cat([p.reshape(-1) for p in trainer.model.state_dict().values()]))
    torch.testing.assert_close(*weights, rtol=1e-3, atol=2e-5)


STEADY = {"trpo": {"cg_iters": 3, "vf_epochs": 0}, "ppo-penalty": {"epochs": 1, "minibatch_size": 1000}}


def test_bfloat16_trains_nearly_the_same(data):
    metrics = []
    for precision in ("float32", "bfloat16"):
        trainer = Trainer(config(data, precision=precision, beta=0.0))
        metrics.append(trainer.iterate().metrics)
        assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
    assert metrics[1]["entropy"] == pytest.approx(metrics[0]["entropy"], rel=0.05)
    assert abs(metrics[1]["kl_reference"]) < 1e-6  # actor and reference are rounded alike


def test_evaluation_leaves_no_trace_in_the_training(data):
    one, other = (Trainer(config(data, seed=3)) for _ in range(2))
    one.iterate(), other.iterate()
    other.task.evaluate(7, seed=5)
    assert one.iterate().metrics == other.iterate().metrics


def test_evaluation_is_the_same_for_the_same_seed(data):
    task = Trainer(config(data)).task
    first, again, other = (task.evaluate(9, seed=seed).summary() for seed in (1, 1, 2))
    assert first == again != other
    assert first["kl_reference"] == pytest.approx(0, abs=1e-6)
    assert len(first["samples"]) == 4
    assert first["samples"][0]["prompt"] == "ab"


def test_a_run_leaves_models_that_transformers_loads(data, tmp_path):
    settings = {"num_envs": 8, "max_new_tokens": 5, "total_steps": 60, "lora_rank": 2}
    run = rlzoo.runs.train(config(data, **settings), out=tmp_path / "run")
    actor = AutoModelForCausalLM.from_pretrained(run.path / "actor")
    model = rlzoo.load_model(run)
    assert isinstance(model, LanguageModel)
    ids = torch.tensor([[1, 2, 3]])
    expected = model.actor(ids).logits
    torch.testing.assert_close(actor(ids).logits, expected, rtol=1e-4, atol=1e-4)
    start = AutoModelForCausalLM.from_pretrained(run.path / "start")
    assert not torch.allclose(start(ids).logits, expected, atol=1e-4)
    record = json.loads((run.path / "evaluations.jsonl").read_text().splitlines()[-1])
    assert record["samples"]


def test_a_run_depends_on_no_directory_but_its_own(data, tmp_path):
    tiny.save_lm(tmp_path / "model")
    run = rlzoo.runs.train(config(data, model=str(tmp_path / "model"), total_steps=40), out=tmp_path / "run")
    (tmp_path / "model").rename(tmp_path / "gone")
    assert rlzoo.runs.evaluate(run, 3).mean_return == rlzoo.runs.evaluate(run, 3).mean_return
    rlzoo.resume(run, total_steps=80)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"beta": -0.1}, "beta must be at least 0"),
        ({"responses_per_prompt": 3}, "num_envs must be a multiple of responses_per_prompt = 3, got 8"),
        ({"attention": "sdpa", "algorithm": "npg"}, "npg differentiates twice"),
        ({"gradient_checkpointing": True, "algorithm": "trpo"}, "cannot be differentiated twice"),
        ({"critic": "reward-model"}, "reward must be the directory of one"),
        ({"beta_target": 6.0, "beta_horizon": 1.0}, "beta_horizon must be above a fifth of num_envs"),
        ({"prompts": None}, "prompts is missing"),
        ({"max_new_tokens": 32}, "max_new_tokens must leave room"),
        ({"max_prompt_tokens": 2}, r"prompt 2 \('hello'\) has 5 tokens; there is room for 2"),
        ({"stop_tokens": ("ab",)}, "'ab' is 2 tokens"),
        ({"ptx": "missing.txt"}, "missing.txt"),
    ],
)
def test_wrong_settings_are_one_line(settings, message, data):
    with pytest.raises(ConfigError, match=message) as caught:
        Trainer(config(data, **settings))
    assert "\n" not in str(caught.value)
