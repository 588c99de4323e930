"""Rewards of responses, by hand and by their definition, and what continues from batch to batch."""

import json

import numpy as np
import pytest
import torch
from lm_builders import (
    KINDS,
    STOPS,
    collect,
    experience,
    letters,
    make_actor,
    make_env,
    make_model,
    make_rows,
    move,
    rewarded,
    same,
    scored,
)
from tiny import CHARACTERS, EOS, PAD, make_tokenizer

from rlzoo.core.collector import evaluate
from rlzoo.core.estimators import GAE
from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.model.language_model import LanguageModel, Reference
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.generation import Generation, stop_ids
from rlzoo.lm.reward.prompt import Prompts
from rlzoo.lm.reward.shaping import AdaptiveKL, FixedKL, ScoreTreatment

TEXTS = ["ab", "cdefg", "h"]


def moved_env(model=None, **settings):
    """An environment whose policy has left its reference."""
    model = model or make_model()
    env = make_env(model, TEXTS, **settings)
    move(model)
    return env


def one(prompts, responses):
    return [1.0 for _ in responses]


def scored_one(model, rows):
    """The buffer of these rows, with score 1 for each."""
    seen = rows.attention & (rows.acts.int().cumsum(1) - rows.acts.int() == 0)
    prompts = make_tokenizer().batch_decode([row[keep] for row, keep in zip(rows.token, seen, strict=True)])
    return scored(make_env(model, prompts, one, stop=None), rows).buffer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 3)])
def test_the_score_lands_on_the_last_token(kind, before, after):
    """Three tokens, no KL, values of 0, score 1, γ = 1, λ = 0.95: advantages .9025, .95 and 1, padded or not."""
    model = LanguageModel(make_actor(kind))
    for sizes in ([(2, 3)], [(2, 3), (4, 1), (1, 3), (3, 5)]):
        rows = make_rows(sizes, before=before, after=after)
        buffer = GAE(gamma=1.0, gae_lambda=0.95)(scored_one(model, rows))
        for i, (_, response) in enumerate(sizes):
            expected = [0.95 ** (response - 1 - t) for t in range(response)]
            assert buffer.advantage[i][buffer.mask[i]].tolist() == pytest.approx(expected, abs=1e-5)
            assert not buffer.advantage[i][~buffer.mask[i]].any()
        assert buffer.advantage[0][buffer.mask[0]].tolist() == pytest.approx([0.9025, 0.95, 1], abs=1e-5)


@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3", "full"])
def test_rewards_equal_their_definition(kl_estimator):
    env = moved_env(kl_estimator=kl_estimator, control=FixedKL(0.3))
    buffer = experience(env).buffer
    with torch.no_grad():
        policy, reference = (
            m.distribution(buffer.obs.columns(0, -1)).at_steps.log_probs for m in (env.model, env.reference)
        )  # (S, V) each, over the acting steps
    taken = buffer.action[buffer.mask].unsqueeze(-1)
    log_ratio = (policy - reference).gather(-1, taken).squeeze(-1)
    kl = {
        "k1": log_ratio,
        "k2": log_ratio**2 / 2,
        "k3": (-log_ratio).exp() - 1 + log_ratio,
        "full": (policy.exp() * (policy - reference)).sum(-1),
    }[kl_estimator]
    score = torch.tensor(letters(*env.texts(buffer)))
    ends = buffer.terminated[buffer.mask]
    expected = -0.3 * kl
    expected[ends] += score
    torch.testing.assert_close(buffer.reward[buffer.mask], expected, rtol=0, atol=1e-5)
    assert not buffer.reward[~buffer.mask].any()
    assert kl.abs().max() > 0.01


@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kl_to_an_equal_reference_is_exactly_zero(kind, kl_estimator):
    """Eager attention rounds otherwise over another number of columns."""
    env = make_env(make_model(kind, attention="eager"), TEXTS, kl_estimator=kl_estimator)
    assert not env.measure(evaluate(env.model, collect(env)))[0].any()


def test_prompts_come_several_times_each_and_all_before_any_again():
    groups = Counting()
    env = make_env(make_model(), list("abcd"), groups, group_size=3)
    assert experience(env).buffer.group_size == 3
    first = groups.prompts
    experience(env)
    rows = [*first, *groups.prompts]
    assert [rows[i] for i in range(0, 12, 3) for _ in range(3)] == rows
    assert sorted(rows[::3]) == list("abcd")


def test_a_seed_decides_the_order_of_prompts():
    def order(seed):
        env = make_env(make_model(), list("abcdefgh"), rows=8, seed=seed)
        return [env.reset()[0].token.tolist() for _ in range(2)]

    assert sorted(order(0)[0]) == sorted(order(0)[1]) == list(range(8))
    assert order(0) == order(0) != order(1)


class Counting:
    """A score that notes its arguments."""

    def __call__(self, prompts, responses):
        self.prompts, self.responses = prompts, responses
        return [float(i) for i in range(len(responses))]


