"""Sums asked of a chat model, which must answer with a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

from transformers import PreTrainedTokenizerBase

from rlzoo.core.system.fields import Count, Range
from rlzoo.lm.finetune.chat import asked
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language, Text

QUESTION = "What is {} + {}? Answer with the number only."
SMALLEST = 2
"""Smallest number in a sum."""
HELD_OUT = 0.1
"""Share of the sums that is kept for evaluations."""


def last_number(prompts: list[str], responses: list[str], answer: list[int]) -> list[float]:
    """1 if the last whole number of a response is the answer, else 0."""
    numbers = (re.findall(r"0*(\d+)", response) for response in responses)
    return [float(x[-1:] == [str(right)]) for x, right in zip(numbers, answer, strict=True)]


def sums(largest: int, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Prompt], list[Prompt]]:
    """The sums for evaluations and those for training, with the column `answer`, in a fixed random order."""
    numbers = range(SMALLEST, largest + 1)
    pairs = [(a, b) for a in numbers for b in numbers]
    Random("sums").shuffle(pairs)
    prompts = [Prompt(asked(QUESTION.format(a, b), tokenizer), {"answer": a + b}) for a, b in pairs]
    held_out = max(1, int(HELD_OUT * len(prompts)))
    return prompts[:held_out], prompts[held_out:]


class Sums(LanguageTask):
    """Sums of two numbers, such as "What is 23 + 45? Answer with the number only.\""""

    @dataclass(frozen=True)
    class Settings(Language):
        model: Text | None = "smollm2"
        max_new_tokens: Count = 14
        largest: Annotated[int, Range(3)] = 59
        """Largest number in a sum; the smallest is 2."""

    settings: Settings

    def own_prompts(self) -> Sequence[str]:
        return sums(self.settings.largest, self.tokenizer)[1]

    def own_eval_prompts(self) -> Sequence[str]:
        return sums(self.settings.largest, self.tokenizer)[0]

    def own_score(self) -> Score:
        return last_number


class SmallSums(Sums):
    """Sums of numbers up to 20."""

    @dataclass(frozen=True)
    class Settings(Sums.Settings):
        largest: Annotated[int, Range(3)] = 20
