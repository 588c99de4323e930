"""The pretraining loss (ptx): its value, its gradient beside that of every algorithm, and its order of texts."""

import json
from collections import Counter

import numpy as np
import pytest
import tiny
import torch
from lm_builders import KINDS, experience, make_env, make_model
from tiny import PAD, make_tokenizer

from rlzoo.algorithms import NPG, TRPO, PPOClip, PPOPenalty, Reinforce
from rlzoo.core.estimators import GAE
from rlzoo.lm.finetune.pretraining import PretrainingLoss, read_pieces
from rlzoo.lm.model.padding import pad, summed_nll
from rlzoo.optim.adam import Adam
from rlzoo.optim.fast.adam import FastAdam
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy, Solution
from rlzoo.optim.objective import surrogate

TEXTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16], [17, 18, 19, 20]]
GAMMA = 0.7


def ptx(texts=TEXTS, rows=4, micro_batch_tokens=None, seed=1, coef=GAMMA):
    return PretrainingLoss(texts, coef, rows, PAD, micro_batch_tokens, seed)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def gradient(y, model):
    grads = torch.autograd.grad(y, trained(model), allow_unused=True, materialize_grads=True)
    return torch.cat([g.reshape(-1) for g in grads])


def nll(model, texts=TEXTS):
    """−mean log π over the texts' tokens but the first of each, by Hugging Face's own forward."""
    ids, attention = pad(texts, PAD, side="right")
    return summed_nll(model.actor, ids, attention) / sum(len(text) - 1 for text in texts)


def double_experience():
    model = make_model(n_layer=1, n_embd=8, dtype=torch.float64, attention="eager")
    buffer = experience(make_env(model)).buffer
    return model, buffer.map(lambda x: x.double() if x.is_floating_point() else x)


