"""A language task small enough to enumerate: objective, gradient, KL and Fisher matrix as sums over all responses."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic
from rlzoo.lm.finetune.sft_checkpoint import small_gpt2
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.pretrained import new_causal_lm
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.tasks.random_walks import GOAL, WalkGraph, nodes_to_goal
from rlzoo.optim.natural_gradient import FlatPolicy

MAX_NEW_TOKENS = 4
BETA = 0.2
"""Weight of the KL to the reference in the objective."""
_EDGES = {"b": "cd", "c": "ad", "d": "b"}
"""The graph: c is next to the goal, b two steps from it, d three."""


def responses(vocabulary: int, stop: Collection[int], max_new_tokens: int) -> Iterator[tuple[int, ...]]:
    """Every response: the tokens up to a stop token, or `max_new_tokens` tokens without one."""
    others = [token for token in range(vocabulary) if token not in stop]
    for length in range(max_new_tokens):
        for start in itertools.product(others, repeat=length):
            yield from ((*start, token) for token in sorted(stop))
    yield from itertools.product(others, repeat=max_new_tokens)


def weighted(buffer: Buffer, weight: Float[Tensor, "N T"]) -> Buffer:
    """`buffer` whose means are weighted, so that the losses of the package can be used on an enumeration."""
    return buffer.replace(part_weight=weight)


@dataclass(frozen=True)
class Enumeration:
    """All R responses to equally probable prompts. T steps, S states.

    A state is the prompt with the tokens so far: rows that begin with the same tokens share it.
    """

    rows: Tokens
    """(R, T): each prompt and its response but for the last token."""
    action: Int[Tensor, "R T"]
    prompt: Int[Tensor, "R"]
    score: Float[Tensor, "R"]
    state: Int[Tensor, "R T"]
    """Index of the state at each step; 0 after the end."""
    vocabulary: int

    @classmethod
    def of(
        cls, prompts: Sequence[int], score: Float[Tensor, "R"], vocabulary: int, stop: int, max_new_tokens: int
    ) -> Enumeration:
        """All responses to prompts of one token, whose scores are in the order of prompts and of `responses`."""
        every = list(responses(vocabulary, {stop}, max_new_tokens))
        texts = [(prompt, *response) for prompt in prompts for response in every]
        every_step = Tokens.of_texts(texts, 0)
        rows = every_step.columns(0, max_new_tokens)
        index: dict[tuple[int, ...], int] = {}
        state = torch.zeros(len(texts), max_new_tokens, dtype=torch.long)
        for i, text in enumerate(texts):
            for t in range(len(text) - 1):
                state[i, t] = index.setdefault(text[: t + 1], len(index))
        return cls(
            rows=rows,
            action=every_step.action[:, :max_new_tokens],
            prompt=torch.arange(len(prompts)).repeat_interleave(len(every)),
            score=score,
            state=state,
            vocabulary=vocabulary,
        )

    @property
    def mask(self) -> Bool[Tensor, "R T"]:
        return self.rows.acts

    @property
    def length(self) -> Int[Tensor, "R"]:
        """Tokens of each response."""
        return self.mask.sum(1)

    @property
    def num_prompts(self) -> int:
        return int(self.prompt[-1]) + 1

    @property
    def num_states(self) -> int:
        return int(self.state.max()) + 1

    @property
    def last(self) -> Bool[Tensor, "R T"]:
        """The step of the last token of each response."""
        return self.mask & (self.mask.cumsum(1) == self.length.unsqueeze(1))

    def states(self) -> Iterator[Tokens]:
        """The observation of each state: its tokens, of which the last acts."""
        flat = self.state.masked_fill(~self.mask, -1).flatten()
        for index in range(self.num_states):
            row, t = divmod(int((flat == index).nonzero()[0]), self.state.shape[1])
            token = self.rows.token[row : row + 1, : t + 1]
            acts = torch.zeros_like(token, dtype=torch.bool)
            acts[:, -1] = True
            yield Tokens(token, torch.ones_like(acts), acts)

    def buffer(self, obs: Tensor | Tokens) -> Buffer:
        """One row for each response, without rewards; `obs` is what the model takes at each step."""
        steps = self.mask.shape
        zeros = torch.zeros(steps, dtype=torch.float64)
        return Buffer(
            obs=obs,
            action=self.action,
            reward=zeros,
            terminated=self.last,
            truncated=torch.zeros(steps, dtype=torch.bool),
            mask=self.mask,
            logp=zeros,
            value=torch.zeros(steps[0], steps[1] + 1, dtype=torch.float64),
            return_=zeros,
        )

    def logp(self, model: ActorCritic, obs: Tensor | None = None) -> Float[Tensor, "R T"]:
        """log π of each token of each response, 0 after the end."""
        logp = model.distribution(self.rows if obs is None else obs).log_prob(self.action)
        return torch.where(self.mask, logp, 0.0)

    def probability(self, logp: Float[Tensor, "R T"]) -> Float[Tensor, "R"]:
        """P(prompt)·π(response | prompt), which adds up to 1."""
        return logp.sum(1).exp() / self.num_prompts

    def objective(self, logp: Float[Tensor, "R T"], reference: Float[Tensor, "R T"], beta: float) -> Float[Tensor, ""]:
        """J = E[score] − β·KL(π ‖ π_ref), the KL of whole responses."""
        return self.probability(logp) @ (self.score - beta * (logp - reference).sum(1))


def small_walks() -> tuple[WalkGraph, Enumeration]:
    """Walks on a graph of four nodes in at most four tokens: 3 prompts with 781 responses each.

    The vocabulary is the nodes, `<eos>` and `<pad>`, which are tokens like the others. A response ends at the goal or
    at the limit. Its score is the optimality of the walk.
    """
    letters = "abcd"
    adjacency = np.array([[b in _EDGES.get(a, "a") for b in letters] for a in letters])
    graph = WalkGraph(adjacency, nodes_to_goal(adjacency))
    tokenizer = graph.tokenizer()
    every = list(responses(len(tokenizer), {GOAL}, MAX_NEW_TOKENS))
    starts = [prompt for prompt in graph.prompts for _ in every]
    texts = tokenizer.batch_decode([list(response) for response in every], clean_up_tokenization_spaces=False)
    score = torch.tensor(graph.optimality(starts, texts * len(graph.prompts)), dtype=torch.float64)
    prompts = [tokenizer.encode(prompt)[0] for prompt in graph.prompts]
    return graph, Enumeration.of(prompts, score, len(tokenizer), GOAL, MAX_NEW_TOKENS)


def new_model(vocabulary: int, seed: int = 0, width: int = 8) -> LanguageModel:
    """A GPT-2 of one layer in float64, with attention that can be differentiated twice."""
    shape = small_gpt2(layers=1, width=width, heads=2, positions=MAX_NEW_TOKENS + 1)
    return LanguageModel(new_causal_lm({**shape, "initializer_range": 0.2}, vocabulary, seed, "eager").double())


def fit_walks(model: LanguageModel, graph: WalkGraph, task: Enumeration, steps: int = 150) -> None:
    """Fits the model to the uniform walk on the graph: SFT with all walks, each with its probability."""
    moves = torch.from_numpy(graph.adjacency / graph.adjacency.sum(1, keepdims=True))
    moves = torch.nn.functional.pad(moves, (0, task.vocabulary - len(moves), 0, task.vocabulary - len(moves)))
    chosen = torch.where(task.mask, moves[task.rows.token, task.action], 1.0).prod(1) / task.num_prompts
    walks = (chosen > 0).nonzero().squeeze(1)
    obs, action, mask = task.rows.map(lambda x: x[walks]), task.action[walks], task.mask[walks]
    optimizer = torch.optim.Adam(model.policy_parameters(), lr=0.02)
    for _ in range(steps):
        loss = -(chosen[walks] @ (model.distribution(obs).log_prob(action) * mask).sum(1))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def ascend(
    model: LanguageModel, task: Enumeration, reference: Float[Tensor, "R T"], beta: float, steps: int, rate: float
) -> None:
    """Exact gradient ascent on J."""
    policy = FlatPolicy(model)
    for _ in range(steps):
        objective = task.objective(task.logp(model), reference, beta)
        g = torch.autograd.grad(objective, model.policy_parameters())
        policy.assign(policy.theta + rate * torch.cat([x.flatten() for x in g]))
