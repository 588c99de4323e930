"""Probe environments with different action spaces, for the suite `spaces`: `rlzoo.benchmark.probes:probe/Box-3-v0`.

An episode has 8 steps. Each observation is a random sign s; the reward is up to 1/8 for the action that matches it. The
optimal return is 1; a policy that ignores the observation gets about half of it or less.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

STEPS = 8


class Probe(gymnasium.Env[np.ndarray[Any, Any], Any]):
    """Environment whose reward is 1/8 times the share of the action's components that are correct.

    In `Discrete(n)`, and for each component of `MultiDiscrete`, the last action is correct for s = 1 and the first for
    s = −1; in `MultiBinary` all ones or all zeros. In `Box` each component contributes 1 − |a − s/2|.
    """

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,))
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        space, up = self.action_space, self._sign == 1
        if isinstance(space, spaces.Box):
            correct = 1 - np.abs(action - self._sign / 2)
        else:
            last = space.n - 1 if isinstance(space, spaces.Discrete) else getattr(space, "nvec", 2) - 1
            correct = np.asarray(action) == (last if up else 0)
        self._step += 1
        return self._observe(), float(np.mean(correct)) / STEPS, self._step == STEPS, False, {}

    def _observe(self) -> np.ndarray[Any, Any]:
        self._sign = int(self.np_random.choice([-1, 1]))
        return np.array([self._sign], np.float32)


SPACES: dict[str, spaces.Space[Any]] = {
    "Discrete-2": spaces.Discrete(2),
    "Discrete-6": spaces.Discrete(6),
    "MultiDiscrete-2-3-4": spaces.MultiDiscrete([2, 3, 4]),
    "MultiBinary-3": spaces.MultiBinary(3),
    "Box-1": spaces.Box(-1, 1, (1,)),
    "Box-3": spaces.Box(-1, 1, (3,)),
}

for _name, _space in SPACES.items():
    gymnasium.register(f"probe/{_name}-v0", "rlzoo.benchmark.probes:Probe", kwargs={"action_space": _space})
