"""Only allowed tokens: in samples, log-probabilities, entropy, KL and mode, of the actor and of the reference."""

import dataclasses

import numpy as np
import pytest
import tiny
import torch
from lm_builders import collect, experience, make_env, make_model, move, single
from scipy.stats import chi2
from simulated_gpu import GPU, simulated

import rlzoo
from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.distributions import Categorical
from rlzoo.core.system.errors import ConfigError, EnvError
from rlzoo.core.system.functions import as_function
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.language_model import Reference
from rlzoo.lm.model.tokens import Head, TokenDistribution
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.gymnasium_env import ResponseEnv
from rlzoo.runs.loop import Trainer
from rlzoo.runs.registry import ALGORITHMS

V = tiny.PAD + 1


def next_letters(tokens):
    """The three tokens after the last one, and end of sequence."""
    return [*((tokens[-1] + k) % 52 for k in (1, 2, 3)), tiny.EOS]


def only(function=next_letters):
    return AllowedTokens(function, "near", V)


def test_a_distribution_over_allowed_tokens_is_a_categorical_over_them():
    generator = torch.Generator().manual_seed(0)
    flags = torch.tensor([[1, 0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1]]).bool()
    acts = torch.ones(1, 3, dtype=torch.bool)

    def make():
        hidden = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64).requires_grad_()
        weight = torch.randn(7, 4, generator=generator, dtype=torch.float64)
        return TokenDistribution(hidden, acts, Head(weight, None, 0.7), flags[None])

    x, y = make(), make()
    for i, allowed in enumerate(flags):
        mine, theirs = (Categorical((d.hidden[0, i] @ d.head.weight.t() / 0.7)[allowed]) for d in (x, y))
        ids = allowed.nonzero().squeeze(1)
        for k, a in enumerate(ids):
            found = x.log_prob(torch.full((1, 3), int(a)))[0, i]
            torch.testing.assert_close(found, mine.log_prob(torch.tensor(k)), rtol=0, atol=1e-12)
        torch.testing.assert_close(x.entropy()[0, i], mine.entropy(), rtol=0, atol=1e-12)
        torch.testing.assert_close(x.kl(y)[0, i], mine.kl(theirs), rtol=0, atol=1e-12)
        assert x.mode[0, i] == ids[mine.mode]
    for result in (x.entropy().sum(), x.kl(y).sum(), x.log_prob(torch.tensor([[0, 6, 3]])).sum()):
        (slope,) = torch.autograd.grad(result, x.hidden, retain_graph=True)
        assert slope.isfinite().all()
    draws = torch.stack([x.sample(generator)[0] for _ in range(200)])
    assert flags[torch.arange(3), draws].all()


def test_actor_reference_and_training_see_the_same_tokens():
    env = make_env(make_model(), allowed=only(), kl_estimator="full")
    move(env.model)
    found = experience(env)
    buffer = found.buffer
    tokens = [single(buffer.obs, i).token[0].tolist() for i in range(buffer.num_rows)]
    for i, ids in enumerate(env.prompt_ids[group.prompt] for group in env.groups):
        for k in range(len(ids), len(tokens[i])):
            assert tokens[i][k] in next_letters(tokens[i][:k])
    logp = buffer.logp[buffer.mask]
    assert (logp > -20).all()
    with torch.no_grad():
        policy, reference = (x.distribution(buffer.obs.columns(0, -1)) for x in (env.model, env.reference))
    for x in (policy, reference):
        assert ((x.at_steps.log_probs.exp() > 0).sum(-1) == 4).all()
    assert (policy.entropy() <= np.log(4) + 1e-6).all()
    assert 0 < found.metrics["kl_reference"] < 20


def test_sampled_frequencies_are_the_probabilities():
    env = make_env(make_model(), ["ab"] * 400, rows=400, max_new_tokens=1, allowed=only()).over(["ab"] * 400)
    buffer = collect(env)
    logp = evaluate(env.model, buffer).logp[:, -1]
    taken = buffer.action[:, -1]
    statistic = 0.0
    policy = env.model.distribution(buffer.obs.map(lambda x: x[:1, :-1]))
    for token in next_letters([1]):
        p = float(policy.log_prob(torch.full((1, 2), token))[0, -1].detach().exp())
        statistic += (int((taken == token).sum()) - 400 * p) ** 2 / (400 * p)
        if (taken == token).any():
            assert float(logp[taken == token][0].exp()) == pytest.approx(p, abs=1e-5)
    assert statistic < chi2.ppf(0.999, 3)


