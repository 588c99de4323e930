"""Evaluation in control environments, with separate copies and seeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlzoo.control.acting import ActionNoise
from rlzoo.control.envs.source import Source
from rlzoo.core.env import Array, Bools
from rlzoo.core.evaluation import Evaluation, play_episodes
from rlzoo.core.system.errors import require
from rlzoo.core.system.streams import evaluation_seeds


def evaluate_actor(
    act: Callable[[Array, Array, Bools], Array], env_id: Any, episodes: int, *, seed: int, deterministic: bool = False
) -> Evaluation:
    """Plays `episodes` complete episodes, which are divided among copies as in `play_episodes`.

    Args:
        act: `(obs (N, *obs), noise (N, Z), starts (N,)) -> action`, with standard noise (see `ActionNoise`) that is 0
            if `deterministic`. `starts` tells in which copies an episode begins with this observation.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    env_seed, actor_seed = evaluation_seeds(seed)
    source = Source(env_id)
    with contextlib.closing(source.make(source.evaluation_copies(episodes), env_seed)) as env:
        noise = evaluation_noise(env, actor_seed, deterministic)
        played = play_episodes(env, lambda obs, forced, starts: act(obs, next(noise), starts), episodes)
        return Evaluation.of(played, deterministic, seed)


def evaluation_noise(env: Any, seed: int, deterministic: bool) -> Iterator[Array]:
    """Action noise for an evaluation in `env`."""
    noise = ActionNoise(env.action_space, env.num_envs, np.random.default_rng(seed))
    return noise.zeros() if deterministic else noise
