"""A task: an environment, a model for it, and how to evaluate it."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch

from rlzoo.core.actors import Actor, ModelActor
from rlzoo.core.collector import Collector
from rlzoo.core.env import Array, Episode, Experience, VectorEnv, env_name
from rlzoo.core.evaluation import Evaluation, OnStep, Played, play_episodes
from rlzoo.core.models import ActorCritic, single_precision
from rlzoo.core.system import processes
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.fields import Checked, Count
from rlzoo.core.system.progress import SILENT, Progress
from rlzoo.core.system.streams import evaluation_seeds, number, stream, torch_generator
from rlzoo.core.system.threads import announce


class Kind(NamedTuple):
    """The possible values of a setting that names a class, such as `network`: a dataclass with its own settings."""

    base: type
    """Base class of all."""
    known: Mapping[str, type]
    """Classes that have a name. Others are given as `module:Class`."""


@dataclass(frozen=True)
class TaskSettings(Checked):
    """Settings of a task. A subclass is a frozen dataclass; its fields become options of the command line."""

    named_parts: ClassVar[Mapping[str, Kind]] = {}
    """Fields that are given as a name, `module:Class` or an instance."""
    of_model: ClassVar[frozenset[str]] = frozenset()
    """Settings of a new model, which a model of the user's own does not take."""
    kept: ClassVar[frozenset[str]] = frozenset()
    """Settings whose objects the task saves in the run directory, so that a loaded run does not need them again."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of other settings for this task, such as {"gamma": 1.0}."""
    memory: ClassVar[tuple[str, ...]] = ()
    """Settings to lower where RAM or GPU memory is short; the error names them."""
    units: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Names and help texts of other settings in the units of this task, such as
    {"minibatch_size": ("minibatch_responses", "Responses in a minibatch.")}."""

    @classmethod
    def kind(cls, env: str, settings: Mapping[str, Any]) -> str | None:
        """The kind of task with these settings. A task without a preset starts from that of its kind, if it has one."""
        return None


@dataclass(frozen=True)
class RolloutSettings(TaskSettings):
    """Settings of collection from copies of an environment."""

    memory: ClassVar[tuple[str, ...]] = ("num_envs", "num_steps")

    num_envs: Count = 8
    """Copies of the environment."""
    num_steps: Count = 128
    """Steps of each copy in a buffer. Not used by algorithms that need whole episodes."""
    model: str | None = None
    """Directory of a run to start from, with the weights of its last checkpoint; none for a new model."""

    def __post_init__(self) -> None:
        forms = "an ActorCritic(policy, value) or the directory of a run"
        require(isinstance(self.model, str | None), f"model must be {forms}, got a {type(self.model).__name__}")
        super().__post_init__()


@dataclass(frozen=True)
class Setup:
    """What a task knows about its run."""

    env: Any
    """The task or environment, as the user gave it."""
    algorithm: str = ""
    """Name of the algorithm."""
    seed: int = 0
    device: str = "cpu"
    gamma: float = 0.99
    """Discount factor of the estimator."""
    whole_episodes: bool = False
    """Whether the estimator needs complete episodes."""
    grouped: bool = False
    """Whether the estimator compares rows of one group."""
    second_order: bool = False
    """Whether the algorithm needs Fisher products, which take forward-mode derivatives."""
    fisher_fraction: float = 1.0
    """Share of the rows that Fisher products average over."""
    minibatch_sizes: Mapping[str, int | Literal["all"]] = field(default_factory=dict)
    """Sizes of the algorithm's minibatches, by the names that they have in the task's units."""
    compile: bool = False
    """Whether to compile the training step."""
    folder: Path | None = None
    """The run directory, if there is one already."""
    progress: Progress = SILENT
    """Progress of long operations."""


class DeployedPolicy(abc.ABC):
    """A policy outside of training: `action = policy(obs)`, with observations and actions of the environment's own."""

    observation_space: Any
    action_space: Any

    @abc.abstractmethod
    def __call__(self, obs: Any, action_mask: Any = None) -> Any:
        """An action for `env.step` from one observation, or an array of actions from a batch.

        Args:
            action_mask: which actions are legal, as the environment tells it; none for all.

        Raises:
            ConfigError: the observation is not one of the environment.
        """

    @abc.abstractmethod
    def reset(self, rows: Any = True) -> None:
        """Clears the memory of a recurrent policy: call it where an episode begins. Other policies have none.

        `rows` (N,) tells which rows of a batch begin; by default all.
        """

    @abc.abstractmethod
    def flatten(self, obs: Any) -> Array:
        """One observation or a batch as the input (N, *obs) float32 of exported files."""

    @abc.abstractmethod
    def export(self, format: str, about: Mapping[str, str]) -> bytes:
        """The deterministic policy as the contents of a file for other programs.

        Args:
            format: onnx or c.
            about: texts that the file should hold, by name.

        Raises:
            ConfigError: the format is unknown, a package is missing, or a part of the policy cannot be exported to it.
        """


