"""The task of control environments: Gymnasium's and the vectorised ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from rlzoo.control import envs
from rlzoo.control.acting import ActionNoise, make_actor
from rlzoo.control.evaluation import evaluation_copies, evaluation_noise
from rlzoo.control.networks import Network
from rlzoo.control.rendering import watch
from rlzoo.core.actors import Actor
from rlzoo.core.env import VectorEnv
from rlzoo.core.evaluation import Played
from rlzoo.core.fields import Range
from rlzoo.core.models import ActorCritic, RewardScale
from rlzoo.core.streams import stream
from rlzoo.core.task import EnvTask, RolloutSettings, Setup, TaskSettings


@dataclass(frozen=True)
class Control(RolloutSettings):
    """Settings of a control task."""

    title: ClassVar[str] = "Environment"
    advanced: ClassVar[tuple[str, ...]] = ("noise_correlation", "vectorized")

    network: Network = Network()
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of their discounted sum, for training only."""
    noise_correlation: Annotated[float, Range(0, 1, below=True)] = 0.0
    """Correlation of successive action noise: 0 is independent, 0.9 explores in one direction for about 10 steps."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorized: bool = True
    """Use the vectorised NumPy version of the environment, if there is one."""


class ControlTask(EnvTask):
    """N copies of an environment, and a policy that acts in them."""

    Settings: ClassVar[type[TaskSettings]] = Control
    settings: Control

    def __init__(self, settings: Control, setup: Setup, model: ActorCritic | None = None) -> None:
        super().__init__(settings, setup, model)
        if settings.normalize_reward:
            self.model.reward_scale = RewardScale(settings.num_envs, setup.gamma).to(setup.device)
        rng = np.random.default_rng(stream(setup.seed, "action"))
        space = self.env.action_space  # type: ignore[attr-defined]
        self.noise = ActionNoise(space, settings.num_envs, rng, settings.noise_correlation)

    @classmethod
    def available(cls, env: str) -> None:
        envs.make(env, 1, 0).close()

    def make_env(self, num_envs: int, seed: int) -> VectorEnv:
        settings = self.settings
        return envs.make(self.setup.env, num_envs, seed, vectorized=settings.vectorized, **settings.env_kwargs)

    def make_model(self, generator: torch.Generator) -> ActorCritic:
        env: Any = self.env
        return self.settings.network.build(env.observation_space, env.action_space, generator)

    def actor(self) -> Actor:
        return make_actor(self.model, self.noise, self.setup.fast)

    def evaluation_copies(self, episodes: int) -> int:
        return evaluation_copies(self.setup.env, episodes, self.settings.vectorized)

    def evaluation_actor(self, env: VectorEnv, seed: int, deterministic: bool) -> Actor:
        return make_actor(self.model, evaluation_noise(env, seed, deterministic), self.setup.fast)

    def play(self, episodes: int, *, seed: int, deterministic: bool = False, video: Path | None = None) -> Played:
        """Plays episodes in a window, or records them at the environment's own frame rate."""

        def actor(space: Any, seed: int) -> Actor:
            noise = ActionNoise(space, 1, np.random.default_rng(seed))
            return make_actor(self.model, noise.zeros() if deterministic else noise, self.setup.fast)

        return Played.of(watch(self.setup.env, self.settings.env_kwargs, actor, episodes, seed, video))

    def state_dict(self) -> dict[str, Any]:
        return {"collector": self.collector.state_dict(), "noise": self.noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.restore_collector(state["collector"], step)
        self.noise.load_state_dict(state["noise"])
