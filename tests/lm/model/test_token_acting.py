"""Sampling responses: what is sampled, where a response ends, and that the cache changes nothing."""

import numpy as np
import pytest
import torch
from lm_builders import (
    KINDS,
    STOPS,
    collect,
    experience,
    make_actor,
    make_env,
    make_fast,
    make_model,
    make_rows,
    rewarded,
    same,
    single,
)
from lm_builders import make_model as make_lm
from scipy.stats import chi2
from simulated_gpu import GPU, simulated
from tiny import PAD, make_tokenizer
from transformers import GenerationConfig

from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.lm.fast.model import FastLanguageModel
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.pretrained import load_causal_lm
from rlzoo.lm.model.saving import save
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.turns import Turns

PROMPTS = [[3], [7, 1, 4, 40], [22, 9]]
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def env_of(model, prompts=PROMPTS, max_new_tokens=6, stop=(), tokenizer=None):
    """One row for each of the prompts, given as tokens."""
    tokenizer = tokenizer or make_tokenizer()
    texts = tokenizer.batch_decode(prompts)
    env = make_env(model, texts, tokenizer=tokenizer, max_new_tokens=max_new_tokens, stop=stop).over(texts)
    assert env.prompt_ids == prompts
    return env


def sampled(model, *prompts, seed=0, deterministic=False, **env):
    return collect(env_of(model, *prompts, **env), seed, deterministic)


def responses(buffer):
    return [row[mask].tolist() for row, mask in zip(buffer.action, buffer.mask, strict=True)]


class Scripted(LanguageModel):
    """A model that follows a script: row i its i-th."""

    def act(self, tokens, memory=None):
        self.step = 0 if memory is None else self.step + 1
        policy, memory = super().act(tokens, memory)
        logits = torch.full_like(policy.logits, -1e9)
        logits[range(len(logits)), [script[self.step] for script in self.script]] = 0
        return type(policy)(logits), memory


def scripted(*script):
    model = Scripted(make_actor())
    model.script = script
    return model


def test_a_response_ends_with_a_stop_token_and_padding_follows():
    model = scripted([10, 11, 50, 9, 9], [51, 8, 8, 8, 8], [12, 50, 51, 7, 7])
    rows = sampled(model, max_new_tokens=5, stop={50, 51}).obs
    o = PAD
    assert rows.token.tolist() == [
        [o, o, o, 3, 10, 11, 50],
        [7, 1, 4, 40, 51, o, o],
        [o, o, 22, 9, 12, 50, o],
    ]
    assert rows.attention.int().tolist() == [[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0]]
    assert rows.acts.int().tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0]]


def test_a_buffer_by_hand():
    """Prompts 3 and 4 5, responses 6 7 8 and 9."""
    o = PAD
    buffer = sampled(scripted([6, 7, 8], [9, 0, 0]), [[3], [4, 5]], max_new_tokens=3, stop={9})
    assert torch.stack(buffer.obs.tensors(), -1).tolist() == [
        [[o, 0, 0], [3, 1, 1], [6, 1, 1], [7, 1, 1], [8, 1, 0]],
        [[4, 1, 0], [5, 1, 1], [9, 1, 0], [o, 0, 0], [o, 0, 0]],
    ]
    assert responses(buffer) == [[6, 7, 8], [9]]
    assert buffer.mask.int().tolist() == [[0, 1, 1, 1], [0, 1, 0, 0]]
    assert buffer.terminated.int().tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    assert not buffer.truncated.any()
    assert not buffer.reward.any()
    assert buffer.num_steps == 4


def test_a_prompt_takes_one_forward_and_a_token_one_more():
    model = scripted([10, 11, 50], [51, 8, 8], [12, 50, 8])
    seen, act = [], model.act
    model.act = lambda tokens, memory=None: seen.append(tokens.token.shape[1]) or act(tokens, memory)
    sampled(model, max_new_tokens=5, stop={50, 51})
    assert seen == [4, 1, 1]


