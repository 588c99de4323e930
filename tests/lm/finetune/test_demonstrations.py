"""Texts among the responses: what a buffer looks like with them, and whose gradient they add."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from lm_builders import KINDS, experience, make_env, make_model
from tiny import PAD

from rlzoo.algorithms import NPG, TRPO, PPOClip, PPOPenalty, Reinforce
from rlzoo.core.buffer import Buffer
from rlzoo.core.estimators import GAE, GroupNorm, LeaveOneOut, MonteCarlo
from rlzoo.lm.finetune.demonstrations import Demonstrations
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.model.padding import pad, summed_nll

TEXTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [17, 18, 19, 20]]
GAMMA = 0.7


def shown(buffer, texts=TEXTS, rows=3, coef=GAMMA):
    return Demonstrations(texts, coef, rows, PAD, seed=1).add_to(buffer)


def test_a_buffer_with_texts_by_hand():
    o = PAD
    no = torch.zeros(1, 3, dtype=torch.bool)
    own = Buffer(
        obs=torch.tensor([[[5, 1, 0], [6, 1, 1], [7, 1, 1], [8, 1, 0]]]),
        action=torch.tensor([[6, 7, 8]]),
        reward=torch.tensor([[0.0, 1.0, 2.0]]),
        terminated=torch.tensor([[False, False, True]]),
        truncated=no,
        mask=torch.tensor([[False, True, True]]),
        logp=torch.tensor([[0.0, -1.0, -2.0]]),
        value=torch.tensor([[0.0, 3.0, 4.0, 5.0]]),
        group_size=2,
    )
    buffer = shown(own, [[1, 2, 3, 4, 5], [9, 10]], rows=2)
    first = int(buffer.obs[1, 0, 0] == 9)  # which of the texts came first
    texts = [
        ([[1, 1, 1], [2, 1, 1], [3, 1, 1], [4, 1, 1], [5, 1, 0]], [2, 3, 4, 5], [0.7, 0.7, 0.7, 0.7]),
        ([[9, 1, 1], [10, 1, 0], [o, 0, 0], [o, 0, 0], [o, 0, 0]], [10, o, o, o], [0.7, 0, 0, 0]),
    ]
    texts = [texts[first], texts[1 - first]]
    assert buffer.obs.tolist() == [[[5, 1, 0], [6, 1, 1], [7, 1, 1], [8, 1, 0], [0, 0, 0]], *(x[0] for x in texts)]
    assert buffer.action.tolist() == [[6, 7, 8, 0], *(x[1] for x in texts)]
    torch.testing.assert_close(buffer.demo, torch.tensor([[0.0, 0, 0, 0], *(x[2] for x in texts)]))
    zeros = [[0] * 4] * 2
    assert buffer.mask.int().tolist() == [[0, 1, 1, 0], *zeros]
    assert buffer.terminated.int().tolist() == [[0, 0, 1, 0], *zeros]
    assert buffer.truncated.int().tolist() == [[0] * 4, *zeros]
    assert buffer.reward.tolist() == [[0, 1, 2, 0], *zeros]
    assert buffer.logp.tolist() == [[0, -1, -2, 0], *zeros]
    assert buffer.value.tolist() == [[0, 3, 4, 5, 0], [0] * 5, [0] * 5]
    assert buffer.group_size == 2


def test_texts_shorter_than_the_rows_are_padded():
    own = experience(make_env(make_model()), 4)
    steps = own.mask.shape[1]
    buffer = shown(own, [[1, 2], [3, 4, 5]], rows=2)
    assert buffer.mask.shape == (6, steps)
    assert torch.equal(buffer.obs[:4], own.obs)
    for name in ("action", "reward", "mask", "terminated", "logp"):
        assert torch.equal(getattr(buffer, name)[:4], getattr(own, name))
    assert buffer.demo[4:].count_nonzero() == 3


@pytest.mark.parametrize("estimator", [GAE(), MonteCarlo(), LeaveOneOut(), GroupNorm()])
def test_texts_change_no_estimate_and_no_mean(estimator):
    own = experience(make_env(make_model(), responses_per_prompt=2), 6)
    alone, beside = estimator(own), estimator(shown(own))
    steps = own.mask.shape[1]
    torch.testing.assert_close(beside.advantage[:6, :steps], alone.advantage)
    torch.testing.assert_close(beside.return_[:6, :steps], alone.return_)
    torch.testing.assert_close(beside.mean(beside.advantage), alone.mean(alone.advantage))
    torch.testing.assert_close(beside.whitened_advantage[:6, :steps][own.mask], alone.whitened_advantage[own.mask])
    assert beside.num_steps == own.num_steps
    assert beside.return_.isfinite().all()
    assert not beside.advantage[6:].any()


def test_every_text_comes_once_before_any_again():
    own = experience(make_env(make_model()), 2)
    demonstrations = Demonstrations(TEXTS, GAMMA, 3, PAD, seed=0)
    firsts = [int(x) for _ in range(8) for x in demonstrations.add_to(own).obs[2:, 0, 0]]
    assert Counter(firsts) == dict.fromkeys((1, 4, 6, 17), 6)
    assert all(set(firsts[i : i + 4]) == {1, 4, 6, 17} for i in range(0, 24, 4))


def test_the_order_goes_on_from_its_state():
    own = experience(make_env(make_model()), 2)
    first = Demonstrations(TEXTS, GAMMA, 3, PAD, seed=0)
    first.add_to(own)
    other = Demonstrations(TEXTS, GAMMA, 3, PAD, seed=5)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(4):
        assert torch.equal(first.add_to(own).obs, other.add_to(own).obs)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradient(y, model):
    grads = torch.autograd.grad(y, trained(model), allow_unused=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1)
                      for p, g in zip(trained(model), grads, strict=True)])  # fmt: skip


def nll_gradient(model, texts):
    """∇ of −mean log π over the texts' tokens but the first of each, by Hugging Face's own forward."""
    ids, attention = pad(texts, PAD, side="right")
    return gradient(summed_nll(model.actor, ids, attention) / sum(len(text) - 1 for text in texts), model)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_texts_is_that_of_the_language_modelling_loss(kind):
    model = make_model(kind)
    own = experience(make_env(model))
    buffer = shown(own, rows=4).rows(0)
    logp = model.distribution(buffer.obs).log_prob(buffer.action)
    torch.testing.assert_close(
        gradient(-buffer.demonstrated(logp), model), GAMMA * nll_gradient(model, TEXTS), rtol=1e-4, atol=1e-5
    )
    assert buffer.demonstrated(logp.detach()) < 0


FIRST_ORDER = {"reinforce": (Reinforce(), ()), "ppo-penalty": (PPOPenalty(), (0.3,)), "ppo-clip": (PPOClip(), (0.2,))}
SECOND_ORDER = {"npg": NPG(vf_epochs=0, cg_iters=1), "trpo": TRPO(vf_epochs=0, cg_iters=1)}


def double_experience():
    model = make_model(n_layer=1, n_embd=8, dtype=torch.float64, attention="eager")
    own = experience(make_env(model))
    return model, own.map(lambda x: x.double() if x.is_floating_point() else x)


@pytest.mark.parametrize("part_steps", [None, 40])
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_the_gradient_of_both_is_the_sum_of_theirs_first_order(name, part_steps):
    """∇(total) = ∇(RL) + γ·∇(LM), here with texts longer than the responses."""
    algorithm, scalars = FIRST_ORDER[name]
    model, own = double_experience()

    def loss_gradient(buffer):
        batch = algorithm.estimator(buffer).rows(0)
        batch = batch.replace(advantage=batch.whitened_advantage, old=model.distribution(batch.obs).detach())
        return sum(gradient(algorithm.loss(model, part, *scalars), model) for part in batch.parts(part_steps))

    expected = loss_gradient(own) + GAMMA * nll_gradient(model, TEXTS)
    torch.testing.assert_close(loss_gradient(shown(own, rows=4)), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("part_steps", [None, 40])
@pytest.mark.parametrize("name", SECOND_ORDER)
def test_the_gradient_of_both_is_the_sum_of_theirs_second_order(name, part_steps, monkeypatch):
    model, own = double_experience()
    model.part_steps = part_steps
    found = []

    def noted(product, b, iters):
        found.append(b)
        return torch.zeros_like(b)  # so that the model stays as it is

    monkeypatch.setattr(f"rlzoo.algorithms.{name}.conjugate_gradient", noted)
    algorithm = SECOND_ORDER[name]
    for buffer in (own, shown(own, rows=4)):
        algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
    expected = found[0] - GAMMA * nll_gradient(model, TEXTS)[: len(found[0])]
    torch.testing.assert_close(found[1], expected, rtol=0, atol=1e-10)


def test_texts_alone_raise_their_likelihood():
    model = make_model()
    own = experience(make_env(model))
    buffer = shown(own.replace(reward=torch.zeros_like(own.reward)), rows=4)
    rows = Rows.of(buffer.obs[6:])
    algorithm = PPOClip(epochs=20, minibatch_size=1000, learning_rate=3e-3, normalize_advantage=False, vf_coef=0.0)

    @torch.no_grad()
    def likelihood():
        logp = model.distribution(rows.obs[:, :-1]).log_prob(rows.token[:, 1:])
        return float(logp[buffer.demo[6:] > 0].mean())

    before = likelihood()
    algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
    assert likelihood() > before + 0.5
