"""Expected optimality by enumeration, against numbers by hand and against samples."""

import numpy as np
import pytest
import torch
from lm_builders import make_actor, move

from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.reward.env import LMEnv, stop_ids
from rlzoo.lm.reward.rollout import rollout
from rlzoo.lm.tasks.exact import expected_optimality
from rlzoo.lm.tasks.random_walks import RandomWalks, nodes_to_goal


def make_walks(*edges):
    """The graph of nodes a, b and c with these edges, each written as two letters."""
    adjacency = np.zeros((3, 3), dtype=bool)
    adjacency[0, 0] = True
    for start, end in edges:
        adjacency["abc".index(start), "abc".index(end)] = True
    return RandomWalks(adjacency, nodes_to_goal(adjacency))


def make_policy(walks, temperature=1.0, spread=0.0):
    """Uniform over the tokens, or with a `spread` far from it."""
    actor = make_actor(vocabulary=len(walks.tokenizer()), n_layer=1)
    model = LanguageModel(actor, temperature=temperature)
    with torch.no_grad():
        model.policy.head.weight.zero_()
    return move(model, spread=spread)


def test_a_uniform_policy_by_hand():
    """Five tokens: b→a has optimality 1 and probability 1/5; b→c→a has 7/8 and 1/25; c→a has 1 and 1/5."""
    walks = make_walks("ba", "bc", "ca")
    assert walks.solutions() == ["ba", "bca", "ca"]
    model = make_policy(walks)
    expected = torch.tensor([1 / 5 + 7 / 8 / 25, 1 / 5], dtype=torch.float64)
    torch.testing.assert_close(expected_optimality(model, walks.tokenizer(), walks, ["b", "c"]), expected)
    swapped = expected_optimality(model, walks.tokenizer(), walks, ["c", "b"])
    torch.testing.assert_close(swapped, expected.flip(0))


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_it_is_the_mean_over_samples(temperature):
    walks = make_walks("ba", "bc", "ca", "cb")
    model, tokenizer = make_policy(walks, temperature, spread=0.3), walks.tokenizer()
    env = LMEnv(
        model, tokenizer, ["b", "c"], walks.optimality, max_new_tokens=9, stop_tokens=stop_ids(tokenizer, ["a"])
    )
    exact = expected_optimality(model, tokenizer, walks, ["b", "c"])
    buffer = rollout(env, [env.prompt_ids[i] for i in (0, 1) for _ in range(2000)], torch.Generator().manual_seed(0))
    scores = torch.tensor(walks.optimality(*env.texts(buffer))).view(2, 2000)
    error = scores.std(1) / 2000**0.5
    assert ((scores.mean(1) - exact).abs() < 3 * error).all()
    assert (error < 0.02).all()
    other = make_policy(walks, 0.5 if temperature == 1 else 1.0, spread=0.3)
    assert (expected_optimality(other, tokenizer, walks, ["b", "c"]) - exact).abs().max() > 0.03


def test_walks_of_the_benchmark_are_events_that_exclude_each_other():
    walks = RandomWalks.make()
    model, tokenizer = make_policy(walks, spread=0.3), walks.tokenizer()
    exact = expected_optimality(model, tokenizer, walks, walks.prompts)
    assert exact.shape == (20,)
    assert exact.dtype == torch.float64
    assert (exact > 0).all()
    assert (exact <= 1).all()
    short = expected_optimality(make_policy(walks), tokenizer, walks, walks.prompts)
    direct = torch.tensor([length == 2 for length in walks.shortest[1:]])
    assert (short[direct] > 1 / 23).all()  # the chance of the one step there
    assert (short[~direct] < 1 / 23).all()