@pytest.mark.parametrize("micro_batch_tokens", [None, 1, 22, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_language_modelling_loss(kind, micro_batch_tokens):
    model = make_model(kind)
    terms = ptx(micro_batch_tokens=micro_batch_tokens).draw(rows=9)
    assert len(terms) == {None: 1, 1: 4, 22: 2, 40: 2}[micro_batch_tokens]  # the widest text has 11 tokens
    loss = sum(term(model) for term in terms)
    torch.testing.assert_close(loss, GAMMA * nll(model), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient(loss, model), GAMMA * gradient(nll(model), model), rtol=1e-4, atol=1e-5)


def test_number_of_texts():
    """`rows`, or as many as the objective has rows; texts come again where there are fewer."""
    model = make_model()
    for loss, rows, count in ((ptx(rows=2), 9, 2), (ptx(rows=None), 3, 3), (ptx(rows=None), 6, 6)):
        order, same = loss._order, ptx()
        same.load_state_dict(loss.state_dict())
        (term,) = loss.draw(rows)
        texts = [TEXTS[next(same._order)] for _ in range(count)]
        torch.testing.assert_close(term(model), GAMMA * nll(model, texts), rtol=1e-5, atol=1e-6)
        assert loss._order is order


def drawn(loss, monkeypatch, draws):
    """Numbers of the texts in the order of their use."""
    used, order = [], type(loss._order)
    step = order.__next__
    with monkeypatch.context() as patch:
        patch.setattr(order, "__next__", lambda self: used.append(step(self)) or used[-1])
        for _ in range(draws):
            loss.draw(1)
    return used


def test_every_text_comes_once_before_any_again(monkeypatch):
    used = drawn(ptx(rows=3), monkeypatch, 8)
    assert Counter(used) == dict.fromkeys(range(4), 6)
    assert all(set(used[i : i + 4]) == set(range(4)) for i in range(0, 24, 4))


def test_the_order_continues_from_its_state(monkeypatch):
    first, other = ptx(rows=3, seed=0), ptx(rows=3, seed=5)
    first.draw(1)
    other.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert drawn(first, monkeypatch, 9) == drawn(other, monkeypatch, 9)


FIRST_ORDER = {
    "reinforce": (Reinforce(), (0.01,)),
    "ppo-penalty": (PPOPenalty(), (0.3, 0.01)),
    "ppo-clip": (PPOClip(), (0.2, 0.01)),
}
SECOND_ORDER = {"npg": NPG(vf_epochs=0, cg_iters=1), "trpo": TRPO(vf_epochs=0, cg_iters=1)}
MICRO_BATCHES = pytest.mark.parametrize("micro_batch_tokens", [None, 22, 40])


@MICRO_BATCHES
@pytest.mark.parametrize("kind", [Adam, FastAdam])
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_gradient_is_the_sum_of_both_first_order(name, kind, micro_batch_tokens):
    """∇(total) = ∇(objective) + γ·∇(LM), with texts longer than the responses."""
    algorithm, scalars = FIRST_ORDER[name]
    model, buffer = double_experience()
    batch = algorithm.estimator(buffer).rows(0)
    batch = batch.whitened.replace(old=model.distribution(batch.obs).detach())
    expected = gradient(algorithm.loss(model, batch, *scalars), model) + GAMMA * gradient(nll(model), model)
    model.micro_batch_steps, model.auxiliary = micro_batch_tokens, ptx(micro_batch_tokens=micro_batch_tokens)
    adam = Adam(trained(model))
    optimizer = adam if kind is Adam else FastAdam(adam)
    norm = optimizer.minimize(algorithm.loss, model, batch, *scalars, learning_rate=0.0)
    found = adam.m / (1 - adam.betas[0])  # the first moment starts from 0
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert norm == pytest.approx(float(expected.norm()), rel=1e-9)


@MICRO_BATCHES
@pytest.mark.parametrize("name", SECOND_ORDER)
def test_gradient_is_the_sum_of_both_second_order(name, micro_batch_tokens):
    algorithm = SECOND_ORDER[name]
    model, buffer = double_experience()
    batch = algorithm.estimator(buffer).rows(0)
    batch = batch.whitened
    count = sum(p.numel() for p in model.policy_parameters())
    expected = (gradient(surrogate(model.distribution(batch.obs), batch), model) - GAMMA * gradient(nll(model), model))[
        :count
    ]
    found = []

    def noted(product, b, iters):
        found.append(b)
        return Solution(torch.zeros_like(b), 1.0)  # so that the model does not change

    model.micro_batch_steps, model.auxiliary = micro_batch_tokens, ptx(micro_batch_tokens=micro_batch_tokens)
    state = algorithm.init(model, np.random.default_rng(0))
    state.conjugate_gradient = noted
    algorithm.update(model, state, buffer)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", [*FIRST_ORDER, *SECOND_ORDER])
def test_micro_batches_change_no_update(name):
    algorithm = {**{key: x for key, (x, _) in FIRST_ORDER.items()}, **SECOND_ORDER}[name]
    weights = []
    for micro_batch_tokens in (None, 22):
        model, buffer = double_experience()
        model.micro_batch_steps, model.auxiliary = micro_batch_tokens, ptx(micro_batch_tokens=micro_batch_tokens)
        algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
        weights.append(torch.cat([p.detach().reshape(-1) for p in trained(model)]))
    torch.testing.assert_close(*weights, rtol=0, atol=1e-7)  # Adam's 1/√v amplifies rounding


def test_the_auxiliary_loss_changes_no_fisher_product():
    model, buffer = double_experience()
    batch = GAE()(buffer).rows(0)
    products = []
    for model.auxiliary in (None, ptx()):
        policy = FlatPolicy(model)
        product = fisher_vector_product(policy, policy.theta, batch)
        products.append(product(torch.ones_like(policy.theta)))
    assert torch.equal(*products)


def test_an_accepted_trpo_step_improves_the_surrogate_less_the_pretraining_loss():
    algorithm, accepted, falls = TRPO(vf_epochs=0, max_kl=0.05), 0, 0
    for seed in range(4):
        model, _ = double_experience()
        buffer = experience(make_env(model), seed).buffer.map(lambda x: x.double() if x.is_floating_point() else x)
        batch = algorithm.estimator(buffer).rows(0)
        batch = batch.whitened
        model.auxiliary = ptx(coef=30.0)

        @torch.no_grad()
        def both(model=model, batch=batch):
            return float(surrogate(model.distribution(batch.obs), batch)), float(nll(model))

        before = both()
        metrics = algorithm.update(model, algorithm.init(model, np.random.default_rng(0)), buffer)
        after = both()
        if metrics["accepted"]:
            accepted += 1
            assert after[0] - 30 * after[1] > before[0] - 30 * before[1]
            falls += after[0] < before[0]
    assert accepted >= 3
    assert falls  # the pretraining loss had a say


@pytest.mark.parametrize("name", [*FIRST_ORDER, *SECOND_ORDER])
def test_the_pretraining_loss_alone_raises_the_likelihood_of_its_texts(name):
    algorithm = {
        "reinforce": Reinforce(learning_rate=1e-2),
        "ppo-penalty": PPOPenalty(epochs=20, minibatch_size="all", learning_rate=3e-3),
        "ppo-clip": PPOClip(epochs=20, minibatch_size="all", learning_rate=3e-3, vf_coef=0.0),
        "npg": NPG(step_kl=0.3),
        "trpo": TRPO(max_kl=0.3),
    }[name]
    model = make_model(attention="eager")
    buffer = experience(make_env(model)).buffer
    buffer = buffer.replace(reward=torch.zeros_like(buffer.reward), value=torch.zeros_like(buffer.value))
    model.auxiliary = ptx()
    before = float(nll(model).detach())
    state = algorithm.init(model, np.random.default_rng(0))
    for _ in range(3):
        algorithm.update(model, state, buffer)
    assert float(nll(model).detach()) < before - 0.2


def test_a_text_that_ends_with_the_end_of_sequence_gets_no_other(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("ab\nab<eos>\n")
    first, second = read_pieces(str(path), tiny.make_tokenizer(), 10)
    assert first == second


def test_no_piece_of_a_text_has_one_token(tmp_path):
    (tmp_path / "texts.txt").write_text("abcd\n")
    pieces = read_pieces(str(tmp_path / "texts.txt"), make_tokenizer(), 2)
    assert [len(x) for x in pieces] == [2, 2]
