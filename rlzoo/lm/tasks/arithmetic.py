"""Sums with a right answer, the smallest task for verifiable rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from rlzoo.core.fields import Count
from rlzoo.core.task import TaskSettings
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, character_tokenizer, small_gpt2
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language

LARGEST = 49
"""Largest number in a sum."""
HELD_OUT = 250
"""Sums that are kept for evaluations; the other 2,250 are the prompts of training."""
RIGHT = 0.4
"""Share of right answers among the texts for SFT."""


def sums() -> list[Prompt]:
    """Every sum such as "17+25=", with the column `answer`, in an order that is always the same."""
    numbers = range(LARGEST + 1)
    found = [Prompt(f"{a}+{b}=", {"answer": str(a + b)}) for a in numbers for b in numbers]
    Random("sums").shuffle(found)
    return found


def is_answer(prompts: list[str], responses: list[str], answer: list[str]) -> list[float]:
    """1 for a response that is the answer and nothing else, 0 for any other."""
    return [float(response == right) for response, right in zip(responses, answer, strict=True)]


def texts(prompts: Sequence[Prompt], n: int, seed: int) -> list[dict[str, str]]:
    """`n` sums with an answer: the right one, or with the tens, the ones or both off by one or two."""
    rng = Random(f"texts {seed}")
    found = []
    for prompt in (rng.choice(prompts) for _ in range(n)):
        slip = 0 if rng.random() < RIGHT else rng.choice((-10, -2, -1, 1, 2, 10))
        found.append({"prompt": str(prompt), "completion": str(abs(int(prompt.columns["answer"]) + slip))})
    return found


@dataclass(frozen=True)
class ArithmeticSettings(Language):
    """The settings of `Language`, with a token limit for sums."""

    max_new_tokens: Count = 4
    """Largest number of tokens in a response; reaching it ends the response."""


class Arithmetic(LanguageTask):
    """Sums of two numbers. The SFT checkpoint has seen more wrong answers than right ones."""

    Settings: ClassVar[type[TaskSettings]] = ArithmeticSettings

    def own_prompts(self) -> Sequence[str]:
        return sums()[HELD_OUT:]

    def own_eval_prompts(self) -> Sequence[str]:
        return sums()[:HELD_OUT]

    def own_score(self) -> Score:
        return is_answer

    def own_sft(self) -> SFTCheckpoint:
        config = small_gpt2(layers=2, width=64, heads=4, positions=16)
        fit = SFTSettings(epochs=12, batch_size=64, learning_rate=3e-3, held_out=0.05)
        return SFTCheckpoint(
            texts(sums()[HELD_OUT:], 16000, seed=0), lambda: character_tokenizer("0123456789+="), config, fit
        )
