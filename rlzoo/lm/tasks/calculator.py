"""Products that are too hard to guess, and a calculator to ask: conversations of two turns or more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from rlzoo.core.system.fields import Count
from rlzoo.lm.finetune.sft import SFTSettings
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, character_tokenizer, completed, small_gpt2
from rlzoo.lm.reward.expressions import value_of
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.reward.turns import Conversation, Reply
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language

FACTORS = range(32, 100)
"""The factors, whose products have four digits."""
PRODUCTS, HELD_OUT = 2000, 250
"""Products in all, and those that are kept for evaluations."""
CALLS, SLIPS = 0.7, 0.4
"""Of the texts for SFT: the share that asks the calculator, and the share of these that asks for another product."""


def products() -> list[Prompt]:
    """Distinct products such as "47*86:", with the column `answer`."""
    factors = Random("products").sample([(a, b) for a in FACTORS for b in FACTORS], PRODUCTS)
    return [Prompt(f"{a}*{b}:", {"answer": str(a * b)}) for a, b in factors]


def calculate(conversations: list[Conversation]) -> list[str | None]:
    """The calculator's reply to "47*86=": "4042;", or "?;" if it cannot read that. Any other turn is the last one."""
    return [_result(x.turns[-1][:-1]) if x.turns[-1].endswith("=") else None for x in conversations]


def noise(conversations: list[Conversation]) -> list[str | None]:
    """The reply of a broken calculator: a random number."""
    numbers = [Random(f"{x.prompt} {x.turns}").randint(1024, 9801) for x in conversations]
    calls = [x.turns[-1].endswith("=") for x in conversations]
    return [f"{number};" if call else None for number, call in zip(numbers, calls, strict=True)]


def is_answer(prompts: list[str], responses: list[str], answer: list[str], turns: list[list[str]]) -> list[float]:
    """1 for a conversation whose last turn is the answer and nothing else, 0 for any other."""
    return [float(said[-1] == right) for said, right in zip(turns, answer, strict=True)]


def attempt(prompt: Prompt, rng: Random) -> str:
    """A conversation for SFT: a call and its result, a call for another product, or a guess."""
    a, b = map(int, prompt[:-1].split("*"))
    if rng.random() >= CALLS:
        return str(rng.randint(1024, 9801))
    if rng.random() < SLIPS:
        a, b = rng.choice([(a, rng.choice(FACTORS)), (rng.choice(FACTORS), b)])
    return f"{a}*{b}={a * b};{a * b}"


class Calculator(LanguageTask):
    """Products of two numbers. The SFT checkpoint guesses, or asks the calculator, often for another product."""

    @dataclass(frozen=True)
    class Settings(Language):
        max_new_tokens: Count = 24
        stop_tokens: tuple[str, ...] = ("=", "<eos>")

    def own_prompts(self) -> Sequence[str]:
        return products()[HELD_OUT:]

    def own_eval_prompts(self) -> Sequence[str]:
        return products()[:HELD_OUT]

    def own_score(self) -> Score:
        return is_answer

    def own_reply(self) -> Reply:
        return calculate

    def own_sft(self) -> SFTCheckpoint:
        texts = completed(products()[HELD_OUT:], 8000, attempt)
        config = small_gpt2(layers=2, width=64, heads=4, positions=32)
        fit = SFTSettings(epochs=6, batch_size=64, learning_rate=2e-3, held_out=0.05)
        return SFTCheckpoint(texts, lambda: character_tokenizer("0123456789*=:;?"), config, fit)


def _result(expression: str) -> str:
    value = value_of(expression)
    return "?;" if value is None else f"{value};"
