"""Evaluation of a policy on complete episodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlzoo.core.actors import Actor, rollout
from rlzoo.core.env import ENDLESS, Array, Bools, Episode, VectorEnv, success_of

_AT_ONCE = 64
"""Steps of a rollout. Those after the last episode's end are for nothing."""

OnStep = Callable[[int], None]
"""Called between the steps of an evaluation with the number of complete episodes. It may raise to stop it."""


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of complete episodes, (episodes,) each."""

    returns: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    deterministic: bool
    seed: int
    further: Mapping[str, Any] = field(default_factory=dict)
    """Other results by name. Numbers of NumPy and PyTorch become Python's."""

    def __post_init__(self) -> None:
        plain = {name: x.item() if math.prod(getattr(x, "shape", [0])) == 1 else x for name, x in self.further.items()}
        object.__setattr__(self, "further", plain)

    @classmethod
    def of(cls, episodes: Sequence[Episode], deterministic: bool, seed: int) -> Evaluation:
        """Creates an evaluation from its episodes."""
        returns, lengths = [x.return_ for x in episodes], [x.length for x in episodes]
        successes = [x.success for x in episodes if x.success is not None]
        further: dict[str, Any] = {"success_rate": sum(successes) / len(successes)} if successes else {}
        cut = sum(x.cut for x in episodes)
        if cut:
            further["cut_episodes"] = cut
        return cls(np.array(returns), np.array(lengths), deterministic, seed, further)

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """Standard deviation over episodes (not the standard error of the mean)."""
        return float(self.returns.std())

    def summary(self) -> dict[str, Any]:
        """The JSON object that `rlzoo eval --json` prints."""
        return {
            "mean_return": self.mean_return,
            "std_return": self.std_return,
            "min_return": float(self.returns.min()),
            "max_return": float(self.returns.max()),
            "mean_length": float(self.lengths.mean()),
            "episodes": len(self.returns),
            "deterministic": self.deterministic,
            "seed": self.seed,
            **self.further,
        }


@dataclass(frozen=True)
class Played:
    """Episodes that were played for display."""

    records: Sequence[Any]
    """One record for each episode: an `Episode`, or a type of the task's own."""
    transcript: str
    """The episodes as text."""
    summary: Mapping[str, Any]
    """The JSON object that `rlzoo play --json` prints."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Played:
        """Creates it from episodes, with one line of text for each."""
        lines = []
        for i, episode in enumerate(episodes, 1):
            cut = ", cut there: it had not ended" if episode.cut else ""
            lines.append(f"episode {i}: return {episode.return_:,.1f}, {episode.length} steps{cut}")
        summary = {"episodes": [{"return": x.return_, "length": x.length} for x in episodes]}
        return cls(episodes, "\n".join(lines), summary)


def play_episodes(env: VectorEnv, actor: Actor, episodes: int, on_step: OnStep = lambda done: None) -> list[Episode]:
    """Plays `episodes` complete episodes.

    Copy i mod N plays episode i, and every copy plays a number of episodes that is fixed in advance. So short episodes
    are not counted more often than long ones.

    An episode that has not ended after `ENDLESS` steps is cut there. Its copy plays no other, so there are then fewer
    episodes.
    """
    copies = env.num_envs
    quota = np.bincount(np.arange(episodes) % copies, minlength=copies)
    played: list[list[Episode]] = [[] for _ in range(copies)]
    total, length = np.zeros(copies), np.zeros(copies, np.int64)
    obs, forced = env.reset()
    forced = np.asarray(forced, bool)
    steps = _steps(env, actor, obs, forced)
    left = episodes
    for step in itertools.count(1):
        on_step(episodes - left)
        acting = ~forced
        reward, terminated, truncated, forced = next(steps)
        total += reward * acting
        length += acting
        done = terminated | truncated
        if done.any():
            for i in np.flatnonzero(done & (quota > 0)):
                played[i].append(Episode(float(total[i]), int(length[i]), success_of(env.success, i)))
                quota[i] -= 1
                left -= 1
            total[done], length[done] = 0, 0
        if step >= ENDLESS:
            for i in np.flatnonzero((length >= ENDLESS) & (quota > 0)):
                played[i].append(Episode(float(total[i]), int(length[i]), cut=True))
                left -= int(quota[i])
                quota[i] = 0
        if not left:
            break
    return [episode for row in played for episode in row]


def _steps(env: VectorEnv, actor: Actor, obs: Any, forced: Bools) -> Iterator[tuple[Array, Bools, Bools, Bools]]:
    """Acts and steps: the rewards and the flags that `env.step` returns, without end."""
    starts, ended = np.ones(env.num_envs, np.bool_), np.zeros(env.num_envs, np.bool_)
    while True:
        if at_once := rollout(env, actor, obs, _AT_ONCE):
            _, seen, *parts = at_once
            obs = seen[-1]
            yield from zip(*parts, strict=True)
            continue
        obs, reward, *ends = env.step(actor(obs, forced, starts))
        terminated, truncated, forced = (np.asarray(x, bool) for x in ends)
        starts, ended = ended, terminated | truncated
        yield reward, terminated, truncated, forced
