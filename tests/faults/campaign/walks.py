"""A language task whose SFT checkpoint and evaluations are quickly made."""

import dataclasses

from rlzoo.core.evaluation import Evaluation
from rlzoo.lm.finetune.sft_checkpoint import SFTCheckpoint
from rlzoo.lm.tasks.language import LanguageTask
from rlzoo.lm.tasks.random_walks import RandomWalks


class Walks(RandomWalks):
    """RandomWalks after one epoch over 100 walks, evaluated by samples."""

    def own_sft(self) -> SFTCheckpoint:
        given = super().own_sft()
        return dataclasses.replace(given, texts=given.texts[:100], fit=dataclasses.replace(given.fit, epochs=1))

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        return LanguageTask.evaluate(self, episodes, seed=seed, deterministic=deterministic)
