"""Evaluation in control environments, with separate copies and seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rlzoo.control import envs
from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.core.actors import Actor
from rlzoo.core.env import Array, VectorEnv
from rlzoo.core.errors import require
from rlzoo.core.evaluation import Evaluation, play_episodes
from rlzoo.core.models import ActorCritic


def evaluate_model(
    model: ActorCritic,
    env_id: str,
    episodes: int,
    *,
    seed: int,
    deterministic: bool = False,
    vectorized: bool = True,
    fast: bool = True,
    **env_kwargs: Any,
) -> Evaluation:
    """Plays `episodes` complete episodes with a model, which stays unchanged. See `evaluate_actor`."""

    def actor(env: Any, seed: int) -> Actor:
        return make_actor(model, evaluation_noise(env, seed, deterministic), fast)

    return _evaluate(actor, env_id, episodes, seed, deterministic, vectorized, env_kwargs)


def evaluate_actor(
    act: Callable[[Array, Array], Array],
    env_id: str,
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
        act: `(obs (N, *obs), noise (N, Z)) -> action`, with standard noise (see `ActionNoise`) that is 0 if
            `deterministic`.
    """

    def actor(env: Any, seed: int) -> Actor:
        noise = evaluation_noise(env, seed, deterministic)
        return lambda obs, forced: act(obs, next(noise))

    return _evaluate(actor, env_id, episodes, seed, deterministic, vectorized, env_kwargs)


def evaluation_copies(env_id: str, episodes: int, vectorized: bool) -> int:
    """Copies of an environment that play `episodes` episodes."""
    return min(episodes, 128 if vectorized and env_id in envs.builtin_ids() else 8)


def evaluation_noise(env: Any, seed: int, deterministic: bool) -> Iterator[Array]:
    """Action noise for an evaluation in `env`."""
    noise = ActionNoise(env.action_space, env.num_envs, np.random.default_rng(seed))
    return noise.zeros() if deterministic else noise


def _evaluate(
    make_actor: Callable[[VectorEnv, int], Actor],
    env_id: str,
    episodes: int,
    seed: int,
    deterministic: bool,
    vectorized: bool,
    env_kwargs: dict[str, Any],
) -> Evaluation:
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    copies = evaluation_copies(env_id, episodes, vectorized)
    env_seed, actor_seed = (int(x) for x in np.random.SeedSequence(seed).generate_state(2))
    env = envs.make(env_id, copies, env_seed, vectorized=vectorized, **env_kwargs)
    try:
        return Evaluation.of(play_episodes(env, make_actor(env, actor_seed), episodes), deterministic, seed)
    finally:
        env.close()
