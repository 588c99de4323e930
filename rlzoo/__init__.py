"""On-policy policy gradients, from REINFORCE to PPO.

    import rlzoo

    run = rlzoo.train("trpo", "CartPole-v1", seed=1, out="runs/first")
    print(rlzoo.evaluate(run, episodes=100).mean_return)

Names are imported when they are first used, so `import rlzoo` itself is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlzoo.core.system.version import __version__

if TYPE_CHECKING:
    from rlzoo.algorithms import NPG, TRPO, Algorithm, PPOClip, PPOPenalty, Reinforce, State, measure
    from rlzoo.control.cnn import CNN
    from rlzoo.control.networks import Network, NetworkSettings
    from rlzoo.control.recurrent import GRU, LSTM
    from rlzoo.core.buffer import Buffer
    from rlzoo.core.distributions import Categorical, DiagGaussian, Distribution, MultiCategorical, Product
    from rlzoo.core.env import Episode, Experience, VectorEnv
    from rlzoo.core.estimators import GAE, Estimator, GroupMean, GroupNorm, LeaveOneOut, MonteCarlo
    from rlzoo.core.evaluation import Evaluation
    from rlzoo.core.models import ActorCritic, Policy, Value
    from rlzoo.core.recurrent import Cell, Recurrent
    from rlzoo.core.seen import Seen
    from rlzoo.core.system.errors import (
        ConfigError,
        EnvError,
        Interrupted,
        NonFiniteError,
        RunError,
        TrainingError,
        UnknownEnv,
        UnsupportedSpace,
    )
    from rlzoo.core.task import DeployedPolicy, EnvTask, RolloutSettings, Setup, Task, TaskSettings
    from rlzoo.lm.model.language_model import LanguageModel
    from rlzoo.lm.model.tokens import Tokens
    from rlzoo.lm.reward.env import LMEnv
    from rlzoo.lm.reward.reward_model import RewardModel
    from rlzoo.lm.tasks.language import LanguageTask
    from rlzoo.optim.adam import Adam
    from rlzoo.runs.configuration.config import Config, make_config
    from rlzoo.runs.evaluate import evaluate, load_model, play
    from rlzoo.runs.finetune import sft, train_reward_model
    from rlzoo.runs.loop import Iteration, Trainer
    from rlzoo.runs.publish.policies import export, load_policy, push
    from rlzoo.runs.run import Run
    from rlzoo.runs.session import Hooks
    from rlzoo.runs.train import resume, train

__all__ = [
    "CNN",
    "GAE",
    "GRU",
    "LSTM",
    "NPG",
    "TRPO",
    "ActorCritic",
    "Adam",
    "Algorithm",
    "Buffer",
    "Categorical",
    "Cell",
    "Config",
    "ConfigError",
    "DeployedPolicy",
    "DiagGaussian",
    "Distribution",
    "EnvError",
    "EnvTask",
    "Episode",
    "Estimator",
    "Evaluation",
    "Experience",
    "GroupMean",
    "GroupNorm",
    "Hooks",
    "Interrupted",
    "Iteration",
    "LMEnv",
    "LanguageModel",
    "LanguageTask",
    "LeaveOneOut",
    "MonteCarlo",
    "MultiCategorical",
    "Network",
    "NetworkSettings",
    "NonFiniteError",
    "PPOClip",
    "PPOPenalty",
    "Policy",
    "Product",
    "Recurrent",
    "Reinforce",
    "RewardModel",
    "RolloutSettings",
    "Run",
    "RunError",
    "Seen",
    "Setup",
    "State",
    "Task",
    "TaskSettings",
    "Tokens",
    "Trainer",
    "TrainingError",
    "UnknownEnv",
    "UnsupportedSpace",
    "Value",
    "VectorEnv",
    "__version__",
    "evaluate",
    "export",
    "load_model",
    "load_policy",
    "make_config",
    "measure",
    "play",
    "push",
    "resume",
    "sft",
    "train",
    "train_reward_model",
]

_MODULES = {
    "algorithms": "NPG TRPO Algorithm PPOClip PPOPenalty Reinforce State measure",
    "control.cnn": "CNN",
    "control.networks": "Network NetworkSettings",
    "control.recurrent": "GRU LSTM",
    "core.buffer": "Buffer",
    "core.distributions": "Categorical DiagGaussian Distribution MultiCategorical Product",
    "core.env": "Episode Experience VectorEnv",
    "core.seen": "Seen",
    "core.system.errors": "ConfigError EnvError Interrupted NonFiniteError RunError TrainingError UnknownEnv "
    "UnsupportedSpace",
    "core.estimators": "GAE Estimator GroupMean GroupNorm LeaveOneOut MonteCarlo",
    "core.evaluation": "Evaluation",
    "core.models": "ActorCritic Policy Value",
    "core.recurrent": "Cell Recurrent",
    "core.task": "DeployedPolicy EnvTask RolloutSettings Setup Task TaskSettings",
    "lm.model.language_model": "LanguageModel",
    "lm.model.tokens": "Tokens",
    "lm.reward.env": "LMEnv",
    "lm.reward.reward_model": "RewardModel",
    "lm.tasks.language": "LanguageTask",
    "optim.adam": "Adam",
    "runs.configuration.config": "Config make_config",
    "runs.evaluate": "evaluate load_model play",
    "runs.finetune": "sft train_reward_model",
    "runs.loop": "Iteration Trainer",
    "runs.publish.policies": "export load_policy push",
    "runs.run": "Run",
    "runs.session": "Hooks",
    "runs.train": "resume train",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
