"""The algorithms, in historical order: REINFORCE, natural policy gradient, TRPO, PPO-penalty, PPO-clip."""

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.algorithms.npg import NPG
from rlzoo.algorithms.ppo_clip import PPOClip
from rlzoo.algorithms.ppo_penalty import PPOPenalty
from rlzoo.algorithms.reinforce import Reinforce
from rlzoo.algorithms.trpo import TRPO

ALGORITHMS: dict[str, type[Algorithm]] = {cls.name: cls for cls in (Reinforce, NPG, TRPO, PPOPenalty, PPOClip)}

__all__ = [
    "ALGORITHMS",
    "NPG",
    "TRPO",
    "Algorithm",
    "Metrics",
    "PPOClip",
    "PPOPenalty",
    "Reinforce",
    "State",
    "measure",
]
