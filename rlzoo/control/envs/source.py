"""Making control environments: vectorised classic control, or any Gymnasium environment."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from rlzoo.control.envs.classic import BUILTIN
from rlzoo.control.envs.copies import make_copies
from rlzoo.control.envs.gymnasium_env import GymnasiumEnv
from rlzoo.control.envs.no_velocity import HIDDEN
from rlzoo.control.envs.wrappers import Env, load_wrapper
from rlzoo.core.env import VectorEnv, env_name
from rlzoo.core.system.errors import ConfigError, EnvError, UnknownEnv, no_such, require
from rlzoo.core.system.fields import type_fault
from rlzoo.core.system.functions import import_source
from rlzoo.core.system.screen import complain

_BUILTIN: Mapping[str, Callable[..., VectorEnv]] = {**BUILTIN, **HIDDEN}


@dataclass(frozen=True)
class Source:
    """Where the copies of a control environment come from."""

    env: Any
    """A registered id, `module:Name-v0` with a module that registers it, a function that returns an environment or its
    `module:function`, or a `gymnasium.vector.VectorEnv`."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment, as for `gymnasium.make`, or of the function."""
    wrappers: tuple[Any, ...] = ()
    """Wrappers of each copy (see `load_wrapper`), the first one innermost."""
    vectorized: bool = True
    """Use the built-in NumPy version where there is one that accepts these arguments."""
    asynchronous: bool = False
    """Run each copy in its own process."""
    images: bool = False
    """Keep the pixels of images as bytes, instead of float32."""
    masks: bool = True
    """Forbid the actions that the environment calls illegal."""
    log_info: tuple[str, ...] = ()
    """Keys of `info` whose means are logged."""

    @property
    def vector_env(self) -> gymnasium.vector.VectorEnv[Any, Any, Any] | None:
        """The vector environment that the user made, if it is one."""
        return self.env if isinstance(self.env, gymnasium.vector.VectorEnv) else None

    @property
    def builtin(self) -> Callable[..., VectorEnv] | None:
        """The built-in NumPy version, if it is used. It is not where the name is that of another environment now."""
        named = isinstance(self.env, str) and self.vectorized and not self.wrappers
        if named and self.env in BUILTIN:
            named = str(gymnasium.spec(self.env).entry_point).startswith("gymnasium.")
        make = _BUILTIN.get(self.env) if named else None
        return make if make is not None and self.kwargs.keys() <= _options(make).keys() else None

    def check(self, num_envs: int) -> None:
        """Raises `ConfigError` if the parts do not fit together, or one is of the wrong kind."""
        env = self.env
        if isinstance(env, gymnasium.Env):
            remedy = "give a function that makes environments, such as env=make_env"
            raise ConfigError(f"env is one environment, and training needs copies: {remedy}")
        require(
            isinstance(env, str | gymnasium.vector.VectorEnv) or callable(env),
            "env must be a Gymnasium id, module:function, a function that returns an environment, or a vector "
            f"environment, such as env=make_env, got {env!r}",
        )
        for wrapper in self.wrappers:
            load_wrapper(wrapper)
        require(
            not (self.asynchronous and self.builtin),
            f"async_envs: {env} is vectorised in this process; add vectorized=False (--no-vectorized)",
        )
        require(
            not (self.log_info and self.builtin),
            f"log_info: the vectorised {env} has no info; add vectorized=False (--no-vectorized)",
        )
        if self.vector_env is not None:
            _check_vector_env(self, self.vector_env, num_envs)

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        """Makes copies. All their randomness comes from `seed`.

        Raises:
            UnknownEnv: no such environment is registered.
            UnsupportedSpace: no policy can be built for its observations or actions.
            EnvError: the environment cannot be made, for example because an optional package is missing.
            ConfigError: an option of a built-in environment has the wrong type.
        """
        builtin = self.builtin
        if builtin is None:
            return self._gymnasium(num_envs, seed)
        for name, x in self.kwargs.items():
            fault = type_fault(x, type(_options(builtin)[name]))
            require(fault is None, f"env_kwargs: {name} must be {fault}, got {x!r}")
        try:
            return builtin(num_envs, seed, **self.kwargs)
        except ValueError as error:
            raise EnvError(f"environment {self.env!r} cannot be made: {error}") from error

    def make_rendered(self, seed: int, mode: str) -> GymnasiumEnv:
        """Makes one copy that can be rendered: `mode` is "human" or "rgb_array". A given vector environment is itself.

        Raises:
            EnvError, UnsupportedSpace, UnknownEnv: as for `make`.
            ConfigError: a function takes no `render_mode`, or a vector environment has another one.
        """
        if self.vector_env is not None:
            has = self.vector_env.render_mode
            require(has == mode, f"play needs a vector environment made with render_mode={mode!r}, got {has!r}")
            return self._gymnasium(self.vector_env.num_envs, seed)
        mode_kwargs = {"render_mode": mode} if _takes(_function_of(self.env), "render_mode") else {}
        kwargs = {**self.kwargs, **mode_kwargs}
        env = dataclasses.replace(self, kwargs=kwargs, asynchronous=False)._gymnasium(1, seed)
        if not mode_kwargs and env.render_mode != mode:
            env.close()
            raise ConfigError(f"play needs {env_name(self.env)} to take render_mode={mode!r}, and to pass it on")
        return env

    def evaluation_copies(self, episodes: int) -> int:
        """Copies that play `episodes` episodes."""
        return min(episodes, 128 if self.builtin else 8) if self.vector_env is None else self.vector_env.num_envs

    def _gymnasium(self, num_envs: int, seed: int) -> GymnasiumEnv:
        name, vector = env_name(self.env), self.vector_env
        if vector is None:
            function = _function_of(self.env)
            if str(getattr(function, "__module__", "")).endswith(".py"):
                function = partial(_make_by_name, self.env)  # a process of its own loads the file itself
            make = partial(function, **self.kwargs)
            vector = make_copies(make, name, num_envs, self.wrappers, self.asynchronous, self.log_info, self.masks)
        return GymnasiumEnv(
            vector,
            name,
            seed,
            is_users=vector is self.vector_env,
            images=self.images,
            masks=self.masks,
            log_info=self.log_info,
        )


