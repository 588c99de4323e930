"""Collection of experience: acting and stepping, one forward pass, and rewards of complete rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlzoo.core.actors import Actor, rollout
from rlzoo.core.buffer import Buffer
from rlzoo.core.env import ENDLESS, Array, Bools, Episode, Experience, ReplayError, VectorEnv, restore_array, success_of
from rlzoo.core.models import ActorCritic
from rlzoo.core.seen import Seen
from rlzoo.core.system import processes
from rlzoo.core.system.errors import EnvError
from rlzoo.core.system.progress import operation
from rlzoo.core.tensors import Tensors, map_leaves, zip_leaves

_CHUNK = 32
"""Steps between two checks whether every row has completed an episode."""


class Collector:
    """Collects buffers of T steps from N copies of an environment.

    Rows continue from one buffer to the next. With `whole_episodes`, every buffer starts with a reset and holds one
    complete episode of each copy, of any length. Rows that have ended are masked until the longest ends.

    Of several processes, each gets the rows of all, whether or not the environment is divided among them.
    """

    def __init__(self, env: VectorEnv, num_steps: int = _CHUNK, whole_episodes: bool = False) -> None:
        self.env = env
        self.num_steps = num_steps
        self.whole_episodes = env.first_episodes = whole_episodes
        self._obs: Any = None
        self._forced = np.zeros(env.num_envs, np.bool_)
        self._starts = np.ones(env.num_envs, np.bool_)
        self._ended = np.zeros(env.num_envs, np.bool_)
        self._memory: Array | None = None
        rows = env.num_envs * (processes.size() if env.divided else 1)
        self._returns = np.zeros(rows)
        self._lengths = np.zeros(rows, np.int64)

    @property
    def starts_anew(self) -> bool:
        """Whether the next buffer starts with new episodes."""
        return self.whole_episodes or self._obs is None or self.env.interrupted

    @operation("sampling")
    def collect(self, actor: Actor) -> Experience:
        """Collects one buffer, without `logp` and `value`, the episodes that ended in it, and means of `info`."""
        self.env.info_sums()  # forgets those of an evaluation in the same environment
        if self.starts_anew:
            self.restart()
            obs, self._forced = self.env.reset()
            self._obs = map_leaves(_copy, obs)
            self._starts, self._ended = np.ones_like(self._forced), np.zeros_like(self._forced)
        if self._memory is not None:
            actor.memory = self._memory  # type: ignore[attr-defined]
        try:
            steps = self._first_episodes(actor) if self.whole_episodes else self._steps(actor, self.num_steps)
            while not steps.mask.any():  # possible with num_steps = 1, and nothing to learn from
                steps = self._steps(actor, self.num_steps)
        except BaseException:
            self.restart()  # the environment has gone on
            raise
        return Experience(steps.buffer(), self._episodes(steps), self._info_means())

    def _first_episodes(self, actor: Actor) -> _Steps:
        """One episode a row, up to the end of the longest. The steps after a row's end are masked."""
        chunks = [self._steps(actor, _CHUNK)]
        ended = chunks[0].done.any(0)
        while not ended.all():
            if len(chunks) * _CHUNK > ENDLESS:
                raise EnvError(f"an episode has not ended after {ENDLESS} steps: whole episodes must end")
            chunks.append(self._steps(actor, _CHUNK))
            ended |= chunks[-1].done.any(0)
        within = [chunk.replace(obs=map_leaves(lambda x: x[:-1], chunk.obs)) for chunk in chunks[:-1]]
        steps: _Steps = zip_leaves(np.concatenate, [*within, chunks[-1]])
        before = np.cumsum(steps.done, axis=0) - steps.done
        mask = steps.mask & (before == 0)
        longest = int(mask.any(1).nonzero()[0][-1]) + 1
        cut = steps.replace(mask=mask).map(lambda x: x[:longest])
        return cut.replace(obs=map_leaves(lambda x: x[: longest + 1], steps.obs))

    def _steps(self, actor: Actor, steps: int) -> _Steps:
        """Only acting and stepping, at once if the actor can."""
        at_once = rollout(self.env, actor, self._obs, steps)
        own = self._step_by_step(actor, steps) if at_once is None else self._of_rollout(*at_once)
        return own.all_gather() if self.env.divided else own

    def _of_rollout(self, action: Array, obs: Array, reward: Array, *ends: Bools) -> _Steps:
        """What the actor did at once. The next buffer goes on from it."""
        terminated, truncated, forced = ends
        ended = [self._starts, self._ended, *(terminated | truncated)]
        mask = ~np.concatenate([self._forced[None], forced[:-1]])
        self._obs, self._forced, self._starts, self._ended = obs[-1], forced[-1], ended[-2], ended[-1]
        return _Steps(obs, action, reward, terminated, truncated, mask)

    def _step_by_step(self, actor: Actor, steps: int) -> _Steps:
        """The inner loop."""
        n = self.env.num_envs
        forced, starts = np.empty((steps + 1, n), bool), np.empty((steps + 1, n), bool)
        reward = np.empty((steps, n), np.float32)
        terminated, truncated = np.empty((steps, n), bool), np.empty((steps, n), bool)
        success = None if self.env.success is None else np.empty((steps, n))
        obs, forced[0], starts[0] = [self._obs], self._forced, self._starts
        ended, memories, actions = self._ended, [self._memory], []
        step = self.env.step
        for t in range(steps):
            action = actor(obs[t], forced[t], starts[t])
            following, reward[t], terminated[t], truncated[t], forced[t + 1] = step(action.copy())
            starts[t + 1], ended = ended, terminated[t] | truncated[t]
            obs.append(following.copy() if type(following) is np.ndarray else map_leaves(_copy, following))
            actions.append(action)
            memories.append(getattr(actor, "memory", None))
            if success is not None:
                success[t] = self.env.success
        self._obs, self._forced, self._starts, self._ended = obs[-1], forced[-1], starts[-1], ended
        seen = zip_leaves(np.stack, obs)
        if memories[-1] is not None:  # recurrent networks see more than the observation
            memories[0] = np.zeros_like(memories[-1]) if memories[0] is None else memories[0]
            self._memory = memories[-1]
            seen = Seen.of(seen).replace(start=starts, memory=np.stack(memories))  # type: ignore[arg-type]
        own = _Steps(seen, np.stack(actions), reward, terminated, truncated, ~forced[:-1], success)
        if (own.done & forced[:-1]).any():
            raise EnvError("an episode ended in a forced step; the step that ends it must be one of the policy's")
        if (own.truncated & ~forced[1:]).any():
            raise EnvError("the step after a truncation must be forced: it observes the final state (see VectorEnv)")
        if memories[-1] is not None and (own.terminated & ~forced[1:]).any():
            raise EnvError("the step after a termination must be forced for a network with memory (see VectorEnv)")
        return own

    def _episodes(self, steps: _Steps) -> list[Episode]:
        """The episodes that ended, in the order in which they ended. The others continue in the next buffer."""
        returns = self._returns + np.cumsum(steps.reward * steps.mask, axis=0, dtype=np.float64)
        lengths = self._lengths + np.cumsum(steps.mask, axis=0)
        past_return, past_length = np.zeros_like(self._returns), np.zeros_like(self._lengths)
        episodes = []
        for t, i in np.argwhere(steps.done & steps.mask):
            return_, length = float(returns[t, i] - past_return[i]), int(lengths[t, i] - past_length[i])
            episodes.append(Episode(return_, length, success_of(steps.success, t, i)))
            past_return[i], past_length[i] = returns[t, i], lengths[t, i]
        self._returns, self._lengths = returns[-1] - past_return, lengths[-1] - past_length
        return episodes

    def _info_means(self) -> dict[str, float]:
        """The means of the numbers in `info`, over the steps that had them."""
        sums = torch.from_numpy(self.env.info_sums())
        totals = zip(self.env.log_info, processes.all_reduce_(sums) if self.env.divided else sums, strict=True)
        return {f"info_{name}": float(total / count) for name, (total, count) in totals if count}

    def restart(self) -> None:
        """Starts new episodes with the next buffer, and drops unfinished ones."""
        self._obs = None
        self._returns[:], self._lengths[:] = 0, 0

    def state_dict(self) -> dict[str, Any]:
        """All that the next buffer depends on except the actor. `env` is None if it cannot give its state."""
        whole = self.whole_episodes or self._obs is None
        obs = Seen(None) if whole else Seen.of(self._obs)
        own = {"obs": obs.obs, "legal": obs.legal, "memory": self._memory}
        own |= {"forced": self._forced, "starts": self._starts, "ended": self._ended}
        env = self.env.state_dict()
        if self.env.divided:
            gather = processes.all_gather
            own = {name: x if x is None else gather(torch.from_numpy(x))[0].numpy() for name, x in own.items()}
            of_all = processes.all_gather_object(env)
            if None in of_all:
                env = None
            elif "copies" in of_all[0]:
                env = {**of_all[0], "copies": [copy for state in of_all for copy in state["copies"]]}
        return {"env": env, **own, "returns": self._returns, "lengths": self._lengths}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state. Without a state of the environment, new episodes start."""
        if state["env"] is None:
            return
        own = processes.own_rows(len(self._returns)) if self.env.divided else slice(None)
        env, fault = state["env"], None
        try:
            self.env.load_state_dict({**env, "copies": env["copies"][own]} if "copies" in env else env)
        except ReplayError as error:
            fault = error
        if processes.all_reduce(float(fault is not None)):
            raise fault or ReplayError("an environment of another process does not repeat an episode")
        if self.env.divided:
            rows = ("obs", "legal", "forced", "memory", "starts", "ended")
            state = {name: x[own] if name in rows and x is not None else x for name, x in state.items()}
        obs, legal, memory = state["obs"], state.get("legal"), state.get("memory")
        for name, x in (("observations", obs), ("legal actions", legal), ("memory", memory)):
            if x is not None and np.shape(x)[:1] != self._forced.shape:
                raise ValueError(f"{name} of shape {np.shape(x)} given, {len(self._forced)} rows needed")
        self._obs = obs if legal is None else Seen(obs, legal)
        self._forced = restore_array(state["forced"], self._forced)
        self._returns = restore_array(state["returns"], self._returns)
        self._lengths = restore_array(state["lengths"], self._lengths)
        self._memory = memory
        if "starts" in state:  # rlzoo 0.1.0 saved it for networks with memory alone
            self._starts = restore_array(state["starts"], self._starts)
            self._ended = restore_array(state["ended"], self._ended)


def _copy(x: Any) -> Any:
    """A copy of what an environment returned, since it may overwrite its arrays."""
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


@dataclass(frozen=True)
class _Steps(Tensors):
    """Arrays with time first: (T, N), and `obs` (T + 1, N, *obs) or a structure of such arrays."""

    obs: Any
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    success: Array | None = None

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated

    def all_gather(self) -> _Steps:
        """The steps of all processes."""
        of_all = processes.all_gather(*map(torch.as_tensor, self.tensors()), dim=1)
        return self.with_tensors(of_all).map(torch.Tensor.numpy)

    def buffer(self) -> Buffer:
        rows: Any = self.map(lambda x: torch.from_numpy(np.ascontiguousarray(x.swapaxes(0, 1))))
        return Buffer(rows.obs, rows.action, rows.reward, rows.terminated, rows.truncated, rows.mask)


@operation("log-probabilities")
@torch.no_grad()
def evaluate(model: ActorCritic, buffer: Buffer) -> Buffer:
    """Fills `logp` and `value` by one forward pass of the training model.

    So the ratio π/π_old of the first minibatch is 1 up to rounding, even if acting used another implementation. Each
    process computes its own rows. The value is a copy, since it may be a view of a parameter, which training changes.
    """

    def forward(rows: Buffer) -> tuple[torch.Tensor, torch.Tensor]:
        policy, value = model(rows.obs)
        return policy.map(lambda x: x[:, : rows.action.shape[1]]).log_prob(rows.action), value.clone()

    logp, value = processes.rowwise(forward, buffer)
    return buffer.replace(logp=logp, value=value)


@operation("scoring")
@torch.no_grad()
def score(env: VectorEnv, experience: Experience) -> Experience:
    """Adds the rewards that are known only when rows are complete. Each process measures its own rows."""
    return env.score(experience, *processes.rowwise(env.measure, experience.buffer))
