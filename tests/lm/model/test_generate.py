"""Sampling responses: what is drawn, where a response ends, and that the cache changes nothing."""

import pytest
import torch
from lm_builders import KINDS, make_actor, make_model, make_rows, single
from scipy.stats import chi2
from tiny import PAD, make_tokenizer
from transformers import GenerationConfig

from rlzoo.lm.model import packed
from rlzoo.lm.model.generate import generate
from rlzoo.lm.model.language_model import LanguageModel, Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.pretrained import load_causal_lm, save

PROMPTS = [[3], [7, 1, 4, 40], [22, 9]]
IDS, ATTENTION = pad(PROMPTS, PAD)
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def sampled(model, prompts=PROMPTS, max_new_tokens=6, stop=(), seed=0, deterministic=False, padding=PAD):
    ids, attention = pad(prompts, padding)
    generator = torch.Generator().manual_seed(seed)
    return generate(model, ids, attention, max_new_tokens, stop, padding, generator, deterministic)


def responses(rows):
    return [row[1:][acts[:-1]].tolist() for row, acts in zip(rows.token, rows.acts, strict=True)]


class Scripted(LanguageModel):
    """Says a script, whatever it is asked: row i its i-th."""

    def act(self, obs, memory=None):
        policy, memory = super().act(obs, memory)
        self.step = 0 if obs.shape[1] > 1 else self.step + 1
        logits = torch.full_like(policy.logits, -1e9)
        logits[range(len(obs)), [script[self.step] for script in self.script]] = 0
        return type(policy)(logits), memory


def test_a_response_ends_with_a_stop_token_and_padding_follows():
    model = Scripted(make_actor())
    model.script = [[10, 11, 50, 9, 9], [51, 8, 8, 8, 8], [12, 50, 51, 7, 7]]
    rows = sampled(model, max_new_tokens=5, stop={50, 51})
    o = PAD
    assert rows.token.tolist() == [
        [o, o, o, 3, 10, 11, 50],
        [7, 1, 4, 40, 51, o, o],
        [o, o, 22, 9, 12, 50, o],
    ]
    assert rows.attention.int().tolist() == [[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0]]
    assert rows.acts.int().tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0]]


@pytest.mark.parametrize("max_new_tokens", [1, 2, 4])
def test_a_response_ends_at_the_limit(max_new_tokens):
    model = Scripted(make_actor())
    model.script = [[10, 11, 12, 13], [50, 8, 8, 8], [20, 21, 50, 8]]
    found = responses(sampled(model, max_new_tokens=max_new_tokens, stop={50}))
    assert found == [x[:max_new_tokens] for x in ([10, 11, 12, 13], [50], [20, 21, 50])]


def test_a_prompt_token_that_would_stop_does_not():
    model = Scripted(make_actor())
    model.script = [[10, 3], [11, 3], [12, 3]]
    assert responses(sampled(model, max_new_tokens=3, stop={3, 7, 40})) == [[10, 3], [11, 3], [12, 3]]


@ALL_KINDS
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_cached_decoding_equals_the_full_forward(kind, temperature):
    """Token by token after prompts padded on the left, and each row in one piece without any padding."""
    model = make_model(kind, settings={"temperature": temperature})
    rows = make_rows([(1, 5), (4, 5), (2, 5)])
    prompt = rows.attention.shape[1] - 5
    cached, memory = [], None
    with torch.no_grad():
        for start, end in [(0, prompt), *((t, t + 1) for t in range(prompt, prompt + 4))]:
            policy, memory = model.act(Rows(*(x[:, start:end] for x in rows)).obs, memory)
            cached.append(policy.log_probs)
        for i, row in enumerate(torch.stack(cached, 1)):
            full = model.distribution(single(rows, i).obs)
            torch.testing.assert_close(row, full._log_probs, rtol=0, atol=1e-5)


@ALL_KINDS
def test_a_row_is_continued_as_if_it_were_alone(kind):
    model = make_model(kind)
    together = responses(sampled(model, deterministic=True))
    alone = [responses(sampled(model, [p], deterministic=True))[0] for p in PROMPTS]
    assert together == alone
    assert len({tuple(x) for x in together}) == 3


def test_deterministic_is_the_most_probable_token_at_each_step():
    model = make_model()
    rows = sampled(model, deterministic=True)
    mode = model.distribution(rows.obs).mode
    assert torch.equal(mode[rows.acts], rows.token[:, 1:][rows.acts[:, :-1]])
    assert torch.equal(sampled(model, seed=1, deterministic=True).token, rows.token)


