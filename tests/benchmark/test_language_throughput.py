"""`benchmarks/speed/language_throughput.py` and its floor measure what they say, on a GPU too."""

import sys
from pathlib import Path

import pytest
import torch
from simulated_gpu import GPU, simulated

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speed"
SHAPE = {"prompts": 4, "prompt_tokens": 3, "new_tokens": 4, "iterations": 1}
TINY = {"tiny": {**SHAPE, "config": {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64}}}


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import language_floor
    import language_throughput

    monkeypatch.setattr(language_throughput, "SIZES", TINY)
    monkeypatch.setattr(language_floor, "SIZES", TINY)
    yield language_throughput, language_floor
    del sys.modules["language_throughput"], sys.modules["language_floor"]


@pytest.fixture
def waits(monkeypatch):
    """The calls for which the host waits until the GPU has done everything."""
    seen = []
    monkeypatch.setattr(torch.cuda, "synchronize", seen.append)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2_000_000_000)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ppo-clip", "trpo", "generate"])
def test_contestants_on_a_gpu(what, scripts, waits, tmp_path):
    """Times are read when the GPU has done everything."""
    throughput, _ = scripts
    throughput.make_prompts("tiny", tmp_path / "prompts.txt")
    throughput.make_model("tiny", tmp_path / "model")
    with simulated():
        if what == "generate":
            found = throughput.generate("tiny", "fp32", 1, tmp_path, GPU)
        else:
            found = throughput.train(what, "tiny", "fp32", 1, tmp_path, GPU, **throughput.SETTINGS[what])
    assert waits == [GPU] * (8 if what == "generate" else 2)
    assert all(seconds > 0 for name, seconds in found.items() if name in ("ours", "generate", "iteration_seconds"))
    assert throughput.peak_memory_gb(GPU) == 2.0


def test_floor_on_a_gpu(scripts, waits):
    _, floor = scripts
    with simulated(), torch.device(GPU):
        found = floor.floor("tiny", "bf16")
    assert set(waits) == {GPU}
    assert found["total"] == pytest.approx(found["generation"] + found["passes"] + found["epochs"])
