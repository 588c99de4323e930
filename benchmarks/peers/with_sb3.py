"""Peers of the benchmark: PPO of Stable-Baselines3, TRPO and RecurrentPPO of SB3-Contrib, with the zoo's settings.

The values are those of `hyperparams/ppo.yml` and `hyperparams/trpo.yml` of github.com/DLR-RM/rl-baselines3-zoo (the
first as of commit 208b6fd, the second of 13a3fe7), and of `ppo_lstm.yml` of rl_zoo3 2.9.2; what they leave open has the
libraries' defaults. Only the budget is the suite's, and linear schedules run over it. The zoo marks all as tuned but
PPO's on Acrobot-v1 and MountainCar-v0, where it trains for 1,000,000 steps. On MountainCarContinuous-v0 it trains for
20,000 (PPO) and 50,000 (TRPO), on MuJoCo's tasks, whose values are those of version v4, for 1,000,000, on all others
for 100,000.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn

from rlzoo.benchmark.job import Watch
from rlzoo.control.acting import Actor
from rlzoo.control.evaluation import evaluate_actor
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import no_such, require

_BESIDE = {"policy": "MlpPolicy", "normalize": False, "schedule": "constant", "log_std_init": 0.0, "ortho_init": True}
"""Settings that are no numbers of the constructor, as they are unless the zoo says otherwise."""

_UNREPORTED = {"stats_window_size", "verbose", "_init_setup_model"}
"""Numbers of the constructor that no result depends on."""

_LSTM = {
    "policy": "MlpLstmPolicy", "normalize": True, "ortho_init": False, "lstm_hidden_size": 64, "activation": "tanh",
}  # fmt: skip
_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}

_MUJOCO_PPO = {
    "normalize": True, "n_envs": 1, "n_steps": 512, "log_std_init": -2.0, "ortho_init": False, "activation": "relu",
    "net_arch": [256, 256],
}  # fmt: skip
_MUJOCO_TRPO = {
    "normalize": True, "n_envs": 2, "n_steps": 1024, "batch_size": 128, "gamma": 0.99, "gae_lambda": 0.95,
    "sub_sampling_factor": 1, "cg_max_steps": 25, "cg_damping": 0.1, "n_critic_updates": 20, "learning_rate": 1e-3,
}  # fmt: skip


class _Peer:
    """An algorithm, and what the zoo sets for it, by environment.

    - `normalize`: observations and rewards by running statistics, rewards with the algorithm's own discount.
    - `schedule`: "linear" takes the learning rate and the clip range to 0.

    Without `tuned`, all environments have the library's defaults.
    """

    def __init__(
        self, algorithm: type[OnPolicyAlgorithm], library: str, tuned: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self._algorithm = algorithm
        self._library = library
        self._tuned = tuned

    def settings(self, env: str) -> dict[str, Any]:
        tuned = {env: {"n_envs": 1}} if self._tuned is None else self._tuned
        hint = f"the zoo tunes {self._algorithm.__name__} for {', '.join(tuned)}"
        require(env in tuned, f"{no_such('environment', env, tuned)}; {hint}")
        parameters = inspect.signature(self._algorithm.__init__).parameters
        numbers = {name: x.default for name, x in parameters.items() if type(x.default) in (bool, int, float)}
        defaults = {name: x for name, x in numbers.items() if name not in _UNREPORTED}
        return {"library": self._library, **_BESIDE, **defaults, **tuned[env]}

    def train(self, env: str, seed: int, settings: dict[str, Any], watch: Watch) -> None:
        model = self.model(env, seed, settings)
        try:
            evaluate = functools.partial(_evaluate, model, env)
            model.learn(settings["total_steps"], _AfterUpdates(watch, evaluate), log_interval=None)
        finally:
            model.get_env().close()

    def model(self, env: str, seed: int, settings: dict[str, Any]) -> OnPolicyAlgorithm:
        arguments = {name: x for name, x in settings.items() if name not in ("peer", "library", "total_steps")}
        # Copy i is seeded with seed + i: the copies of runs with neighbouring seeds would be the same.
        seed = int(np.random.SeedSequence(seed).generate_state(1)[0] // 2)
        venv = make_vec_env(env, arguments.pop("n_envs"), seed)
        if arguments.pop("normalize"):
            venv = VecNormalize(venv, gamma=arguments["gamma"])
        if arguments.pop("schedule") == "linear":
            falling = arguments.keys() & {"learning_rate", "clip_range"}
            arguments |= {name: LinearSchedule(arguments[name], 0.0, 1.0) for name in falling}
        policy_kwargs = {name: arguments.pop(name) for name in ("log_std_init", "ortho_init")}
        if "activation" in arguments:
            policy_kwargs["activation_fn"] = _ACTIVATIONS[arguments.pop("activation")]
        if "net_arch" in arguments:
            policy_kwargs["net_arch"] = arguments.pop("net_arch")
        if self._algorithm is sb3_contrib.RecurrentPPO:  # the zoo's networks are the same in all three problems
            policy_kwargs |= {"net_arch": {"pi": [64], "vf": [64]}, "enable_critic_lstm": True}
            policy_kwargs["lstm_hidden_size"] = arguments.pop("lstm_hidden_size")
        with warnings.catch_warnings():  # on MountainCarContinuous-v0 the zoo's minibatch is more than a rollout
            warnings.filterwarnings("ignore", "You have specified a mini-batch size", UserWarning)
            return self._algorithm(env=venv, seed=seed, device="cpu", policy_kwargs=policy_kwargs, **arguments)


class _AfterUpdates(BaseCallback):
    """Calls `watch` when the weights of an update are in place: `on_rollout_end` comes before the update."""

    def __init__(self, watch: Watch, evaluate: Callable[..., Evaluation]) -> None:
        super().__init__()
        self._watch = watch
        self._evaluate = evaluate

    def _on_rollout_start(self) -> None:
        self._watch(self.model.num_timesteps, self._evaluate)

    _on_training_end = _on_rollout_start

    def _on_step(self) -> bool:
        return True


def _evaluate(
    model: OnPolicyAlgorithm, env: str, episodes: int, *, seed: int, deterministic: bool = False
) -> Evaluation:
    """See `rlzoo.control.evaluation.evaluate_actor`. Training goes on as if this had not been."""
    policy, action_dist, numpy_state = model.policy, model.policy.action_dist, np.random.get_state()
    policy.action_dist = copy.copy(action_dist)  # it holds the exploration matrices of the rollout that begins
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            actor = _actor(model, deterministic)
            return evaluate_actor(actor, env, episodes, seed=seed, deterministic=deterministic)
    finally:
        policy.action_dist = action_dist
        np.random.set_state(numpy_state)


def _actor(model: OnPolicyAlgorithm, deterministic: bool) -> Actor:
    """The policy as it is now, with the observations' statistics as they are now.

    gSDE's exploration matrices, one for each copy, are drawn anew as often as in training; SB3's own evaluation keeps
    one throughout. The noise argument of the actor is not used.
    """
    normalizer, steps, memory = model.get_vec_normalize_env(), itertools.count(), None
    every = model.sde_sample_freq if model.sde_sample_freq > 0 else model.n_steps

    def act(
        obs: np.ndarray[Any, Any], noise: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        nonlocal memory
        if model.use_sde and not deterministic and next(steps) % every == 0:
            model.policy.reset_noise(len(obs))
        if normalizer is not None:
            obs = normalizer.normalize_obs(obs)
        if isinstance(model.observation_space, gymnasium.spaces.Discrete):
            obs = obs.argmax(-1)  # ours are one-hot
        actions, memory = model.predict(obs, memory, starts, deterministic)
        return actions

    return act


PPO = _Peer(
    stable_baselines3.PPO,
    f"stable-baselines3 {stable_baselines3.__version__}",
    {
        "CartPole-v1": {
            "n_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
            "learning_rate": 1e-3, "clip_range": 0.2, "schedule": "linear",
        },
        "Acrobot-v1": {
            "normalize": True, "n_envs": 16, "n_steps": 256, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.94,
        },
        "MountainCar-v0": {
            "normalize": True, "n_envs": 16, "n_steps": 16, "n_epochs": 4, "gamma": 0.99, "gae_lambda": 0.98,
        },
        "MountainCarContinuous-v0": {
            "normalize": True, "n_envs": 1, "n_steps": 8, "batch_size": 256, "n_epochs": 10, "gamma": 0.9999,
            "gae_lambda": 0.9, "learning_rate": 7.77e-5, "clip_range": 0.1, "ent_coef": 0.00429, "vf_coef": 0.19,
            "max_grad_norm": 5.0, "use_sde": True, "log_std_init": -3.29, "ortho_init": False,
        },
        "Pendulum-v1": {
            "n_envs": 4, "n_steps": 1024, "n_epochs": 10, "gamma": 0.9, "gae_lambda": 0.95, "learning_rate": 1e-3,
            "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
        },
        "HalfCheetah-v5": {
            **_MUJOCO_PPO, "batch_size": 64, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.92,
            "learning_rate": 2.0633e-5, "clip_range": 0.1, "ent_coef": 0.000401762, "vf_coef": 0.58096,
            "max_grad_norm": 0.8,
        },
        "Hopper-v5": {
            **_MUJOCO_PPO, "batch_size": 32, "n_epochs": 5, "gamma": 0.999, "gae_lambda": 0.99,
            "learning_rate": 9.80828e-5, "clip_range": 0.2, "ent_coef": 0.00229519, "vf_coef": 0.835671,
            "max_grad_norm": 0.7,
        },
        "Swimmer-v5": {
            "normalize": True, "n_envs": 4, "n_steps": 1024, "batch_size": 256, "gamma": 0.9999, "gae_lambda": 0.98,
            "learning_rate": 6e-4,
        },
    },
)  # fmt: skip

DEFAULT_PPO = _Peer(stable_baselines3.PPO, f"stable-baselines3 {stable_baselines3.__version__}")
DEFAULT_TRPO = _Peer(sb3_contrib.TRPO, f"sb3-contrib {sb3_contrib.__version__}")

TRPO = _Peer(
    sb3_contrib.TRPO,
    f"sb3-contrib {sb3_contrib.__version__}",
    {
        "CartPole-v1": {
            "n_envs": 2, "n_steps": 512, "batch_size": 512, "gamma": 0.99, "gae_lambda": 0.98, "cg_damping": 1e-3,
            "learning_rate": 1e-3, "n_critic_updates": 20,
        },
        "Acrobot-v1": {"normalize": True, "n_envs": 2, "n_steps": 1024},
        "MountainCar-v0": {"normalize": True, "n_envs": 2, "n_steps": 1024, "n_critic_updates": 20},
        "MountainCarContinuous-v0": {"normalize": True, "n_envs": 2, "use_sde": True, "sde_sample_freq": 4},
        "Pendulum-v1": {
            "n_envs": 2, "n_steps": 1024, "gamma": 0.9, "n_critic_updates": 15, "use_sde": True, "sde_sample_freq": 4,
        },
        "HalfCheetah-v5": {**_MUJOCO_TRPO, "target_kl": 0.04},
        "Hopper-v5": _MUJOCO_TRPO,
        "Swimmer-v5": {**_MUJOCO_TRPO, "gamma": 0.9999},
    },
)  # fmt: skip

RECURRENT_PPO = _Peer(
    sb3_contrib.RecurrentPPO,
    f"sb3-contrib {sb3_contrib.__version__}",
    {
        "CartPoleNoVel-v1": {
            **_LSTM, "activation": "relu", "n_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98,
            "gae_lambda": 0.8, "learning_rate": 1e-3, "clip_range": 0.2, "schedule": "linear",
        },
        "PendulumNoVel-v1": {
            **_LSTM, "activation": "relu", "n_envs": 4, "n_steps": 1024, "n_epochs": 10, "gamma": 0.9,
            "gae_lambda": 0.95, "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
        },
        "MountainCarContinuousNoVel-v0": {
            **_LSTM, "lstm_hidden_size": 32, "n_envs": 8, "n_steps": 1024, "batch_size": 256, "n_epochs": 10,
            "gamma": 0.9999, "gae_lambda": 0.9, "learning_rate": 7.77e-5, "clip_range": 0.1, "ent_coef": 0.00429,
            "vf_coef": 0.19, "max_grad_norm": 5.0, "use_sde": True, "sde_sample_freq": 8,
        },
    },
)  # fmt: skip
