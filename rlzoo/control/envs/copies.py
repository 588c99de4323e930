"""Copies of a Gymnasium environment: each with flat observations, together as a vector environment."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from rlzoo.control.envs.wrappers import Env, wrap
from rlzoo.control.spaces import categories, check_observation, check_spaces, flat_mask, flat_observation
from rlzoo.core.system.errors import ConfigError, EnvError, UnsupportedSpace, describe_error, place
from rlzoo.core.system.screen import one_line

REPORT = "rlzoo_error"
"""Key of `info` that holds an exception of a copy."""
_EXTRAS = ("box2d", "mujoco")
"""Extras with the packages that environments of Gymnasium need, of the same names as Gymnasium's."""
_OUTLAST_RESET = ("BipedalWalker", "NormalizeObservation", "NormalizeReward")
"""Classes of environments and wrappers of Gymnasium that keep something of earlier episodes: the bodies' order in
Box2D's world, and running statistics."""


class _Copy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One copy, with flat observations.

    It reports an exception in `info` instead of raising it: Gymnasium's worker processes lose parts of an exception,
    and cannot be closed properly after one.

    Args:
        log_info: keys of `info` with numbers to keep. All others are left out, but those of masks and success.
    """

    def __init__(self, env: Env, index: int, log_info: tuple[str, ...], masks: bool) -> None:
        super().__init__(env)
        self._index, self._log_info = index, log_info
        self.raw_space = env.observation_space
        self._shape = env.observation_space.shape if isinstance(env.observation_space, spaces.Box) else None
        self.observation_space = flat = spaces.flatten_space(env.observation_space)
        self._no_obs = np.zeros(flat.shape or (), flat.dtype)
        layers = [env]
        while isinstance(layers[-1], gymnasium.Wrapper):
            layers.append(layers[-1].env)
        self._masks = masks and bool(categories(env.action_space))
        self.start: dict[str, Any] | None = None
        """The seed with which the episode began, or the state of the random generator before it."""
        self._ended = False
        names = {cls.__name__ for layer in layers for cls in type(layer).__mro__}
        self.outlasts_reset = not names.isdisjoint(_OUTLAST_RESET)
        self.normalizes = "NormalizeObservation" in names

    @property
    def rng(self) -> Any:
        """The state of the environment's random generator; None if it has another one than Gymnasium's."""
        return getattr(getattr(self.env.unwrapped.np_random, "bit_generator", None), "state", None)

    def set_attributes(self, values: Mapping[str, Any]) -> str | None:
        """Sets attributes, each of the outermost wrapper that has it, or of the environment. Returns what is wrong."""
        for name, x in values.items():
            try:
                if not self.env.set_wrapper_attr(name, deepcopy(x), force=False):
                    return f"it has no attribute {name!r}"
            except Exception as error:
                return f"setting {name!r} raised {describe_error(error)}{place(error)}"
        return None

    def replay(self, episodes: Sequence[tuple[dict[str, Any], list[Any], list[Any]]]) -> tuple[Any, Any]:
        """Repeats this copy's episode. Returns its last observation, and the state of the random generator."""
        start, actions, ((_, attributes), *changes) = episodes[self._index]
        self.set_attributes(attributes)
        if "rng" in start:
            self.env.unwrapped.np_random.bit_generator.state = start["rng"]
        obs, _ = self.reset(seed=start.get("seed"))
        for t, action in enumerate([*actions, None]):
            while changes and changes[0][0] == t:
                self.set_attributes(changes.pop(0)[1])
            if t < len(actions):
                obs = self.step(action)[0]
        return obs, self.rng

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        try:
            self.start, self._ended = {"rng": self.rng} if seed is None else {"seed": seed}, False
            obs, info = self.env.reset(seed=seed, options=options)
            _check_info("reset", info)
            if seed is not None:  # the first reset
                check_observation(self.raw_space, obs)
            return self._flatten(obs), self._legal(info)
        except (Exception, SystemExit) as error:
            return self._no_obs, self._report(error)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._ended:
            obs, info = self.reset()
            return obs, 0.0, False, False, info
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            _check_info("step", info)
            terminated, truncated = _flag("terminated", terminated), _flag("truncated", truncated)
            self._ended = terminated or truncated
            kept = self._numbers_to_log(info)
            if not self._ended:
                kept |= self._legal(info)
            elif info.get("is_success") is not None:
                kept["is_success"] = _flag("is_success", info["is_success"])
            return self._flatten(obs), _reward(reward), terminated, truncated, kept
        except (Exception, SystemExit) as error:
            return self._no_obs, 0.0, False, False, self._report(error)

    def close(self) -> None:
        """Closes the environment. An error of it is a warning: whatever used the environment has its results."""
        try:
            super().close()
        except (Exception, SystemExit) as error:
            warnings.warn(f"closing the environment raised {describe_error(error)}", RuntimeWarning, stacklevel=2)

    def _flatten(self, obs: Any) -> Any:
        if self._shape is not None and np.shape(obs) != self._shape:
            raise ValueError(f"observation of shape {np.shape(obs)}, its space has shape {self._shape}")
        return flat_observation(self.raw_space, obs)

    def _numbers_to_log(self, info: dict[str, Any]) -> dict[str, Any]:
        """The numbers to log."""
        logged = {name: np.asarray(info[name]) for name in self._log_info if name in info}
        for name, x in logged.items():
            if x.size != 1 or x.dtype.kind not in "biuf":
                raise TypeError(f"log_info: info[{name!r}] must be a number, got {info[name]!r}")
        return {name: float(x.item()) for name, x in logged.items()}

    def _legal(self, info: dict[str, Any]) -> dict[str, Any]:
        """The mask of legal actions, if there is one."""
        if self._masks and "action_mask" in info:
            return {"action_mask": flat_mask(self.env.action_space, info["action_mask"])}
        if self._masks and self.env.has_wrapper_attr("action_masks"):
            return {"action_mask": flat_mask(self.env.action_space, self.env.get_wrapper_attr("action_masks")())}
        return {}

    def _report(self, error: BaseException) -> dict[str, Any]:
        report = EnvError(f"copy {self._index} raised {describe_error(error)}{place(error)}")
        report.add_note(traceback.format_exc())
        report.__cause__ = error
        return {REPORT: report}


