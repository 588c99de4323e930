"""What a control model sees of a step besides the observation, each part by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlzoo.core.tensors import Tensors


@dataclass(frozen=True)
class Seen(Tensors):
    """What a model sees at each step. `...` is (N, T) in a buffer, and (N,) when acting.

    Where a model sees the observation alone, a plain tensor stands for `Seen(obs)`.
    """

    obs: Any
    """(..., *obs)."""
    legal: Any = None
    """(..., K) booleans: whether each category of the action is legal; None if all are."""
    start: Any = None
    """(...) booleans: whether an episode begins with this step. Recurrent networks need it."""
    memory: Any = None
    """(..., M) the memory of the recurrent networks before the step, as acting had it."""

    @classmethod
    def of(cls, x: Any) -> Seen:
        """`x` itself, or the observation alone."""
        return x if isinstance(x, cls) else cls(x)