def test_the_same_seed_gives_the_same_tokens_and_a_generator_goes_on():
    model, generator = make_model(), torch.Generator().manual_seed(0)
    first, second = (generate(model, IDS, ATTENTION, 6, (), PAD, generator) for _ in range(2))
    assert torch.equal(sampled(model).token, first.token)
    assert not torch.equal(first.token, second.token)
    assert not torch.equal(sampled(model, seed=1).token, first.token)


def test_sampling_leaves_the_global_generator_and_the_model_alone():
    model = make_model()
    state, weights = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    sampled(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, weights, model.parameters()))


def p_value(counts, probability):
    """Of Pearson's test, categories with an expectation below 5 put together."""
    expected = probability * counts.sum()
    rare = expected < 5
    counts, expected = (torch.cat([x[~rare], x[rare].sum().view(1)]) for x in (counts.double(), expected.double()))
    statistic = ((counts - expected).square() / expected.clamp(min=1e-9))[expected > 0].sum()
    return chi2.sf(float(statistic), len(counts) - 1)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_sampled_frequencies_are_the_probabilities(kind, temperature):
    """All 64 responses of two tokens, one prompt beside longer ones."""
    model = make_model(kind, vocabulary=8, settings={"temperature": temperature})
    rows = sampled(model, [[1], [5, 2, 6]] * 3000, max_new_tokens=2, seed=3, padding=0)
    found = rows.token[::2, -2:]
    counts = torch.bincount(found[:, 0] * 8 + found[:, 1], minlength=64)

    every = torch.cartesian_prod(torch.tensor([1]), torch.arange(8), torch.arange(8))
    acts = torch.tensor([True, True, False]).expand(64, 3)

    def probability(model):
        policy = model.distribution(Rows(every, torch.ones_like(acts), acts).obs)
        return policy.log_prob(every.roll(-1, 1)).sum(1).exp().detach()

    assert float(probability(model).sum()) == pytest.approx(1, abs=1e-5)
    assert p_value(counts, probability(model)) > 0.01
    model.policy.temperature = 1.4 * temperature
    assert p_value(counts, probability(model)) < 1e-4


CUTS = {
    "do_sample": True, "top_k": 1, "top_p": 0.1, "temperature": 0.01, "min_new_tokens": 6, "repetition_penalty": 9.0,
    "bad_words_ids": [[20], [21]], "suppress_tokens": list(range(20, 50)), "max_new_tokens": 2, "eos_token_id": 30,
}  # fmt: skip


def test_the_generation_configuration_of_a_checkpoint_has_no_influence(tmp_path):
    expected = sampled(LanguageModel(make_actor()), stop=range(15))
    actor = make_actor()
    actor.generation_config = GenerationConfig(**CUTS)
    assert torch.equal(sampled(LanguageModel(actor), stop=range(15)).token, expected.token)

    save(make_actor(), make_tokenizer(), tmp_path / "actor")
    GenerationConfig(**CUTS).save_pretrained(tmp_path / "actor")
    loaded = load_causal_lm(tmp_path / "actor")
    assert torch.equal(sampled(LanguageModel(loaded), stop=range(15)).token, expected.token)
    assert any(20 <= x < 50 for response in responses(expected) for x in response)


@ALL_KINDS
def test_checkpointing_does_not_keep_the_cache_from_working(kind):
    plain, checkpointing = (make_model(kind, settings={"checkpointing": x}) for x in (False, True))
    checkpointing.train()
    assert torch.equal(sampled(plain).token, sampled(checkpointing).token)


@ALL_KINDS
def test_packed_weights_give_the_same_tokens_and_are_gone_afterwards(kind, monkeypatch):
    expected = sampled(make_model(kind))
    monkeypatch.setattr(packed, "_WORTH", 0)
    model, seen = make_model(kind), []
    inner = packed._packed_forward
    monkeypatch.setattr(packed, "_packed_forward", lambda *x: seen.append(inner(*x)) or seen[-1])
    assert torch.equal(sampled(model).token, expected.token)
    assert any(seen)
    assert not any("forward" in vars(m) for m in model.modules())
    rows = make_rows([(2, 3)])
    assert model.distribution(rows.obs).entropy().requires_grad
