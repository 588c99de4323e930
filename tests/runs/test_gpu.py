"""Whole runs on a GPU compute what the CPU does, with every tensor and generator in its place.

The GPU is a real one where there is one, with the random numbers of the CPU, and otherwise a simulated one.
"""

import numpy as np
import pytest
import short_language_runs
import short_runs
import simulated_gpu
import tiny
import torch

import rlzoo
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.runs.train import resume, train

pytestmark = pytest.mark.slow
GPU, simulated = ("cuda", simulated_gpu.real) if simulated_gpu.REAL else (simulated_gpu.GPU, simulated_gpu.simulated)
VALUE = {"vf_epochs": 2, "vf_minibatch_size": 50}
CONTROL = {
    "ppo-clip": {**short_runs.PPO, "fast": False},
    "fast ppo-clip": short_runs.PPO,
    "gru": short_runs.GRU,
    "trpo": {**short_runs.TRPO, "fisher_fraction": 0.3},
    "npg": {**short_runs.QUICK, "algorithm": "npg", "env": "Pendulum-v1", "cg_iters": 2, **VALUE},
    "reinforce": {**short_runs.QUICK, "algorithm": "reinforce", **VALUE},
    "ppo-penalty": {**short_runs.PPO, "algorithm": "ppo-penalty", "estimator": "leave-one-out", "gamma": 1.0},
}
LANGUAGE = {
    **{
        name: kind
        for name, kind in short_language_runs.KINDS.items()
        if name not in short_language_runs.CONTAINED and "precision" not in kind[1]
    },
    "npg": ("npg", {"cg_iters": 2, "vf_epochs": 1, "micro_batch_tokens": 20}),
    "reinforce": ("reinforce", {"responses_per_prompt": 3, "estimator": "grpo"}),
    "ppo-penalty": ("ppo-penalty", {**short_language_runs.PPO, "kl_estimator": "full", "gradient_checkpointing": True}),
}


def numbers(run):
    """Metrics and evaluations of a run, without times, those of the farthest response beside the others."""
    found = short_runs.outcome(run)
    evaluations = [dict(evaluation) for evaluation in found["evaluations"]]
    for evaluation in evaluations:
        farthest = evaluation.pop("farthest", {})
        evaluation.update({f"farthest {name}": x for name, x in farthest.items()})
    return [*found["metrics"], *evaluations]


