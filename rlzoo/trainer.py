"""The one loop that trains every algorithm: collect, evaluate, settle, update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rlzoo import envs
from rlzoo.actors import ActionNoise, make_actor
from rlzoo.algorithms import Metrics
from rlzoo.checkpoint import Checkpoint
from rlzoo.collect import Collector, Episode, evaluate
from rlzoo.config import Config
from rlzoo.models import ActorCritic, RewardScale


@dataclass(frozen=True)
class Iteration:
    """What one turn of the loop did."""

    step: int
    """Environment steps so far."""
    metrics: Metrics
    episodes: list[Episode]
    """Those that ended in this iteration."""


class Trainer:
    """Collect, evaluate, settle, update: the state of a run, and the turn that moves it on.

    Every random thing draws from a stream of its own, spawned from the seed: environment, action noise,
    minibatch order, initialisation.
    """

    def __init__(self, config: Config, model: ActorCritic | None = None) -> None:
        self.config = config
        env_seed, noise_seed, batch_seed, init_seed = np.random.SeedSequence(config.seed).spawn(4)
        self.env = self._make_env(env_seed)
        self.model = model or config.network.build(
            self.env.observation_space,
            self.env.action_space,
            torch.Generator().manual_seed(int(init_seed.generate_state(1)[0])),
        )
        if config.normalize_reward:
            self.model.reward_scale = RewardScale(config.num_envs, config.algorithm.estimator.gamma)
        self.model.to(config.device)
        self.algorithm = config.algorithm
        self.state = self.algorithm.init(self.model, np.random.default_rng(batch_seed))
        for optimizer in self.state.optimizers.values():
            optimizer.compile = config.compile
        noise = ActionNoise(
            self.env.action_space,
            config.num_envs,
            np.random.default_rng(noise_seed),
            config.noise_correlation,
        )
        self.collector = self._make_collector(noise)
        self.step = 0

    def _make_env(self, seed: np.random.SeedSequence) -> envs.VectorEnv:
        config = self.config
        number = int(seed.generate_state(1)[0])
        return envs.make(config.env, config.num_envs, number, vectorized=config.vectorized, **config.env_kwargs)

    def _make_collector(self, noise: ActionNoise) -> Collector:
        return Collector(self.env, noise, self.config.num_steps, self.config.whole_episodes)

    @property
    def done(self) -> bool:
        return self.step >= self.config.total_steps

    def iterate(self) -> Iteration:
        """One turn: a buffer of experience, and the algorithm's update on it."""
        buffer, episodes = self.collector.collect(make_actor(self.model))
        buffer = buffer.map(lambda x: x.to(self.config.device))
        buffer = self.env.settle(evaluate(self.model, buffer))
        self.state.progress = self.step / self.config.total_steps
        trained = buffer if self.model.reward_scale is None else self.model.reward_scale(buffer)
        metrics = self.algorithm.update(self.model, self.state, trained)
        if self.model.normalizer is not None:
            self.model.normalizer.update(buffer.obs[:, :-1], buffer.mask)
        self.step += buffer.num_steps
        return Iteration(self.step, metrics, episodes)

    def checkpoint(self) -> Checkpoint:
        """All that the rest of the run depends on."""
        state = {
            "step": self.step,
            "algorithm": self.state.state_dict(),
            "collector": self.collector.state_dict(),
        }
        return Checkpoint(self.model.state_dict(), state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Goes on where `checkpoint` was taken; with new episodes if the environment cannot give its state."""
        if checkpoint.state["collector"]["env"] is None:
            self.env.close()
            seed = np.random.SeedSequence(self.config.seed, spawn_key=(0, int(checkpoint.state["step"])))
            self.env = self._make_env(seed)
            self.collector = self._make_collector(self.collector.noise)
        self.model.load_state_dict(checkpoint.model)
        self.state.load_state_dict(checkpoint.state["algorithm"])
        self.collector.load_state_dict(checkpoint.state["collector"])
        self.step = int(checkpoint.state["step"])