def test_mode_is_the_best_allowed_token():
    env = make_env(make_model(), allowed=only()).over(["ab", "cdefg"])
    buffer = Collector(env, whole_episodes=True).collect(TokenActor(env.model, deterministic=True)).buffer
    with torch.no_grad():
        mode = env.model.distribution(buffer.obs.columns(0, -1)).mode
    assert torch.equal(mode[buffer.mask], buffer.action[buffer.mask])


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor])
def test_ids_and_masks_in_every_form_mean_the_same(form):
    expected = only()([[3], None, [7]], 0)
    as_ids = only(lambda tokens: form(next_letters(tokens)))
    as_mask = only(lambda tokens: form([token in next_letters(tokens) for token in range(V)]))
    for allowed in (as_ids, as_mask):
        np.testing.assert_array_equal(allowed([[3], None, [7]], 0), expected)


def test_whole_rows_get_what_they_got_step_by_step():
    env = make_env(make_model(), allowed=only())
    tokens = collect(env).obs
    assert torch.equal(
        env.generation.allowed.with_allowed(dataclasses.replace(tokens, allowed=None)).allowed, tokens.allowed
    )
    assert tokens.allowed.sum(-1)[tokens.acts].unique().tolist() == [4]


def test_gymnasiums_environment_tells_what_is_allowed_and_rewards_the_same():
    env = make_env(make_model(), ["ab"], rows=1, allowed=only(), stop={tiny.EOS})
    move(env.model)
    buffer = experience(env).buffer
    by_hand = ResponseEnv(env)
    _, info = by_hand.reset(seed=0)
    for action, expected in zip(buffer.action[buffer.mask].tolist(), buffer.reward[buffer.mask].tolist(), strict=True):
        assert info["action_mask"].sum() == 4
        assert info["action_mask"][action]
        _, reward, done, _, info = by_hand.step(action)
        assert reward == pytest.approx(expected, abs=1e-4)
    assert done
    assert "action_mask" not in info


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    tiny.save_lm(folder / "model")
    (folder / "prompts.txt").write_text("ab\nhello\nxyz\nQ\n")
    return folder


def one(prompts, responses):
    return [float(len(x)) for x in responses]


def test_a_step_by_hand_with_a_model_on_the_gpu():
    """The host finds the tokens that are allowed, and the GPU gets them."""

    def rewards(device):
        allowed, reference = AllowedTokens(next_letters, "next", V), Reference(make_model(seed=1).to(device))
        env = make_env(make_model().to(device), ["uv"], rows=2, allowed=allowed, reference=reference)
        by_hand = ResponseEnv(env)
        by_hand.reset()
        return [by_hand.step(token)[1] for token in (22, 23, 24)]

    expected = rewards("cpu")
    assert all(expected)
    with simulated():
        assert rewards(GPU) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_to_allowed_tokens(algorithm, data):
    config = rlzoo.make_config(
        algorithm, "Prompts", model=str(data / "model"), prompts=str(data / "prompts.txt"), reward=f"{__file__}:one",
        allowed_tokens=f"{__file__}:next_letters", responses_per_batch=8, max_new_tokens=5,
    )  # fmt: skip
    trainer = Trainer(config)
    for _ in range(2):
        metrics = trainer.iterate().metrics
        assert np.isfinite(list(metrics.values())).all()
    assert 0 < metrics["entropy"] <= np.log(4)
    assert abs(metrics["kl_reference"]) < 50


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda tokens: [], r"no token is allowed after \[0, 1\]"),
        (lambda tokens: [1, V], rf"{V} is no token; tokens are 0 to {V - 1}"),
        (lambda tokens: [0.5], r"0.5 is no token"),
        (lambda tokens: [1, True], r"True is no token"),
        (lambda tokens: np.ones(3, bool), rf"a mask of 3 booleans; there are {V} tokens"),
        (lambda tokens: [True] * (V + 1), rf"a mask of {V + 1} booleans; there are {V} tokens"),
        (lambda tokens: [0, 1] + [0] * (V - 2), rf"a mask of 0 and 1 for {V} tokens; return booleans, or the tokens$"),
        (lambda tokens: np.ones(V, int), rf"a mask of 0 and 1 for {V} tokens; return booleans, or the tokens$"),
        (lambda tokens: torch.zeros(V, dtype=torch.bool), r"no token is allowed after \[0, 1\]"),
        (lambda tokens: "ab", r"'ab' is no token"),
        (lambda tokens: 3, r"TypeError: 'int' object is not iterable"),
        (lambda tokens: tokens[99], r"IndexError: list index out of range \(.*test_allowed.py:\d+\)"),
    ],
)
def test_a_step_without_an_allowed_token_is_named(function, message):
    env = make_env(make_model(), ["ab"], rows=1, allowed=only(function))
    with pytest.raises(EnvError, match=f"^allowed_tokens near, row 0, step 0: {message}"):
        collect(env)


def test_what_is_no_function():
    with pytest.raises(ConfigError, match="such as allowed_tokens=legal; got"):
        as_function("allowed_tokens", [1, 2], "legal")
    with pytest.raises(ConfigError, match="allowed_tokens 'legal' is neither module:function nor"):
        as_function("allowed_tokens", "legal", "legal")
