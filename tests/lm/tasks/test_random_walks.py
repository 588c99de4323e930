"""Random walks: the graph, the score against its definition, and every solution."""

import itertools

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_builders import collect, make_actor, move
from simulated_gpu import GPU, simulated

import rlzoo
from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune.sft import train_tokenizer
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.pretrained import new_causal_lm
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.generation import Generation, stop_ids
from rlzoo.lm.tasks.random_walks import WalkGraph, expected_optimality, legal_moves, nodes_to_goal

GRAPH = WalkGraph.make()
LETTERS = "abcdefghijklmnopqrstu"


def graph(*edges, nodes=None):
    """The graph with these edges, each written as two letters, and the goal `a`."""
    nodes = nodes or max(LETTERS.index(letter) for edge in edges for letter in edge) + 1
    adjacency = np.zeros((nodes, nodes), dtype=bool)
    adjacency[0, 0] = True
    for start, end in edges:
        adjacency[LETTERS.index(start), LETTERS.index(end)] = True
    return WalkGraph(adjacency, nodes_to_goal(adjacency))


def optimality_by_definition(walks, walk):
    """(10 − L) / (10 − L*), with L counted node by node and L* by breadth-first search."""
    edges = {LETTERS[i] + LETTERS[j] for i, j in np.argwhere(walks.adjacency)}
    length = 10
    for count in range(1, min(len(walk), 10) + 1):
        if walk[count - 1] not in LETTERS[: len(walks.adjacency)]:
            break
        if count > 1 and walk[count - 2 : count] not in edges:
            break
        if walk[count - 1] == "a":
            length = count
            break
    if length == 10:
        return 0.0
    reached, shortest = {walk[0]}, 1
    while "a" not in reached:
        reached, shortest = {edge[1] for edge in edges if edge[0] in reached}, shortest + 1
    return (10 - length) / (10 - shortest)


@st.composite
def small_graphs(draw, nodes=4):
    edges = [start + end for start in LETTERS[1:nodes] for end in LETTERS[:nodes] if start != end]
    return graph(*draw(st.lists(st.sampled_from(edges), unique=True)), nodes=nodes)


def test_the_graph_is_the_benchmarks():
    out_edges = ["".join(LETTERS[j] for j in np.flatnonzero(row)) for row in GRAPH.adjacency]
    assert out_edges[:4] == ["a", "dju", "ekor", "alt"]
    assert [len(letters) for letters in out_edges] == [
        1, 3, 4, 3, 2, 4, 4, 1, 2, 1, 4, 1, 6, 2, 1, 2, 2, 3, 2, 1, 3,
    ]  # fmt: skip
    assert GRAPH.shortest.tolist() == [1, 3, 4, 2, 4, 3, 5, 5, 3, 3, 3, 4, 4, 2, 5, 4, 4, 4, 3, 4, 4]
    assert GRAPH.walks[:5] == ("sda", "fda", "ebjnbdtkna", "jnbjna", "lbusdtkbui")
    assert GRAPH.prompts == list("bcdefghijklmnopqrstu")


@pytest.mark.parametrize("seed", [0, 3])
def test_a_graph_keeps_its_rules(seed):
    walks = WalkGraph.make(seed)
    assert walks.adjacency.shape == (21, 21)
    assert walks.adjacency.any(axis=1).all()
    assert walks.adjacency.diagonal().tolist() == [True] + [False] * 20
    assert walks.adjacency[0].sum() == 1
    assert 1 == walks.shortest.min() <= walks.shortest.max() <= 10
    assert len(walks.walks) == 1000


def test_the_same_seed_makes_the_same_walks():
    before = np.random.get_state()[1].tolist()
    again, other = WalkGraph.make(1000), WalkGraph.make(1002)
    assert again.walks == GRAPH.walks != other.walks
    np.testing.assert_array_equal(again.adjacency, GRAPH.adjacency)
    assert np.random.get_state()[1].tolist() == before


def test_walks_follow_edges_and_end_at_the_goal():
    for walk in GRAPH.walks:
        nodes = [LETTERS.index(letter) for letter in walk]
        assert 2 <= len(walk) <= 10
        assert walk.index("a") == len(walk) - 1 if "a" in walk else len(walk) == 10
        assert nodes[0] != 0
        assert all(GRAPH.adjacency[i, j] for i, j in itertools.pairwise(nodes))