def test_scores_see_texts_as_given_without_the_token_that_ended():
    env = make_env(make_model(), ["a?", "b"], Counting(), stop={EOS, 2})  # "?" is no token: it becomes "."
    rows = make_rows([(2, 3), (1, 4)])
    rows.token[0, :2], rows.token[1, 1] = torch.tensor([0, 53]), 1
    rows.token[0, 2:5], rows.token[1, 2:6] = torch.tensor([5, PAD, EOS]), torch.tensor([3, EOS, 4, 2])
    found = scored(env, rows)
    assert env.scoring.score.prompts == ["a?", "b"]
    assert env.scoring.score.responses == ["f<pad>", "d<eos>ec"]
    assert env.ended(found.buffer).tolist() == [True, True]
    assert [e.return_ for e in found.episodes] == [0.0, 1.0]
    assert [e.length for e in found.episodes] == [3, 4]


def test_an_eos_is_missing_where_the_configured_stop_token_is():
    """Here "d", and not the tokenizer's end of sequence; at the limit or before."""
    treatment = ScoreTreatment(missing_eos_penalty=5.0)
    env = make_env(make_model(), ["a"] * 4, one, stop={3}, treatment=treatment)
    rows = make_rows([(1, 3)] * 4)
    rows.token[:, 0] = 0
    rows.token[:, 1:4] = torch.tensor([[7, 8, 3], [7, 8, EOS], [7, 3, 9], [7, 8, 9]])
    rows.attention[2, 3], rows.acts[2, 2] = False, False
    found = scored(env, rows)
    assert env.ended(found.buffer).tolist() == [True, False, True, False]
    assert found.buffer.reward.sum(1).tolist() == pytest.approx([1, -4, 1, -4], abs=1e-5)
    assert found.metrics["ended"] == 0.5


def test_prompts_of_equal_tokens_keep_their_own_text():
    env = make_env(make_model(), ["a?", "a#"], Counting(), rows=2)
    assert env.prompt_ids[0] == env.prompt_ids[1]
    experience(env)
    assert sorted(env.scoring.score.prompts) == ["a#", "a?"]


def test_nothing_is_tokenised_again(monkeypatch):
    env = moved_env()
    for name in ("__call__", "encode", "tokenize", "_encode_plus"):
        monkeypatch.setattr(type(env.tokenizer), name, None)
    buffer = collect(env)
    before = buffer.map(torch.clone)
    found = rewarded(env, buffer).buffer
    assert same(found.obs, before.obs)
    assert torch.equal(found.action, before.action)


def test_the_reference_is_the_model_as_it_was_and_its_kl_starts_at_zero():
    env = make_env(make_model())
    assert experience(env).metrics["kl_reference"] == pytest.approx(0, abs=1e-5)
    move(env.model)
    assert abs(experience(env).metrics["kl_reference"]) > 0.1


def test_metrics_are_of_raw_scores():
    env = moved_env(treatment=ScoreTreatment(clip=0.1))
    buffer, episodes, metrics = experience(env)
    scores = np.array(letters(*env.texts(buffer)))
    assert metrics["score"] == pytest.approx(scores.mean())
    assert metrics["score_std"] == pytest.approx(scores.std())
    assert [e.return_ for e in episodes] == scores.tolist()
    assert [e.length for e in episodes] == buffer.mask.sum(1).tolist()
    stopped = torch.isin(buffer.action, torch.tensor(sorted(STOPS))) & buffer.mask
    assert metrics["ended"] == pytest.approx(float(stopped.any(1).float().mean()))


def test_an_adaptive_coefficient_moves_once_a_batch():
    env = moved_env(control=AdaptiveKL(beta=0.2, target=0.01, horizon=100.0), kl_estimator="full")
    metrics = experience(env).metrics
    assert metrics["beta"] == 0.2
    assert metrics["kl_reference"] > 0.012
    assert env.scoring.beta == pytest.approx(0.2 * (1 + 0.2 * 6 / 100))
    assert experience(env).metrics["beta"] == pytest.approx(0.2 * 1.012)


def test_running_moments_take_in_every_batch():
    env = make_env(make_model(), score=Counting(), treatment=ScoreTreatment("running"), rows=4)
    for batches in (1, 2):
        experience(env)  # scores 0, 1, 2 and 3
        assert (env.scoring.moments.count, env.scoring.moments.mean, env.scoring.moments.m2) == (
            4 * batches,
            1.5,
            5.0 * batches,
        )


@pytest.mark.parametrize(
    "odd",
    [
        {"beta": "x"},
        {"beta": float("inf")},
        {"beta": -1.0},
        {"moments": {"count": 3, "mean": 0.0, "m2": -1.0}},
        {"moments": {"count": 1}},
        {"order": {"left": [99]}},
        {"order": {"left": ["x"]}},
    ],
)
def test_state_that_cannot_be(odd):
    env = make_env(make_model())
    experience(env)
    state = env.state_dict()
    order = {**state["order"], **odd.get("order", {})}
    with pytest.raises((ValueError, KeyError)):
        env.load_state_dict({**state, **odd, "order": order})


