"""Sums with a right answer, the smallest task for verifiable rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rlzoo.core.system.fields import Count
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, character_tokenizer, completed, small_gpt2
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
    """Every sum such as "17+25=", with the column `answer`, in a fixed random order."""
    numbers = range(LARGEST + 1)
    prompts = [Prompt(f"{a}+{b}=", {"answer": str(a + b)}) for a in numbers for b in numbers]
    Random("sums").shuffle(prompts)
    return prompts


def is_answer(prompts: list[str], responses: list[str], answer: list[str]) -> list[float]:
    """1 for a response that is the answer and nothing else, 0 for any other."""
    return [float(response == right) for response, right in zip(responses, answer, strict=True)]


def attempt(prompt: Prompt, rng: Random) -> str:
    """An answer for SFT: the right one, or with the tens, the ones or both off by one or two."""
    slip = 0 if rng.random() < RIGHT else rng.choice((-10, -2, -1, 1, 2, 10))
    return str(abs(int(prompt.columns["answer"]) + slip))


class Arithmetic(LanguageTask):
    """Sums of two numbers. The SFT checkpoint has seen more wrong answers than right ones."""

    @dataclass(frozen=True)
    class Settings(Language):
        max_new_tokens: Count = 4

    def own_prompts(self) -> Sequence[str]:
        return sums()[HELD_OUT:]

    def own_eval_prompts(self) -> Sequence[str]:
        return sums()[:HELD_OUT]

    def own_score(self) -> Score:
        return is_answer

    def own_sft(self) -> SFTCheckpoint:
        texts = completed(sums()[HELD_OUT:], 16000, attempt)
        config = small_gpt2(layers=2, width=64, heads=4, positions=16)
        fit = SFTSettings(epochs=12, batch_size=64, learning_rate=3e-3, held_out=0.05)
        return SFTCheckpoint(texts, lambda: character_tokenizer("0123456789+="), config, fit)