@pytest.mark.parametrize("max_new_tokens", [1, 2, 4])
def test_a_response_ends_at_the_limit(max_new_tokens):
    model = scripted([10, 11, 12, 13], [50, 8, 8, 8], [20, 21, 50, 8])
    found = responses(sampled(model, max_new_tokens=max_new_tokens, stop={50}))
    assert found == [x[:max_new_tokens] for x in ([10, 11, 12, 13], [50], [20, 21, 50])]


def test_a_prompt_token_that_would_stop_does_not():
    model = scripted([10, 3], [11, 3], [12, 3])
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
            policy, memory = model.act(rows.columns(start, end), memory)
            cached.append(policy.log_probs)
        for i, row in enumerate(torch.stack(cached, 1)):
            full = model.distribution(single(rows, i))
            torch.testing.assert_close(row, full.at_steps.log_probs, rtol=0, atol=1e-5)


@ALL_KINDS
def test_a_row_is_continued_as_if_it_were_alone(kind):
    model = make_model(kind)
    together = responses(sampled(model, deterministic=True))
    alone = [responses(sampled(model, [prompt], deterministic=True))[0] for prompt in PROMPTS]
    assert together == alone
    assert len({tuple(x) for x in together}) == 3


def test_deterministic_is_the_most_probable_token_at_each_step():
    model = make_model()
    buffer = sampled(model, deterministic=True)
    mode = model.distribution(buffer.obs.columns(0, -1)).mode
    assert torch.equal(mode[buffer.mask], buffer.action[buffer.mask])
    for seed in (1, None):
        assert same(sampled(model, seed=seed, deterministic=True).obs, buffer.obs)


def test_the_same_seed_gives_the_same_tokens_and_a_generator_goes_on():
    model, generator = make_model(), torch.Generator().manual_seed(0)
    collector = Collector(env_of(model), whole_episodes=True)
    first, second = (collector.collect(TokenActor(model, generator)).buffer for _ in range(2))
    assert same(sampled(model).obs, first.obs)
    assert not same(first.obs, second.obs)
    assert not same(sampled(model, seed=1).obs, first.obs)


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
    buffer = sampled(model, [[1], [5, 2, 6]] * 3000, max_new_tokens=2, seed=3, tokenizer=make_tokenizer(pad="a"))
    found = buffer.obs.token[::2, -2:]
    counts = torch.bincount(found[:, 0] * 8 + found[:, 1], minlength=64)

    every = torch.cartesian_prod(torch.tensor([1]), torch.arange(8), torch.arange(8))
    acts = torch.tensor([True, True, False]).expand(64, 3)

    def probability(model):
        policy = model.distribution(Tokens(every, torch.ones_like(acts), acts))
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
    assert same(sampled(LanguageModel(actor), stop=range(15)).obs, expected.obs)

    save(make_actor(), make_tokenizer(), tmp_path / "actor")
    GenerationConfig(**CUTS).save_pretrained(tmp_path / "actor")
    loaded = load_causal_lm(tmp_path / "actor")
    assert same(sampled(LanguageModel(loaded), stop=range(15)).obs, expected.obs)
    assert any(20 <= x < 50 for response in responses(expected) for x in response)


@ALL_KINDS
def test_gradient_checkpointing_does_not_keep_the_cache_from_working(kind):
    plain, checkpointing = (make_model(kind, settings={"gradient_checkpointing": x}) for x in (False, True))
    checkpointing.train()
    assert same(sampled(plain).obs, sampled(checkpointing).obs)


# Buffers


@ALL_KINDS
def test_the_tokens_that_train_are_those_that_were_sampled(kind):
    env, said = make_env(make_model(kind)), []

    class Noting(TokenActor):
        def __call__(self, obs, forced, starts):
            said.append(super().__call__(obs, forced, starts))
            return said[-1]

    actor = Noting(env.model, torch.Generator().manual_seed(0))
    buffer = Collector(env, whole_episodes=True).collect(actor).buffer
    sampled = torch.from_numpy(np.stack(said, 1))[:, : buffer.mask.shape[1]]
    assert torch.equal(buffer.action[buffer.mask], sampled[buffer.mask])
    ids = [env.prompt_ids[group.prompt] for group in env.groups]
    for i, (mask, action) in enumerate(zip(buffer.mask, buffer.action, strict=True)):
        assert single(buffer.obs, i).token[0].tolist() == ids[i] + action[mask].tolist()


