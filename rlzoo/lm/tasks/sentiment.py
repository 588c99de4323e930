"""Openings of reviews, stories and letters that a language model continues, with sentiment as the score."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rlzoo.core.system.fields import Count
from rlzoo.core.system.functions import optional_module
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language, Text

SUBJECTS = {
    "review": ("film", "hotel", "soup", "phone", "novel", "concert", "museum", "jacket", "laptop", "bakery", "garden"),
    "story": ("sailor", "teacher", "dog", "farmer", "doctor", "king", "student", "painter", "baker", "child", "pilot"),
    "letter": ("trip", "house", "job", "school", "wedding", "neighbour", "winter", "train", "party", "game", "city"),
}
OPENINGS = {
    "review": (
        "The {} was",
        "I tried this {} last week, and",
        "After two days with the {}, I",
        "What I think of the {}:",
    ),
    "story": (
        "The {} looked at the sea and",
        "One morning the {}",
        "Nobody knew why the {}",
        "At last the {} said that",
    ),
    "letter": ("Dear Anna, the {} here", "I am writing to you about the {}, which", "You asked about the {}. It"),
}
HELD_OUT = 24
"""Openings that are kept for evaluations."""


@functools.cache
def openings() -> list[str]:
    """Every opening, in a fixed random order."""
    texts = [text.format(x) for kind, forms in OPENINGS.items() for text in forms for x in SUBJECTS[kind]]
    Random("openings").shuffle(texts)
    return texts


@functools.cache
def _analyzer() -> Any:
    vader = optional_module("vaderSentiment.vaderSentiment", "Sentiment needs the packages of rlzoo[real]")
    return vader.SentimentIntensityAnalyzer()


def compound(prompts: list[str], responses: list[str]) -> list[float]:
    """VADER's compound sentiment of each response (Hutto & Gilbert 2014), from −1 to 1. The prompt does not count."""
    return [_analyzer().polarity_scores(response)["compound"] for response in responses]


class Sentiment(LanguageTask):
    """Openings such as "The hotel was", continued so that the sentiment is positive."""

    @dataclass(frozen=True)
    class Settings(Language):
        model: Text | None = "smollm2"
        max_new_tokens: Count = 24

    def own_prompts(self) -> Sequence[str]:
        return openings()[HELD_OUT:]

    def own_eval_prompts(self) -> Sequence[str]:
        return openings()[:HELD_OUT]

    def own_score(self) -> Score:
        _analyzer()
        return compound