class Task(abc.ABC):
    """An environment, a model for it, and how to evaluate it.

    Args:
        settings: an instance of `Settings`.
        setup: the run that the task is part of.
        model: used instead of a new one.
    """

    Settings: ClassVar[type[TaskSettings]]
    evaluates_start: ClassVar[bool] = False
    """Whether to evaluate the model before training."""
    on_step: OnStep = staticmethod(lambda done: None)
    """For `evaluate` to call between its steps, so that training shows its progress and can stop it."""
    setup: Setup
    env: VectorEnv
    model: ActorCritic
    collector: Collector

    @abc.abstractmethod
    def __init__(self, settings: Any, setup: Setup, model: ActorCritic | None = None) -> None: ...

    @classmethod
    def check(cls, settings: Any, setup: Setup) -> None:
        """Raises `ConfigError` if the settings do not fit the rest of the run."""

    @classmethod
    def compiles(cls, settings: Any) -> bool:
        """Whether updates of its model are known to gain by native code."""
        return False

    @classmethod
    def default_settings(cls, env: Any) -> TaskSettings:
        """The settings that a run in `env` starts from."""
        return cls.Settings()

    @classmethod
    def available(cls, env: str) -> None:
        """Raises `EnvError` or `UnsupportedSpace` if the environment cannot be made here."""

    def described_spaces(self) -> dict[str, str]:
        """Observation and action space as text, by name. A loaded run must have the same as when it was trained."""
        return {}

    @abc.abstractmethod
    def actor(self) -> Actor:
        """An actor for collection, with the model as it is now."""

    def collect(self) -> Experience:
        """The next buffer, of all processes."""
        return self.collector.collect(self.actor())

    @property
    def evaluates_in_training(self) -> bool:
        """Whether `evaluate` steps the environment of the training. Several processes then evaluate together."""
        return False

    @abc.abstractmethod
    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        """Plays complete episodes. Training is not affected."""

    def evaluate_passes(self, episodes: int, k: int, *, seed: int) -> Evaluation:
        """`evaluate`, with pass@1 and pass@k among its further results.

        Raises:
            ConfigError: the task has no prompts to which it could give several responses.
        """
        raise ConfigError(f"pass_k is for language tasks; {env_name(self.setup.env)} is none")

    def play(self, episodes: int, *, seed: int, deterministic: bool = False, video: Path | None = None) -> Played:
        """Plays episodes for display, or records them in the file `video`.

        Raises:
            ConfigError: they cannot be shown or recorded.
        """
        require(video is None, f"video: {env_name(self.setup.env)} cannot be recorded")
        evaluation = self.evaluate(episodes, seed=seed, deterministic=deterministic)
        pairs = zip(evaluation.returns.tolist(), evaluation.lengths.tolist(), strict=True)
        return Played.of([Episode(return_, length) for return_, length in pairs])

    def respond_to(self, prompts: Sequence[str], episodes: int, *, seed: int, deterministic: bool = False) -> Played:
        """Plays episodes that start from these prompts, each in turn.

        Raises:
            ConfigError: the task has no prompts.
        """
        raise ConfigError(f"prompt is for language tasks; {env_name(self.setup.env)} is none")

    def policy(self, *, deterministic: bool = True, seed: int = 0) -> DeployedPolicy:
        """The model as it is now, for use outside of training.

        Args:
            deterministic: take the most probable action instead of a sample.
            seed: seed of the samples.

        Raises:
            ConfigError: the task has no policy that acts on observations of its own.
        """
        raise ConfigError(f"{env_name(self.setup.env)} has no policy for other programs; load_model gives its model")

    def save_model(self, folder: Path) -> dict[str, str] | None:
        """Saves the model in the form in which other programs share it, and returns entries for its model card.

        None for a task without such a form, whose runs are shared instead.
        """
        return None

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next buffer depends on except the model. The key `collector` holds the collector's state."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        """Restores a state that was taken at `step`."""

    @property
    def starts_from(self) -> str | None:
        """Directory of the run whose weights the model starts from; None if it does not start from a run."""
        return None

    def begin(self, folder: Path) -> None:
        """Called when training starts: writes files that a resumed run needs into the run directory."""

    def end(self, folder: Path) -> None:
        """Called when training ends: writes results for other programs into the run directory."""

    def close(self) -> None:
        """Releases resources."""
        self.env.close()


