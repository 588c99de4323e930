"""The task of control environments: Gymnasium's and the vectorised ones."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import gymnasium
import numpy as np
import torch

from rlzoo.control.acting import ActionNoise, MakeActor, make_actor
from rlzoo.control.cnn import CNN, is_image
from rlzoo.control.deploy import ControlPolicy
from rlzoo.control.envs.rendering import watch
from rlzoo.control.envs.source import Source, make
from rlzoo.control.evaluation import evaluation_noise
from rlzoo.control.networks import GRU, LSTM, Network, NetworkSettings
from rlzoo.control.spaces import action_columns, categories, is_product, leaves, space_text
from rlzoo.core.actors import Actor
from rlzoo.core.env import Experience, ReplayError, VectorEnv, env_name
from rlzoo.core.evaluation import Played
from rlzoo.core.models import ActorCritic, RewardScale
from rlzoo.core.seen import Seen
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, EnvError, UnsupportedSpace, describe_error, require
from rlzoo.core.system.fields import Advanced, Range
from rlzoo.core.system.streams import number, stream
from rlzoo.core.task import EnvTask, Kind, RolloutSettings, Setup, TaskSettings, check_fisher_fraction
from rlzoo.core.tensors import leaves as tensors_in
from rlzoo.core.tensors import map_leaves

NETWORKS: dict[str, type[NetworkSettings]] = {"mlp": Network, "cnn": CNN, "gru": GRU, "lstm": LSTM}
"""The kinds of networks by name."""


@dataclass(frozen=True)
class Control(RolloutSettings):
    """Settings of a control task."""

    title: ClassVar[str] = "Environment"

    named_parts: ClassVar[Mapping[str, Kind]] = {"network": Kind(NetworkSettings, NETWORKS)}
    network: NetworkSettings = Network()
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of their discounted sum, for training only."""
    noise_correlation: Advanced[Annotated[float, Range(0, 1, below=True)]] = 0.0
    """Correlation of successive action noise: 0 is independent, 0.9 explores in one direction for about 10 steps."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    vectorized: Advanced[bool] = True
    """Use the vectorised NumPy version of the environment, if there is one."""
    async_envs: bool = False
    """Run each copy of the environment in its own process."""
    action_masks: Advanced[bool] = True
    """Never take the actions that the environment calls illegal, in info["action_mask"] or by action_masks()."""
    wrappers: tuple[Any, ...] = ()
    """Wrappers of each copy: classes, functions, `module:Class` or `module:Class(key=value)`, the innermost first."""
    log_info: tuple[str, ...] = ()
    """Keys of the environment's info whose means are logged, as info_KEY."""

    @classmethod
    def kind(cls, env: str, settings: Mapping[str, Any]) -> str | None:
        """By the actions, if observations are vectors of numbers and the environment is registered with Gymnasium."""
        if env.rpartition(":")[2] not in gymnasium.registry:
            return None
        try:
            made: Any = Source(env, settings.get("env_kwargs", {}), tuple(settings.get("wrappers", ()))).make(1, 0)
        except (ConfigError, EnvError, UnsupportedSpace, TypeError):  # the run reports it
            return None
        made.close()
        observation = getattr(made, "raw_observation_space", made.observation_space)
        if not isinstance(observation, gymnasium.spaces.Box) or len(observation.shape) != 1:
            return None
        kinds = {gymnasium.spaces.Box: "continuous actions", gymnasium.spaces.Discrete: "discrete actions"}
        return kinds.get(type(made.action_space))


def source_of(settings: Control, setup: Setup) -> Source:
    """Where a run's environments come from."""
    return Source(
        setup.env,
        settings.env_kwargs,
        settings.wrappers,
        settings.vectorized,
        settings.async_envs,
        settings.network.images,
        settings.action_masks,
        settings.log_info,
    )