def test_walks_start_and_go_on_uniformly():
    """Pearson's χ² of the starts (19 degrees of freedom) and of the steps out of `m` (5), at one in a thousand."""
    starts = np.array([sum(walk[0] == letter for walk in GRAPH.walks) for letter in GRAPH.prompts])
    assert starts.sum() == 1000
    assert ((starts - 50) ** 2 / 50).sum() < 43.8
    steps = [step for walk in GRAPH.walks for step in map("".join, itertools.pairwise(walk)) if step[0] == "m"]
    counts = np.unique(steps, return_counts=True)[1]
    expected = len(steps) / 6
    assert len(counts) == 6
    assert ((counts - expected) ** 2 / expected).sum() < 20.5


@pytest.mark.parametrize(
    ("walk", "expected"),
    [
        ("bda", 1.0),  # L = L* = 3
        ("bdbda", 5 / 7),  # L = 5
        ("bdlbdlbda", 1 / 7),  # L = 9
        ("bdbdbdbdba", 0.0),  # L = 10
        ("bdbdbdbdbda", 0.0),  # the goal is the eleventh node
        ("ba", 0.0),  # no such edge
        ("bdaxyz", 1.0),  # what follows the goal has no say
        ("bdb", 0.0),  # the goal is not reached
        ("b", 0.0),
        ("bzda", 0.0),  # a letter that is no node
        ("bdxbda", 0.0),  # nor stands for the last node, `l`
        ("b da", 0.0),
        ("bDa", 0.0),
        ("", 0.0),
    ],
)
def test_optimality_by_hand(walk, expected):
    walks = graph("bd", "db", "da", "dl", "lb")
    assert walks.shortest.tolist()[1] == 3
    assert walks.optimality([walk[:1]], [walk[1:]]) == [pytest.approx(expected)]


@given(small_graphs(), st.data())
def test_optimality_equals_its_definition(walks, data):
    follows = {LETTERS[i]: [LETTERS[j] for j in np.flatnonzero(row)] for i, row in enumerate(walks.adjacency)}
    walk = data.draw(st.sampled_from("bcd"))
    for _ in range(data.draw(st.integers(0, 11))):
        walk += data.draw(st.sampled_from([*follows.get(walk[-1], []) * 10, "a", "d", "x"]))
    (optimality,) = walks.optimality([walk[0]], [walk[1:]])
    assert isinstance(optimality, float)
    assert 0 <= optimality <= 1
    assert optimality == pytest.approx(optimality_by_definition(walks, walk))


def test_each_response_is_scored_with_its_own_prompt():
    assert GRAPH.shortest[[1, 3]].tolist() == [3, 2]
    assert GRAPH.optimality(["b", "b", "d"], ["da", "dlbda", "lbda"]) == [1.0, 4 / 7, 5 / 8]
    with pytest.raises(ValueError, match="shorter"):
        GRAPH.optimality(["b", "c"], ["da"])


@pytest.mark.parametrize("edges", [("ba", "bc", "cb", "ca"), ("bc", "ca", "cb"), ("cb",), ("ba", "cb")])
def test_solutions_are_all_words_that_solve_a_small_graph(edges):
    walks = graph(*edges, nodes=3)
    words = ("".join(word) for n in range(1, 10) for word in itertools.product("bc", repeat=n))
    valid = [
        word + "a" for word in words if all(step in edges for step in map("".join, itertools.pairwise(word + "a")))
    ]
    assert walks.solutions() == sorted(valid)