def check_fisher_fraction(setup: Setup, rows: int, named: str) -> None:
    """Raises `ConfigError` if Fisher products would average over no row."""
    fraction = setup.fisher_fraction
    require(fraction * rows >= 1, f"fisher_fraction = {fraction:g} of {named} = {rows} leaves no row")


class EnvTask(Task):
    """A task on copies of an environment. A subclass defines `make_env` and `make_model`."""

    Settings: ClassVar[type[TaskSettings]] = RolloutSettings

    def __init__(self, settings: Any, setup: Setup, model: ActorCritic | None = None) -> None:
        self.settings = settings
        self.setup = setup
        announce(setup.progress.say)
        processes.own_rows(settings.num_envs, "num_envs")
        self.env = self.training_env(number(stream(setup.seed, "env")))
        with single_precision(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(number(stream(setup.seed, "init", 1)))  # PyTorch's modules draw from it
            model = model or self.make_model(torch_generator(stream(setup.seed, "init")))
            require(isinstance(model, ActorCritic), f"the model must be an ActorCritic, got {type(model).__name__}")
            self.model = model.to(setup.device).eval()
        self.collector = Collector(self.env, settings.num_steps, setup.whole_episodes)
        self.generator = torch_generator(stream(setup.seed, "action"), setup.device)
        self._evaluation_envs: dict[int, VectorEnv] = {}

    @classmethod
    def check(cls, settings: Any, setup: Setup) -> None:
        steps = settings.num_envs * settings.num_steps
        fault = f"num_envs must be at least 2 for group advantages, got {settings.num_envs}"
        require(settings.num_envs > 1 or not setup.grouped, fault)
        for name, size in setup.minibatch_sizes.items():
            fits = setup.whole_episodes or size == "all" or size <= steps
            require(fits, f"{name} must be at most num_envs * num_steps = {steps}, got {size}")
        check_fisher_fraction(setup, steps, "num_envs * num_steps")

    @property
    def starts_from(self) -> str | None:
        return getattr(self.settings, "model", None)

    @abc.abstractmethod
    def make_env(self, num_envs: int, seed: int) -> VectorEnv:
        """Makes copies of the environment. All their randomness comes from `seed`."""

    def training_env(self, seed: int) -> VectorEnv:
        """The environment to train in. Of several processes, each has all copies or its share (`VectorEnv.divided`)."""
        return self.make_env(self.settings.num_envs, seed)

    @abc.abstractmethod
    def make_model(self, generator: torch.Generator) -> ActorCritic:
        """Makes a new model, initialised with `generator`."""

    def actor(self) -> Actor:
        return ModelActor(self.model, lambda policy: policy.sample(self.generator))

    def evaluate(self, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
        require(episodes >= 1, f"episodes must be at least 1, got {episodes}")
        env_seed, actor_seed = evaluation_seeds(seed)
        env = self._evaluation_env(self.evaluation_copies(episodes), env_seed)
        actor = self.evaluation_actor(env, actor_seed, deterministic)
        return Evaluation.of(play_episodes(env, actor, episodes, self.on_step), deterministic, seed)

    def evaluation_copies(self, episodes: int) -> int:
        """Copies of the environment that play `episodes` episodes."""
        return min(episodes, self.settings.num_envs)

    def evaluation_actor(self, env: VectorEnv, seed: int, deterministic: bool) -> Actor:
        """An actor for an evaluation in `env`, with the model as it is now."""
        generator = torch.Generator(self.setup.device).manual_seed(seed)
        return ModelActor(self.model, lambda policy: policy.mode if deterministic else policy.sample(generator))

    def _evaluation_env(self, copies: int, seed: int) -> VectorEnv:
        """The environment of evaluations, made once; a new one each time if it cannot be reseeded."""
        env = self._evaluation_envs.get(copies)
        if env is None or not env.reseed(seed):
            if env is not None:
                env.close()
            env = self._evaluation_envs[copies] = self.make_env(copies, seed)
        return env

    def close(self) -> None:
        super().close()
        for env in self._evaluation_envs.values():
            env.close()

    def state_dict(self) -> dict[str, Any]:
        return {"collector": self.collector.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.restore_collector(state["collector"], step)
        self.generator.set_state(state["generator"])

    def restore_collector(self, state: dict[str, Any], step: int) -> None:
        """Restores the collector, or starts new episodes if the environment could not give its state."""
        if state["env"] is None:
            self.env.close()
            self.env = self.training_env(number(stream(self.setup.seed, "env", step)))
            self.collector = Collector(self.env, self.settings.num_steps, self.setup.whole_episodes)
            if self.model.reward_scale is not None:
                self.model.reward_scale.running.zero_()
        self.collector.load_state_dict(state)
