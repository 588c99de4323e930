"""Responses with their measures, as evaluations and `rlzoo play` show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rlzoo.core.evaluation import Played
from rlzoo.core.system.screen import printable


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


def distinct_words(response: str) -> float:
    """Share of the words of a response that are different ones: 1 without repetition, and for no words."""
    words = response.lower().split()
    return len(set(words)) / len(words) if words else 1.0


def transcript(samples: Sequence[Sample]) -> str:
    """Responses as text: some lines for each, and one line with the means."""
    lines = []
    for number, x in enumerate(samples, 1):
        end = "" if x.ended else ", cut at the limit"
        scored = "" if x.score is None else f"score {x.score:.4g}, "
        lines += [f"response {number}: {scored}KL {x.kl:.4g} nats, {x.length} tokens{end}"]
        lines += [_quoted("prompt", x.prompt), _quoted("response", x.response), ""]
    kl = np.mean([x.kl for x in samples])
    score = _mean_score(samples)
    mean = "" if score is None else f"mean score {score:.4g}, "
    return "\n".join([*lines, f"{mean}mean KL {kl:.4g} nats over {len(samples)} responses"])


def played(samples: Sequence[Sample]) -> Played:
    """Responses for display."""
    return Played(samples, transcript(samples), summary(samples))


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Responses as JSON values, and their means."""
    return {
        "mean_score": _mean_score(samples),
        "mean_kl": float(np.mean([x.kl for x in samples])),
        "responses": [x._asdict() for x in samples],
    }


def _mean_score(samples: Sequence[Sample]) -> float | None:
    scores = [x.score for x in samples if x.score is not None]
    return float(np.mean(scores)) if scores else None


def _quoted(name: str, text: str) -> str:
    """Text indented beside its name."""
    return f"  {name:10}" + printable(text).replace("\n", "\n" + 12 * " ")
