"""The table of tasks: name → task class, imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from rlzoo.core.errors import ConfigError, UnknownEnv, no_such

if TYPE_CHECKING:
    from rlzoo.core.task import Task


class Entry(NamedTuple):
    """A task of the table."""

    task: str
    """`module:Class` of the task."""
    description: str
    all_cores: bool = False
    """Whether it is fastest on all cores; small networks are fastest on one."""


TASKS = {
    "RandomWalks": Entry(
        "rlzoo.lm.tasks.random_walks:RandomWalks",
        "walks to a goal in a graph of 21 nodes (trlX's benchmark); reports exact expected optimality",
        all_cores=True,
    ),
    "Reviews": Entry(
        "rlzoo.lm.tasks.reviews:Reviews",
        "short product reviews that should come out positive; a whole RLHF pipeline on text made here",
        all_cores=True,
    ),
    "Prompts": Entry(
        "rlzoo.lm.tasks.prompts:Prompts",
        "any prompts, language model and score: --prompts FILE --model DIR --reward module:function",
        all_cores=True,
    ),
}
"""Tasks with a name of their own. Any other name is that of a Gymnasium environment, or `module:Class`."""

CONTROL = "rlzoo.control.task:ControlTask"


def task_class(name: str) -> type[Task]:
    """The task of that name.

    Args:
        name: a name of the table; `module:Class` of a `Task`; or an environment id, `module:Id` included.

    Raises:
        UnknownEnv: there is none; the nearest name is suggested.
        ConfigError: the module has neither a task nor an environment of that name.
    """
    if name in TASKS:
        return _load(TASKS[name].task)
    found = _user_task(name)
    return _load(CONTROL) if found is None else found


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _user_task(name: str) -> type[Task] | None:
    """The task that `module:Class` names; None if the name is that of a Gymnasium environment."""
    import gymnasium

    from rlzoo.core.task import Task

    module, _, attribute = name.rpartition(":")
    if not module:
        if name not in gymnasium.registry:
            near = difflib.get_close_matches(name, [*gymnasium.registry, *TASKS], n=1)
            raise UnknownEnv(no_such("environment", name, near))
        return None
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise UnknownEnv(f"environment {name!r}: cannot import module {module!r}: {error}") from error
    if isinstance(found, type) and issubclass(found, Task):
        return found
    if attribute not in gymnasium.registry:
        raise ConfigError(f"{name!r}: module {module!r} has no Task {attribute!r} and registers no such environment")
    return None


def uses_all_cores(name: str) -> bool:
    """Whether a task is fastest on all cores. Imports nothing."""
    return name in TASKS and TASKS[name].all_cores


def cores() -> int:
    """Processors of this machine."""
    return os.cpu_count() or 1
