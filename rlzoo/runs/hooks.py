"""Functions of the user's that training calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlzoo.core.env import Episode
from rlzoo.core.system.errors import require
from rlzoo.runs.loop import Iteration, Trainer

OnIteration = Callable[[Trainer, Iteration], bool | Mapping[str, float] | None]


def _nothing(*_: Any) -> None:
    pass


@dataclass(frozen=True)
class Hooks:
    """Functions that training calls, each with the trainer first. They may change nothing but by `Trainer.set_attr`.

        rlzoo.train("ppo", "CartPole-v1", hooks=rlzoo.Hooks(on_evaluation=report))

    Of several processes that train one run, the first calls them.
    """

    on_start: Callable[[Trainer], Any] = _nothing
    """Called when training starts or is resumed."""
    on_episode: Callable[[Trainer, Episode], Any] = _nothing
    """Called for each episode that ended in an iteration."""
    on_iteration: OnIteration = _nothing
    """Called after each iteration. Returning True ends the run. Numbers that it returns by name, or writes into
    `iteration.metrics`, are logged."""
    on_evaluation: Callable[[Trainer, dict[str, Any]], Any] = _nothing
    """Called after each evaluation with its line of `evaluations.jsonl`."""
    on_end: Callable[[Trainer], Any] = _nothing
    """Called when the run has finished, after the final evaluations."""

    @classmethod
    def of(cls, hooks: Hooks | None, on_iteration: OnIteration | None) -> Hooks:
        """The hooks, with `on_iteration` if it is given."""
        hooks = hooks or cls()
        if on_iteration is None:
            return hooks
        require(hooks.on_iteration is _nothing, "give on_iteration either in hooks or beside them")
        return replace(hooks, on_iteration=on_iteration)
