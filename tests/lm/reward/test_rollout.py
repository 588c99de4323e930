"""Rows of tokens as a buffer."""

import dataclasses

import pytest
import torch
from lm_builders import KINDS, STOPS, experience, make_env, make_model
from tiny import PAD

from rlzoo.core.collector import evaluate
from rlzoo.lm.model.generate import generate
from rlzoo.lm.model.language_model import Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.reward.rollout import buffer_of, rollout

ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def test_a_buffer_by_hand():
    """Prompts 3 and 4 5, responses 6 7 8 and 9."""
    o = PAD
    rows = Rows(
        torch.tensor([[o, 3, 6, 7, 8], [4, 5, 9, o, o]]),
        torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool(),
        torch.tensor([[0, 1, 1, 1, 0], [0, 1, 0, 0, 0]]).bool(),
    )
    buffer = buffer_of(rows)
    assert buffer.obs.tolist() == [
        [[o, 0, 0], [3, 1, 1], [6, 1, 1], [7, 1, 1], [8, 1, 0]],
        [[4, 1, 0], [5, 1, 1], [9, 1, 0], [o, 0, 0], [o, 0, 0]],
    ]
    assert buffer.action.tolist() == [[3, 6, 7, 8], [5, 9, o, o]]
    assert buffer.mask.int().tolist() == [[0, 1, 1, 1], [0, 1, 0, 0]]
    assert buffer.terminated.int().tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    assert not buffer.truncated.any()
    assert not buffer.reward.any()
    assert buffer.num_steps == 4
    assert Rows.of(buffer.obs)[0].tolist() == rows.token.tolist()
    for seen, given in zip(Rows.of(buffer.obs), rows, strict=True):
        assert torch.equal(seen, given)


@ALL_KINDS
def test_the_tokens_that_train_are_those_that_were_drawn(kind):
    env = make_env(make_model(kind))
    prompts = env.next_prompts(6)
    buffer = rollout(env, prompts, torch.Generator().manual_seed(0))
    ids, attention = pad(prompts, PAD)
    drawn = generate(env.model, ids, attention, 6, STOPS, PAD, torch.Generator().manual_seed(0))
    assert torch.equal(buffer.obs, drawn.obs)
    assert torch.equal(buffer.action[buffer.mask], drawn.token[:, 1:][drawn.acts[:, :-1]])
    for row, mask, prompt in zip(buffer.obs, buffer.mask, prompts, strict=True):
        tokens = row[row[:, 1] == 1][:, 0].tolist()
        assert tokens[: len(prompt)] == prompt
        assert len(tokens) == len(prompt) + int(mask.sum())


@ALL_KINDS
def test_every_row_terminates_once_at_its_end(kind):
    buffer = experience(make_env(make_model(kind)), 12)
    assert buffer.terminated.sum(1).tolist() == [1] * 12
    assert bool((buffer.terminated <= buffer.mask).all())
    lengths = buffer.mask.sum(1)
    stopped = torch.isin(buffer.action, torch.tensor(sorted(STOPS))) & buffer.mask
    assert torch.equal(stopped & ~buffer.terminated, torch.zeros_like(stopped))
    assert torch.equal(stopped.any(1) | (lengths == 6), torch.ones(12).bool())
    assert lengths.min() < 6


@ALL_KINDS
def test_log_probabilities_are_those_of_the_drawing(kind):
    """Drawn token by token with a cache after padded prompts; evaluated in one pass."""
    env = make_env(make_model(kind, settings={"temperature": 0.7}))
    drawn, act = [], env.model.act

    def noted(obs, memory=None):
        policy, memory = act(obs, memory)
        drawn.append(policy.log_probs)
        return policy, memory

    env.model.act = noted
    buffer = evaluate(env.model, rollout(env, env.next_prompts(6), torch.Generator().manual_seed(0)))
    first = buffer.mask.shape[1] - len(drawn)
    expected = torch.stack(drawn, 1).gather(-1, buffer.action[:, first:, None]).squeeze(-1)
    torch.testing.assert_close(
        buffer.logp[:, first:][buffer.mask[:, first:]], expected[buffer.mask[:, first:]], rtol=0, atol=1e-5
    )
    assert not buffer.logp[~buffer.mask].any()


def test_two_rollouts_differ_and_the_same_seed_gives_the_same():
    def run(seed):
        env, generator = make_env(make_model(), seed=seed), torch.Generator().manual_seed(seed)
        buffers = [env.settle(evaluate(env.model, rollout(env, env.next_prompts(6), generator))) for _ in range(2)]
        return [[x.clone() for x in buffer.tensors()] for buffer in buffers]

    first, again, other = run(0), run(0), run(1)
    for a, b in zip(first, again, strict=True):
        assert all(map(torch.equal, a, b))
    responses = [buffers[i][1] for buffers in (first, other) for i in (0, 1)]
    assert not any(a.shape == b.shape and torch.equal(a, b) for a in responses for b in responses if a is not b)


def test_a_deterministic_rollout_needs_no_generator():
    env = make_env(make_model())
    prompts = env.next_prompts(3)
    first, second = (rollout(env, prompts, None, deterministic=True) for _ in range(2))
    assert torch.equal(first.obs, second.obs)
    assert dataclasses.fields(first)
    policy = env.model.distribution(first.obs[:, :-1])
    assert torch.equal(policy.mode[first.mask], first.action[first.mask])
