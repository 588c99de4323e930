"""Rewards of responses: by hand, token by token against whole buffers, and what goes on from batch to batch."""

import json

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from lm_builders import KINDS, STOPS, experience, letters, make_actor, make_env, make_model, make_rows, move
from tiny import EOS, PAD, make_tokenizer

from rlzoo.core.collector import evaluate
from rlzoo.core.errors import ConfigError
from rlzoo.core.estimators import GAE
from rlzoo.lm.model.language_model import LanguageModel, Reference
from rlzoo.lm.reward.env import LMEnv, stop_ids
from rlzoo.lm.reward.rollout import buffer_of, rollout
from rlzoo.lm.reward.shaping import AdaptiveKL, FixedKL, Moments, ScoreTreatment

TEXTS = ["ab", "cdefg", "h"]


def moved_env(model=None, **settings):
    """An environment whose policy has left its reference."""
    model = model or make_model()
    env = make_env(model, TEXTS, **settings)
    move(model)
    return env


def one(prompts, responses):
    return [1.0 for _ in responses]


def buffer_with_prompts(model, rows):
    """The rows as a buffer, and an environment whose prompts are theirs."""
    seen = rows.attention & (rows.acts.int().cumsum(1) - rows.acts.int() == 0)
    prompts = make_tokenizer().batch_decode([row[keep] for row, keep in zip(rows.token, seen, strict=True)])
    return evaluate(model, buffer_of(rows)), make_env(model, prompts, one, stop_tokens=None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 3)])
def test_the_score_lands_on_the_last_token(kind, before, after):
    """Three tokens, no KL, values of 0, score 1, γ = 1, λ = 0.95: advantages .9025, .95 and 1, padded or not."""
    model = LanguageModel(make_actor(kind))
    for sizes in ([(2, 3)], [(2, 3), (4, 1), (1, 3), (3, 5)]):
        rows = make_rows(sizes, before=before, after=after)
        buffer, env = buffer_with_prompts(model, rows)
        buffer = GAE(gamma=1.0, gae_lambda=0.95)(env.settle(buffer))
        for i, (_, response) in enumerate(sizes):
            expected = [0.95 ** (response - 1 - t) for t in range(response)]
            assert buffer.advantage[i][buffer.mask[i]].tolist() == pytest.approx(expected, abs=1e-5)
            assert not buffer.advantage[i][~buffer.mask[i]].any()
        assert buffer.advantage[0][buffer.mask[0]].tolist() == pytest.approx([0.9025, 0.95, 1], abs=1e-5)


