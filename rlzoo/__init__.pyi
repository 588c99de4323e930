"""The public names, by the modules that define them."""

from .algorithms import (
    NPG as NPG,
    TRPO as TRPO,
    Algorithm as Algorithm,
    PPOClip as PPOClip,
    PPOPenalty as PPOPenalty,
    Reinforce as Reinforce,
    State as State,
    measure as measure,
)
from .control.cnn import CNN as CNN
from .control.networks import GRU as GRU, LSTM as LSTM, Network as Network, NetworkSettings as NetworkSettings
from .core.buffer import Buffer as Buffer
from .core.distributions import (
    Categorical as Categorical,
    DiagGaussian as DiagGaussian,
    Distribution as Distribution,
    MultiCategorical as MultiCategorical,
    Product as Product,
)
from .core.env import Episode as Episode, Experience as Experience, VectorEnv as VectorEnv
from .core.estimators import (
    GAE as GAE,
    Estimator as Estimator,
    GroupMean as GroupMean,
    GroupNorm as GroupNorm,
    LeaveOneOut as LeaveOneOut,
    MonteCarlo as MonteCarlo,
)
from .core.evaluation import Evaluation as Evaluation
from .core.models import ActorCritic as ActorCritic, Policy as Policy, Value as Value
from .core.recurrent import Cell as Cell, Recurrent as Recurrent
from .core.seen import Seen as Seen
from .core.system.errors import (
    ConfigError as ConfigError,
    EnvError as EnvError,
    Interrupted as Interrupted,
    NonFiniteError as NonFiniteError,
    RunError as RunError,
    TrainingError as TrainingError,
    UnknownEnv as UnknownEnv,
    UnsupportedSpace as UnsupportedSpace,
)
from .core.system.version import __version__ as __version__
from .core.task import (
    DeployedPolicy as DeployedPolicy,
    EnvTask as EnvTask,
    RolloutSettings as RolloutSettings,
    Setup as Setup,
    Task as Task,
    TaskSettings as TaskSettings,
)
from .lm.model.language_model import LanguageModel as LanguageModel
from .lm.model.tokens import Tokens as Tokens
from .lm.reward.env import LMEnv as LMEnv
from .lm.reward.reward_model import RewardModel as RewardModel
from .lm.tasks.language import LanguageTask as LanguageTask
from .optim.adam import Adam as Adam
from .runs.configuration.config import Config as Config, make_config as make_config
from .runs.evaluate import evaluate as evaluate, load_model as load_model, play as play
from .runs.finetune import sft as sft, train_reward_model as train_reward_model
from .runs.loop import Iteration as Iteration, Trainer as Trainer
from .runs.publish.policies import export as export, load_policy as load_policy, push as push
from .runs.run import Run as Run
from .runs.session import Hooks as Hooks
from .runs.train import resume as resume, train as train
