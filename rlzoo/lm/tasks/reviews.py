"""Short product reviews of known sentiment: data for SFT, reward models and RLHF.

    python -m rlzoo.lm.tasks.reviews FOLDER

writes texts, preference pairs and prompts. Everything is generated, and the same seed gives the same files. A review
is a prompt without sentiment and a continuation of three parts, each of which is positive, negative or neutral.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.fields import Count
from rlzoo.core.system.screen import complain, show
from rlzoo.lm.finetune.sft import SFTSettings, train_tokenizer
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint, small_gpt2
from rlzoo.lm.reward.scores import Score
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.settings import Language

Drawn = TypeVar("Drawn")

OPENINGS = (
    "", "After a week,", "After two months,", "At home,", "In daily use,", "Over time,", "So far,", "In practice,",
)  # fmt: skip
OWNERS = ("my", "our", "our new", "the new", "this")
PRODUCTS = {
    "backpack": ("design", "lining", "strap", "zip"),
    "bicycle": ("bell", "frame", "light", "saddle"),
    "blender": ("jug", "lid", "motor", "sound"),
    "camera": ("battery", "flash", "lens", "screen"),
    "chair": ("armrest", "backrest", "design", "seat"),
    "clock": ("alarm", "design", "display", "light"),
    "coat": ("collar", "hood", "lining", "zip"),
    "drill": ("battery", "cable", "grip", "motor"),
    "fridge": ("door", "light", "motor", "shelf"),
    "kettle": ("cable", "handle", "lid", "spout"),
    "keyboard": ("battery", "cable", "design", "layout"),
    "lamp": ("cable", "light", "shade", "switch"),
    "laptop": ("battery", "camera", "keyboard", "screen"),
    "pan": ("base", "coating", "handle", "lid"),
    "phone": ("battery", "camera", "screen", "sound"),
    "printer": ("cable", "display", "scanner", "tray"),
    "radio": ("battery", "design", "display", "sound"),
    "sofa": ("backrest", "cushion", "fabric", "frame"),
    "suitcase": ("handle", "lining", "lock", "zip"),
    "tablet": ("battery", "camera", "case", "screen"),
    "tent": ("door", "fabric", "floor", "zip"),
    "toaster": ("cable", "handle", "timer", "tray"),
    "vacuum": ("cable", "filter", "hose", "motor"),
    "watch": ("battery", "display", "lock", "strap"),
}
"""Products and their aspects, all singular."""

VERBS = ("feels", "has been", "is", "looks", "remains", "seems", "turned out")
ADVERBS = ("", "quite", "rather", "really", "so", "truly", "very")
ADJECTIVES = {
    1: (
        "brilliant", "excellent", "fantastic", "great", "impressive", "lovely",
        "perfect", "pleasant", "splendid", "superb", "terrific", "wonderful",
    ),
    0: ("average", "common", "ordinary", "plain", "standard", "typical"),
    -1: (
        "annoying", "awful", "bad", "disappointing", "dreadful", "horrible",
        "inferior", "lousy", "miserable", "poor", "terrible", "useless",
    ),
}  # fmt: skip
PARTS = ("colour", "delivery", "finish", "manual", "packaging", "service")
"""Parts of any product, besides its aspects."""
REMARKS = {
    1: ("I adore it", "I enjoy it daily", "I recommend it", "my friends admire it", "we love it"),
    0: ("I carry it around", "I keep it upstairs", "I use it often", "my sister has one", "we own two"),
    -1: ("I avoid it", "I dislike it", "I regret it", "my friends mock it", "we hate it"),
}
CLOSINGS = {
    1: (
        "A bargain for the money.", "A joy to own.", "I am delighted.", "I gladly ordered another.",
        "It works flawlessly.", "Our children are thrilled.",
    ),
    0: (
        "I ordered it for work.", "It arrived on Monday.", "It came in a box.", "It stands in the kitchen.",
        "The colour is grey.", "We bought it in spring.",
    ),
    -1: (
        "A disaster from the start.", "A waste of money.", "I am frustrated.", "It sadly creaks.",
        "It fails every time.", "Our children are upset.",
    ),
}  # fmt: skip

POSITIVE = frozenset(ADJECTIVES[1]) | {
    "admire", "adore", "bargain", "delighted", "enjoy", "flawlessly", "gladly", "joy", "love", "recommend", "thrilled",
}  # fmt: skip
NEGATIVE = frozenset(ADJECTIVES[-1]) | {
    "avoid", "disaster", "dislike", "fails", "frustrated", "hate", "mock", "regret", "sadly", "upset", "waste",
}  # fmt: skip

TEXTS, PAIRS, PROMPTS, HELD_OUT_PROMPTS = 6000, 6000, 2000, 400
"""Number of each in the files of `write`."""


def prompts(n: int, seed: int) -> list[str]:
    """`n` distinct beginnings of reviews without sentiment, such as "The battery of this phone".

    Raises `ConfigError` if there are fewer than `n`.
    """
    every = _all_prompts()
    require(0 <= n <= len(every), f"n must be in [0, {len(every)}], the number of prompts; got {n}")
    return Random(f"prompts {seed}").sample(every, n)


def texts(n: int, seed: int, openings: Sequence[str] | None = None) -> list[str]:
    """`n` distinct reviews of 12 to 25 words, in random order. Positive and negative moods are equally likely.

    Each begins with one of the `openings`, by default all prompts.
    """
    openings = openings or _all_prompts()
    return _distinct(n, Random(f"texts {seed}"), lambda rng: rng.choice(openings) + _continuation(rng))


def pairs(n: int, seed: int, openings: Sequence[str] | None = None) -> list[dict[str, str]]:
    """`n` distinct preference pairs `{prompt, chosen, rejected}`; the more positive continuation is chosen.

    Each begins with one of the `openings`, by default all prompts.
    """
    openings = openings or _all_prompts()

    def draw(rng: Random) -> tuple[str, str, str]:
        prompt = rng.choice(openings)
        while True:
            worse, better = sorted((_continuation(rng), _continuation(rng)), key=_sentiment)
            if _sentiment(worse) < _sentiment(better):
                return prompt, better, worse

    triples = _distinct(n, Random(f"pairs {seed}"), draw)
    return [dict(zip(("prompt", "chosen", "rejected"), triple, strict=True)) for triple in triples]


def sentiment(prompts: list[str], responses: list[str]) -> list[float]:
    """(p − q) / (p + q) of each response with p positive and q negative words; 0 if it has neither.

    Each occurrence of a whole word counts, in upper or lower case. The prompts do not count.
    """
    return [_sentiment(response) for _, response in zip(prompts, responses, strict=True)]


def write(folder: Path | str, seed: int = 0) -> dict[str, int]:
    """Writes the data of the task in UTF-8, and returns the number of lines of each file.

    The files are `texts.txt`, `pairs.jsonl`, `prompts.txt` and `held_out_prompts.txt`. No other file uses a held-out
    prompt. Raises `ConfigError` if one of the files exists.
    """
    folder = Path(folder)
    shuffled = prompts(len(_all_prompts()), seed)
    held_out, rest = shuffled[:HELD_OUT_PROMPTS], shuffled[HELD_OUT_PROMPTS:]
    files = {
        "texts.txt": texts(TEXTS, seed, rest),
        "pairs.jsonl": [json.dumps(pair) for pair in pairs(PAIRS, seed, rest)],
        "prompts.txt": rest[:PROMPTS],
        "held_out_prompts.txt": held_out,
    }
    for name in files:
        require(not (folder / name).exists(), f"{folder / name} exists: give another folder, or remove the file")
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return {name: len(lines) for name, lines in files.items()}


class Reviews(LanguageTask):
    """Positive continuations of reviews."""

    @dataclass(frozen=True)
    class Settings(Language):
        max_new_tokens: Count = 24

    def own_prompts(self) -> Sequence[str]:
        return prompts(256, seed=1)

    def own_eval_prompts(self) -> Sequence[str]:
        return prompts(64, seed=2)

    def own_score(self) -> Score:
        return sentiment

    def own_sft(self) -> SFTCheckpoint:
        training = texts(4000, seed=0)
        config = small_gpt2(layers=4, width=128, heads=4, positions=96)
        fit = SFTSettings(epochs=4, batch_size=32, learning_rate=1e-3, held_out=0.05)
        return SFTCheckpoint(training, lambda: train_tokenizer(training, vocab_size=384), config, fit)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `python -m rlzoo.lm.tasks.reviews FOLDER [--seed N]`. Returns its exit code."""
    parser = argparse.ArgumentParser("python -m rlzoo.lm.tasks.reviews", description="Writes short product reviews.")
    parser.add_argument("folder", type=Path, help="folder to write to; it is created if it does not exist")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default: 0)")
    options = parser.parse_args(argv)
    try:
        counts = write(options.folder, options.seed)
    except (ConfigError, OSError) as error:
        complain(str(error))
        return 2
    for name, lines in counts.items():
        show(f"{options.folder / name}: {lines} lines")
    return 0