class _InTurn(SyncVectorEnv):
    """Copies in this process. A step skips what Gymnasium's does for environments of any kind."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        infos: dict[str, Any] = {}
        rows = actions if isinstance(actions, np.ndarray) else iterate(self.action_space, actions)
        for i, (copy, action) in enumerate(zip(self.envs, rows, strict=True)):
            self._env_obs[i], self._rewards[i], self._terminations[i], self._truncations[i], info = copy.step(action)
            if info:
                infos = self._add_info(infos, info, i)
        return self._env_obs, self._rewards, self._terminations.copy(), self._truncations.copy(), infos


def _flag(name: str, x: Any) -> bool:
    """`terminated`, `truncated` or `is_success` of one step: also 0 or 1, or an array of one of these."""
    if type(x) in (bool, np.bool_):
        return bool(x)
    array = np.asarray(x)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise TypeError(f"{name} must be True or False, got {x!r}")
    return bool(array.item())


def _check_info(method: str, info: Any) -> None:
    if not isinstance(info, dict) and not isinstance(info, Mapping):
        raise TypeError(f"the last value of {method}() is info and must be a dict, got {one_line(repr(info))}")


def _reward(x: Any) -> float:
    if isinstance(x, str | bytes):
        raise TypeError(f"reward must be a number, got {x!r}")
    return float(x.item() if isinstance(x, np.ndarray) else x)


def make_copies(
    make: Callable[[], Env],
    name: str,
    num_envs: int,
    wrappers: tuple[Any, ...],
    asynchronous: bool,
    log_info: tuple[str, ...],
    masks: bool,
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A vector environment of copies with flat observations, each by `make`. Messages have the environment's `name`.

    The arguments after `num_envs` are fields of `Source`.

    Raises:
        EnvError, UnsupportedSpace: as for `Source.make`; also if a copy has other spaces than the first.
        ConfigError: a wrapper cannot be loaded.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs} must be positive")
    functions = [partial(_make_copy, make, name, wrappers, log_info, masks, index) for index in range(num_envs)]
    try:
        if asynchronous:
            return _in_processes(functions)
        copies = [function() for function in functions]
        _check_same(name, copies)
        if len({id(copy.unwrapped) for copy in copies}) < len(copies):
            raise EnvError(f"environment {name!r}: two copies are the same object; make a new one in each call")
        each = [lambda copy=copy: copy for copy in copies]
        return _InTurn(each, copy=False, autoreset_mode=AutoresetMode.DISABLED)
    except (UnsupportedSpace, EnvError, ConfigError):
        raise
    except (Exception, SystemExit) as error:
        extra = next((x for x in _EXTRAS if f"gymnasium[{x}]" in str(error)), None)
        reason = f"a package is missing: pip install 'rlzoo[{extra}]'" if extra else describe_error(error)
        raise EnvError(f"environment {name!r} cannot be made: {reason}") from error


def _in_processes(functions: Sequence[Callable[[], _Copy]]) -> AsyncVectorEnv:
    """Copies in processes that begin anew, as joblib's do.

    A forked process can wait for ever for a lock that another thread held when it was forked, and Python's "spawn" and
    "forkserver" run the user's script once more in each process. The memory of such processes cannot be shared.
    Gymnasium's worker would reset a copy twice if a reset follows an episode's end, so copies reset themselves.
    """
    import joblib.externals.loky  # noqa: F401 - registers the context

    functions = [partial(_in_group, os.getpid(), function) for function in functions]
    return AsyncVectorEnv(
        functions, shared_memory=False, copy=False, context="loky", autoreset_mode=AutoresetMode.DISABLED
    )


def _in_group(creator: int, function: Callable[[], _Copy]) -> _Copy:
    """Makes a copy. A Ctrl-C goes to the whole group of the terminal, and only the process that trains heeds it."""
    if os.getpid() != creator and hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    return function()


def _make_copy(
    make: Callable[[], Env], name: str, wrappers: tuple[Any, ...], log_info: tuple[str, ...], masks: bool, index: int
) -> _Copy:
    env = make()
    if not isinstance(env, gymnasium.Env):
        remedy = "end it with `return env`" if env is None else "give a function that returns a gymnasium.Env"
        raise EnvError(f"environment {name!r} is {env!r}, not a gymnasium.Env: {remedy}")
    env = wrap(env, wrappers)
    check_spaces(name, env.observation_space, env.action_space)
    return _Copy(env, index, log_info, masks)


def _check_same(name: str, copies: Sequence[_Copy]) -> None:
    """Raises `EnvError` if two copies have different spaces."""
    for kind, attribute in (("observation", "raw_space"), ("action", "action_space")):
        first, *others = (getattr(copy, attribute) for copy in copies)
        for index, other in enumerate(others, 1):
            if other != first:
                raise EnvError(f"environment {name!r}: copy {index} has the {kind} space {other}, copy 0 has {first}")
