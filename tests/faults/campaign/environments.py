"""Hostile environments: wrong shapes, kinds and numbers, exceptions, endless episodes, exits.

An episode counts as endless after 3,000 steps here, so that an attack takes a second.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.faults.campaign.sandbox import Sandbox, watched

OBSERVATIONS = (
    np.zeros(3), np.zeros(2), np.zeros((3, 1)), np.full(3, np.nan), np.full(3, np.inf), np.full(3, 1e300), None, "abc",
    [0, 0, 0], {"a": 1}, np.zeros(3, complex), np.array(["a", "b", "c"]), np.zeros(0), object(), np.zeros(3, np.int64),
)  # fmt: skip
REWARDS = (1.0, float("nan"), float("inf"), 1e39, -1e300, None, "1", [1.0], np.ones(2), 10**400, 1j, True, object())
FLAGS = (False, True, "False", "", 0, 1, None, [], np.array([True, False]), np.array(False), 2.5, object())
SPACES = (
    spaces.Box(-1, 1, (3,)), spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(3), spaces.Discrete(2**40),
    spaces.Box(0, 1, (0,)), spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.MultiBinary(3), None, "Box",
)  # fmt: skip
ACTIONS = (
    spaces.Discrete(2), spaces.Discrete(2**40), spaces.Box(-1, 1, (2,)), spaces.Text(3),
    spaces.Box(-1e300, 1e300, (1,), np.float64), spaces.MultiDiscrete([2, 3]), spaces.Discrete(1), None,
    spaces.Dict(a=spaces.Discrete(2)), spaces.Box(0, 255, (2,), np.uint8),
)  # fmt: skip
ERRORS = (RuntimeError("boom\nline"), KeyError("x"), SystemExit(0), SystemExit("bye"), MemoryError(), StopIteration())


class Hostile(gymnasium.Env[Any, Any]):
    """Behaves until a random step, and then in one way does not."""

    def __init__(self, seed: int) -> None:
        rng = Random(seed)
        self.observation_space = rng.choice(SPACES) if rng.random() < 0.3 else SPACES[0]
        self.action_space = rng.choice(ACTIONS) if rng.random() < 0.3 else ACTIONS[0]
        self.fault = rng.choice(
            ("obs", "reward", "terminated", "truncated", "info", "raise", "short", "endless", "none")
        )
        self.where = rng.choice(("reset", "step", "step", "step", "close", "init"))
        self.when = rng.choice((0, 1, 7, 100))
        self.value = rng.choice({"obs": OBSERVATIONS, "reward": REWARDS}.get(self.fault, FLAGS))
        self.error = rng.choice(ERRORS)
        self.steps = 0
        self._raise("init")

    def _raise(self, where: str) -> None:
        if self.fault == "raise" and self.where == where and self.steps >= self.when:
            raise self.error

    def _faulty(self, where: str) -> bool:
        return self.where == where and self.steps >= self.when

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._raise("reset")
        obs = self.value if self.fault == "obs" and self._faulty("reset") else self._obs()
        return obs if self.fault == "short" and self._faulty("reset") else (obs, {})

    def step(self, action: Any) -> Any:
        self.steps += 1
        self._raise("step")
        now = {"obs": self._obs(), "reward": 1.0, "terminated": self.steps % 10 == 0, "truncated": False, "info": {}}
        if self.fault == "endless":
            now["terminated"] = False
        if self.fault in now and self._faulty("step"):
            now[self.fault] = self.value
        values = tuple(now.values())
        return values[:4] if self.fault == "short" and self._faulty("step") else values

    def _obs(self) -> Any:
        space = self.observation_space
        return space.sample() if isinstance(space, spaces.Space) else np.zeros(3)

    def close(self) -> None:
        self._raise("close")


def one(rng: Random, sandbox: Sandbox) -> list[str]:
    """Trains on a hostile environment."""
    from rlzoo.cli import main

    seed = rng.randrange(2**31)
    gymnasium.register("Hostile-v0", entry_point=lambda: Hostile(seed), max_episode_steps=None)
    algorithm = rng.choice(("reinforce", "npg", "trpo", "ppo-penalty", "ppo-clip"))
    small = ["--total-steps", "64", "--num-envs", "2", "--eval-episodes", "1", "--final-eval-episodes", "1"]
    steps = [] if algorithm == "reinforce" else ["--num-steps", "16"]
    command = ["train", algorithm, "Hostile-v0", "--out", "run", "--quiet", *small, *steps]
    if rng.random() < 0.1 and sys.platform == "linux":
        command.append("--async-envs")
    bounds = (mock.patch(f"rlzoo.core.{module}.ENDLESS", 3000) for module in ("collector", "evaluation"))
    try:
        with next(bounds), next(bounds):
            return watched(sandbox, lambda: main(command))
    finally:
        del gymnasium.registry["Hostile-v0"]
