"""On-policy policy gradients, from REINFORCE to PPO.

    import rlzoo

    run = rlzoo.train("trpo", "CartPole-v1", seed=1, out="runs/first")
    print(rlzoo.evaluate(run, episodes=100).mean_return)

Names are imported when they are first used, so that `import rlzoo` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlzoo import envs as envs
    from rlzoo.algorithms import NPG as NPG
    from rlzoo.algorithms import TRPO as TRPO
    from rlzoo.algorithms import Algorithm as Algorithm
    from rlzoo.algorithms import PPOClip as PPOClip
    from rlzoo.algorithms import PPOPenalty as PPOPenalty
    from rlzoo.algorithms import Reinforce as Reinforce
    from rlzoo.algorithms import State as State
    from rlzoo.buffer import Buffer as Buffer
    from rlzoo.config import Config as Config
    from rlzoo.config import make_config as make_config
    from rlzoo.distributions import Categorical as Categorical
    from rlzoo.distributions import DiagGaussian as DiagGaussian
    from rlzoo.distributions import Distribution as Distribution
    from rlzoo.distributions import MultiCategorical as MultiCategorical
    from rlzoo.errors import ConfigError as ConfigError
    from rlzoo.errors import Interrupted as Interrupted
    from rlzoo.errors import NonFiniteError as NonFiniteError
    from rlzoo.errors import RunError as RunError
    from rlzoo.errors import TrainingError as TrainingError
    from rlzoo.estimators import GAE as GAE
    from rlzoo.estimators import Estimator as Estimator
    from rlzoo.estimators import GroupNorm as GroupNorm
    from rlzoo.estimators import LeaveOneOut as LeaveOneOut
    from rlzoo.estimators import MonteCarlo as MonteCarlo
    from rlzoo.evaluate import Evaluation as Evaluation
    from rlzoo.evaluate import evaluate as evaluate
    from rlzoo.evaluate import load_model as load_model
    from rlzoo.models import ActorCritic as ActorCritic
    from rlzoo.models import Policy as Policy
    from rlzoo.models import Value as Value
    from rlzoo.networks import Network as Network
    from rlzoo.play import play as play
    from rlzoo.run import Run as Run
    from rlzoo.train import resume as resume
    from rlzoo.train import train as train
    from rlzoo.trainer import Iteration as Iteration
    from rlzoo.trainer import Trainer as Trainer

__version__ = "0.1.0"

_PUBLIC = {
    "algorithms": ["NPG", "TRPO", "Algorithm", "PPOClip", "PPOPenalty", "Reinforce", "State"],
    "buffer": ["Buffer"],
    "config": ["Config", "make_config"],
    "distributions": ["Categorical", "DiagGaussian", "Distribution", "MultiCategorical"],
    "envs": ["envs"],
    "errors": ["ConfigError", "Interrupted", "NonFiniteError", "RunError", "TrainingError"],
    "estimators": ["GAE", "Estimator", "GroupNorm", "LeaveOneOut", "MonteCarlo"],
    "evaluate": ["Evaluation", "evaluate", "load_model"],
    "models": ["ActorCritic", "Policy", "Value"],
    "networks": ["Network"],
    "play": ["play"],
    "run": ["Run"],
    "train": ["resume", "train"],
    "trainer": ["Iteration", "Trainer"],
}
_HOMES = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    return getattr(module, name, module)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """`rlzoo.train`, `rlzoo.evaluate` and `rlzoo.play` are functions; the modules that hold them have the same
    names, and would otherwise take their places here when they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _HOMES:
            value = getattr(value, name, value)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