def assert_close(one, two):
    """Numbers are equal to 1e-4, since the parts of a sum may be others, and everything else is equal."""
    assert len(one) == len(two) > 1
    for a, b in zip(one, two, strict=True):
        text = [{name: x for name, x in record.items() if not isinstance(x, float | list)} for record in (a, b)]
        assert text[0] == text[1]
        number = [{name: x for name, x in record.items() if isinstance(x, float)} for record in (a, b)]
        assert number[0] == pytest.approx(number[1], rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("settings", CONTROL.values(), ids=CONTROL)
def test_control(settings, tmp_path):
    settings = {**settings, "total_steps": 200}
    expected = train(**settings, out=tmp_path / "cpu")
    with simulated():
        run = train(**settings, device=GPU, out=tmp_path / "gpu")
    assert_close(numbers(run), numbers(expected))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    short_language_runs.save_data(folder)
    return folder


@pytest.mark.parametrize(("algorithm", "more"), LANGUAGE.values(), ids=LANGUAGE)
def test_language(algorithm, more, data, tmp_path):
    settings = short_language_runs.settings(data, algorithm, **{**more, "total_steps": 50})
    expected = train(**settings, out=tmp_path / "cpu")
    with simulated():
        run = train(**settings, device=GPU, out=tmp_path / "gpu")
    assert_close(numbers(run), numbers(expected))


def after(last):
    """The tokens that may follow a token."""
    return range(min(last[-1], 40), tiny.EOS + 1)


def test_a_learned_score_with_a_critic_like_it_and_allowed_tokens(data, tmp_path):
    tiny.make_reward_model(data / "model").save(data / "rewards")
    more = {"reward": str(data / "rewards"), "critic": "reward-model", "allowed_tokens": f"{__file__}:after"}
    settings = short_language_runs.settings(data, "ppo-clip", **{**short_language_runs.PPO, **more, "total_steps": 50})
    expected = train(**settings, out=tmp_path / "cpu")
    with simulated():
        run = train(**settings, device=GPU, out=tmp_path / "gpu")
    assert_close(numbers(run), numbers(expected))


@pytest.mark.parametrize("name", ["ppo-clip", "bfloat16-npg"])
def test_bfloat16(name, data, tmp_path, monkeypatch):
    """Its rounding is not that of the CPU, so only what does not depend on the tokens is compared."""
    monkeypatch.setattr("rlzoo.lm.tasks.settings.has_bfloat16", lambda device: True)
    algorithm, more = short_language_runs.KINDS[name]
    settings = {**short_language_runs.settings(data, algorithm, **more), "total_steps": 50, "precision": "bfloat16"}
    expected = numbers(train(**settings, out=tmp_path / "cpu"))
    with simulated():
        found = numbers(train(**settings, device=GPU, out=tmp_path / "gpu"))
    assert found[0]["entropy"] == pytest.approx(expected[0]["entropy"], rel=0.1)
    assert abs(found[0]["kl_reference"]) < 0.1
    assert all(np.isfinite(x) for record in found for x in record.values() if isinstance(x, float))


@pytest.mark.parametrize("kind", ["control", "language"])
def test_a_resumed_run_is_that_without_the_interruption(kind, data, tmp_path):
    """Moments and the states of generators come back to the GPU from the checkpoint."""
    language = short_language_runs.settings(data, "ppo-clip", **short_language_runs.PPO)
    with simulated():
        run = train(**(short_runs.PPO if kind == "control" else language), device=GPU, out=tmp_path / "run")
        first, *_, last = run.steps()
        expected = short_runs.outcome(run)
        resume(run, checkpoint=first)
    assert run.steps()[-1] == last > first
    found = short_runs.outcome(run)
    assert all(found[part] == expected[part] for part in ("model", "arrays", "metrics", "evaluations"))


BRIEF = {"epochs": 2, "learning_rate": 1e-3, "held_out": 0.25, "micro_batch_tokens": 32}
TEXTS = [f"say {c} " + "again " * n for n, c in enumerate("abcdefgh")]
PAIRS = [{"prompt": f"is {c}", "chosen": " good", "rejected": " bad", "margin": 0.1} for c in "abcdefgh"]


def on_gpu(work):
    """The result of `work` on the simulated GPU, and that on the CPU."""
    with simulated():
        found = work(GPU)
    return found, work("cpu")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_supervised_fine_tuning(kind, tmp_path):
    def work(device):
        out = tmp_path / device
        model, tokenizer = tiny.make_lm(kind).to(device), tiny.make_tokenizer()
        metrics = rlzoo.sft(TEXTS, model, out, tokenizer=tokenizer, device=device, **BRIEF)
        return {**metrics, "seconds": 0.0}, (out / "model.safetensors").stat().st_size

    found, expected = on_gpu(work)
    assert found == (pytest.approx(expected[0], rel=1e-5), expected[1])


def test_reward_models(tmp_path):
    """Training, calibration, and scores of texts and of tokens by the model that was saved."""
    base = tiny.save_lm(tmp_path / "base")

    def work(device):
        out = tmp_path / device
        metrics = rlzoo.train_reward_model(PAIRS, base, out, device=device, **BRIEF)
        model, ids = RewardModel.load(out, device=device), torch.tensor([[1, 2, 3]], device=device)
        by_tokens = model.score_ids(ids, ids > 0)
        assert by_tokens.device.type == device
        scores = model(["is a", "is b"], [" good", " bad and more"])
        return {**metrics, "seconds": 0.0}, [*scores, *by_tokens.tolist()]

    (metrics, scores), expected = on_gpu(work)
    assert metrics == pytest.approx(expected[0], rel=1e-4)
    assert scores == pytest.approx(expected[1], rel=1e-4)
