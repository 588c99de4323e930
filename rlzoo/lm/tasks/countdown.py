"""Countdown: reach a target from three numbers."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rlzoo.core.system.fields import Count
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, character_tokenizer, completed, small_gpt2
from rlzoo.lm.reward.expressions import value_of
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language

NUMBERS = 3
"""Numbers of a puzzle, each from 1 to 9."""
PUZZLES, HELD_OUT = 2000, 250
"""Puzzles in all, and those that are kept for evaluations."""
RIGHT = 0.5
"""Share of right expressions among the texts for SFT."""


@functools.cache
def puzzles() -> list[Prompt]:
    """Distinct puzzles such as "3 7 2>8=", with the columns `numbers` and `target`. + and - are enough."""
    rng = Random("puzzles")
    prompts: dict[str, Prompt] = {}
    while len(prompts) < PUZZLES:
        numbers = [rng.randint(1, 9) for _ in range(NUMBERS)]
        target = value_of(_expression(numbers, rng))
        if target is not None and target > 0:
            text = f"{' '.join(map(str, numbers))}>{target}="
            prompts[text] = Prompt(text, {"numbers": numbers, "target": int(target)})
    return list(prompts.values())


def reaches(prompts: list[str], responses: list[str], numbers: list[list[int]], target: list[int]) -> list[float]:
    """1 for an expression that is equal to the target and uses each number at most as often as the puzzle, else 0.

    An expression has whole numbers, +, -, *, / and brackets (see `value_of`).
    """
    answers = zip(responses, numbers, target, strict=True)
    return [float(_uses_only(response, own) and value_of(response) == goal) for response, own, goal in answers]


def attempt(prompt: Prompt, rng: Random) -> str:
    """An expression for SFT, a sum or difference of the numbers: a solution, or any."""
    numbers, target = prompt.columns["numbers"], prompt.columns["target"]
    expression = _expression(numbers, rng)
    solved = rng.random() < RIGHT
    while solved and value_of(expression) != target:
        expression = _expression(numbers, rng)
    return expression


class Countdown(LanguageTask):
    """Expressions that reach a number. The SFT checkpoint has seen more wrong expressions than right ones."""

    @dataclass(frozen=True)
    class Settings(Language):
        max_new_tokens: Count = 8

    def own_prompts(self) -> Sequence[str]:
        return puzzles()[HELD_OUT:]

    def own_eval_prompts(self) -> Sequence[str]:
        return puzzles()[:HELD_OUT]

    def own_score(self) -> Score:
        return reaches

    def own_sft(self) -> SFTCheckpoint:
        texts = completed(puzzles()[HELD_OUT:], 16000, attempt)
        config = small_gpt2(layers=2, width=64, heads=4, positions=24)
        fit = SFTSettings(epochs=14, batch_size=64, learning_rate=3e-3, held_out=0.05)
        return SFTCheckpoint(texts, lambda: character_tokenizer("0123456789 +-*/()>="), config, fit)


def _expression(numbers: Sequence[int], rng: Random) -> str:
    """The numbers in random order, with + or - between each two."""
    first, *rest = rng.sample(numbers, len(numbers))
    return f"{first}" + "".join(f"{rng.choice('+-')}{x}" for x in rest)


def _uses_only(expression: str, numbers: Sequence[int]) -> bool:
    return Counter(re.findall(r"[0-9]+", expression)) <= Counter(map(str, numbers))
