"""Wrappers of single environments, given as classes, functions, or text such as `module:Class(key=value)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from rlzoo.core.system.errors import ConfigError, EnvError, describe_error
from rlzoo.core.system.functions import load_function

Env = gymnasium.Env[Any, Any]
_FORM = "a class, a function of an environment, module:Class or module:Class(key=value)"
_EXAMPLE = "such as wrappers=[MyWrapper] or gymnasium.wrappers:TimeLimit(max_episode_steps=100)"


def load_wrapper(wrapper: Any) -> Callable[[Env], Env]:
    """The function that wraps an environment. Arguments in a text are Python literals; nothing is evaluated.

    Raises:
        ConfigError: the text has another form, it names nothing that can be called, or `wrapper` is no function.
    """
    if callable(wrapper):
        return wrapper
    match = re.fullmatch(r"(.+\.py|[\w.]+):(\w+)(?:\((.*)\))?", wrapper.strip()) if isinstance(wrapper, str) else None
    if match is None:
        raise ConfigError(f"a wrapper must be {_FORM}, {_EXAMPLE}, got {wrapper!r}")
    module, name, arguments = match.groups()
    wrap_env = load_function("wrapper", f"{module}:{name}")
    return partial(wrap_env, **_keywords(wrapper, arguments)) if arguments else wrap_env


def _keywords(wrapper: str, arguments: str) -> dict[str, Any]:
    """The keyword arguments in a wrapper's text."""
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("more than one call")
        if call.args or None in [x.arg for x in call.keywords]:
            raise ValueError("only key=value")
        return {str(x.arg): ast.literal_eval(x.value) for x in call.keywords}
    except (ValueError, SyntaxError, TypeError) as error:  # TypeError: a list as the key of a dict
        form = "key=value with numbers, strings, True, False, None, lists or dicts"
        raise ConfigError(f"wrapper {wrapper!r}: its arguments must be {form}, {_EXAMPLE}") from error


def wrap(env: Env, wrappers: Sequence[Any]) -> Env:
    """The environment inside the wrappers, the first one innermost.

    Raises `EnvError` if a wrapper failed, or returned no environment.
    """
    for wrapper in wrappers:
        name = wrapper if isinstance(wrapper, str) else getattr(wrapper, "__name__", repr(wrapper))
        function = load_wrapper(wrapper)
        try:
            env = function(env)
        except (Exception, SystemExit) as error:
            raise EnvError(f"wrapper {name} cannot wrap the environment: {describe_error(error)}") from error
        if not isinstance(env, gymnasium.Env):
            raise EnvError(f"wrapper {name} returned {env!r}, not an environment: end it with `return env`")
    return env