@pytest.mark.parametrize("kl_estimator", ["k1", "k2", "k3", "full"])
def test_rewards_equal_their_definition(kl_estimator):
    env = moved_env(kl_estimator=kl_estimator, control=FixedKL(0.3))
    buffer = experience(env, 6)
    with torch.no_grad():
        policy, reference = (
            m.distribution(buffer.obs[:, :-1])._log_probs for m in (env.model, env.reference)
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


TREATMENTS = {
    "raw": ScoreTreatment(),
    "clip and penalty": ScoreTreatment(clip=0.4, missing_end_penalty=2.0),
    "reference": ScoreTreatment("reference", missing_end_penalty=0.5),
}


@pytest.mark.parametrize(
    ("kl_estimator", "treatment"),
    [
        ("k1", "raw"),
        ("k1", "clip and penalty"),
        ("k2", "clip and penalty"),
        ("k3", "clip and penalty"),
        ("full", "clip and penalty"),
        ("full", "reference"),
    ],
)
def test_steps_by_hand_give_the_rewards_of_a_whole_buffer(kl_estimator, treatment):
    model = make_model(settings={"temperature": 0.8})
    settings = {
        "kl_estimator": kl_estimator, "treatment": TREATMENTS[treatment], "moments": Moments(4, 0.5, 9.0),
        "control": FixedKL(0.3), "reference": Reference(model), "max_new_tokens": 4, "seed": 3,
    }  # fmt: skip
    move(model)
    whole, by_hand = (make_env(model, TEXTS, **settings) for _ in range(2))
    buffer = experience(whole, 7, seed=1)
    prompts, responses = whole.texts(buffer)
    assert set(buffer.mask.sum(1).tolist()) > {1, 4}
    assert 0 < whole.metrics["ended"] < 1
    for i in range(7):
        observation, info = by_hand.reset()
        assert info["prompt"] == prompts[i]
        for t in torch.nonzero(buffer.mask[i]).flatten():
            row = buffer.obs[i, : t + 1]
            seen = observation["tokens"][observation["attention_mask"] == 1]
            assert seen.tolist() == row[row[:, 1] == 1][:, 0].tolist()
            observation, reward, terminated, truncated, info = by_hand.step(int(buffer.action[i, t]))
            assert reward == pytest.approx(float(buffer.reward[i, t]), abs=1e-5)
            assert (terminated, truncated) == (bool(buffer.terminated[i, t]), False)
        assert terminated
        assert info["response"] == responses[i]
        assert info["score"] == letters([prompts[i]], [responses[i]])[0]


def test_it_is_a_gymnasium_environment():
    check_env(make_env(make_model(), max_new_tokens=3), skip_render_check=True)  # there is nothing to render


def test_observations_are_padded_on_the_right():
    env = make_env(make_model(), ["abc", "d"], max_new_tokens=2)
    assert env.observation_space["tokens"].shape == (5,)
    assert env.action_space.n == 58
    observation, info = env.reset(seed=0)
    prompt = [0, 1, 2] if info["prompt"] == "abc" else [3]
    assert observation["tokens"].tolist() == prompt + [PAD] * (5 - len(prompt))
    assert observation["attention_mask"].tolist() == [1] * len(prompt) + [0] * (5 - len(prompt))
    observation, *_ = env.step(30)
    assert observation["tokens"].tolist() == [*prompt, 30] + [PAD] * (4 - len(prompt))


def test_a_step_needs_an_episode():
    env = make_env(make_model(), max_new_tokens=1)
    for _ in range(2):
        with pytest.raises(gymnasium.error.ResetNeeded, match="call reset before step"):
            env.step(0)
        env.reset()
        env.step(20)


def test_a_seed_decides_the_order_of_prompts():
    prompts = list("abcdefgh")
    env, other = (make_env(make_model(), prompts, seed=seed) for seed in (0, 1))

    def resets(env, **first):
        return [env.reset(**(first if i == 0 else {}))[1]["prompt"] for i in range(8)]

    assert sorted(resets(env)) == prompts
    assert resets(env, seed=5) == resets(other, seed=5) != resets(other, seed=6)
    first, second = (make_env(make_model(), prompts, seed=s).next_prompts(8) for s in (0, 1))
    assert first != second


def test_prompts_come_several_times_each_and_all_before_any_again():
    env = make_env(make_model(), list("abcd"), responses_per_prompt=3)
    rows = env.next_prompts(12)
    assert [rows[i] for i in range(0, 12, 3) for _ in range(3)] == rows
    assert sorted(rows[::3]) == [[0], [1], [2], [3]]
    assert experience(env, 6).group_size == 3
    groups = Counting()
    env.score = groups
    experience(env, 6)
    assert [len(set(groups.prompts[i : i + 3])) for i in (0, 3)] == [1, 1]


class Counting:
    """A score that remembers what it was asked."""

    def __call__(self, prompts, responses):
        self.prompts, self.responses = prompts, responses
        return [float(i) for i in range(len(responses))]


def test_scores_see_texts_as_given_without_the_token_that_ended():
    env = make_env(make_model(), ["a?", "b"], Counting(), stop_tokens={EOS, 2})  # "?" is no token: it becomes "."
    rows = make_rows([(2, 3), (1, 4)])
    rows.token[0, :2], rows.token[1, 1] = torch.tensor([0, 53]), 1
    rows.token[0, 2:5], rows.token[1, 2:6] = torch.tensor([5, PAD, EOS]), torch.tensor([3, EOS, 4, 2])
    buffer = env.settle(evaluate(env.model, buffer_of(rows)))
    assert env.score.prompts == ["a?", "b"]
    assert env.score.responses == ["f<pad>", "d<eos>ec"]
    assert env.ended(buffer).tolist() == [True, True]
    assert [e.return_ for e in env.episodes] == [0.0, 1.0]
    assert [e.length for e in env.episodes] == [3, 4]


def test_an_end_is_missing_where_the_configured_stop_token_is():
    """Here "d", and not the tokenizer's end of sequence; at the limit or before."""
    env = make_env(make_model(), ["a"], one, stop_tokens={3}, treatment=ScoreTreatment(missing_end_penalty=5.0))
    rows = make_rows([(1, 3)] * 4)
    rows.token[:, 0] = 0
    rows.token[:, 1:4] = torch.tensor([[7, 8, 3], [7, 8, EOS], [7, 3, 9], [7, 8, 9]])
    rows.attention[2, 3], rows.acts[2, 2] = False, False
    buffer = env.settle(evaluate(env.model, buffer_of(rows)))
    assert env.ended(buffer).tolist() == [True, False, True, False]
    assert buffer.reward.sum(1).tolist() == pytest.approx([1, -4, 1, -4], abs=1e-5)
    assert env.metrics["ended"] == 0.5


def test_prompts_of_equal_tokens_keep_their_own_text():
    env = make_env(make_model(), ["a?", "a#"], Counting())
    assert env.prompt_ids[0] == env.prompt_ids[1]
    experience(env, 2)
    assert sorted(env.score.prompts) == ["a#", "a?"]


def test_nothing_is_tokenised_again(monkeypatch):
    env = moved_env()
    prompts = env.next_prompts(6)
    for name in ("__call__", "encode", "tokenize", "_encode_plus"):
        monkeypatch.setattr(type(env.tokenizer), name, None)
    buffer = rollout(env, prompts, torch.Generator().manual_seed(0))
    before = buffer.obs.clone(), buffer.action.clone()
    settled = env.settle(evaluate(env.model, buffer))
    assert torch.equal(settled.obs, before[0])
    assert torch.equal(settled.action, before[1])


def test_the_reference_is_the_model_as_it_was_and_its_kl_starts_at_zero():
    env = make_env(make_model())
    experience(env)
    assert env.metrics["kl_reference"] == pytest.approx(0, abs=1e-5)
    move(env.model)
    experience(env)
    assert abs(env.metrics["kl_reference"]) > 0.1


def test_metrics_are_of_raw_scores():
    env = moved_env(treatment=ScoreTreatment(clip=0.1))
    buffer = experience(env, 6)
    scores = np.array(letters(*env.texts(buffer)))
    assert env.metrics["score"] == pytest.approx(scores.mean())
    assert env.metrics["score_std"] == pytest.approx(scores.std())
    assert [e.return_ for e in env.episodes] == scores.tolist()
    stopped = torch.isin(buffer.action, torch.tensor(sorted(STOPS))) & buffer.mask
    assert env.metrics["ended"] == pytest.approx(float(stopped.any(1).float().mean()))


def test_an_adaptive_coefficient_moves_once_a_batch():
    env = moved_env(control=AdaptiveKL(beta=0.2, target=0.01, horizon=100.0), kl_estimator="full")
    experience(env, 6)
    assert env.metrics["beta"] == 0.2
    assert env.metrics["kl_reference"] > 0.012
    assert env.beta == pytest.approx(0.2 * (1 + 0.2 * 6 / 100))
    experience(env, 6)
    assert env.metrics["beta"] == pytest.approx(0.2 * 1.012)


def test_running_moments_take_in_every_batch():
    env = make_env(make_model(), score=Counting(), treatment=ScoreTreatment("running"))
    for batches in (1, 2):
        experience(env, 4)  # scores 0, 1, 2 and 3
        assert (env.moments.count, env.moments.mean, env.moments.m2) == (4 * batches, 1.5, 5.0 * batches)


def test_state_dict_round_trip():
    settings = {
        "control": AdaptiveKL(beta=0.2, target=0.01, horizon=100.0),
        "treatment": ScoreTreatment("running"), "prompts": list("abcdefg"),
    }  # fmt: skip
    model, reference = move(make_model()), Reference(make_model())
    env = make_env(model, reference=reference, **settings)
    experience(env, 5)
    state = json.loads(json.dumps(env.state_dict()))
    other = make_env(model, reference=reference, seed=8, **settings)
    other.load_state_dict(state)
    for _ in range(3):
        a, b = experience(env, 5), experience(other, 5)
        assert torch.equal(a.obs, b.obs)
        assert torch.equal(a.reward, b.reward)
    assert other.beta == env.beta != 0.2
    assert other.moments == env.moments


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([], {}, "prompts: there are none"),
        (["a", ""], {}, r"prompts: prompt 2 \(''\) is empty"),
        (["a" * 28], {}, r"prompts: prompt 1 \('a+'\) has 28 tokens; there is room for 26"),
        (["ab", "abcd"], {"max_prompt_tokens": 3}, r"prompt 2 \('abcd'\) has 4 tokens; there is room for 3"),
        (["a"], {"max_new_tokens": 32}, "must leave room for a prompt in the model's context of 32, got 32"),
    ],
)
def test_prompts_that_cannot_be_are_an_error(prompts, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_env(make_model(), prompts, **settings)


def test_the_longest_prompt_and_response_fill_the_context():
    env = make_env(make_model(), ["a" * 26], stop_tokens={EOS})
    assert experience(env, 2).obs.shape[1] == 32


def test_stop_tokens_by_text():
    tokenizer = make_tokenizer()
    assert stop_ids(tokenizer) == {EOS}
    assert stop_ids(tokenizer, ["a", "<pad>"]) == {0, PAD}
    with pytest.raises(ConfigError, match="stop_tokens: 'ab' is 2 tokens to this tokenizer, not one"):
        stop_ids(tokenizer, ["a", "ab"])
    with pytest.raises(ConfigError, match="no end-of-sequence token: name what ends a response, stop_tokens"):
        stop_ids(make_tokenizer(eos=None))
    assert LMEnv(make_model(), tokenizer, ["a"], one, max_new_tokens=4).stop == {EOS}
