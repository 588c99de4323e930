"""Hostile score functions: wrong kinds, lengths and numbers, exceptions, exits, and text that commands a terminal.

Every fifth scores the responses of a small language model in a run, from the file that `--reward` names. The others are
loaded and called as runs do.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from random import Random

from tests.faults.campaign import tasks
from tests.faults.campaign.sandbox import Sandbox, watched
from tests.faults.campaign.values import damaged

GOOD = "[float(len(text)) for text in responses]"
RESULTS = (
    GOOD, "[]", "[1.0]", "[1.0] * (len(responses) + 1)", "[0.0] * 10**7", "None", "1.0", "'abc'", "'12'", "b'1234'",
    "{}", "{i: 1.0 for i in range(len(responses))}", "{1.0, 2.0}", "[math.nan] * len(responses)",
    "[math.inf] * len(responses)", "[-1e39] * len(responses)", "[1e38] * len(responses)", "[-3.4e38] * len(responses)",
    "[10**400] * len(responses)", "['1.0'] * len(responses)", "['\\x1b[2J\\x07'] * len(responses)", "responses",
    "['<script>alert(1)</script>'] * len(responses)", "[None] * len(responses)", "[True] * len(responses)",
    "[[1.0]] * len(responses)", "[[]] * len(responses)", "[1j] * len(responses)", "[object()] * len(responses)",
    "(1.0 for _ in responses)", "(float(x) for x in responses)", "iter(int, 1)", "itertools.repeat(1.0)",
    "numpy.zeros(len(responses))", "numpy.zeros((len(responses), 1))", "numpy.zeros((1, len(responses)))",
    "numpy.array('x')", "numpy.array(3.0)", "numpy.array(['a'] * len(responses))", "numpy.array([object()])",
    "numpy.zeros(len(responses), 'complex64')", "numpy.full(len(responses), numpy.nan)", "numpy.arange(len(responses))",
    "torch.zeros(len(responses))", "torch.tensor(1.0)", "torch.zeros(len(responses), requires_grad=True)",
    "torch.zeros(len(responses), 2)", "torch.zeros(len(responses), dtype=torch.float16)", "torch.zeros(0)",
    "torch.zeros(len(responses), dtype=torch.bool)", "torch.zeros(len(responses), device='meta')",
    "[fractions.Fraction(1, 3)] * len(responses)", "[decimal.Decimal('0.1')] * len(responses)", "score", "Odd()",
    "[Odd()] * len(responses)", "range(len(responses))", "memoryview(b'1234')", "zip(responses)", "open(__file__)",
)  # fmt: skip
"""Expressions that a score function returns."""
STATEMENTS = (
    "raise RuntimeError('boom')", "raise RuntimeError('a\\nb\\x1b[31mred\\x1b]0;title\\x07')",
    "raise KeyError(prompts)",
    "raise SystemExit(0)", "raise SystemExit('bye')", "sys.exit()", "exit(3)", "raise StopIteration", "1 / 0",
    "score()",
    "raise MemoryError", "raise Exception('<img src=x onerror=alert(1)>')", "assert False",
    "score(prompts, responses)", "raise OSError(28, 'No space left', '/x')", "raise UnicodeError('\\ud800')",
    "prompts.clear(); responses.clear()", "responses.append('more')", "prompts[0] = None", "time.sleep(0.05)",
    "print('\\x1b[2J<b>mine</b>')", "warnings.warn('careful\\x1b[0m')", "torch.manual_seed(0)", "yield 1.0",
    "torch.set_grad_enabled(True)", "random.seed(0)", "numpy.random.seed(0)", "del prompts[:]", "x = [0] * 10**7",
    "responses[:] = [text[::-1] for text in responses]", "raise Odd()", "asyncio.run(None)",
)  # fmt: skip
"""What a score function does before it returns."""
TOP = (*[""] * 6, "1 / 0", "sys.exit(1)", "import absent", "raise SystemExit", "def", "score = 3", "del score")
"""What its module does when it is imported."""
SIGNATURES = ("prompts, responses", "prompts, responses, *more, **options", "prompts", "", "*, prompts, responses",
              "responses, prompts", "prompts, responses, further", "prompts, responses, k=[]")  # fmt: skip
MODULE = """\
import asyncio, decimal, fractions, itertools, math, random, sys, time, warnings
import numpy, torch

