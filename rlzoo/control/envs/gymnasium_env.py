"""Any Gymnasium environment as a `VectorEnv`."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space, iterate

from rlzoo.control.envs.copies import REPORT
from rlzoo.control.spaces import (
    categories,
    check_observation,
    check_spaces,
    flat_mask,
    flat_observation,
    illegal_part,
    mask_row,
    native_actions,
)
from rlzoo.core.env import ENDLESS, Array, Bools, ReplayError, VectorEnv
from rlzoo.core.seen import Seen
from rlzoo.core.system.errors import ConfigError, EnvError, describe_error, require
from rlzoo.core.system.screen import one_line

_reset_by = weakref.WeakKeyDictionary[Any, "weakref.ref[GymnasiumEnv]"]()
"""Which object reset a vector environment last."""


class GymnasiumEnv(VectorEnv):
    """A Gymnasium vector environment with NEXT_STEP autoreset.

    Observations of `Box`, `Discrete`, `MultiDiscrete` and `MultiBinary` spaces, and of `Dict` and
    `Tuple` of them, are flattened by Gymnasium's rules (`Discrete` becomes one-hot) and cast to float32.
    Copy i is seeded with `seed + i` at the first reset only. An error in an environment becomes an `EnvError` that
    names the copy and the number of the vector step.

    Its state is what each copy's episode began from, the seed of its reset or the state of its random generator, and
    the actions since, which `load_state_dict` repeats. Vector environments of the user's, and environments of which
    something outlasts a reset, have none.

    Args:
        vector: the result of `make_copies`, or a vector environment that the user made.
        name: of the environment, for messages.
        is_users: `vector` is the user's. It is not closed.
        images: keep observations of bytes as bytes.
        masks: forbid actions as the environment says, by `info["action_mask"]` or a method `action_masks`. Observations
            are then `Seen` with the legal actions. An environment says so first when it is reset, so the first reset is
            made at once.
        log_info: keys of `info` whose means `info_sums` gives.
    """

    has_masks = False
    """Whether the environment says which actions are legal."""

    def __init__(
        self,
        vector: Any,
        name: str,
        seed: int,
        *,
        is_users: bool = False,
        images: bool = False,
        masks: bool = True,
        log_info: tuple[str, ...] = (),
    ) -> None:
        flat = vector.single_observation_space
        self._vector = vector
        self._is_users = is_users
        self.raw_observation_space: gymnasium.Space[Any] = flat if is_users else vector.get_attr("raw_space")[0]
        """Of the observations before they are flattened."""
        if is_users:
            check_spaces(name, flat, vector.single_action_space)
            flat = spaces.flatten_space(flat)
        self.num_envs: int = vector.num_envs
        self.action_space: gymnasium.Space[Any] = vector.single_action_space
        dtype = np.uint8 if images and flat.dtype == np.uint8 else np.float32
        with np.errstate(over="ignore"):
            low, high = flat.low.astype(dtype), flat.high.astype(dtype)
        self.observation_space: spaces.Box = spaces.Box(low, high, dtype=dtype)
        self._name = name
        self._seed: int | None = int(seed)
        self._steps = 0
        self._obs = np.zeros((self.num_envs, *flat.shape), dtype)
        self._reward = np.zeros(self.num_envs, np.float32)
        self.success: Array = np.full(self.num_envs, np.nan)
        self.attributes: dict[str, Any] = {}
        self._episodes = self._new_episodes()
        self._ended = self._over = np.zeros(self.num_envs, np.bool_)
        self.log_info = log_info
        self._info = np.zeros((len(log_info), 2))
        self._first: tuple[Any, dict[str, Any]] | None = None
        self._may_mask = masks and bool(categories(self.action_space))
        if self._may_mask:
            self._first = self._reset()
            self.has_masks = "action_mask" in self._first[1]
            if is_users:  # it may be stepped elsewhere before this is reset
                self._first, self._seed = None, int(seed)
                remedy = 'give env=make_env, put them into info["action_mask"], or set action_masks=False'
                fault = f"the masks of action_masks() in {name} would be ignored: {remedy}"
                require(self.has_masks or not _has_method(vector.unwrapped, "action_masks"), fault)

    def _reset(self) -> tuple[Any, dict[str, Any]]:
        first = self._call(partial(self._vector.reset, seed=self._seed))
        self._seed = None
        _reset_by[self._vector] = weakref.ref(self)
        return first

    @property
    def interrupted(self) -> bool:  # type: ignore[override]
        """A user's vector environment may be that of an evaluation or of another training too."""
        return self._vector in _reset_by and _reset_by[self._vector]() is not self

    def reset(self) -> tuple[Any, Bools]:
        if self._first is None:
            self._episodes = self._new_episodes()
        obs, info = self._first or self._reset()
        self._first = None
        self._ended = self._over = none = np.zeros(self.num_envs, np.bool_)
        return self._store(obs, 0.0, info, none), none

    def step(self, action: Array) -> tuple[Any, Array, Bools, Bools, Bools]:
        self._steps += 1
        native = native_actions(self.action_space, action)
        obs, reward, terminated, truncated, info = self._call(partial(self._vector.step, native))
        for (actions, changes), x, begins in zip(self._episodes, action, self._ended, strict=True):
            if begins:
                actions.clear()
                changes[:] = [(0, self.attributes)]
            elif len(actions) <= ENDLESS:
                actions.append(x)
        for sums, name in zip(self._info, self.log_info, strict=True):
            if name in info:
                numbers, has = self._numbers(name, info)
                tells = has & ~(self._ended | self._over)
                sums += numbers[tells].sum(), tells.sum()
        if self._is_users:
            terminated, truncated = self._flags("terminated", terminated), self._flags("truncated", truncated)
        self._ended = done = terminated | truncated
        if self.first_episodes:
            self._over = self._over | done
        seen = self._store(obs, reward, info, done)
        self.success.fill(np.nan)
        if "is_success" in info:
            successes, has = self._numbers("is_success", info)
            self.success[has & done] = successes[has & done]
        return seen, self._reward, terminated, truncated, done

    def info_sums(self) -> Array:
        sums, self._info = self._info, np.zeros_like(self._info)
        return sums

    def set_attr(self, name: str, value: Any) -> None:
        require(not self._is_users, f"set_attr: {self._name} is a vector environment of yours: call its own set_attr")
        try:
            value = json.loads(json.dumps(value, default=np.generic.item))
        except (TypeError, ValueError) as error:
            form = "made of numbers, texts, lists and dicts"
            raise ConfigError(f"set_attr: {name} must be {form}, got {value!r}") from error
        if name in self.attributes and self.attributes[name] == value:
            return
        fault = next(filter(None, self._vector.call("set_attributes", {name: value})), None)
        require(fault is None, f"environment {self._name!r}: {fault}")
        self.attributes = self.attributes | {name: value}
        for actions, changes in self._episodes:
            changes.append((len(actions), {name: value}))

    def _new_episodes(self) -> list[tuple[list[Array], list[tuple[int, dict[str, Any]]]]]:
        """For each copy, the actions of its episode, and attributes with the number of actions before they were set."""
        return [([], [(0, self.attributes)]) for _ in range(self.num_envs)]

    @property
    def render_mode(self) -> str | None:
        """How the environment was made to be rendered."""
        return self._vector.render_mode

    @property
    def normalizes(self) -> str:
        """Where there are other statistics, if a wrapper normalises observations by those that it sees itself."""
        layers = [self._vector]
        while isinstance(layers[-1], gymnasium.vector.VectorWrapper):
            layers.append(layers[-1].env)
        if any(type(layer).__name__ == "NormalizeObservation" for layer in layers):
            return "in each vector environment, and none in load_policy"
        each = not self._is_users and any(self._vector.get_attr("normalizes"))
        return "in each copy, in evaluation and in load_policy" if each else ""

    def reseed(self, seed: int) -> bool:
        """A reset with a seed begins anew, as Gymnasium demands; False if something is known to outlast it."""
        if self._is_users or any(self._vector.get_attr("outlasts_reset")):
            return False
        self._seed, self._steps, self._first = seed, 0, None
        return True

    def state_dict(self) -> dict[str, Any] | None:
        """What repeats the episode of each copy, None before the first; or None if they cannot be repeated."""
        endless = any(len(actions) > ENDLESS for actions, _ in self._episodes)
        if self._is_users or any(self._vector.get_attr("outlasts_reset")) or endless:
            return None
        starts, rngs = map(self._vector.get_attr, ("start", "rng"))
        if None in rngs:
            return None
        if self._first is not None or None in starts:
            return {"copies": [None] * self.num_envs}
        copies = [
            {
                "start": starts[i],
                "actions": np.array(actions),
                "attributes": list(changes),
                "ended": bool(self._ended[i]),
                "obs": self._obs[i].copy(),
                "rng": rngs[i],
            }
            for i, (actions, changes) in enumerate(self._episodes)
        ]
        return {"copies": copies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Repeats the episodes of a new environment up to a state.

        Raises:
            ReplayError: a copy did not observe the same at the end, or drew other random numbers.
        """
        copies = state["copies"]
        if len(copies) != self.num_envs:
            raise ValueError(f"{len(copies)} copies given, {self.num_envs} needed")
        if None in copies:  # no episode had begun
            return
        self._first = self._seed = None
        self._ended = np.array([x["ended"] for x in copies])
        attributes = [x.get("attributes", [[0, {}]]) for x in copies]  # version 0.1.0 had none
        self._episodes = [(list(x["actions"]), [*map(tuple, y)]) for x, y in zip(copies, attributes, strict=True)]
        self.attributes = {name: x for _, values in attributes[0] for name, x in values.items()}
        episodes = [(x["start"], self._native(x["actions"]), y) for x, y in zip(copies, attributes, strict=True)]
        results = self._vector.call("replay", episodes)
        with np.errstate(over="ignore"):
            same = [
                np.array_equal(np.asarray(obs).astype(self._obs.dtype), x["obs"]) and str(rng) == str(x["rng"])
                for x, (obs, rng) in zip(copies, results, strict=True)
            ]
        if not all(same):
            raise ReplayError(f"{self._name} does not repeat an episode from its seed and actions")
        self._obs[...] = [x["obs"] for x in copies]

    def _native(self, actions: Array) -> list[Any]:
        """Actions (T,) or (T, A) of one copy as it takes them."""
        batch = batch_space(self.action_space, max(1, len(actions)))
        return list(iterate(batch, native_actions(self.action_space, actions))) if len(actions) else []

    @property
    def render_fps(self) -> float:
        """Frames per second at which the environment should be shown."""
        return float(self._vector.metadata.get("render_fps") or 30)

    def render(self) -> Array:
        """The first copy's frame, (H, W, 3) uint8, of an environment made with `render_mode="rgb_array"`."""
        try:
            frame = self._vector.render()[0]
        except Exception as error:
            raise self._error(describe_error(error)) from error
        if not (isinstance(frame, np.ndarray) and frame.ndim > 1):
            raise self._error(f"render() must return an image, got {one_line(repr(frame))}")
        return frame

    def close(self) -> None:
        if self._is_users:  # it belongs to the user
            return
        # After a worker process has died, Gymnasium waits for the others or finds a broken pipe.
        with contextlib.suppress(EOFError, OSError):
            self._vector.close(timeout=1)

    def _store(self, obs: Array, reward: Array | float, info: dict[str, Any], done: Bools) -> Any:
        """Keeps observations and rewards in this environment's arrays. Returns what the model sees."""
        try:
            if self._is_users:
                obs = _flatten_batch(self._vector, obs)
            with np.errstate(over="ignore"):
                self._obs[...] = obs
                self._reward[...] = reward
        except (TypeError, ValueError) as error:
            raise self._error(describe_error(error)) from error
        for name, values in (("observation", self._obs), ("reward", self._reward)):
            if not np.isfinite(values).all():
                index = int(np.isfinite(values).reshape(self.num_envs, -1).all(axis=1).argmin())
                raise self._error(f"copy {index} gave a non-finite {name}: {np.atleast_1d(values[index])}")
        if self._may_mask and not self.has_masks and "action_mask" in info:
            raise self._error("info has an action mask, and had none at the first reset")
        return Seen(self._obs, self._masks(info, done)) if self.has_masks else self._obs

    def _masks(self, info: dict[str, Any], done: Bools) -> Array:
        """(N, K) legal actions. After an episode's end every action is legal, since it will be ignored."""
        masks = np.ones((self.num_envs, sum(categories(self.action_space))), np.bool_)
        tells = np.broadcast_to(info.get("_action_mask", "action_mask" in info), self.num_envs)
        for i in np.flatnonzero(~done):
            if not tells[i]:
                raise self._error(f"copy {i} gave no action mask, and did before")
            try:
                masks[i] = flat_mask(self.action_space, mask_row(info["action_mask"], int(i)))
            except ValueError as error:
                raise self._error(f"copy {i} gave an {error}") from error
            part = illegal_part(self.action_space, masks[i])
            if part is not None:
                raise self._error(f"copy {i} has no legal action" + (f" in part {part}" if part else ""))
        return masks

    def _numbers(self, name: str, info: dict[str, Any]) -> tuple[Array, Bools]:
        """A number in `info` for each copy (N,), NaN for None, and which copies have it."""
        try:
            numbers = np.broadcast_to(np.asarray(info[name], float), self.num_envs)
        except (TypeError, ValueError) as error:
            raise self._error(f"info[{name!r}] must be a number for each copy, got {info[name]!r}") from error
        return numbers, np.broadcast_to(info.get(f"_{name}", True), self.num_envs)

    def _flags(self, name: str, x: Any) -> Bools:
        flags = np.asarray(x)
        valid = flags.shape == (self.num_envs,) and flags.dtype.kind in "biuf" and np.isin(flags, (0, 1)).all()
        if not valid:
            raise self._error(f"{name} must be True or False for each copy, got {x!r}")
        return flags.astype(np.bool_)

    def _call(self, method: Callable[[], Any]) -> Any:
        """Calls a method of the vector environment."""
        try:
            results = method()
        except (Exception, SystemExit) as error:
            raise self._error(describe_error(error)) from error
        if not isinstance(results[-1], Mapping):
            raise self._error(f"info must be a dict of arrays, got a {type(results[-1]).__name__}")
        for report in filter(None, results[-1].get(REPORT, ())):
            raise self._error(str(report)) from report.__cause__ or report
        return results

    def _error(self, fault: str) -> EnvError:
        return EnvError(f"environment {self._name!r}, step {self._steps}: {fault}")


def _has_method(vector: Any, name: str) -> bool:
    """Whether a vector environment, or one of its copies if it is one of Gymnasium's, has a method."""
    copies = isinstance(vector, AsyncVectorEnv | SyncVectorEnv)
    return hasattr(vector, name) or (copies and any(vector.call("has_wrapper_attr", name)))


def _flatten_batch(vector: Any, obs: Any) -> Array:
    """Observations of a vector environment, (N, D)."""
    space = vector.single_observation_space
    check_observation(space, obs, (vector.num_envs,))
    if isinstance(space, spaces.Box):
        return np.asarray(obs).reshape(vector.num_envs, -1)
    return np.stack([flat_observation(space, row) for row in iterate(vector.observation_space, obs)])
