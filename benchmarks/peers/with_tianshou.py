"""Peers of the benchmark: PPO, TRPO, NPG and REINFORCE of Tianshou 2.0.1, with the settings of its own scripts.

The values are those of the scripts in `test/` of github.com/thu-ml/tianshou (as of commit 03132cc, PPO's on Pendulum-v1
of 73e49c6); what they leave open has the library's defaults. On CartPole-v1 there are `discrete/test_ppo_discrete.py`,
of up to 500,000 steps, and `test_reinforce.py`, of 400,000; on Pendulum-v1 `continuous/test_ppo.py`, of 750,000,
`test_trpo.py` and `test_npg.py`, of 250,000; on other classic-control problems none. They stop at mean returns of 195
and -250. Only the budget is the suite's; no setting depends on it. The seconds are those of Tianshou's own trainer.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Space
from tianshou import algorithm as algorithms
from tianshou.algorithm.algorithm_base import OnPolicyAlgorithm
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from rlzoo.benchmark.job import Watch
from rlzoo.control.evaluation import evaluate_actor
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import no_such, require

_LOOP = ("collection_step_num_env_steps", "collection_step_num_episodes", "update_step_num_repetitions", "batch_size")


class _Peer:
    """An algorithm, and what Tianshou's scripts set for it, by environment.

    - `batch_size`: samples of a minibatch; all, where there are fewer.
    - `shared`: actor and critic have their hidden layers in common.
    - `init_gain`: of the orthogonal initial weights.
    """

    def __init__(self, algorithm: type[OnPolicyAlgorithm], published: dict[str, dict[str, Any]]) -> None:
        self._algorithm = algorithm
        self._published = published

    def settings(self, env: str) -> dict[str, Any]:
        hint = f"Tianshou sets {self._algorithm.__name__} for {', '.join(self._published)}"
        require(env in self._published, f"{no_such('environment', env, self._published)}; {hint}")
        return {"library": f"tianshou {version('tianshou')}", "hidden_sizes": [64, 64], **self._published[env]}

    def train(self, env: str, seed: int, settings: dict[str, Any], watch: Watch) -> None:
        np.random.seed(seed)
        torch.manual_seed(seed)
        arguments = {name: x for name, x in settings.items() if name not in ("peer", "library", "total_steps")}
        loop, copies = {name: arguments.pop(name, None) for name in _LOOP}, arguments.pop("num_training_envs")
        envs = DummyVectorEnv([functools.partial(gymnasium.make, env)] * copies)
        # An integer would mean seed + i for copy i: runs of neighbouring seeds would have the same copies.
        envs.seed([int(x) for x in np.random.SeedSequence(seed).generate_state(copies)])
        with contextlib.closing(envs), warnings.catch_warnings():
            # It warns of the bounds of actors that have none, and of every step that TRPO shortens.
            warnings.filterwarnings("ignore", category=UserWarning, module="tianshou")
            policy, algorithm = self._build(envs.observation_space[0], envs.action_space[0], **arguments)
            evaluate = functools.partial(_evaluate, policy, env)
            collector = Collector(algorithm, envs, VectorReplayBuffer(50_000, copies))  # more than any collection
            loop |= {"epoch_num_steps": settings["total_steps"], "max_epochs": 1, "show_progress": False}
            loop |= {"training_fn": lambda epoch, step: watch(step, evaluate)}  # comes before each collection
            algorithm.run_training(OnPolicyTrainerParams(training_collector=collector, verbose=False, **loop))
            watch(collector.collect_step, evaluate)

    def _build(
        self, observations: Box, actions: Space[Any], *, hidden_sizes: list[int], activation: str,
        shared: bool | None = None, init_gain: float, lr: float, **arguments: Any,
    ) -> tuple[ProbabilisticActorPolicy, OnPolicyAlgorithm]:  # fmt: skip
        function = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
        net = functools.partial(Net, state_shape=observations.shape, hidden_sizes=hidden_sizes, activation=function)
        first = net()
        if isinstance(actions, Box):
            actor = ContinuousActorProbabilistic(preprocess_net=first, action_shape=actions.shape, unbounded=True)
            policy = ProbabilisticActorPolicy(
                actor=actor, dist_fn=lambda x: Independent(Normal(*x), 1), action_space=actions
            )
        else:
            actor = DiscreteActor(preprocess_net=first, action_shape=actions.n)
            policy = DiscreteActorPolicy(actor=actor, dist_fn=Categorical, action_space=actions)
        networks = nn.ModuleList([actor])
        if shared is not None:
            critic = ContinuousCritic if isinstance(actions, Box) else DiscreteCritic
            arguments["critic"] = critic(preprocess_net=first if shared else net())
            networks.append(arguments["critic"])
        for layer in networks.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, init_gain)
                nn.init.zeros_(layer.bias)
        return policy, self._algorithm(policy=policy, optim=AdamOptimizerFactory(lr=lr), **arguments)


def _evaluate(policy: Any, env: str, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
    """See `rlzoo.control.evaluation.evaluate_actor`. No generator of the training has a part in it."""

    @torch.no_grad()
    def act(obs: np.ndarray[Any, Any], noise: np.ndarray[Any, Any], _: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        distribution = policy.dist_fn(policy.actor(obs)[0])
        if isinstance(distribution, Categorical):
            return (distribution.logits.numpy() + noise).argmax(1)
        normal = distribution.base_dist
        return policy.map_action(normal.loc.numpy() + normal.scale.numpy() * noise)

    return evaluate_actor(act, env, episodes, seed=seed, deterministic=deterministic)


_PPO = {"activation": "relu", "init_gain": 1.0, "gae_lambda": 0.95, "eps_clip": 0.2, "ent_coef": 0.0,
        "max_grad_norm": 0.5, "recompute_advantage": False}  # fmt: skip

PPO = _Peer(algorithms.PPO, {
    "CartPole-v1": _PPO | {
        "num_training_envs": 20, "collection_step_num_env_steps": 2000, "update_step_num_repetitions": 10,
        "batch_size": 64, "lr": 3e-4, "gamma": 0.99, "shared": True, "vf_coef": 0.5, "value_clip": False,
        "return_scaling": False, "advantage_normalization": False,
    },
    "Pendulum-v1": _PPO | {
        "num_training_envs": 16, "collection_step_num_episodes": 16, "update_step_num_repetitions": 2,
        "batch_size": 128, "lr": 1e-3, "gamma": 0.95, "shared": False, "vf_coef": 0.25, "value_clip": True,
        "return_scaling": True, "advantage_normalization": True,
    },
})  # fmt: skip

_TRUST_REGION = {
    "num_training_envs": 16, "collection_step_num_env_steps": 2048, "update_step_num_repetitions": 2,
    "batch_size": 99_999, "activation": "tanh", "init_gain": 1.0, "shared": False, "lr": 1e-3, "gamma": 0.95,
    "gae_lambda": 0.95, "return_scaling": True, "advantage_normalization": True, "optim_critic_iters": 5,
}  # fmt: skip

TRPO = _Peer(algorithms.TRPO, {
    "Pendulum-v1": _TRUST_REGION | {"max_kl": 0.005, "backtrack_coeff": 0.8, "max_backtracks": 10},
})  # fmt: skip

NPG = _Peer(algorithms.NPG, {"Pendulum-v1": _TRUST_REGION | {"trust_region_size": 0.5}})

Reinforce = _Peer(algorithms.Reinforce, {
    "CartPole-v1": {
        "num_training_envs": 8, "collection_step_num_episodes": 8, "update_step_num_repetitions": 2,
        "batch_size": 64, "activation": "relu", "init_gain": 2**0.5, "lr": 1e-3, "gamma": 0.95,
        "return_standardization": True,
    },
})  # fmt: skip
