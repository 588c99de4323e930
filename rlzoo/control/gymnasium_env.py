"""Any Gymnasium environment as a `VectorEnv`."""

from __future__ import annotations

import contextlib
import importlib
import traceback
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rlzoo.core.env import Array, Bools, VectorEnv
from rlzoo.core.errors import EnvError, UnknownEnv, UnsupportedSpace, no_such

_REPORT = "rlzoo_error"
_OUTLAST_RESET = ("BipedalWalker", "NormalizeObservation", "NormalizeReward")
"""Classes of environments and wrappers of Gymnasium that keep something of earlier episodes: the bodies' order in
Box2D's world, and running statistics."""


def find_spec(env_id: str) -> EnvSpec:
    """The registered specification of `Name-v0` or, after importing the module, `module:Name-v0`."""
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except Exception as error:
            raise UnknownEnv(f"environment {env_id!r}: cannot import module {module!r}: {error}") from error
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    raise UnknownEnv(no_such("environment", name, gymnasium.registry))


class GymnasiumEnv(VectorEnv):
    """Copies of a Gymnasium environment, in this process or each in its own process.

    Observations of `Box`, `Discrete`, `MultiDiscrete` and `MultiBinary` spaces, and of `Dict` and
    `Tuple` of them, are flattened by Gymnasium's rules (`Discrete` becomes one-hot) and cast to float32.
    Copy i is seeded with `seed + i` at the first reset only. An error in an environment becomes an `EnvError` that
    names the copy and the number of the vector step.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int, *, asynchronous: bool = False, **kwargs: Any) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs} must be positive")
        make_copy = partial(_make_copy, find_spec(env_id), kwargs)
        vectorize: Any = AsyncVectorEnv if asynchronous else SyncVectorEnv
        try:
            self._vector = vectorize(
                [partial(make_copy, index) for index in range(num_envs)],
                copy=False,
                autoreset_mode=AutoresetMode.NEXT_STEP,
            )
        except UnsupportedSpace:
            raise
        except Exception as error:
            raise EnvError(f"environment {env_id!r} cannot be made: {_one_line(error)}") from error
        flat = self._vector.single_observation_space
        self.num_envs = num_envs
        self.action_space: gymnasium.Space[Any] = self._vector.single_action_space
        with np.errstate(over="ignore"):
            low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        self.observation_space: spaces.Box = spaces.Box(low, high, dtype=np.float32)
        self._env_id = env_id
        self._seed: int | None = int(seed)
        self._steps = 0
        self._obs = np.zeros((num_envs, *flat.shape), np.float32)
        self._reward = np.zeros(num_envs, np.float32)

    def reset(self) -> tuple[Array, Bools]:
        (obs,) = self._call(partial(self._vector.reset, seed=self._seed))
        self._seed = None
        self._store(obs, 0.0)
        return self._obs, np.zeros(self.num_envs, np.bool_)

    def step(self, action: Array) -> tuple[Array, Array, Bools, Bools, Bools]:
        self._steps += 1
        obs, reward, terminated, truncated = self._call(partial(self._vector.step, self._native(action)))
        self._store(obs, reward)
        return self._obs, self._reward, terminated, truncated, terminated | truncated

    def reseed(self, seed: int) -> bool:
        """A reset with a seed begins anew, as Gymnasium demands; False if something is known to outlast it."""
        if any(self._vector.get_attr("outlasts_reset")):
            return False
        self._seed, self._steps = seed, 0
        return True

    @property
    def render_fps(self) -> float:
        """Frames per second at which the environment should be shown."""
        return float(self._vector.metadata.get("render_fps") or 30)

    def render(self) -> Array:
        """The first copy's frame, (H, W, 3) uint8, of an environment made with `render_mode="rgb_array"`."""
        try:
            return self._vector.render()[0]
        except Exception as error:
            raise self._error(_one_line(error)) from error

    def close(self) -> None:
        # After a worker process has died, Gymnasium waits for the others or finds a broken pipe.
        with contextlib.suppress(EOFError, OSError):
            self._vector.close(timeout=1)

    def _native(self, action: Array) -> Array:
        """Actions converted to the action space of the environment."""
        space: Any = self.action_space
        action = action.reshape(self.num_envs, *space.shape)
        if isinstance(space, spaces.Box):
            action = np.clip(action, space.low, space.high)
        else:
            action = action + getattr(space, "start", 0)
        return action.astype(space.dtype, copy=False)

    def _store(self, obs: Array, reward: Array | float) -> None:
        with np.errstate(over="ignore"):
            self._obs[...] = obs
            self._reward[...] = reward
        for name, values in (("observation", self._obs), ("reward", self._reward[:, None])):
            finite = np.isfinite(values).all(axis=1)
            if not finite.all():
                index = int(finite.argmin())
                raise self._error(f"copy {index} gave a non-finite {name}: {values[index]}")

    def _call(self, method: partial[Any]) -> Any:
        """Calls a method of the vector environment and returns its results without the info."""
        try:
            *results, info = method()
        except Exception as error:
            raise self._error(_one_line(error)) from error
        for report in filter(None, info.get(_REPORT, ())):
            raise self._error(str(report)) from report.__cause__ or report
        return results

    def _error(self, fault: str) -> EnvError:
        return EnvError(f"environment {self._env_id!r}, step {self._steps}: {fault}")


