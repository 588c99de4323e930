"""On-policy policy gradients, from REINFORCE to PPO.

    import rlzoo

    run = rlzoo.runs.train("trpo", "CartPole-v1", seed=1, out="runs/first")
    print(rlzoo.runs.evaluate(run, episodes=100).mean_return)

Names are imported when they are first used, so that `import rlzoo` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlzoo.algorithms import NPG as NPG
    from rlzoo.algorithms import TRPO as TRPO
    from rlzoo.algorithms import Algorithm as Algorithm
    from rlzoo.algorithms import PPOClip as PPOClip
    from rlzoo.algorithms import PPOPenalty as PPOPenalty
    from rlzoo.algorithms import Reinforce as Reinforce
    from rlzoo.algorithms import State as State
    from rlzoo.control import envs as envs
    from rlzoo.control.networks import Network as Network
    from rlzoo.core.buffer import Buffer as Buffer
    from rlzoo.core.distributions import Categorical as Categorical
    from rlzoo.core.distributions import DiagGaussian as DiagGaussian
    from rlzoo.core.distributions import Distribution as Distribution
    from rlzoo.core.distributions import MultiCategorical as MultiCategorical
    from rlzoo.core.errors import ConfigError as ConfigError
    from rlzoo.core.errors import Interrupted as Interrupted
    from rlzoo.core.errors import NonFiniteError as NonFiniteError
    from rlzoo.core.errors import RunError as RunError
    from rlzoo.core.errors import TrainingError as TrainingError
    from rlzoo.core.estimators import GAE as GAE
    from rlzoo.core.estimators import Estimator as Estimator
    from rlzoo.core.estimators import GroupNorm as GroupNorm
    from rlzoo.core.estimators import LeaveOneOut as LeaveOneOut
    from rlzoo.core.estimators import MonteCarlo as MonteCarlo
    from rlzoo.core.models import ActorCritic as ActorCritic
    from rlzoo.core.models import Policy as Policy
    from rlzoo.core.models import Value as Value
    from rlzoo.runs.config import Config as Config
    from rlzoo.runs.config import make_config as make_config
    from rlzoo.runs.evaluate import Evaluation as Evaluation
    from rlzoo.runs.evaluate import evaluate as evaluate
    from rlzoo.runs.evaluate import load_model as load_model
    from rlzoo.runs.loop import Iteration as Iteration
    from rlzoo.runs.loop import Trainer as Trainer
    from rlzoo.runs.play import play as play
    from rlzoo.runs.run import Run as Run
    from rlzoo.runs.train import resume as resume
    from rlzoo.runs.train import train as train

__version__ = "0.1.0"

_PUBLIC = {
    "algorithms": ["NPG", "TRPO", "Algorithm", "PPOClip", "PPOPenalty", "Reinforce", "State"],
    "core.buffer": ["Buffer"],
    "runs.config": ["Config", "make_config"],
    "core.distributions": ["Categorical", "DiagGaussian", "Distribution", "MultiCategorical"],
    "control.envs": ["envs"],
    "core.errors": ["ConfigError", "Interrupted", "NonFiniteError", "RunError", "TrainingError"],
    "core.estimators": ["GAE", "Estimator", "GroupNorm", "LeaveOneOut", "MonteCarlo"],
    "runs.evaluate": ["Evaluation", "evaluate", "load_model"],
    "core.models": ["ActorCritic", "Policy", "Value"],
    "control.networks": ["Network"],
    "runs.play": ["play"],
    "runs.run": ["Run"],
    "runs.train": ["resume", "train"],
    "runs.loop": ["Iteration", "Trainer"],
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
