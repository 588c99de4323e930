"""Evaluation in control environments, with separate copies and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.envs import Source
from rlzoo.core.actors import Actor
from rlzoo.core.env import Array, Bools, VectorEnv
from rlzoo.core.errors import require
from rlzoo.core.evaluation import Evaluation, play_episodes
from rlzoo.core.models import ActorCritic


def evaluate_model(
    model: ActorCritic,
    env_id: Any,
    episodes: int,
    *,
    seed: int,
    deterministic: bool = False,
    vectorized: bool = True,
    fast: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """Plays `episodes` complete episodes with a model, which stays unchanged. See `evaluate_actor`.

    Args:
        env_id: an id, or a `Source`.
    """

    def actor(env: Any, seed: int) -> Actor:
        return make_actor(model, evaluation_noise(env, seed, deterministic), fast)

    return _evaluate(actor, env_id, episodes, seed, deterministic, vectorized, env_kwargs)


def evaluate_actor(
    act: Callable[[Array, Array, Bools], Array],
    env_id: Any,
    episodes: int,
    *,
    seed: int,
    deterministic: bool = False,
    vectorized: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """Plays `episodes` complete episodes.

    Copy i mod N plays episode i, and every copy plays a number of episodes that is fixed in advance. So short episodes
    are not counted more often than long ones.

    Args:
        act: `(obs (N, *obs), noise (N, Z), starts (N,)) -> action`, with standard noise (see `ActionNoise`) that is 0
            if `deterministic`. `starts` tells in which copies an episode begins with this observation.
    """

    def actor(env: Any, seed: int) -> Actor:
        noise = evaluation_noise(env, seed, deterministic)
        return lambda obs, forced, starts: act(obs, next(noise), starts)

    return _evaluate(actor, env_id, episodes, seed, deterministic, vectorized, env_kwargs)


def evaluation_noise(env: Any, seed: int, deterministic: bool) -> Iterator[Array]:
    """Action noise for an evaluation in `env`."""
    noise = ActionNoise(env.action_space, env.num_envs, np.random.default_rng(seed))
    return noise.zeros() if deterministic else noise


def _evaluate(
    make_actor: Callable[[VectorEnv, int], Actor],
    env: Any,
    episodes: int,
    seed: int,
    deterministic: bool,
    vectorized: bool,
    env_kwargs: dict[str, Any],
) -> Evaluation:
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    source = env if isinstance(env, Source) else Source(env, env_kwargs, vectorized=vectorized)
    env_seed, actor_seed = (int(x) for x in np.random.SeedSequence(seed).generate_state(2))
    copies = source.make(source.evaluation_copies(episodes), env_seed)
    try:
        return Evaluation.of(play_episodes(copies, make_actor(copies, actor_seed), episodes), deterministic, seed)
    finally:
        copies.close()