class _CopyError(Exception):
    """An exception of one copy. Its only argument is a string, so it can be pickled."""


class _Copy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One copy, with flat observations.

    It reports an exception in `info` instead of raising it: Gymnasium's worker processes lose parts of an exception,
    and cannot be closed properly after one.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int) -> None:
        super().__init__(env)
        self._index = index
        self._space = env.observation_space
        self._shape = env.observation_space.shape if isinstance(env.observation_space, spaces.Box) else None
        flat = spaces.flatten_space(env.observation_space)
        self._no_obs = np.zeros(flat.shape or (), flat.dtype)
        self.observation_space = flat
        layers = [env]
        while isinstance(layers[-1], gymnasium.Wrapper):
            layers.append(layers[-1].env)
        self.outlasts_reset = any(cls.__name__ in _OUTLAST_RESET for x in layers for cls in type(x).__mro__)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        try:
            obs, _ = self.env.reset(seed=seed, options=options)
            return self._flatten(obs), {}
        except Exception as error:
            return self._no_obs, self._report(error)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            return self._flatten(obs), float(reward), bool(terminated), bool(truncated), {}
        except Exception as error:
            return self._no_obs, 0.0, False, False, self._report(error)

    def _flatten(self, obs: Any) -> Any:
        if self._shape is not None and np.shape(obs) != self._shape:
            raise ValueError(f"observation of shape {np.shape(obs)}, its space has shape {self._shape}")
        return spaces.flatten(self._space, obs)

    def _report(self, error: Exception) -> dict[str, Any]:
        report = _CopyError(f"copy {self._index} raised {_one_line(error)}")
        report.add_note(traceback.format_exc())
        report.__cause__ = error
        return {_REPORT: report}


def _make_copy(spec: EnvSpec, kwargs: dict[str, Any], index: int) -> _Copy:
    # The passive checker would warn, for each copy, about faults that are errors here.
    env = gymnasium.make(spec, **{"disable_env_checker": True, **kwargs})
    if not _is_flat(env.observation_space):
        raise UnsupportedSpace(f"environment {spec.id!r}: observation space {env.observation_space} is not supported")
    if not _is_action_space(env.action_space):
        raise UnsupportedSpace(f"environment {spec.id!r}: action space {env.action_space} is not supported")
    return _Copy(env, index)


def _is_flat(space: gymnasium.Space[Any]) -> bool:
    """Whether every observation of the space is a fixed number of numbers."""
    if isinstance(space, spaces.Dict):
        return all(_is_flat(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return all(_is_flat(part) for part in space.spaces)
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _is_action_space(space: gymnasium.Space[Any]) -> bool:
    if isinstance(space, spaces.Box):
        return np.issubdtype(space.dtype, np.floating)
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
