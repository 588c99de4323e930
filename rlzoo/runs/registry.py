"""The tables of algorithms and tasks: names and classes, which are imported when they are used."""

from __future__ import annotations

import importlib
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

from rlzoo.core.system.errors import UnknownEnv, no_such, require
from rlzoo.core.system.functions import import_source

if TYPE_CHECKING:
    from rlzoo.core.task import Task


class Entry(NamedTuple):
    """A registered algorithm or task."""

    path: str
    """`module:Class`."""
    description: str


ALGORITHMS = {
    "reinforce": Entry("rlzoo.algorithms.reinforce:Reinforce", "REINFORCE (Williams 1992)"),
    "npg": Entry("rlzoo.algorithms.npg:NPG", "natural policy gradient (Kakade 2001)"),
    "trpo": Entry("rlzoo.algorithms.trpo:TRPO", "trust region policy optimisation (Schulman et al. 2015)"),
    "ppo-penalty": Entry(
        "rlzoo.algorithms.ppo_penalty:PPOPenalty", "proximal policy optimisation, KL penalty (Schulman et al. 2017)"
    ),
    "ppo-clip": Entry(
        "rlzoo.algorithms.ppo_clip:PPOClip",
        "proximal policy optimisation, clipped ratio (Schulman et al. 2017); also: ppo",
    ),
}
"""The registered algorithms. Any other name is `module:Class`."""
ALIASES = {"ppo": "ppo-clip"}

_NEIGHBOURS = {
    "grpo": "ppo-clip --estimator grpo",
    "dr-grpo": "ppo-clip --estimator dr-grpo",
    "rloo": "ppo-clip --estimator rloo",
    "a2c": "ppo-clip --epochs 1 --minibatch-size all",
    "vpg": "reinforce",
}
"""What trains as algorithms of other libraries do."""
_OFF_POLICY = ("sac", "td3", "ddpg", "dqn", "qrdqn", "tqc", "crossq")

TASKS = {
    "RandomWalks": Entry(
        "rlzoo.lm.tasks.random_walks:RandomWalks",
        "walks to a goal in a graph of 21 nodes (a benchmark of trlX); reports the exact expected optimality",
    ),
    "Reviews": Entry(
        "rlzoo.lm.tasks.reviews:Reviews",
        "short product reviews with positive sentiment; a complete RLHF pipeline on generated text",
    ),
    "Arithmetic": Entry("rlzoo.lm.tasks.arithmetic:Arithmetic", "sums of two numbers; the answer is checked"),
    "Countdown": Entry(
        "rlzoo.lm.tasks.countdown:Countdown",
        "reach a number from three given ones; the expression is parsed and checked",
    ),
    "Calculator": Entry(
        "rlzoo.lm.tasks.calculator:Calculator",
        "products with a calculator to ask, in two turns or more; the answer is checked",
    ),
    "Sums": Entry(
        "rlzoo.lm.tasks.sums:Sums", "sums asked of a chat model, SmolLM2-135M-Instruct; the answer is checked"
    ),
    "SmallSums": Entry("rlzoo.lm.tasks.sums:SmallSums", "the same with numbers up to 20"),
    "Sentiment": Entry(
        "rlzoo.lm.tasks.sentiment:Sentiment",
        "openings of reviews, stories and letters that SmolLM2-135M-Instruct continues; the sentiment is the score",
    ),
    "Instructions": Entry(
        "rlzoo.lm.tasks.instructions:Instructions",
        "instructions of ten kinds to SmolLM2-135M-Instruct; whether it follows them is checked",
    ),
    "Prompts": Entry(
        "rlzoo.lm.tasks.language:LanguageTask",
        "your own prompts, language model and score: --prompts FILE --model DIR --reward module:function",
    ),
}
"""The registered tasks. Any other name is `module:Class` of a task, or a Gymnasium environment."""

CONTROL = "rlzoo.control.task:ControlTask"
_REGISTERS = "rlzoo.control.envs.no_velocity"
"""Module that registers environments of ours with Gymnasium."""


def algorithm_class(name: str) -> Any:
    """The class of a registered algorithm, a `rlzoo.Algorithm`."""
    return resolve_name(ALGORITHMS[name].path)


def check_neighbour(name: str) -> None:
    """Raises `ConfigError` for an algorithm of other libraries that has another name here, or none."""
    plain, fault = name.lower(), f"no algorithm {name!r}"
    require(plain not in _OFF_POLICY, f"{fault}: it is off-policy, and all algorithms here are on-policy")
    require(plain not in _NEIGHBOURS, f"{fault}; use {_NEIGHBOURS.get(plain)}")


def task_class(name: Any) -> type[Task]:
    """The class of the task `name`.

    Args:
        name: a registered task, a `Task` or its `module:Class`, a Gymnasium id, `module:Id` of an environment that the
            module registers, or an object that `ControlTask` takes as an environment.

    Raises:
        UnknownEnv: there is no such task or environment (the nearest name is suggested), or the module cannot be
            imported.
        ConfigError: the module has no task and no environment of that name.
    """
    from rlzoo.core.task import Task

    if isinstance(name, str) and name in TASKS:
        return resolve_name(TASKS[name].path)
    cls = _in_module(name) if isinstance(name, str) else name
    return cls if isinstance(cls, type) and issubclass(cls, Task) else resolve_name(CONTROL)


def reward_threshold(env: str) -> float | None:
    """Mean return at which an environment counts as solved, by the registry of Gymnasium."""
    import gymnasium

    spec = gymnasium.registry.get(env)
    return None if spec is None or spec.reward_threshold is None else float(spec.reward_threshold)


def _in_module(name: str) -> Any:
    """The task or environment that `module:name` names; None if Gymnasium makes it from its id."""
    import gymnasium

    from rlzoo.core.task import Task

    importlib.import_module(_REGISTERS)
    module, _, attribute = name.rpartition(":")
    if not module:
        if name not in gymnasium.registry:
            space = name[: name.find("/") + 1]
            if space and not any(known.startswith(space) for known in gymnasium.registry):
                remedy = f"name the one that does before a colon, such as ale_py:{name}"
                raise UnknownEnv(f"no environment {name!r}: no imported module registers {space}; {remedy}")
            raise UnknownEnv(no_such("environment", name, (*gymnasium.registry, *TASKS)))
        return None
    try:
        target = getattr(import_source(module), attribute, None)
    except (Exception, SystemExit) as error:
        raise UnknownEnv(f"environment {name!r}: cannot import module {module!r}: {error}") from error
    makes = issubclass(target, gymnasium.Env | Task) if isinstance(target, type) else callable(target)
    fault = f"module {module!r} has no Task or function of this name and registers no such environment"
    require(makes or attribute in gymnasium.registry, f"{name!r}: {fault}")
    return target
