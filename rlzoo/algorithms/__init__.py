"""The algorithms, in historical order: REINFORCE, natural policy gradient, TRPO, PPO-penalty, PPO-clip."""

from rlzoo.algorithms.algorithm import Algorithm, Metrics, State, measure
from rlzoo.algorithms.npg import NPG
from rlzoo.algorithms.ppo_clip import PPOClip
from rlzoo.algorithms.ppo_penalty import PPOPenalty
from rlzoo.algorithms.reinforce import Reinforce
from rlzoo.algorithms.trpo import TRPO

__all__ = [
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