def test_solutions_give_the_expected_optimality_of_a_policy():
    """That of the uniform walk: 4,736 terms against a recursion over nodes and steps, and 1,000 walks."""
    step = GRAPH.adjacency / GRAPH.adjacency.sum(axis=1, keepdims=True)

    def probability(walk):
        return np.prod([step[LETTERS.index(i), LETTERS.index(j)] for i, j in itertools.pairwise(walk)])

    expected = np.zeros(21)
    for walk in GRAPH.solutions():
        expected[LETTERS.index(walk[0])] += probability(walk) * GRAPH.optimality([walk[0]], [walk[1:]])[0]
    left = np.zeros(21)  # expected 10 − L of a walk at each node, itself the n-th of its walk
    for n in range(10, 0, -1):
        left = step @ left
        left[0] = 10 - n
    np.testing.assert_allclose(expected[1:], (left / (10 - GRAPH.shortest))[1:], rtol=1e-12)
    tokenizer = GRAPH.tokenizer()
    legal = AllowedTokens(legal_moves, "legal_moves", len(tokenizer))
    uniform = expected_optimality(make_policy(GRAPH).double(), tokenizer, GRAPH, GRAPH.prompts, legal)
    np.testing.assert_allclose(uniform, expected[1:], rtol=1e-12)
    assert len(GRAPH.solutions()) == 4736
    sampled = GRAPH.optimality([walk[0] for walk in GRAPH.walks], [walk[1:] for walk in GRAPH.walks])
    assert abs(np.mean(sampled) - expected[1:].mean()) < 3 * np.std(sampled) / 1000**0.5


def test_starts_that_cannot_reach_the_goal_in_time_are_no_prompts():
    walks = graph("ba", "cd", "dc")
    assert walks.shortest.tolist() == [1, 2, 10, 10]
    assert walks.prompts == ["b"]
    assert walks.solutions() == ["ba"]
    assert walks.optimality(["c", "c"], ["dcdcdcdcd", "a"]) == [0.0, 0.0]
    line = graph("ba", "cb", "dc", "ed", "fe", "gf", "hg", "ih", "ji")
    assert line.shortest.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert line.prompts == list("bcdefghi")
    assert line.optimality(["i", "j"], ["hgfedcba", "ihgfedcba"]) == [1.0, 0.0]


def test_a_graph_without_a_way_to_the_goal_is_refused():
    with pytest.raises(ConfigError, match="seed 6 gives a graph without a path to 'a'; use another seed"):
        WalkGraph.make(6)


def test_pairs_are_all_the_comparisons_of_the_walks():
    walks = graph("ba", "bc", "cb", "ca")
    walks = WalkGraph(walks.adjacency, walks.shortest, ("ba", "bca", "bcba", "bcba", "ca", "cba", "bcbcbcbcbc"))
    pairs = {(pair["prompt"], pair["chosen"], pair["rejected"]) for pair in walks.pairs(7, seed=0)}
    lost = "cbcbcbcbc"
    assert pairs == {
        ("b", "a", "ca"), ("b", "a", "cba"), ("b", "a", lost), ("b", "ca", "cba"), ("b", "ca", lost),
        ("b", "cba", lost), ("c", "a", "ba"),
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"n must be in \[0, 7\]"):
        walks.pairs(8, seed=0)


def test_pairs_of_the_benchmark():
    pairs = GRAPH.pairs(2000, seed=1)
    assert len({tuple(pair.values()) for pair in pairs}) == 2000
    assert {pair["prompt"] for pair in pairs} == set(GRAPH.prompts)
    assert pairs == GRAPH.pairs(2000, seed=1) != GRAPH.pairs(2000, seed=2)


# Expected optimality


def make_policy(walks, temperature=1.0, spread=0.0):
    """Uniform over the tokens, or with a `spread` far from it."""
    actor = make_actor(vocabulary=len(walks.tokenizer()), n_layer=1)
    model = LanguageModel(actor, temperature=temperature)
    with torch.no_grad():
        model.policy.head.weight.zero_()
    return move(model, spread=spread)