@ALL_KINDS
def test_every_row_terminates_once_at_its_end(kind):
    buffer = experience(make_env(make_model(kind), rows=12)).buffer
    assert buffer.terminated.sum(1).tolist() == [1] * 12
    assert bool((buffer.terminated <= buffer.mask).all())
    lengths = buffer.mask.sum(1)
    stopped = torch.isin(buffer.action, torch.tensor(sorted(STOPS))) & buffer.mask
    assert torch.equal(stopped & ~buffer.terminated, torch.zeros_like(stopped))
    assert torch.equal(stopped.any(1) | (lengths == 6), torch.ones(12).bool())
    assert lengths.min() < 6


@ALL_KINDS
def test_log_probabilities_are_those_of_sampling(kind):
    """Sampled token by token with a cache after padded prompts; evaluated in one pass."""
    env = make_env(make_model(kind, settings={"temperature": 0.7}))
    sampled, act = [], env.model.act

    def noted(tokens, memory=None):
        policy, memory = act(tokens, memory)
        sampled.append(policy.log_probs)
        return policy, memory

    env.model.act = noted
    buffer = evaluate(env.model, collect(env))
    first = buffer.mask.shape[1] - len(sampled)
    expected = torch.stack(sampled, 1).gather(-1, buffer.action[:, first:, None]).squeeze(-1)
    torch.testing.assert_close(
        buffer.logp[:, first:][buffer.mask[:, first:]], expected[buffer.mask[:, first:]], rtol=0, atol=1e-5
    )
    assert not buffer.logp[~buffer.mask].any()


def rows_of_passes(model):
    """The rows and columns of each pass of the model's trunk."""
    seen, run = [], model.trunk.run
    model.trunk.run = lambda token, *x, **more: seen.append(tuple(token.shape)) or run(token, *x, **more)
    return seen


@ALL_KINDS
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_rows_that_have_ended_leave_and_a_prompt_of_a_group_is_read_once(kind, attention, monkeypatch):
    """With the same tokens and log-probabilities as if they stayed and every row read its prompt."""
    found = []
    for make, most in ((make_model, 0.875), (make_fast, 0.0), (make_fast, 0.875), (make_fast, 0.5)):
        monkeypatch.setattr(FastLanguageModel, "share_that_stays", most)
        env = make_env(make(kind, attention=attention), group_size=4, rows=12, max_new_tokens=8)
        seen = rows_of_passes(env.model)
        found.append((collect(env), seen))
    plain, stay, leave, later = (seen for _, seen in found)
    assert {rows for rows, _ in plain} == {12}
    assert stay == [(3, plain[0][1]), *plain[1:]]
    longer = [rows for rows, _ in leave[1:]]
    assert longer == sorted(longer, reverse=True)
    assert longer[-1] < 6
    assert sum(longer) < sum(rows for rows, _ in later[1:]) < 12 * len(longer)
    for buffer, _ in found[1:]:
        assert same(buffer.obs, found[0][0].obs)


@ALL_KINDS
def test_leaving_changes_no_conversation(kind, monkeypatch):
    """A row that listens to a reply has not ended."""
    found = []
    for most in (0.0, 0.999):
        monkeypatch.setattr(FastLanguageModel, "share_that_stays", most)
        turns = Turns(lambda conversations: ["abc" if len(x.turns) < 4 else None for x in conversations])
        env = make_env(make_fast(kind), rows=9, max_new_tokens=16, turns=turns)
        seen = rows_of_passes(env.model)
        found.append((collect(env), seen))
    assert same(found[0][0].obs, found[1][0].obs)
    assert found[1][1][-1][0] < 9


