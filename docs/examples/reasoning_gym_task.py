"""The datasets of reasoning-gym, about a hundred kinds of questions with verifiers, as a task. Copy this file, then

pip install reasoning-gym
rlzoo train ppo-clip reasoning_gym_task:ReasoningGym --model gpt2 --dataset chain_sum --options max_terms=3
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
from dataclasses import dataclass, field
from typing import Any

import reasoning_gym

from rlzoo import LanguageTask
from rlzoo.core.system.fields import Count
from rlzoo.lm.reward.prompt import Prompt
from rlzoo.lm.tasks.settings import Language

SECONDS = 5.0
"""Time for the check of a response. Some verifiers evaluate it, and 9**9**9**9 never ends."""


class ReasoningGym(LanguageTask):
    """Questions of a dataset. The score is that of its verifier, in [0, 1]."""

    @dataclass(frozen=True)
    class Settings(Language):
        dataset: str = "chain_sum"
        """Name of the dataset."""
        options: dict[str, Any] = field(default_factory=dict)
        """Settings of the dataset, such as max_terms=3."""
        questions: Count = 1000
        """Questions for training."""
        eval_questions: Count = 200
        """Questions for evaluations, which training leaves out."""

    def own_prompts(self):
        held_out = {*self.own_eval_prompts()}
        return [x for x in self.prompts(self.settings.questions, seed=0) if x not in held_out]

    def own_eval_prompts(self):
        return self.prompts(self.settings.eval_questions, seed=1)

    def own_score(self):
        return score

    def prompts(self, size, seed):
        """Questions, with columns by which `score` finds their entries."""
        source = json.dumps({"name": self.settings.dataset, "size": size, "seed": seed, **self.settings.options})
        entries = enumerate(dataset(source))
        return [Prompt(entry["question"], {"source": source, "index": i}) for i, entry in entries]


@functools.cache
def dataset(source):
    return reasoning_gym.create_dataset(**json.loads(source))


def score(prompts, responses, source, index):
    """The score of each response. It is 0 if the verifier fails, or takes more than `SECONDS`."""
    return [in_time(*arguments) for arguments in zip(source, index, responses, strict=True)]


def in_time(*arguments):
    try:
        return worker().apply_async(check, arguments).get(SECONDS)
    except multiprocessing.TimeoutError:
        worker().terminate()
        worker.cache_clear()
        return 0.0


@functools.cache
def worker():
    """A process for the checks, which has imported this file."""
    pool = multiprocessing.get_context("spawn").Pool(1)
    atexit.register(pool.terminate)
    pool.apply(callable, (check,))
    return pool


def check(source, index, response):
    with contextlib.suppress(Exception), contextlib.redirect_stdout(None):  # verifiers may fail, and print
        return float(dataset(source).score_answer(response, dataset(source)[index]))
    return 0.0
