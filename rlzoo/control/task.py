"""Control environments: everything that Gymnasium knows, and the built-in ones."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np

from rlzoo.control import envs
from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.evaluation import Evaluation, evaluate_model
from rlzoo.control.networks import Network
from rlzoo.core.collector import Collector, evaluate
from rlzoo.core.errors import no_such, require
from rlzoo.core.fields import Count, Range, check_fields
from rlzoo.core.models import ActorCritic, RewardScale
from rlzoo.core.task import Experience, Say, Streams, Task, TaskSettings, silent, torch_generator
from rlzoo.lm import TASKS

if TYPE_CHECKING:
    from rlzoo.runs.config import Config


@dataclass(frozen=True)
class Control(TaskSettings):
    """How experience is collected from a control environment, and with what network."""

    network: Network = Network()
    num_steps: Count = 128
    """Steps of each copy in a buffer. Ignored by algorithms that take whole episodes."""
    normalize_reward: bool = False
    """Train on rewards divided by the running standard deviation of their discounted sum."""
    noise_correlation: Annotated[float, Range(0, 1, below=True)] = 0.0
    """Correlation of successive action noises: 0 is independent, 0.9 explores in one direction for 10 steps."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorized: bool = True
    """Use the built-in NumPy version of the environment where there is one."""

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, config: Config) -> None:
        buffer = config.num_envs * self.num_steps
        for name in ("minibatch_size", "vf_minibatch_size"):
            size = getattr(config.algorithm, name, 0)
            require(
                config.algorithm.estimator.whole_episodes or size <= buffer,
                f"{name} must be at most num_envs * num_steps = {buffer}, got {size}",
            )

    def make(
        self, config: Config, model: ActorCritic | None = None, folder: Path | None = None, say: Say = silent
    ) -> Task:
        return ControlTask(self, config, model)


class ControlTask(Task):
    """N copies of an environment, and a policy that acts in them."""

    def __init__(self, settings: Control, config: Config, model: ActorCritic | None = None) -> None:
        self.settings = settings
        self.config = config
        streams = Streams.of(config.seed)
        self.env = self._make_env(streams.env)
        self.model = model or settings.network.build(
            self.env.observation_space, self.env.action_space, torch_generator(streams.init)
        )
        if settings.normalize_reward:
            self.model.reward_scale = RewardScale(config.num_envs, config.algorithm.estimator.gamma)
        self.model.to(config.device)
        rng = np.random.default_rng(streams.action)
        noise = ActionNoise(self.env.action_space, config.num_envs, rng, settings.noise_correlation)
        self.collector = self._make_collector(noise)

    def _make_env(self, seed: np.random.SeedSequence) -> envs.VectorEnv:
        settings, number, env = self.settings, int(seed.generate_state(1)[0]), self.config.env
        try:
            return envs.make(env, self.config.num_envs, number, vectorized=settings.vectorized, **settings.env_kwargs)
        except envs.UnknownEnv as error:
            near = difflib.get_close_matches(env, [*gymnasium.registry, *TASKS], n=1)
            if near and near[0] in TASKS:
                raise envs.UnknownEnv(no_such("environment", env, near)) from error
            raise

    def _make_collector(self, noise: ActionNoise) -> Collector:
        whole_episodes = self.config.algorithm.estimator.whole_episodes
        return Collector(self.env, noise, self.settings.num_steps, whole_episodes)

    def collect(self) -> Experience:
        buffer, episodes = self.collector.collect(make_actor(self.model))
        buffer = buffer.map(lambda x: x.to(self.config.device))
        return Experience(self.env.settle(evaluate(self.model, buffer)), episodes, {})

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        return evaluate_model(
            self.model,
            self.config.env,
            episodes,
            seed=seed,
            deterministic=deterministic,
            vectorized=self.settings.vectorized,
            **self.settings.env_kwargs,
        )

    def state_dict(self) -> dict[str, Any]:
        return self.collector.state_dict()

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """With new episodes if the environment could not give its state."""
        if state["env"] is None:
            self.env.close()
            self.env = self._make_env(np.random.SeedSequence(self.config.seed, spawn_key=(0, step)))
            self.collector = self._make_collector(self.collector.noise)
        self.collector.load_state_dict(state)

    def close(self) -> None:
        self.env.close()
