"""Random walks to a goal: the smallest language task, and one whose optimum is known.

The RandomWalks benchmark of trlX (Havrilla et al. 2023, after Chen et al. 2021): a policy is first taught the
walks of a random graph, and then to reach the goal from each start in as few nodes as it can.
"""

from __future__ import annotations

import itertools
import json
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse.csgraph import shortest_path
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rlzoo.core.errors import require
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.fields import Count
from rlzoo.core.task import TaskSettings
from rlzoo.lm.finetune.data import write_command, write_lines
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.finetune.start import SupervisedStart, small_gpt2
from rlzoo.lm.model.language_model import LanguageModel, Rows
from rlzoo.lm.model.padding import pad
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language

NODES = 21
MAX_NODES = 10
"""Nodes that a walk may have, start and goal counted."""
WALKS = 1000
PAIRS = 5000
GOAL = 0
END, PAD = "<eos>", "<pad>"
_LETTERS = string.ascii_lowercase


@dataclass(frozen=True, eq=False)
class WalkGraph:
    """A graph, and walks along it. Node i is the i-th letter of the alphabet; `a` is the goal.

    A prompt is a start other than `a`, a response the letters that follow it. A policy π that stops at `a` has
    the expected optimality Σ π(walk | start)·optimality(walk) over those of `solutions` with that start, exactly.
    """

    adjacency: NDArray[np.bool_]
    """(nodes, nodes): whether an edge leads from the row's node to the column's."""
    shortest: NDArray[np.int64]
    """L*, nodes on the shortest path from each node to the goal, both counted; at most `MAX_NODES`."""
    walks: tuple[str, ...] = ()
    """Uniform walks, which end at the goal or after `MAX_NODES` nodes: texts to begin with."""

    @classmethod
    def make(cls, seed: int = 1000) -> WalkGraph:
        """The benchmark's graph and walks, drawn from one stream of NumPy's old generator as trlX draws them.

        With the default seed the goal is at most five nodes away from every start. Other seeds may leave starts
        that cannot reach it in fewer than `MAX_NODES` nodes: these are no prompts.

        Raises:
            ConfigError: no start can reach the goal.
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
        require(
            bool(graph.prompts), f"seed {seed} draws a graph without a way to {_LETTERS[GOAL]!r}: take another seed"
        )
        return graph

    @property
    def prompts(self) -> list[str]:
        """The starts from which the goal can be reached in fewer than `MAX_NODES` nodes, sorted."""
        return [_LETTERS[i] for i in np.flatnonzero(self.shortest < MAX_NODES) if i != GOAL]

    def optimality(self, prompts: list[str], responses: list[str]) -> list[float]:
        """(10 − L) / (10 − L*) of each walk, prompt and response joined: 1 for a shortest one.

        L counts the nodes up to and including the first `a`; what follows has no say. It is 10, for an optimality
        of 0, if an edge or letter before that is foreign or ten nodes do not reach `a`.
        """
        return [self._optimality(prompt + response) for prompt, response in zip(prompts, responses, strict=True)]

    def solutions(self) -> list[str]:
        """Every walk of at most `MAX_NODES` nodes from a start other than `a` whose only `a` is its last letter.

        Sorted; 4,736 of them with the default seed.
        """
        starts = range(GOAL + 1, len(self.adjacency))
        return ["".join(_LETTERS[i] for i in path) for start in starts for path in self._paths_to_goal((start,))]

    def pairs(self, n: int, seed: int) -> list[dict[str, str]]:
        """`n` comparisons `{prompt, chosen, rejected}` of two of `walks` with one start, the better one chosen.

        Drawn without replacement, all being equally likely. Walks of equal optimality are not compared.

        Raises:
            ConfigError: there are fewer than `n`.
        """
        known = self._comparisons()
        require(0 <= n <= len(known), f"n must be in [0, {len(known)}], the comparisons that the walks allow; got {n}")
        drawn = np.random.default_rng(seed).choice(len(known), size=n, replace=False)
        return [
            {"prompt": better[0], "chosen": better[1:], "rejected": worse[1:]}
            for better, worse in (known[i] for i in drawn)
        ]

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A tokenizer with a token for each node's letter, `<eos>` and `<pad>`; a foreign letter is an error."""
        tokens = [*_LETTERS[: len(self.adjacency)], END, PAD]
        letters = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}))
        letters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
        letters.decoder = decoders.Fuse()
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=letters, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
        )

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

    def _comparisons(self) -> list[tuple[str, str]]:
        """All (better, worse) of the distinct walks that share a start."""
        optimality = {walk: self._optimality(walk) for walk in sorted(set(self.walks))}
        by_start = [list(walks) for _, walks in itertools.groupby(optimality, key=lambda walk: walk[0])]
        couples = (couple for walks in by_start for couple in itertools.permutations(walks, 2))
        return [(better, worse) for better, worse in couples if optimality[better] > optimality[worse]]


