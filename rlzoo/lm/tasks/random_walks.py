"""The RandomWalks benchmark of trlX (Havrilla et al. 2023, after Chen et al. 2021), the smallest language task.

The policy is first fine-tuned on random walks in a graph. Then it learns to reach the goal from each start in as few
nodes as possible. The optimum and the expected optimality of a policy are computed exactly.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import require
from rlzoo.core.system.fields import Count
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, character_tokenizer, small_gpt2
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.allowed import AllowedTokens
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.samples import respond
from rlzoo.lm.tasks.settings import Language

NODES = 21
MAX_NODES = 10
"""Largest number of nodes in a walk, start and goal included."""
WALKS = 1000
GOAL = 0
_LETTERS = string.ascii_lowercase


@dataclass(frozen=True, eq=False)
class WalkGraph:
    """A graph, and random walks in it. Node i is the i-th letter of the alphabet, and `a` is the goal.

    A prompt is a start node other than `a`. A response is the letters of the following nodes. A policy π that stops at
    `a` has the exact expected optimality Σ π(walk | start)·optimality(walk) over the `solutions` with that start.
    """

    adjacency: NDArray[np.bool_]
    """(nodes, nodes): whether an edge leads from the row's node to the column's."""
    shortest: NDArray[np.int64]
    """L*, the number of nodes on the shortest path from each node to the goal, both included; at most `MAX_NODES`."""
    walks: tuple[str, ...] = ()
    """Uniform random walks, which end at the goal or after `MAX_NODES` nodes: the texts for SFT."""

    @classmethod
    def make(cls, seed: int = 1000) -> WalkGraph:
        """The graph and walks of the benchmark, drawn from NumPy's legacy generator as in trlX.

        With the default seed every shortest path has at most five nodes. With other seeds there may be starts that
        cannot reach the goal in fewer than `MAX_NODES` nodes; these are not used as prompts. Raises `ConfigError` if no
        start can reach the goal.
        """
        rng = np.random.RandomState(seed)
        adjacency = np.zeros((NODES, NODES), dtype=bool)
        while not adjacency.any(axis=1).all():
            adjacency = rng.rand(NODES, NODES) > 0.9
            np.fill_diagonal(adjacency, False)
        adjacency[GOAL] = False
        adjacency[GOAL, GOAL] = True
        walks = tuple(_uniform_walk(adjacency, rng) for _ in range(WALKS))
        graph = cls(adjacency, nodes_to_goal(adjacency), walks)
        require(bool(graph.prompts), f"seed {seed} gives a graph without a path to 'a'; use another seed")
        return graph

    @property
    def prompts(self) -> list[str]:
        """The starts from which the goal can be reached in fewer than `MAX_NODES` nodes, sorted."""
        return [_LETTERS[i] for i in np.flatnonzero(self.shortest < MAX_NODES) if i != GOAL]

    def optimality(self, prompts: list[str], responses: list[str]) -> list[float]:
        """(10 − L) / (10 − L*) of each walk (prompt and response joined), which is 1 for a shortest path.

        L is the number of nodes up to the first `a`, included. What follows is ignored. L is 10 and the optimality 0
        if a letter or an edge before that is not in the graph, or if ten nodes do not reach `a`.
        """
        return [self._optimality(prompt + response) for prompt, response in zip(prompts, responses, strict=True)]

    def solutions(self) -> list[str]:
        """Every walk of at most `MAX_NODES` nodes from a start other than `a` whose only `a` is its last letter.

        They are sorted. The default seed has 4,736.
        """
        starts = range(GOAL + 1, len(self.adjacency))
        return ["".join(_LETTERS[i] for i in path) for start in starts for path in self._paths_to_goal((start,))]

    def pairs(self, n: int, seed: int) -> list[dict[str, str]]:
        """`n` preference pairs `{prompt, chosen, rejected}` of two `walks` with the same start, the better one chosen.

        They are drawn uniformly without replacement. Walks of equal optimality are not compared.
        Raises `ConfigError` if there are fewer than `n` pairs.
        """
        optimality = {walk: self._optimality(walk) for walk in sorted(set(self.walks))}
        couples = itertools.permutations(optimality, 2)
        pairs = [(x, y) for x, y in couples if x[0] == y[0] and optimality[x] > optimality[y]]
        require(0 <= n <= len(pairs), f"n must be in [0, {len(pairs)}], the number of pairs of the walks; got {n}")
        drawn = np.random.default_rng(seed).choice(len(pairs), size=n, replace=False)
        return [{"prompt": x[0], "chosen": x[1:], "rejected": y[1:]} for x, y in (pairs[i] for i in drawn)]

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A tokenizer with one token for each node, `<eos>` and `<pad>`. Any other letter is an error."""
        return character_tokenizer(_LETTERS[: len(self.adjacency)])

    def _optimality(self, walk: str) -> float:
        nodes = [_LETTERS[: len(self.adjacency)].find(letter) for letter in walk[:MAX_NODES]]
        if GOAL not in nodes:
            return 0.0
        nodes = nodes[: nodes.index(GOAL) + 1]
        valid = -1 not in nodes and all(self.adjacency[i, j] for i, j in itertools.pairwise(nodes))
        if not valid or len(nodes) == MAX_NODES:
            return 0.0
        return (MAX_NODES - len(nodes)) / int(MAX_NODES - self.shortest[nodes[0]])

    def _paths_to_goal(self, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if path[-1] == GOAL:
            yield path
        elif len(path) < MAX_NODES:
            for node in np.flatnonzero(self.adjacency[path[-1]]):
                yield from self._paths_to_goal((*path, int(node)))


@cache
def benchmark() -> WalkGraph:
    """The graph of the benchmark."""
    return WalkGraph.make()


class RandomWalks(LanguageTask):
    """Walks to the goal in the graph of the benchmark. Evaluations compute the expected optimality exactly."""

    @dataclass(frozen=True)
    class Settings(Language):
        max_new_tokens: Count = 9
        stop_tokens: tuple[str, ...] = ("a",)

    def own_prompts(self) -> Sequence[str]:
        return benchmark().prompts

    def own_score(self) -> Score:
        return benchmark().optimality

    def own_sft(self) -> SFTCheckpoint:
        config = small_gpt2(layers=2, width=64, heads=2, positions=16)
        fit = SFTSettings(epochs=20, batch_size=50, learning_rate=1e-3, held_out=0.1)
        return SFTCheckpoint(benchmark().walks, benchmark().tokenizer, config, fit)

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """Returns are the exact expected optimality from each start, whatever the number of episodes.

        `score` is the mean score of sampled responses. With `deterministic`, returns are the optimality of the most
        probable response to each start. With replies, or a tokenizer that does not read each node as one token, there
        is no sum to compute: returns are then those of other tasks.
        """
        sampled = super().evaluate(episodes, seed=seed, deterministic=deterministic)
        further = {name: x for name, x in sampled.further.items() if name != "true_score"}
        graph, prompts = benchmark(), benchmark().prompts
        lengths = [len(ids) for ids in self.tokenizer(list(graph.walks)).input_ids]
        if self.env.generation.turns is not None or lengths != [len(walk) for walk in graph.walks]:
            return sampled
        if deterministic:
            returns = np.array(graph.optimality(*respond(self.env, prompts, None, deterministic=True)[1:]))
        else:
            limits = self.env.generation.allowed, self.settings.max_new_tokens, self.env.stop
            returns = expected_optimality(self.model, self.tokenizer, graph, prompts, *limits).numpy()
        return replace(sampled, returns=returns, further={"exact": True, "score": sampled.mean_return, **further})


@torch.no_grad()
def expected_optimality(
    model: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    graph: WalkGraph,
    prompts: Sequence[str],
    allowed: AllowedTokens | None = None,
    longest: int = MAX_NODES,
    stop: Collection[int] = (),
) -> Float[Tensor, "N"]:
    """E[optimality] of the policy from each start: Σ π(walk | start)·optimality(walk) over all walks to the goal.

    Walks have at most `longest` further nodes, and none of the tokens `stop` before the goal. Every other response has
    optimality 0. It takes one forward over a few thousand rows, without sampling. `tokenizer` reads each node as one
    token.
    """
    walks = [walk for walk in graph.solutions() if len(walk) - 1 <= longest]
    rows = zip(walks, tokenizer(walks).input_ids, strict=True)
    solutions = {walk: ids for walk, ids in rows if not {*stop} & {*ids[1:-1]}}
    device = next(model.parameters()).device
    tokens = Tokens.of_texts([*solutions.values()], int(tokenizer.pad_token_id))
    tokens = (tokens if allowed is None else allowed.with_allowed(tokens)).map(lambda x: x.to(device))
    logp = model.distribution(tokens).log_prob(tokens.action).double().sum(1).cpu()
    of_each = graph.optimality([walk[0] for walk in solutions], [walk[1:] for walk in solutions])
    start = torch.tensor([prompts.index(w[0]) for w in solutions])
    expected = logp.exp() * torch.tensor(of_each, dtype=torch.float64)
    return torch.zeros(len(prompts), dtype=torch.float64).index_add(0, start, expected)


def legal_moves(tokens: list[int]) -> list[int]:
    """The nodes that an edge leads to from the last one: `--allowed-tokens rlzoo.lm.tasks.random_walks:legal_moves`."""
    return np.flatnonzero(benchmark().adjacency[tokens[-1]]).tolist()


def nodes_to_goal(adjacency: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Nodes on the shortest path from each node to the goal, both included; `MAX_NODES` if it is longer or missing."""
    edges = shortest_path(adjacency.astype(float), unweighted=True)[:, GOAL]
    return np.minimum(edges + 1, MAX_NODES).astype(np.int64)


def _uniform_walk(adjacency: NDArray[np.bool_], rng: np.random.RandomState) -> str:
    """A walk whose start is uniform over the nodes other than the goal, and each next node uniform over the edges."""
    node = GOAL
    while node == GOAL:
        node = rng.randint(len(adjacency))
    nodes = [node]
    while nodes[-1] != GOAL and len(nodes) < MAX_NODES:
        nodes.append(rng.choice(np.flatnonzero(adjacency[nodes[-1]])))
    return "".join(_LETTERS[i] for i in nodes)
