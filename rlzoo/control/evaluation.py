"""Complete episodes of a policy, on environments and seeds of their own, and what they came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlzoo.control import envs
from rlzoo.control.acting import ActionNoise, Actor, make_actor
from rlzoo.core.errors import require
from rlzoo.core.models import ActorCritic

_CHUNK = 32


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of complete episodes, (episodes,) each."""

    returns: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    deterministic: bool
    seed: int
    further: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to say of the policy, by name."""

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        """Standard deviation over episodes (not the error of the mean)."""
        return float(self.returns.std())

    def summary(self) -> dict[str, Any]:
        """What `rlzoo eval --json` prints."""
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


def evaluate_model(
    model: ActorCritic,
    env_id: str,
    episodes: int,
    *,
    seed: int,
    deterministic: bool = False,
    vectorized: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """Plays `episodes` complete episodes with a model and changes nothing. See `evaluate_actor`."""
    actor = make_actor(model)
    return evaluate_actor(
        actor, env_id, episodes, seed=seed, deterministic=deterministic, vectorized=vectorized, **env_kwargs
    )


def evaluate_actor(
    actor: Actor,
    env_id: str,
    episodes: int,
    *,
    seed: int,
    deterministic: bool = False,
    vectorized: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """Plays `episodes` complete episodes.

    Episode i is played by copy i mod N and every copy plays a number fixed beforehand, so that short episodes
    are not counted more often than long ones.

    Args:
        actor: is given observations (N, *obs), and standard noise that is 0 if `deterministic`.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    copies = min(episodes, 128 if vectorized and env_id in envs.builtin_ids() else 8)
    env_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2)
    env = envs.make(env_id, copies, int(env_seed), vectorized=vectorized, **env_kwargs)
    noise = ActionNoise(env.action_space, copies, np.random.default_rng(int(noise_seed)))
    try:
        quota = np.bincount(np.arange(episodes) % copies, minlength=copies)
        returns: list[list[float]] = [[] for _ in range(copies)]
        lengths: list[list[int]] = [[] for _ in range(copies)]
        total, length = np.zeros(copies), np.zeros(copies, np.int64)
        obs, forced = env.reset()
        while quota.any():
            for z in noise.zeros(_CHUNK) if deterministic else noise.draw(_CHUNK):
                length += ~forced
                obs, reward, terminated, truncated, forced = env.step(actor(obs, z))
                total += reward
                for i in np.flatnonzero((terminated | truncated) & (quota > 0)):
                    returns[i].append(total[i])
                    lengths[i].append(int(length[i]))
                    quota[i] -= 1
                total[forced], length[forced] = 0, 0
                if not quota.any():
                    break
    finally:
        env.close()
    return Evaluation(np.concatenate(returns), np.concatenate(lengths), deterministic, seed)