class Odd(Exception):
    def __repr__(self): raise ValueError("no repr")
    __str__ = __len__ = __iter__ = __float__ = __repr__

def score({signature}):
    if {when}:
        {statement}
        return {result}
    return {good}

calls = itertools.count()
{top}
"""
SMALL = {
    "responses_per_batch": "4", "responses_per_prompt": "2",
    "max_new_tokens": "4", "total_steps": "32", "eval_episodes": "2", "beta": "0.1",
    "final_eval_episodes": "3", "model": "data/model", "prompts": "data/prompts.txt", "out": "run",
    "eval_interval": "32",
}  # fmt: skip
ALGORITHMS = {
    "ppo-clip": {"minibatch_responses": "4", "epochs": "1"},
    "ppo-penalty": {"minibatch_responses": "4", "epochs": "1"},
    "trpo": {"cg_iters": "2", "vf_epochs": "1", "vf_minibatch_responses": "4"},
    "npg": {"cg_iters": "2", "vf_epochs": "1", "vf_minibatch_responses": "4"},
    "reinforce": {"vf_epochs": "1", "vf_minibatch_responses": "4"},
}


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Uses a hostile score function."""
    prepared()
    text = module(rng).encode(errors="replace")
    (sandbox.work / "hostile.py").write_bytes(damaged(rng, text) if rng.random() < 0.1 else text)
    return _in_run(rng, sandbox) if rng.random() < 0.2 else watched(sandbox, _called)


def _called() -> int:
    """Loads the function, and scores responses with it."""
    from rlzoo.core.system.errors import ConfigError, EnvError
    from rlzoo.lm.reward.scores import call_score, load_score

    try:
        score = load_score("hostile.py:score")
        for _ in range(4):
            scores = call_score(score, "hostile", ["ab", "Q"] * 2, ["an aeon", "", "\x1b[0m", "<b>"])
            assert scores.shape == (4,), scores.shape
            assert scores.isfinite().all(), scores
    except (ConfigError, EnvError) as error:
        message = str(error)
    else:
        return 0
    assert "\n" not in message, f"more than one line: {message!r}"
    return 0


def _in_run(rng: Random, sandbox: Sandbox) -> list[str]:
    """Trains with the function, and then sometimes evaluates and plays."""
    from rlzoo.cli import main

    shutil.copytree(prepared(), sandbox.work, dirs_exist_ok=True)
    algorithm = rng.choice(sorted(ALGORITHMS))
    rewards = rng.choice((["hostile.py:score"], ["hostile.py:score"], ["hostile.py:score=0.5", "good.py:score=2"]))
    options = {**SMALL, **ALGORITHMS[algorithm]}
    if rng.random() < 0.3:
        options["score_normalization"] = rng.choice(("running", "reference"))
    train = ["train", algorithm, "Prompts", "--reward", *rewards, *_flags(options)]
    later = [["eval", "run", "--episodes", "2"], ["play", "run"], ["diagnose", "run"], ["resume", "run"]]
    faults = watched(sandbox, lambda: main(train))
    if not faults and rng.random() < 0.3:
        faults = watched(sandbox, lambda: main(rng.choice(later)))
    return faults


def module(rng: Random) -> str:
    """The text of a Python module with a hostile score function."""
    statement = rng.choice(STATEMENTS) if rng.random() < 0.5 else "pass"
    result = rng.choice(RESULTS) if statement == "pass" or rng.random() < 0.2 else GOOD
    return MODULE.format(
        signature=rng.choice(SIGNATURES) if rng.random() < 0.1 else SIGNATURES[0],
        when=rng.choice(("True", "True", "next(calls) >= 3", "any('a' in text for text in responses)")),
        statement=statement,
        result=result,
        good=rng.choice((GOOD, "[0.0] * len(responses)")),
        top=rng.choice(TOP),
    )


def _flags(given: dict[str, str]) -> list[str]:
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]


@cache
def prepared() -> Path:
    """A folder with a language model, prompts and a good score function. What runs import is then imported."""
    from rlzoo.lm.tasks import language  # noqa: F401

    folder = tasks.scratch() / "scores"
    shutil.copytree(tasks.data(), folder / "data")
    (folder / "good.py").write_text(f"def score(prompts, responses):\n    return {GOOD}\n")
    return folder