def make(
    env_id: Any, num_envs: int, seed: int, *, vectorized: bool = True, asynchronous: bool = False, **kwargs: Any
) -> VectorEnv:
    """Makes `num_envs` copies of an environment. The arguments are fields of `Source`; see `Source.make`."""
    return Source(env_id, kwargs, vectorized=vectorized, asynchronous=asynchronous).make(num_envs, seed)


def _function_of(env: Any) -> Callable[..., Env]:
    """The function that makes an environment. Raises `UnknownEnv` if nothing has that name."""
    if not isinstance(env, str):
        return env
    module, _, name = env.rpartition(":")
    try:
        function = getattr(import_source(module), name, None) if module else None
    except (Exception, SystemExit) as error:
        raise UnknownEnv(f"environment {env!r}: cannot import module {module!r}: {error}") from error
    if name in gymnasium.registry:
        return partial(_make_registered, gymnasium.registry[name])
    if not callable(function):
        raise UnknownEnv(no_such("environment", name, gymnasium.registry))
    return function


def _make_registered(spec: gymnasium.envs.registration.EnvSpec, /, **kwargs: Any) -> Env:
    if ".mujoco." in str(spec.entry_point):
        _print_warnings_of_mujoco_once()
    # The passive checker would warn, for each copy, about faults that are errors here.
    return gymnasium.make(spec, disable_env_checker=True, **kwargs)


@cache
def _print_warnings_of_mujoco_once() -> None:
    """MuJoCo repeats its warnings about a model for each copy of it, also in a file in the working directory."""
    from gymnasium.envs.mujoco import mujoco_env

    mujoco = getattr(mujoco_env, "mujoco", None)  # where it is missing, the environment will say so
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(cache(lambda warning: complain(f"MuJoCo: {warning}")))


def _make_by_name(env: str, /, **kwargs: Any) -> Env:
    return _function_of(env)(**kwargs)


def _takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function has an argument of that name, or takes any."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return False
    return argument in parameters or any(x.kind is x.VAR_KEYWORD for x in parameters.values())


def _check_vector_env(source: Source, env: gymnasium.vector.VectorEnv[Any, Any, Any], num_envs: int) -> None:
    """Raises `ConfigError` if a vector environment cannot be used with the other settings."""
    require(num_envs == env.num_envs, f"num_envs must be {env.num_envs}, as the vector environment has, got {num_envs}")
    for name, x in (("env_kwargs", source.kwargs), ("wrappers", source.wrappers), ("async_envs", source.asynchronous)):
        require(not x, f"{name} cannot change a vector environment that is made already: give env=make_env instead")
    mode = env.metadata.get("autoreset_mode")
    require(
        mode in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value),
        f"env must be a vector environment made with autoreset_mode=AutoresetMode.NEXT_STEP, got {mode}: "
        "in other modes an episode that is cut loses its last observation",
    )
    shared = getattr(env.unwrapped, "shared_memory", True)
    require(shared, "env must be made with shared_memory=True: without it Gymnasium resets copies twice")


def _options(builtin: Callable[..., VectorEnv]) -> dict[str, Any]:
    """The options of a built-in environment, with their defaults."""
    parameters = inspect.signature(builtin).parameters.values()
    return {x.name: x.default for x in parameters if x.default is not x.empty}
