"""Instructions to a chat model that a program can check."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlzoo.core.system.fields import Count
from rlzoo.lm.finetune.chat import asked
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language, Text

SUBJECTS = ("rain", "a cat", "the moon", "bread", "a train", "music", "winter", "a river", "coffee", "an old house")
WORDS = ("red", "morning", "slowly", "bridge", "seven", "window", "paper", "quiet", "market", "green")
PROMPTS, HELD_OUT = 400, 60
"""Prompts of training, and of evaluations."""


def _words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['’-]\w+)*", text)


def _has_keys(text: str, keys: Sequence[str]) -> bool:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.keys() == set(keys)


@dataclass(frozen=True)
class Kind:
    """A kind of instruction: its text, whether a response follows it, and the arguments of both."""

    text: str
    follows: Callable[..., bool]
    arguments: Callable[[Random], list[Any]] = lambda rng: []
    training: bool = True
    """Whether it is among the prompts of training; evaluations have all kinds."""


KINDS = {
    "words": Kind(
        "Write exactly {} words about {subject}.",
        lambda text, n: len(_words(text)) == n,
        lambda rng: [rng.randint(3, 8)],
    ),
    "lower case": Kind("Write a sentence about {subject}. Use lower case letters only.", str.islower),
    "capitals": Kind("Write a sentence about {subject} in capital letters only.", str.isupper),
    "json": Kind(
        'Describe {subject} as a JSON object with the keys "{}" and "{}". Write nothing else.',
        lambda text, *keys: _has_keys(text, keys),
        lambda rng: rng.sample(["name", "colour", "size", "use", "age"], 2),
    ),
    "question": Kind(
        "Write one sentence about {subject} that ends with a question mark.",
        lambda text: text.rstrip().endswith("?"),
    ),
    "two words": Kind(
        'Write a sentence about {subject} that contains the words "{}" and "{}".',
        lambda text, *words: set(words) <= set(_words(text.lower())),
        lambda rng: rng.sample(WORDS, 2),
    ),
    "begins": Kind(
        'Write a sentence about {subject}. Begin with the word "{}".',
        lambda text, word: _words(text.lower())[:1] == [word],
        lambda rng: [rng.choice(WORDS)],
    ),
    "no comma": Kind(
        "Write two sentences about {subject} without a comma.",
        lambda text: "," not in text and len(re.findall(r"[.!?]", text)) == 2,
    ),
    "lines": Kind(
        "Write {} lines about {subject}.",
        lambda text, n: len([line for line in text.splitlines() if line.strip()]) == n,
        lambda rng: [rng.randint(2, 4)],
        training=False,
    ),
    "ends": Kind(
        'Write a sentence about {subject} whose last word is "{}".',
        lambda text, word: _words(text.lower())[-1:] == [word],
        lambda rng: [rng.choice(WORDS)],
        training=False,
    ),
}


TRAINING = [name for name, kind in KINDS.items() if kind.training]


def instructions(
    seed: str, count: int, kinds: Sequence[str], tokenizer: PreTrainedTokenizerBase, without: Sequence[str] = ()
) -> list[Prompt]:
    """Prompts of each kind in turn, none of those `without`, with the columns `kind` and `arguments`."""
    rng, prompts, others = Random(seed), list[Prompt](), set(without)
    while len(prompts) < count:
        name = kinds[len(prompts) % len(kinds)]
        arguments = KINDS[name].arguments(rng)
        text = KINDS[name].text.format(*arguments, subject=rng.choice(SUBJECTS))
        prompt = Prompt(asked(text, tokenizer), {"kind": name, "arguments": arguments})
        if prompt not in others:
            prompts.append(prompt)
    return prompts


def follows(prompts: list[str], responses: list[str], kind: list[str], arguments: list[list[Any]]) -> list[float]:
    """1 for a response that is not empty and follows its instruction, else 0."""
    rows = zip(responses, kind, arguments, strict=True)
    return [float(bool(text.strip()) and KINDS[name].follows(text.strip(), *args)) for text, name, args in rows]


class Instructions(LanguageTask):
    """Instructions of ten kinds, such as "Write exactly 5 words about rain." Two kinds are in evaluations alone."""

    @dataclass(frozen=True)
    class Settings(Language):
        model: Text | None = "smollm2"
        max_new_tokens: Count = 40

    def own_prompts(self) -> Sequence[str]:
        return instructions("training", PROMPTS, TRAINING, self.tokenizer, self.own_eval_prompts())

    def own_eval_prompts(self) -> Sequence[str]:
        return instructions("evaluation", HELD_OUT, list(KINDS), self.tokenizer)

    def own_score(self) -> Score:
        return follows