def test_a_uniform_policy_by_hand():
    """Five tokens: b→a has optimality 1 and probability 1/5; b→c→a has 7/8 and 1/25; c→a has 1 and 1/5."""
    walks = graph("ba", "bc", "ca")
    assert walks.solutions() == ["ba", "bca", "ca"]
    model = make_policy(walks)
    expected = torch.tensor([1 / 5 + 7 / 8 / 25, 1 / 5], dtype=torch.float64)
    torch.testing.assert_close(expected_optimality(model, walks.tokenizer(), walks, ["b", "c"]), expected)
    swapped = expected_optimality(model, walks.tokenizer(), walks, ["c", "b"])
    torch.testing.assert_close(swapped, expected.flip(0))
    shorter = expected_optimality(model, walks.tokenizer(), walks, ["b", "c"], longest=1)
    torch.testing.assert_close(shorter, torch.tensor([1 / 5, 1 / 5], dtype=torch.float64))
    stopped = expected_optimality(model, walks.tokenizer(), walks, ["b", "c"], stop=stop_ids(walks.tokenizer(), ["c"]))
    torch.testing.assert_close(stopped, torch.tensor([1 / 5, 1 / 5], dtype=torch.float64))
    with simulated():
        on_gpu = expected_optimality(model.to(GPU), walks.tokenizer(), walks, ["b", "c"])
        torch.testing.assert_close(on_gpu, expected)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_it_is_the_mean_over_samples(temperature):
    walks = graph("ba", "bc", "ca", "cb")
    model, tokenizer = make_policy(walks, temperature, spread=0.3), walks.tokenizer()
    stops = stop_ids(tokenizer, ["a"])
    env = LMEnv(model, tokenizer, ["b", "c"], walks.optimality, Generation(9, stop=stops))
    exact = expected_optimality(model, tokenizer, walks, ["b", "c"])
    many = env.over(["b"] * 2000 + ["c"] * 2000)
    scores = torch.tensor(walks.optimality(*many.texts(collect(many)))).view(2, 2000)
    error = scores.std(1) / 2000**0.5
    assert ((scores.mean(1) - exact).abs() < 3 * error).all()
    assert (error < 0.02).all()
    other = make_policy(walks, 0.5 if temperature == 1 else 1.0, spread=0.3)
    assert (expected_optimality(other, tokenizer, walks, ["b", "c"]) - exact).abs().max() > 0.03


def test_with_only_legal_moves_every_walk_is_valid_from_the_start():
    model, tokenizer = make_policy(GRAPH, spread=0.3), GRAPH.tokenizer()
    allowed = AllowedTokens(legal_moves, "legal_moves", len(tokenizer))
    stops = stop_ids(tokenizer, ["a"])
    starts = GRAPH.prompts * 50

    def walks(allowed):
        generation = Generation(9, stop=stops, allowed=allowed)
        env = LMEnv(model, tokenizer, GRAPH.prompts, GRAPH.optimality, generation).over(starts)
        return ["".join(parts) for parts in zip(*env.texts(collect(env)), strict=True)]

    def valid(walk):
        nodes = [LETTERS.find(letter) for letter in walk]
        return min(nodes) >= 0 and all(GRAPH.adjacency[i, j] for i, j in itertools.pairwise(nodes))

    assert all(map(valid, walks(allowed)))
    assert not all(map(valid, walks(None)))
    exact = expected_optimality(model, tokenizer, GRAPH, GRAPH.prompts, allowed)
    sampled = torch.tensor(GRAPH.optimality(starts, [walk[1:] for walk in walks(allowed)])).view(50, 20)
    error = sampled.mean(1).std() / 50**0.5
    assert abs(float(sampled.mean() - exact.mean())) < 4 * error + 1e-3


def test_evaluation_has_no_sum_if_a_token_is_several_nodes(tmp_path):
    tokenizer = train_tokenizer(GRAPH.walks, vocab_size=300)
    assert len(tokenizer(GRAPH.walks[0])["input_ids"]) < len(GRAPH.walks[0])
    settings = {"responses_per_batch": 8, "minibatch_responses": 8, "total_steps": 8, "eval_episodes": 20}
    model = new_causal_lm(tiny.CONFIGS["gpt2"], len(tokenizer))
    run = rlzoo.train("ppo", "RandomWalks", out=tmp_path / "run", model=model, tokenizer=tokenizer, **settings)
    start = run.evaluations()[0]
    assert "exact" not in start
    assert start["episodes"] == 20


def test_evaluation_has_no_sum_if_there_are_replies(tmp_path):
    settings = {"responses_per_batch": 8, "minibatch_responses": 8, "total_steps": 8, "eval_episodes": 20}
    model = new_causal_lm(tiny.CONFIGS["gpt2"], len(GRAPH.tokenizer()))
    given = {"model": model, "tokenizer": GRAPH.tokenizer(), "max_turns": 2, "reply": lambda x: ["a"] * len(x)}
    run = rlzoo.train("ppo", "RandomWalks", out=tmp_path / "run", **given, **settings)
    assert "exact" not in run.evaluations()[0]
