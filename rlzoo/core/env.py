"""What collection asks of an environment, and the errors an environment may raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlzoo.core.buffer import Buffer

Array = NDArray[Any]
Bools = NDArray[np.bool_]


class UnknownEnv(ValueError):  # noqa: N818
    """No environment is registered under the name asked for."""


class UnsupportedSpace(ValueError):  # noqa: N818
    """An observation or action space that no policy here can be built for."""


class EnvError(RuntimeError):
    """An environment that could not be made, or that broke while it ran."""


class VectorEnv(Protocol):
    """N copies of one environment stepped together, ended episodes starting again by themselves.

    `forced[i]` says that the action taken next in copy i will be ignored. Autoreset is Gymnasium's
    NEXT_STEP mode: the step that ends an episode returns its *final* observation, with `terminated` or
    `truncated` set and `forced` true; the next step ignores that copy's action and returns the first
    observation of a new episode with reward 0 and `terminated`, `truncated` and `forced` false.

    An action is (N,) int64 counted from zero for `Discrete`, (N, A) float32 for `Box` (flattened, and
    clipped to the bounds here rather than by the caller), and (N, K) int64 counted from zero for
    `MultiDiscrete` and `MultiBinary` (flattened). Returned arrays may be overwritten by the next call.
    """

    num_envs: int
    observation_space: gymnasium.spaces.Box
    """Observation space of one copy, flattened to (D,)."""
    action_space: gymnasium.Space[Any]
    """Action space of one copy: `Discrete`, `Box`, `MultiDiscrete` or `MultiBinary`."""

    def reset(self) -> tuple[Array, Bools]:
        """Start a new episode in every copy: `obs` (N, D) float32 and `forced` (N,).

        The random streams go on from where they are, so that two calls give different episodes.
        """
        ...

    def step(self, action: Array) -> tuple[Array, Array, Bools, Bools, Bools]:
        """`obs` (N, D) float32, `reward` (N,) float32, `terminated`, `truncated`, `forced` (N,)."""
        ...

    def settle(self, buffer: Buffer) -> Buffer:
        """Add to the buffer what is known only once its rows are complete."""
        ...

    def state_dict(self) -> dict[str, Any] | None:
        """Everything the next steps depend on, as arrays and JSON values; None if it cannot be given."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `state_dict`, to the last bit."""
        ...

    def close(self) -> None:
        """Release what the copies hold."""
        ...