def test_two_rollouts_differ_and_the_same_seed_gives_the_same():
    def run(seed):
        env, generator = make_env(make_model(), seed=seed), torch.Generator().manual_seed(seed)
        collector = Collector(env, whole_episodes=True)
        buffers = [collector.collect(TokenActor(env.model, generator)).buffer for _ in range(2)]
        return [[x.clone() for x in rewarded(env, buffer).buffer.tensors()] for buffer in buffers]

    first, again, other = run(0), run(0), run(1)
    for a, b in zip(first, again, strict=True):
        assert all(map(torch.equal, a, b))
    responses = [buffers[i][3] for buffers in (first, other) for i in (0, 1)]
    assert not any(a.shape == b.shape and torch.equal(a, b) for a in responses for b in responses if a is not b)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("whole_rows", [None, 3])
@ALL_KINDS
def test_a_gpu_samples_what_the_cpu_samples(kind, whole_rows, deterministic):
    """The model may be made there. With `whole_rows`, random numbers are drawn as for the share of a process."""
    plain = make_model(kind)
    expected = sampled(plain, stop=STOPS, deterministic=deterministic)
    with simulated():
        model = LanguageModel(make_actor(kind).to(GPU)).to(GPU)
        model.load_state_dict(plain.state_dict())
        actor = TokenActor(model, torch.Generator(GPU).manual_seed(0), deterministic, whole_rows)
        found = Collector(env_of(model, stop=STOPS), whole_episodes=True).collect(actor).buffer
        logp = evaluate(model, found.map(lambda x: x.to(GPU))).logp
        assert logp.device.type == GPU
        logp = logp.cpu()
    assert torch.equal(found.action, expected.action)
    torch.testing.assert_close(logp, evaluate(plain, expected).logp, rtol=0, atol=1e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_tokens_are_sampled_from_the_distribution_that_trains(attention, monkeypatch):
    """Without padding, with rows that leave: each token is the most probable one of a pass over the whole rows."""
    model = make_fast(attention=attention)
    env = make_env(model, prompts=("ab", "cd", "ef", "gh"))
    buffer = collect(env, deterministic=True)
    with torch.no_grad():
        mode = model.distribution(buffer.obs.columns(0, buffer.action.shape[1])).mode
    assert buffer.mask.any(0).sum() > 3
    assert torch.equal(buffer.action[buffer.mask], mode[buffer.mask])


@pytest.mark.parametrize("vocabulary", [PAD + 1, 3000])
def test_a_model_whose_weights_have_diverged_says_so(vocabulary):
    """The number of no token would be an error of its embedding."""
    env = make_env(make_lm(vocabulary=vocabulary))
    torch.nn.init.constant_(env.model.policy.head.weight, float("nan"))
    with pytest.raises(NonFiniteError, match=r"^the model's logits are not finite: its weights have diverged$"):
        collect(env)


def test_an_actor_is_for_one_episode_of_each_row():
    model = make_model()
    actor = TokenActor(model, deterministic=True)
    collector = Collector(env_of(model), whole_episodes=True)
    collector.collect(actor)
    with pytest.raises(ConfigError, match="a TokenActor acts in one episode of each row: make a new one"):
        collector.collect(actor)


def test_the_first_column_draws_for_rows_that_do_not_act():
    model = make_lm(settings={"temperature": 20.0})
    token, acts = np.arange(16).reshape(2, 8), np.array([[1, 0, 1, 0, 1, 1, 0, 1], [1] * 8], bool)

    def of_first(own):
        actor = TokenActor(model, torch.Generator().manual_seed(0), whole_rows=2, own=own)
        columns = [Tokens(token[own, t], np.ones_like(acts[own, t]), acts[own, t]) for t in range(8)]
        return [actor(x, ~x.acts, None)[0] for x in columns]

    both, alone = of_first(slice(0, 2)), of_first(slice(0, 1))  # of one process, and of the first of two
    assert np.array_equal(np.array(both)[acts[0]], np.array(alone)[acts[0]])
