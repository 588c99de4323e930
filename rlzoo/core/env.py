"""The interface of an environment, and what collection returns."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlzoo.core.system.errors import ConfigError, EnvError

if TYPE_CHECKING:  # environments do not need PyTorch
    from torch import Tensor

    from rlzoo.core.buffer import Buffer

Array = NDArray[Any]
Bools = NDArray[np.bool_]


def env_name(env: Any) -> str:
    """The name of an environment: its id, or the name of the function or class that makes it."""
    if isinstance(env, str):
        return env
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    return str(spec_id or getattr(env, "__name__", type(env).__name__)).strip("<>")


ENDLESS = 100_000
"""Steps after which an episode counts as endless."""


class Episode(NamedTuple):
    """A finished episode."""

    return_: float
    """Undiscounted sum of rewards; for a language model, the score of the response."""
    length: int
    """Steps."""
    success: bool | None = None
    """Whether it reached its goal (`info["is_success"]`); None if the environment does not tell."""
    cut: bool = False
    """Whether an evaluation ended it after `ENDLESS` steps."""


def success_of(success: Array | None, *index: Any) -> bool | None:
    """The success at `index` of an array such as `VectorEnv.success`."""
    return None if success is None or np.isnan(success[index]) else bool(success[index])


class Experience(NamedTuple):
    """A buffer, its finished episodes, and environment metrics."""

    buffer: Buffer
    episodes: list[Episode]
    """Episodes that ended in the buffer."""
    metrics: dict[str, float]
    """Environment metrics, by name."""


def restore_array(x: Any, own: Array) -> Array:
    """A copy of an array of a saved state, in the dtype of `own`. Raises `ValueError` if it has another shape."""
    if np.shape(x) != own.shape:
        raise ValueError(f"state of shape {np.shape(x)} given, {own.shape} needed")
    return np.array(x, own.dtype)


class ReplayError(EnvError):
    """An environment did not repeat an episode."""


class VectorEnv(abc.ABC):
    """N copies of an environment that are stepped together, with autoreset.

    `forced[i]` means that copy i will ignore the next action. Autoreset is Gymnasium's NEXT_STEP mode: the step that
    ends an episode returns its *final* observation, with `terminated` or `truncated` set and `forced` true. The
    next step ignores that copy's action and returns the first observation of a new episode, with reward 0 and
    `terminated`, `truncated` and `forced` false. An environment may also force steps in the middle of an episode: their
    rewards do not count, and no episode may end in one.

    An observation is an array (N, *obs), or a structure of arrays where the model sees more than one: `Seen` with the
    legal actions, or `Tokens` of a language model. Returned arrays may be overwritten by the next call.
    """

    num_envs: int
    success: Array | None = None
    """(N,) 1 or 0 where the last step ended an episode that told whether it was a success, else NaN. None for an
    environment that never tells."""
    divided: bool = False
    """Whether these are only this process's copies, and other processes have the others. An environment that is not
    divided is stepped as a whole in every process, with the same results."""

    log_info: tuple[str, ...] = ()
    """Keys of `info` whose means are metrics."""
    first_episodes: bool = False
    """Whether these means are over the first episode of each copy since the last reset alone."""
    interrupted: bool = False
    """Whether the copies were reset elsewhere since the last reset here, so that their episodes are others."""
    attributes: Mapping[str, Any] = MappingProxyType({})
    """The attributes that `set_attr` has set."""

    @abc.abstractmethod
    def reset(self) -> tuple[Any, Bools]:
        """Starts a new episode in every copy, and returns `obs` (N, *obs) and `forced` (N,).

        The random streams continue, so two calls give different episodes.
        """

    @abc.abstractmethod
    def step(self, action: Array) -> tuple[Any, Array, Bools, Bools, Bools]:
        """Takes one step in every copy.

        Args:
            action: (N,) or (N, A), as the policy's distribution samples them.

        Returns:
            `obs` (N, *obs), `reward` (N,) float32, `terminated`, `truncated` and `forced` (N,).
        """

    def info_sums(self) -> Array:
        """(K, 2) for the K keys of `log_info`: the sum since the last call, and the steps of which `info` had it."""
        return np.zeros((0, 2))

    def set_attr(self, name: str, value: Any) -> None:
        """Sets an attribute of each copy, from its next step on. The attributes are part of the state.

        Args:
            value: numbers, texts, lists and dicts.

        Raises:
            ConfigError: the copies have no such attribute, or cannot be changed.
        """
        remedy = "a built-in one has them with vectorized=False"
        raise ConfigError(f"set_attr: {type(self).__name__} has no copies of a Gymnasium environment; {remedy}")

    def measure(self, rows: Buffer) -> tuple[Tensor, ...]:
        """What `score` needs to know of complete rows: tensors with one entry for each of these rows."""
        return ()

    def score(self, experience: Experience, *measured: Tensor) -> Experience:
        """Adds rewards that are known only when rows are complete, from `measure` of all rows. By default, none."""
        return experience

    def state_dict(self) -> dict[str, Any] | None:
        """All that the next steps depend on, as arrays and JSON values; None if the environment cannot give it.

        A list "copies" has an item for each of this process's copies. Other keys are the same in all processes.
        """
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state of `state_dict` exactly.

        Raises:
            ReplayError: it repeated its episodes, and something was not as before.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot restore a state")

    def reseed(self, seed: int) -> bool:
        """Makes the next `reset` begin as in a new environment with this seed. False if that is not possible."""
        return False

    def close(self) -> None:
        """Releases resources."""
