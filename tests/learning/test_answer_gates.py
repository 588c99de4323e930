"""The tasks whose answers are checked are learned: accuracy on held-out prompts within part of a preset's run.

The bounds lie 0.1 or more below what seed 1 reached at those steps; the test's seed is another one.
"""

import pytest
from builders import train_until

from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.loop import Trainer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "task", "steps", "start", "bound"),
    [
        ("ppo-clip", "Arithmetic", 20_000, 0.36, 0.6),
        ("reinforce", "Countdown", 60_000, 0.37, 0.45),
        ("ppo-clip", "Calculator", 25_000, 0.2, 0.7),
    ],
)
def test_accuracy_rises(algorithm, task, steps, start, bound):
    settings, _ = starting_from(algorithm, task, {"seed": 100})
    trainer = Trainer(make_config(algorithm, task, **settings))

    def accuracy():
        return trainer.task.evaluate(250, seed=0).mean_return

    assert accuracy() == pytest.approx(start, abs=0.12)
    assert train_until(trainer, steps, accuracy, bound, every=steps // 10) > bound