@dataclass(frozen=True)
class RandomWalksSettings(Language):
    """The settings of `Language`, with the benchmark's limits."""

    max_new_tokens: Count = 9
    """Largest number of tokens in a response; reaching it ends the response."""
    stop_tokens: tuple[str, ...] = ("a",)
    """Tokens that end a response; empty for the tokenizer's end of sequence."""


class RandomWalks(LanguageTask):
    """Walks to the goal of the benchmark's graph. Evaluations compute the expected optimality exactly."""

    Settings: ClassVar[type[TaskSettings]] = RandomWalksSettings

    @cached_property
    def graph(self) -> WalkGraph:
        return WalkGraph.make()

    def own_prompts(self) -> Sequence[str]:
        return self.graph.prompts

    def own_eval_prompts(self) -> Sequence[str]:
        return self.graph.prompts

    def own_score(self) -> Score:
        return self.graph.optimality

    def own_start(self) -> SupervisedStart:
        config = small_gpt2(layers=2, width=64, heads=2, positions=16)
        fit = SFTSettings(epochs=20, batch_size=50, learning_rate=1e-3, held_out=0.1)
        return SupervisedStart(list(self.graph.walks), self.graph.tokenizer, config, fit)

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """Returns are the exact expected optimality from each start, however many episodes are asked for.

        `score` is the mean score of sampled responses. With `deterministic`, returns are the optimality of the most
        probable response to each start.
        """
        sampled = super().evaluate(episodes, seed=seed, deterministic=deterministic)
        further = {name: x for name, x in sampled.further.items() if name != "true_score"}
        prompts = self.graph.prompts
        if deterministic:
            returns = np.array(self.graph.optimality(prompts, self.respond(prompts, None, deterministic=True)[1]))
        else:
            returns = expected_optimality(self.model, self.tokenizer, self.graph, prompts).numpy()
        return replace(sampled, returns=returns, further={"exact": True, "score": sampled.mean_return, **further})


@torch.no_grad()
def expected_optimality(
    model: LanguageModel, tokenizer: PreTrainedTokenizerBase, graph: WalkGraph, prompts: Sequence[str]
) -> Float[Tensor, "N"]:
    """E[optimality] of the policy from each start: Σ π(walk | start)·optimality(walk) over all walks to the goal.

    Every other response has optimality 0. One forward over a few thousand rows, without sampling.
    """
    solutions = graph.solutions()
    device = next(model.parameters()).device
    ids, attention = pad(tokenizer(solutions).input_ids, int(tokenizer.pad_token_id), side="right")
    acts = torch.nn.functional.pad(attention[:, 1:], (0, 1))
    obs = Rows(ids, attention, acts).obs.to(device)
    action = torch.nn.functional.pad(ids[:, 1:], (0, 1)).to(device)
    logp = model.distribution(obs).log_prob(action).double().sum(1).cpu()
    optimality = torch.tensor(graph.optimality([w[0] for w in solutions], [w[1:] for w in solutions]))
    start = torch.tensor([prompts.index(w[0]) for w in solutions])
    return torch.zeros(len(prompts), dtype=torch.float64).index_add(0, start, logp.exp() * optimality.double())


def nodes_to_goal(adjacency: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Nodes on the shortest path from each node to the goal, both counted; `MAX_NODES` if it has more or is none."""
    edges = shortest_path(adjacency.astype(float), unweighted=True)[:, GOAL]
    return np.minimum(edges + 1, MAX_NODES).astype(np.int64)


def _uniform_walk(adjacency: NDArray[np.bool_], rng: np.random.RandomState) -> str:
    """A start uniform over the nodes other than the goal, and each next node uniform over the out-edges."""
    node = GOAL
    while node == GOAL:
        node = rng.randint(len(adjacency))
    nodes = [node]
    while nodes[-1] != GOAL and len(nodes) < MAX_NODES:
        nodes.append(rng.choice(np.flatnonzero(adjacency[nodes[-1]])))
    return "".join(_LETTERS[i] for i in nodes)


def write(folder: Path | str, seed: int = 0) -> dict[str, int]:
    """Writes the benchmark's data, UTF-8, and returns how many lines each file has: `texts.txt` (the walks),
    `prompts.txt` (the starts), and `pairs.jsonl`, comparisons for a reward model, which the seed draws.

    Raises:
        ConfigError: one of the files exists, or the folder cannot be written.
    """
    walks = WalkGraph.make()
    pairs = [json.dumps(pair) for pair in walks.pairs(PAIRS, seed)]
    return write_lines(folder, {"texts.txt": walks.walks, "prompts.txt": walks.prompts, "pairs.jsonl": pairs})


if __name__ == "__main__":
    sys.exit(
        write_command("rlzoo.lm.tasks.random_walks", "Writes the walks of the RandomWalks benchmark.", write, None)
    )
