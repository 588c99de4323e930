"""Random walks: the graph, the score against its definition, and every solution."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_builders import collect, make_actor, move
from simulated_gpu import GPU, simulated
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rlzoo.core.errors import ConfigError
from rlzoo.lm.model.language_model import LanguageModel
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


@pytest.mark.parametrize("seed", [0, 3, 1000])
def test_a_graph_keeps_its_rules(seed):
    walks = WalkGraph.make(seed)
    assert walks.adjacency.shape == (21, 21)
    assert walks.adjacency.any(axis=1).all()
    assert walks.adjacency.diagonal().tolist() == [True] + [False] * 20
    assert walks.adjacency[0].sum() == 1
    assert walks.shortest.min() == 1
    assert walks.shortest.max() <= 10
    assert len(walks.walks) == 1000


def test_the_same_seed_makes_the_same_walks():
    again, other = WalkGraph.make(1000), WalkGraph.make(1002)
    assert again.walks == GRAPH.walks != other.walks
    np.testing.assert_array_equal(again.adjacency, GRAPH.adjacency)


def test_numpys_global_stream_is_left_alone():
    before = np.random.get_state()[1].tolist()
    WalkGraph.make(1)
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
    assert 0 <= optimality <= 1
    assert optimality == pytest.approx(optimality_by_definition(walks, walk))


@given(st.lists(st.integers(0, 20), max_size=12), st.sampled_from(GRAPH.prompts))
def test_optimality_of_any_response_lies_in_the_unit_interval(nodes, prompt):
    (optimality,) = GRAPH.optimality([prompt], ["".join(LETTERS[i] for i in nodes)])
    assert 0 <= optimality <= 1
    assert isinstance(optimality, float)


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


def test_solutions_are_as_many_as_the_adjacency_matrix_says():
    """Without the goal's row and column, A^(k−2)·(edges to the goal) counts the first arrivals after k nodes."""
    inner = GRAPH.adjacency[1:, 1:].astype(int)
    arrivals = GRAPH.adjacency[1:, 0].astype(int)
    solutions = GRAPH.solutions()
    assert len(set(solutions)) == len(solutions) == 4736
    for nodes in range(2, 11):
        found = [sum(len(walk) == nodes and walk[0] == letter for walk in solutions) for letter in LETTERS[1:]]
        assert found == arrivals.tolist()
        arrivals = inner @ arrivals


def test_solutions_score_by_their_length_and_the_best_score_one():
    solutions = GRAPH.solutions()
    optimality = GRAPH.optimality([walk[0] for walk in solutions], [walk[1:] for walk in solutions])
    expected = [(10 - len(walk)) / (10 - GRAPH.shortest[LETTERS.index(walk[0])]) for walk in solutions]
    np.testing.assert_allclose(optimality, expected, rtol=1e-12)
    best = {walk[0] for walk, score in zip(solutions, optimality, strict=True) if score == 1}
    assert sorted(best) == GRAPH.prompts


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
    sampled = GRAPH.optimality([walk[0] for walk in GRAPH.walks], [walk[1:] for walk in GRAPH.walks])
    assert abs(np.mean(sampled) - expected[1:].mean()) < 3 * np.std(sampled) / 1000**0.5


def test_starts_that_cannot_reach_the_goal_are_no_prompts_and_score_nothing():
    walks = graph("ba", "cd", "dc")
    assert walks.shortest.tolist() == [1, 2, 10, 10]
    assert walks.prompts == ["b"]
    assert walks.solutions() == ["ba"]
    assert walks.optimality(["c", "c"], ["dcdcdcdcd", "a"]) == [0.0, 0.0]


def test_a_start_that_needs_all_ten_nodes_is_no_prompt():
    walks = graph("ba", "cb", "dc", "ed", "fe", "gf", "hg", "ih", "ji")
    assert walks.shortest.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert walks.prompts == list("bcdefghi")
    assert walks.optimality(["i", "j"], ["hgfedcba", "ihgfedcba"]) == [1.0, 0.0]


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


def test_pairs_choose_the_better_walk():
    pairs = GRAPH.pairs(2000, seed=1)
    prompts = [pair["prompt"] for pair in pairs]
    chosen = GRAPH.optimality(prompts, [pair["chosen"] for pair in pairs])
    rejected = GRAPH.optimality(prompts, [pair["rejected"] for pair in pairs])
    assert (np.array(chosen) > rejected).all()
    assert len({tuple(pair.values()) for pair in pairs}) == 2000
    assert {pair["prompt"] + pair["rejected"] for pair in pairs} <= set(GRAPH.walks)
    assert set(prompts) == set(GRAPH.prompts)
    assert pairs == GRAPH.pairs(2000, seed=1) != GRAPH.pairs(2000, seed=2)


@pytest.fixture(scope="module")
def tokenizer():
    return GRAPH.tokenizer()


def test_the_tokenizer_has_a_token_a_letter(tokenizer):
    assert len(tokenizer) == 23
    assert tokenizer("abu")["input_ids"] == [0, 1, 20]
    assert tokenizer("ba<eos><pad>")["input_ids"] == [1, 0, 21, 22]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (21, 22)
    assert tokenizer.decode([1, 3, 0, 21, 22]) == "bda<eos><pad>"
    assert tokenizer.decode([1, 3, 0, 21, 22], skip_special_tokens=True) == "bda"


@given(walk=st.text(LETTERS, max_size=12))
def test_the_tokenizer_gives_letters_back_without_spaces(tokenizer, walk):
    ids = tokenizer(walk)["input_ids"]
    assert ids == [LETTERS.index(letter) for letter in walk]
    assert tokenizer.decode(ids) == walk


def test_a_foreign_letter_is_not_dropped(tokenizer):
    with pytest.raises(Exception, match="Missing \\[UNK\\]"):
        tokenizer("bxa")


@pytest.mark.parametrize("kind", [PreTrainedTokenizerFast, AutoTokenizer])
def test_the_tokenizer_is_saved_and_loaded(tokenizer, kind, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.eos_token_id, loaded.pad_token_id) == (21, 22)
    for walk in GRAPH.walks[:50]:
        assert loaded.decode(loaded(walk)["input_ids"]) == walk


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


def test_walks_of_the_benchmark_are_events_that_exclude_each_other():
    walks = GRAPH
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


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_with_only_legal_moves_every_walk_is_valid_from_the_start(spread):
    model, tokenizer = make_policy(GRAPH, spread=spread), GRAPH.tokenizer()
    allowed = AllowedTokens(legal_moves, "legal_moves", len(tokenizer))
    stops = stop_ids(tokenizer, ["a"])
    starts = GRAPH.prompts * 50

    def walks(allowed):
        generation = Generation(9, stop=stops, allowed=allowed)
        env = LMEnv(model, tokenizer, GRAPH.prompts, GRAPH.optimality, generation).over(starts)
        return [start + walk for start, walk in zip(*env.texts(collect(env)), strict=True)]

    def valid(walk):
        nodes = [LETTERS.find(letter) for letter in walk]
        return min(nodes) >= 0 and all(GRAPH.adjacency[i, j] for i, j in itertools.pairwise(nodes))

    assert all(map(valid, walks(allowed)))
    assert not all(map(valid, walks(None)))
    exact = expected_optimality(model, tokenizer, GRAPH, GRAPH.prompts, allowed)
    sampled = torch.tensor(GRAPH.optimality(starts, [walk[1:] for walk in walks(allowed)])).view(50, 20)
    error = sampled.mean(1).std() / 50**0.5
    assert abs(float(sampled.mean() - exact.mean())) < 4 * error + 1e-3
