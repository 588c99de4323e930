"""Samples of a policy: responses with their measures, as evaluations and `rlzoo play` show them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import Collector
from rlzoo.core.env import Array, Bools
from rlzoo.core.evaluation import OnStep, Played
from rlzoo.core.system.progress import operation
from rlzoo.core.system.screen import printable
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.tokens import Tokens
from rlzoo.lm.reward.env import LMEnv
from rlzoo.lm.reward.scores import call_scores
from rlzoo.lm.reward.shaping import sequence_kl

_ROWS = 64
"""Responses that are sampled together."""


class Sample(NamedTuple):
    """A response and its measures."""

    prompt: str
    response: str
    score: float | None
    """With the rewards of turns; None if the prompt lacks what the score needs."""
    kl: float
    """KL(π ‖ π_ref) in nats, exact over the vocabulary at each token and summed over the response."""
    length: int
    """Number of tokens."""
    ended: bool
    """Whether the response has a stop token, rather than reaching the limit."""


def respond(
    env: LMEnv,
    prompts: Sequence[str],
    generator: torch.Generator | None,
    deterministic: bool = False,
    on_token: Callable[[], None] = lambda: None,
) -> tuple[Buffer, list[str], list[str]]:
    """One response to each prompt, as a buffer whose rewards are those of turns, and `LMEnv.texts` of it.

    `on_token` is called before each token of all responses.
    """
    env, act = env.over(prompts), TokenActor(env.model, generator, deterministic)

    def actor(obs: Tokens, forced: Bools, starts: Bools) -> Array:
        on_token()
        return act(obs, forced, starts)

    buffer = Collector(env, whole_episodes=True).collect(actor).buffer
    device = next(env.model.parameters()).device
    return buffer.map(lambda x: x.to(device)), *env.texts(buffer)


@torch.no_grad()
def sample(
    env: LMEnv, texts: Sequence[str], n: int, seed: int, deterministic: bool, on_step: OnStep
) -> tuple[list[Sample], dict[str, list[float]], list[float]]:
    """Samples n responses to the texts in turn, the scores of each by name, if there are several, and their raw scores.

    `on_step` is called before each token with the number of complete responses.
    """
    generator = torch.Generator(next(env.model.parameters()).device).manual_seed(seed % 2**64)
    samples: list[Sample] = []
    parts: dict[str, list[float]] = defaultdict(list)
    raw: list[float] = []
    for batch in batches(texts, n):
        on_token = partial(on_step, len(samples))
        buffer, prompts, said = respond(env, batch, generator, deterministic, on_token)
        on_token()
        with operation("scoring"):
            score, several = call_scores(env.scoring.score, env.scoring.name, prompts, said)
            tokens = buffer.obs.columns(0, buffer.mask.shape[1])
            kl = env.model.distribution(tokens).kl(env.reference.distribution(tokens))
        raw += score.tolist()
        for name, scores in several.items():
            parts[name] += scores.tolist()
        total, of_response = score + buffer.reward.sum(1).to(score), sequence_kl(kl, buffer.mask)
        columns = (x.tolist() for x in (total, of_response, buffer.mask.sum(1), env.ended(buffer)))
        samples += [Sample(*x) for x in zip(prompts, said, *columns, strict=True)]
    return samples, parts, raw


def batches(texts: Sequence[str], n: int) -> Iterator[list[str]]:
    """n texts, each in turn, in batches."""
    cycle = itertools.cycle(texts)
    return (list(itertools.islice(cycle, min(_ROWS, n - start))) for start in range(0, n, _ROWS))


def distinct_words(response: str) -> float:
    """Share of the words of a response that are different ones: 1 without repetition, and for no words."""
    words = response.lower().split()
    return len(set(words)) / len(words) if words else 1.0


def describe_samples(samples: Sequence[Sample]) -> Played:
    """Responses for display: some lines of text for each and a line with the means, and as JSON values."""
    lines = []
    for number, x in enumerate(samples, 1):
        end = "" if x.ended else ", cut at the limit"
        scored = "" if x.score is None else f"score {x.score:.4g}, "
        lines += [f"response {number}: {scored}KL {x.kl:.4g} nats, {x.length} tokens{end}"]
        lines += [_quote("prompt", x.prompt), _quote("response", x.response), ""]
    scores = [x.score for x in samples if x.score is not None]
    mean_score = float(np.mean(scores)) if scores else None
    mean_kl = float(np.mean([x.kl for x in samples]))
    score = "" if mean_score is None else f"mean score {mean_score:.4g}, "
    lines += [f"{score}mean KL {mean_kl:.4g} nats over {len(samples)} responses"]
    responses = [x._asdict() for x in samples]
    return Played(samples, "\n".join(lines), {"mean_score": mean_score, "mean_kl": mean_kl, "responses": responses})


def _quote(name: str, text: str) -> str:
    """Text indented beside its name."""
    return f"  {name:10}" + printable(text).replace("\n", "\n" + 12 * " ")