class ControlTask(EnvTask):
    """N copies of an environment, and a policy that acts in them."""

    Settings: ClassVar[type[TaskSettings]] = Control
    settings: Control
    env: Any
    """A `VectorEnv` with the spaces of its observations and actions."""
    make_actor: MakeActor = staticmethod(make_actor)
    """Makes the actors of collection, evaluation and deployment."""

    def __init__(self, settings: Control, setup: Setup, model: ActorCritic | None = None) -> None:
        super().__init__(settings, setup, model)
        if where := getattr(self.env, "normalizes", ""):
            fault = f"NormalizeObservation has other statistics {where}"
            setup.progress.say(f"{fault}: use --normalize-obs instead, whose statistics belong to the policy")
        scale = RewardScale(settings.num_envs, setup.gamma).to(setup.device) if settings.normalize_reward else None
        self.model.reward_scale = scale
        rng = np.random.default_rng(stream(setup.seed, "action"))
        self.noise = ActionNoise(self.env.action_space, settings.num_envs, rng, settings.noise_correlation)
        self._unseen = set(settings.log_info)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(number(stream(setup.seed, "init", 3)))  # lazy layers draw from it
            self._check_model()

    @torch.no_grad()
    def _check_model(self) -> None:
        """Raises `ConfigError` if the model does not take the observations, or has no action and value for each."""
        space, actions, memory = self.env.observation_space, self.env.action_space, self.model.memory_size
        zeros, none = np.zeros((2, *space.shape), space.dtype), np.zeros(2, bool)
        has_masks = getattr(self.env, "has_masks", False)
        obs: Any = Seen(zeros, np.ones((2, sum(categories(actions))), bool)) if has_masks else zeros
        noise = np.tile(1e6 * np.arange(self.noise.shape[1], dtype=np.float32), (2, 1))  # gives the last categories
        one = not is_product(actions) and len(categories(actions)) == 1
        columns = () if one else (sum(map(action_columns, leaves(actions))),)
        try:
            action = self.make_actor(self.model, itertools.repeat(noise))(obs, none, none)
            seen = Seen.of(obs).replace(start=none, memory=np.zeros((2, memory), np.float32)) if memory else obs
            seen, taken = map_leaves(lambda x: torch.from_numpy(x[:, None]).to(self.setup.device), (seen, action))
            policy, value = self.model(seen)
            shapes: dict[str, Any] = {"action": (action, (2, *columns)), "value": (value, (2, 1))}
            shapes["log-probability"] = policy.log_prob(taken), (2, 1)
            for name, (x, shape) in shapes.items():
                if x.shape != shape:
                    raise ValueError(f"{name} of shape {tuple(x.shape)} for 2 rows of a step, needed {shape}")
                if "float64" in str(x.dtype):  # of PyTorch or NumPy
                    raise ValueError(f"{name} of float64, needed float32: convert it by model.float()")
            for own in dataclasses.fields(cast(Any, policy)):
                wrong = [x.shape for x in tensors_in(getattr(policy, own.name)) if x.shape[:2] != (2, 1)]
                if wrong:
                    raise ValueError(f"{own.name} of shape {tuple(wrong[0])} for 2 rows of a step, needed (2, 1, ...)")
        except Exception as error:
            fault = f"the model does not fit the observations and actions of {env_name(self.setup.env)}"
            seen = f"observations of shape {zeros[:, None].shape} {zeros.dtype} for 2 rows of a step"
            raise ConfigError(f"{fault}: {describe_error(error)}, given {seen}") from error

    @classmethod
    def default_settings(cls, env: Any) -> TaskSettings:
        vector_env = Source(env).vector_env
        settings: Any = cls.Settings()
        return settings if vector_env is None else dataclasses.replace(settings, num_envs=vector_env.num_envs)

    @classmethod
    def check(cls, settings: Control, setup: Setup) -> None:
        super().check(settings, setup)
        source_of(settings, setup).check(settings.num_envs)
        unroll = getattr(settings.network, "unroll", 1)
        for name, size in setup.minibatch_sizes.items():
            fits = size == "all" or size >= min(unroll, settings.num_steps)
            require(fits, f"{name} must be at least unroll = {unroll}, the steps of a row, got {size}")
        check_fisher_fraction(setup, settings.num_envs * math.ceil(settings.num_steps / unroll), "the rows of a buffer")

    @classmethod
    def compiles(cls, settings: Control) -> bool:
        return type(settings.network) is Network

    @classmethod
    def available(cls, env: str) -> None:
        make(env, 1, 0).close()

    def described_spaces(self) -> dict[str, str]:
        spaces = {"observation": self.observation_space, "action": self.env.action_space}
        return {name: space_text(space) for name, space in spaces.items()}

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Of the observations as the environment gives them, before they are flattened."""
        return getattr(self.env, "raw_observation_space", self.env.observation_space)

    @property
    def evaluates_in_training(self) -> bool:
        return source_of(self.settings, self.setup).vector_env is not None

    def make_env(self, num_envs: int, seed: int) -> VectorEnv:
        return source_of(self.settings, self.setup).make(num_envs, seed)

    def training_env(self, seed: int) -> VectorEnv:
        """Gymnasium's copies are independent of each other, and are divided among processes.

        Those of built-in environments share one random stream, and stepping fewer of them is hardly faster.
        """
        source = source_of(self.settings, self.setup)
        if processes.size() == 1 or source.builtin or source.vector_env is not None:
            return super().training_env(seed)
        own = processes.own_rows(self.settings.num_envs, "num_envs")
        env = source.make(own.stop - own.start, seed + own.start)
        env.divided = True
        return env

    def make_model(self, generator: torch.Generator) -> ActorCritic:
        network = self.settings.network
        if is_image(self.observation_space) and not network.images:
            self.setup.progress.say("the observations are images, which an MLP learns from slowly: try --network cnn")
        space = self.observation_space if network.images else self.env.observation_space
        return network.build(space, self.env.action_space, generator)

    def actor(self) -> Actor:
        return self.make_actor(self.model, self.noise.share() if self.env.divided else self.noise)

    def collect(self) -> Experience:
        if self.collector.starts_anew and self.model.reward_scale is not None:
            self.model.reward_scale.running.zero_()
        experience = super().collect()
        self._unseen -= {name for name in self._unseen if f"info_{name}" in experience.metrics}
        if self._unseen and experience.episodes:
            names = ", ".join(sorted(self._unseen))
            self.setup.progress.say(f"log_info: {env_name(self.setup.env)} has not had {names} in info so far")
            self._unseen.clear()
        return experience

    def evaluation_copies(self, episodes: int) -> int:
        return source_of(self.settings, self.setup).evaluation_copies(episodes)

    def evaluation_actor(self, env: VectorEnv, seed: int, deterministic: bool) -> Actor:
        return self.make_actor(self.model, evaluation_noise(env, seed, deterministic))

    def play(self, episodes: int, *, seed: int, deterministic: bool = False, video: Path | None = None) -> Played:
        """Plays episodes in a window, or records them at the environment's own frame rate."""
        actor = partial(self.evaluation_actor, deterministic=deterministic)
        return Played.of(watch(source_of(self.settings, self.setup), actor, episodes, seed, video))

    def policy(self, *, deterministic: bool = True, seed: int = 0) -> ControlPolicy:
        masks = getattr(self.env, "has_masks", False)
        spaces, dtype = (self.observation_space, self.env.action_space), self.env.observation_space.dtype
        return ControlPolicy(self.model, *spaces, deterministic, seed, masks, self.make_actor, dtype)

    def restore_collector(self, state: dict[str, Any], step: int) -> None:
        """Restores the collector. A Gymnasium environment repeats its episodes; if it cannot, new ones start."""
        say, start = self.setup.progress.say, time.perf_counter()
        try:
            super().restore_collector(state, step)
        except ReplayError as error:
            say(f"{error}: new episodes start")
            super().restore_collector({**state, "env": None}, step)
        else:
            copies = (state["env"] or {}).get("copies") or ()
            steps = sum(len(x["actions"]) for x in copies if x is not None)
            if steps:
                say(f"repeated {steps:,} steps of the episodes that had begun, in {time.perf_counter() - start:.1f} s")

    def state_dict(self) -> dict[str, Any]:
        attributes = {"attributes": dict(self.env.attributes)} if self.env.attributes else {}
        return {"collector": self.collector.state_dict(), "noise": self.noise.state_dict(), **attributes}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.restore_collector(state["collector"], step)
        for name, x in state.get("attributes", {}).items():
            self.env.set_attr(name, x)
        self.noise.load_state_dict(state["noise"])