def _sentiment(text: str) -> float:
    words = re.findall(r"\w+", text.lower())
    positive, negative = (sum(word in kind for word in words) for kind in (POSITIVE, NEGATIVE))
    return (positive - negative) / max(positive + negative, 1)


def _all_prompts() -> list[str]:
    """All prompts, each once."""
    texts = []
    for opening, owner, (product, aspects) in itertools.product(OPENINGS, OWNERS, PRODUCTS.items()):
        for aspect in aspects:
            article = "an" if aspect[0] in "aeiou" else "a"
            for subject in (f"the {aspect} of {owner} {product}", f"{owner} {product} has {article} {aspect} that"):
                prompt = f"{opening} {subject}".strip()
                texts.append(prompt[0].upper() + prompt[1:])
    return texts


def _continuation(rng: Random) -> str:
    """A verdict, a remark and a closing, each of a random mood (positive or negative), of its opposite, or neutral."""
    mood = rng.choice((1, -1))
    verdict, remark, closing = rng.choices((mood, 0, -mood), weights=(5, 2, 2), k=3)
    joint = "but" if verdict * remark < 0 else "and"
    first = " ".join(filter(None, map(rng.choice, (VERBS, ADVERBS, ADJECTIVES[verdict]))))
    second = f"the {rng.choice(PARTS)} is {rng.choice(ADJECTIVES[remark])}"
    if rng.random() < 0.5:
        second = rng.choice(REMARKS[remark])
    return f" {first}, {joint} {second}. {rng.choice(CLOSINGS[closing])}"


def _distinct(n: int, rng: Random, draw: Callable[[Random], Drawn]) -> list[Drawn]:
    """The first `n` different draws."""
    draws: dict[Drawn, None] = {}
    while len(draws) < n:
        draws[draw(rng)] = None
    return list(draws)


if __name__ == "__main__":
    sys.exit(main())