def test_state_dict_round_trip():
    settings = {
        "control": AdaptiveKL(beta=0.2, target=0.01, horizon=100.0),
        "treatment": ScoreTreatment("running"), "prompts": list("abcdefg"), "rows": 5,
    }  # fmt: skip
    model, reference = move(make_model()), Reference(make_model())
    env = make_env(model, reference=reference, **settings)
    experience(env)
    state = json.loads(json.dumps(env.state_dict()))
    other = make_env(model, reference=reference, seed=8, **settings)
    other.load_state_dict(state)
    for _ in range(3):
        a, b = experience(env).buffer, experience(other).buffer
        assert same(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)
    assert other.scoring.beta == env.scoring.beta != 0.2
    assert other.scoring.moments == env.scoring.moments


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([], {}, "prompts: there are none"),
        (["a", ""], {}, r"prompts: prompt 2 \(''\) is empty"),
        (["a" * 28], {}, r"prompts: prompt 1 \('a+'\) has 28 tokens; there is room for 26"),
        (["ab", "abcd"], {"max_prompt_tokens": 3}, r"2 \('abcd'\) has 4 tokens; there is room for 3: shorten it"),
        (["a"], {"max_new_tokens": 32}, "must leave room for a prompt in the model's context of 32, got 32"),
    ],
)
def test_prompts_that_cannot_be_are_an_error(prompts, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_env(make_model(), prompts, **settings)


def test_the_longest_prompt_and_response_fill_the_context():
    env = make_env(make_model(), ["a" * 26], stop={EOS}, rows=2)
    assert experience(env).buffer.obs.token.shape[1] == 32


def test_stop_tokens_by_text():
    tokenizer = make_tokenizer()
    assert stop_ids(tokenizer) == {EOS}
    assert stop_ids(tokenizer, ["a", "<pad>"]) == {0, PAD}
    with pytest.raises(ConfigError, match="stop_tokens: 'ab' is 2 tokens to this tokenizer, not one"):
        stop_ids(tokenizer, ["a", "ab"])
    with pytest.raises(ConfigError, match=r"stop_tokens: 'é' is '\.' to this tokenizer"):
        stop_ids(tokenizer, ["é"])
    assert stop_ids(tokenizer, ["."]) == {CHARACTERS.index(".")}
    with pytest.raises(ConfigError, match="no end-of-sequence token; set stop_tokens"):
        stop_ids(make_tokenizer(eos=None))
    tokenizer.encode = lambda *_, **__: []  # as for tokens of a vocabulary that its rules never make
    assert stop_ids(tokenizer, ["<pad>"]) == {PAD}
    assert LMEnv(make_model(), tokenizer, ["a"], one, Generation(4)).stop == {EOS}


def test_a_tokenizer_without_padding_pads_with_end_of_sequence():
    env = make_env(make_model(), tokenizer=make_tokenizer(pad=None))
    rows = collect(env).obs
    assert env.pad_token == EOS
    assert (rows.token[~rows.attention] == EOS).all()
    with pytest.raises(ConfigError, match="the tokenizer given has neither a padding nor an end-of-sequence token"):
        make_env(make_model(), tokenizer=make_tokenizer(eos=None, pad=None))


def test_an_environment_over_other_prompts_shares_all_but_their_order():
    env = moved_env()
    other = env.over(["h", "ab", "h"])
    assert (other.num_envs, other.prompts.texts, other.reference) == (3, ["h", "ab", "h"], env.reference)
    experience(other)
    assert other.texts(collect(other))[0] == ["h", "ab", "h"]
    assert (env.num_envs, env.prompts.texts) == (6, TEXTS)
    with pytest.raises(ConfigError, match=r"prompt 1 .* has 28 tokens"):
        env.over(["a" * 28])


def test_rows_that_are_no_whole_groups():
    prompts, scores = Prompts(["a", "b"], 4), lambda prompts, responses: [0.0] * len(responses)
    with pytest.raises(ConfigError, match="rows must be a multiple of group_size = 4, got 6"):
        LMEnv(make_model(), make_tokenizer(), prompts, scores, Generation(4), rows=6)


def test_an_attribute_cannot_be_set():
    with pytest.raises(ConfigError, match="set_attr: a language task has no attribute beta; beta_target changes"):
        make_env(make_model(), ["a"]).set_attr("beta", 0.5)


def test_the_coefficient_of_a_batch_is_the_one_before_it_moves():
    env = moved_env(control=AdaptiveKL(beta=0.2, target=0.01, horizon=100.0), kl_estimator="full")
    fixed = moved_env(control=FixedKL(0.2), kl_estimator="full")
    assert torch.equal(experience(env).buffer.reward, experience(fixed).buffer.reward)


def test_an_environment_over_other_prompts_leaves_the_coefficient_and_the_moments_alone():
    env = moved_env(control=AdaptiveKL(horizon=100.0), treatment=ScoreTreatment("running"))
    before = env.scoring.state_dict()
    experience(env.over(["h", "ab", "h"]))
    assert env.scoring.state_dict() == before
