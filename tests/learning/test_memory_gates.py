"""A policy that remembers learns CartPole without velocities, and one that does not cannot.

Training ends at a mean return of 250, or after 20,000 steps of the preset. There, seeds 100 to 102 had mean returns of
424 to 445 with memory. Without memory, seeds 10 and 11 of the suite `memory` had 40 to 57.
"""

import pytest
from builders import train_until

from rlzoo.runs.configuration.config import make_config
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.loop import Trainer


@pytest.mark.slow
@pytest.mark.parametrize(("network", "low", "high"), [("gru", 250, 500), ("mlp", 20, 90)])
def test_memory_is_needed_and_learned(network, low, high):
    settings, _ = starting_from("ppo-clip", "CartPoleNoVel-v1", {"seed": 100, "network": network})
    trainer = Trainer(make_config("ppo-clip", "CartPoleNoVel-v1", **settings))

    def mean_return():
        return trainer.task.evaluate(20, seed=5).mean_return

    assert low <= train_until(trainer, 20_000, mean_return, 250, every=2_000) <= high
