"""Evaluation episodes, on environments and seeds of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlzoo import envs
from rlzoo.actors import ActionNoise, make_actor
from rlzoo.errors import RunError, require
from rlzoo.models import ActorCritic
from rlzoo.run import Run

_CHUNK = 32


@dataclass(frozen=True)
class Evaluation:
    """Undiscounted returns and lengths of complete episodes, (episodes,) each."""

    returns: np.ndarray[Any, Any]
    lengths: np.ndarray[Any, Any]
    deterministic: bool
    seed: int

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
        }


def describe(step: int, summary: Mapping[str, Any], modes: Mapping[str, Any] | None = None) -> str:
    """A summary at a step in one line; `modes` is that of a second, deterministic evaluation."""

    def spread(summary: Mapping[str, Any]) -> str:
        digits = 1 if abs(summary["mean_return"]) >= 10 else 2
        return f"{summary['mean_return']:,.{digits}f} ± {summary['std_return']:,.{digits}f}"

    kind = "deterministic " if summary["deterministic"] else ""
    line = f"step {step:,}: {kind}mean return {spread(summary)} over {summary['episodes']} episodes"
    return line if modes is None else f"{line}; deterministic {spread(modes)}"


def evaluate(
    run: Run | Path | str,
    episodes: int = 100,
    *,
    deterministic: bool = False,
    seed: int = 0,
    checkpoint: int | Literal["best"] | None = None,
    model: ActorCritic | None = None,
) -> Evaluation:
    """Plays complete episodes with a run's policy, on the CPU.

    Args:
        deterministic: take the mode of the policy instead of a sample.
        seed: of environments and actions; the same seed gives the same episodes.
        checkpoint: its step, or "best" for the one with the best evaluation; the last one by default.
        model: a model to load the weights into, for a run whose model `config.json` does not describe.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged.
    """
    run = Run.open(run)
    config = run.read_config()
    return evaluate_model(
        load_model(run, checkpoint, model),
        config.env,
        episodes,
        seed=seed,
        deterministic=deterministic,
        vectorized=config.vectorized,
        **config.env_kwargs,
    )


def load_model(
    run: Run | Path | str, checkpoint: int | Literal["best"] | None = None, model: ActorCritic | None = None
) -> ActorCritic:
    """The model of a run's checkpoint, on the CPU. The arguments are those of `evaluate`.

    Raises:
        RunError: there is no such run or checkpoint, or it is damaged.
    """
    run = Run.open(run)
    config = run.read_config()
    check_model_given(run, model)
    weights = run.load(run.step_of(checkpoint)).model
    if model is None:
        env = envs.make(config.env, 1, 0, vectorized=config.vectorized, **config.env_kwargs)
        model = config.network.build(env.observation_space, env.action_space)
        env.close()
    if model.reward_scale is None:  # it plays no part in acting
        weights = {name: x for name, x in weights.items() if not name.startswith("reward_scale.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{run.path}: the weights do not fit the model: {' '.join(str(error).split())}") from error
    return model


def check_model_given(run: Run, model: ActorCritic | None) -> None:
    """Raises `RunError` if the run's model is not one that its configuration describes, and none is given."""
    if model is None and run.model_name is not None:
        raise RunError(f"{run.path} trains a model of its own, {run.model_name}; give it as model=...")


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
    """Plays `episodes` complete episodes and changes nothing.

    Episode i is played by copy i mod N and every copy plays a number fixed beforehand, so that short episodes
    are not counted more often than long ones.
    """
    require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
    require(seed >= 0, f"seed must be at least 0, got {seed}")
    copies = min(episodes, 128 if vectorized and env_id in envs.builtin_ids() else 8)
    env_seed, noise_seed = np.random.SeedSequence(seed).generate_state(2)
    env = envs.make(env_id, copies, int(env_seed), vectorized=vectorized, **env_kwargs)
    noise = ActionNoise(env.action_space, copies, np.random.default_rng(int(noise_seed)))
    actor = make_actor(model)
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
