"""Collection of experience: act only; then one teacher-forced pass for log-probabilities and values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from rlzoo.control.acting import ActionNoise, Actor, Array
from rlzoo.control.envs import EnvError, VectorEnv
from rlzoo.core.buffer import Buffer
from rlzoo.core.models import ActorCritic

_CHUNK = 32
_ENDLESS = 100_000


class Episode(NamedTuple):
    """A finished episode."""

    return_: float
    """Undiscounted sum of rewards."""
    length: int
    """Steps."""


class Collector:
    """Steps N copies of an environment with a policy, T steps a buffer.

    Rows go on from one buffer to the next, except with `whole_episodes`: then every buffer starts all copies
    afresh and takes one complete episode from each, however long; rows that have ended are forced until the
    longest ends.
    """

    def __init__(self, env: VectorEnv, noise: ActionNoise, num_steps: int, whole_episodes: bool = False) -> None:
        self.env = env
        self.noise = noise
        self.num_steps = num_steps
        self.whole_episodes = whole_episodes
        self._obs, self._forced = env.reset()
        self._returns = np.zeros(env.num_envs)
        self._lengths = np.zeros(env.num_envs, np.int64)

    def collect(self, actor: Actor) -> tuple[Buffer, list[Episode]]:
        """One buffer, without `logp` and `value`, and the episodes that ended in it."""
        if not self.whole_episodes:
            return self._finish(self._steps(actor, self.num_steps))
        self._obs, self._forced = self.env.reset()
        chunks = [self._steps(actor, _CHUNK)]
        ended = chunks[0].done.any(0)
        while not ended.all():
            if len(chunks) * _CHUNK > _ENDLESS:
                raise EnvError(f"an episode is still going on after {_ENDLESS} steps: whole episodes must end")
            chunks.append(self._steps(actor, _CHUNK))
            ended |= chunks[-1].done.any(0)
        return self._finish(_join_first_episodes(chunks))

    def _steps(self, actor: Actor, steps: int) -> _Steps:
        """The loop that everything waits for: nothing but acting and stepping."""
        n = self.env.num_envs
        noise = self.noise.draw(steps)
        obs = np.empty((steps + 1, *self._obs.shape), self._obs.dtype)
        forced = np.empty((steps + 1, n), bool)
        reward = np.empty((steps, n), np.float32)
        terminated, truncated = np.empty((steps, n), bool), np.empty((steps, n), bool)
        actions = []
        obs[0], forced[0] = self._obs, self._forced
        step = self.env.step
        for t in range(steps):
            action = actor(obs[t], noise[t])
            obs[t + 1], reward[t], terminated[t], truncated[t], forced[t + 1] = step(action)
            actions.append(action)
        self._obs, self._forced = obs[-1], forced[-1]
        return _Steps(obs, np.stack(actions), reward, terminated, truncated, ~forced[:-1])

    def _finish(self, steps: _Steps) -> tuple[Buffer, list[Episode]]:
        if self.whole_episodes:
            self._returns[:], self._lengths[:] = 0, 0
        return steps.buffer(), self._episodes(steps)

    def _episodes(self, steps: _Steps) -> list[Episode]:
        """The episodes that ended, in order of their end; what is left of the others is carried on."""
        returns = self._returns + np.cumsum(steps.reward * steps.mask, axis=0, dtype=np.float64)
        lengths = self._lengths + np.cumsum(steps.mask, axis=0)
        past_return, past_length = np.zeros_like(self._returns), np.zeros_like(self._lengths)
        episodes = []
        for t, i in np.argwhere(steps.done & steps.mask):
            episodes.append(Episode(float(returns[t, i] - past_return[i]), int(lengths[t, i] - past_length[i])))
            past_return[i], past_length[i] = returns[t, i], lengths[t, i]
        self._returns, self._lengths = returns[-1] - past_return, lengths[-1] - past_length
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """All that the next buffer depends on but the policy. `env` is None if it cannot give its state."""
        return {
            "env": self.env.state_dict(),
            "noise": self.noise.state_dict(),
            "obs": self._obs,
            "forced": self._forced,
            "returns": self._returns,
            "lengths": self._lengths,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken; with new episodes if the environment's own state is missing."""
        self.noise.load_state_dict(state["noise"])
        if state["env"] is None:
            return
        self.env.load_state_dict(state["env"])
        self._obs, self._forced = state["obs"], state["forced"]
        self._returns, self._lengths = state["returns"], state["lengths"]


class _Steps(NamedTuple):
    """Arrays with time first: (T, N), and (T + 1, N, *obs)."""

    obs: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated

    def buffer(self) -> Buffer:
        def rows(x: Array) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1)))

        obs, action, reward, terminated, truncated, mask = map(rows, self)
        return Buffer(obs, action, reward, terminated, truncated, mask)


def _join_first_episodes(chunks: list[_Steps]) -> _Steps:
    """One episode a row, cut where the longest ends; what a row did after its end is masked."""
    first_obs = np.concatenate([*(c.obs[:-1] for c in chunks), chunks[-1].obs[-1:]])
    rest = [np.concatenate(parts) for parts in list(zip(*chunks, strict=True))[1:]]
    steps = _Steps(first_obs, *rest)
    before = np.cumsum(steps.done, axis=0) - steps.done
    mask = steps.mask & (before == 0)
    longest = int(mask.any(1).nonzero()[0][-1]) + 1
    return _Steps(first_obs[: longest + 1], *(x[:longest] for x in (*rest[:-1], mask)))


@torch.no_grad()
def evaluate(model: ActorCritic, buffer: Buffer) -> Buffer:
    """`buffer` with `logp` and `value` from one pass of the training forward.

    So the ratio π/π_old of the first minibatch is 1 to rounding, however the actions were computed.
    """
    policy, value = model(buffer.obs)
    steps = buffer.action.shape[1]
    return buffer.replace(logp=policy.map(lambda x: x[:, :steps]).log_prob(buffer.action), value=value)
