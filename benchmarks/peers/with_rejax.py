"""Peer of the benchmark: PPO of rejax, with the settings of its repository.

The values are those of `configs/gymnax/*.yaml` of github.com/keraJLi/rejax (as of commit 4954fbf, MountainCar-v0's of
675ba2b, where a note says that they are not tuned); what they leave open has the library's defaults. They are for
100,000 steps, on MountainCarContinuous-v0 for 200,000 and on Pendulum-v1 for 150,000. Only the budget is the suite's;
no setting depends on it.

It trains on gymnax's environments, in JAX, and is evaluated on ours, which take the same steps. gymnax tells a time
limit from no other end of an episode, so rejax takes truncation for termination.

The seconds of a run are on the CPU, and the compilation of the training step is among them: in a short run it is most
of them. What is compiled before the first step, and for evaluation, is not.

rejax 0.1.3 asks for gymnax>=0.0.9 but breaks with gymnax 1, whose `step` returns more: pip install 'gymnax<1'
"""

from __future__ import annotations

import functools
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import rejax
from flax import linen
from jax import numpy as jnp

from rlzoo.benchmark.job import Watch
from rlzoo.control.evaluation import evaluate_actor
from rlzoo.core.evaluation import Evaluation
from rlzoo.core.system.errors import no_such, require


class _PPO:
    """Settings are named as in rejax; `activation` and `hidden_layer_sizes` are those of its `agent_kwargs`."""

    def settings(self, env: str) -> dict[str, Any]:
        hint = f"rejax sets PPO for {', '.join(_PUBLISHED)}"
        require(env in _PUBLISHED, f"{no_such('environment', env, _PUBLISHED)}; {hint}")
        gymnax = version("gymnax")
        require(gymnax.startswith("0."), f"rejax cannot step gymnax {gymnax}; pip install 'gymnax<1'")
        library = f"rejax {version('rejax')}, gymnax {gymnax}, jax {jax.__version__}"
        return {"library": library, **_DEFAULTS, **_PUBLISHED[env]}

    def train(self, env: str, seed: int, settings: dict[str, Any], watch: Watch) -> None:
        jax.clear_caches()  # or a second job in this process would not compile all that the first did
        arguments = {name: x for name, x in settings.items() if name not in ("peer", "library", "total_steps")}
        agent = {name: arguments.pop(name) for name in ("activation", "hidden_layer_sizes")}
        algorithm = rejax.PPO.create(env=env, agent_kwargs=agent, **arguments)
        iterate, act = jax.jit(algorithm.train_iteration), jax.jit(functools.partial(_act, algorithm))
        state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(seed))
        # Types that are weak at the beginning only would have the second iteration compiled anew.
        state = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)
        watch(0, functools.partial(_evaluate, act, state, env))
        while state.global_step < settings["total_steps"]:
            state = jax.block_until_ready(iterate(state))
            watch(int(state.global_step), functools.partial(_evaluate, act, state, env))


def _act(algorithm: rejax.PPO, state: Any, obs: jax.Array, noise: jax.Array) -> jax.Array:
    """The actions (N, *action) of the policy that training has come to."""

    def act(policy: linen.Module, obs: jax.Array) -> jax.Array:
        if algorithm.discrete:
            return (policy.action_logits(policy.features(obs)) + noise).argmax(1)
        action = policy.action_mean(policy.features(obs)) + jnp.exp(policy.action_log_std) * noise
        return jnp.clip(action, *policy.action_range)

    if algorithm.normalize_observations:
        obs = algorithm.normalize_obs(state.obs_rms_state, obs)
    return algorithm.actor.apply(state.actor_ts.params, obs, method=act)


def _evaluate(act: Any, state: Any, env: str, episodes: int, *, seed: int, deterministic: bool = False) -> Evaluation:
    """See `rlzoo.control.evaluation.evaluate_actor`. It changes nothing: `state` has the generator of the training."""
    return evaluate_actor(
        lambda obs, noise, _: np.asarray(act(state, obs, noise)), env, episodes, seed=seed, deterministic=deterministic
    )


_DEFAULTS = {"hidden_layer_sizes": [64, 64], "normalize_observations": False, "normalize_rewards": False}

_PUBLISHED = {
    "CartPole-v1": {
        "activation": "tanh", "num_envs": 5, "num_steps": 100, "num_epochs": 5, "num_minibatches": 5,
        "learning_rate": 7.5e-4, "max_grad_norm": 0.5, "gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2,
        "ent_coef": 0.01, "vf_coef": 0.5,
    },
    "Acrobot-v1": {
        "activation": "tanh", "num_envs": 5, "num_steps": 100, "num_epochs": 5, "num_minibatches": 5,
        "learning_rate": 7.5e-4, "max_grad_norm": 0.5, "gamma": 0.99, "gae_lambda": 0.95, "clip_eps": 0.2,
        "ent_coef": 0.01, "vf_coef": 0.5, "normalize_observations": True,
    },
    "MountainCar-v0": {
        "activation": "tanh", "num_envs": 10, "num_steps": 20, "num_epochs": 5, "num_minibatches": 5,
        "learning_rate": 2.5e-4, "max_grad_norm": 0.5, "gamma": 0.99, "gae_lambda": 0.98, "clip_eps": 0.2,
        "ent_coef": 0.0, "vf_coef": 0.5,
    },
    "MountainCarContinuous-v0": {
        "activation": "relu", "num_envs": 5, "num_steps": 100, "num_epochs": 10, "num_minibatches": 10,
        "learning_rate": 3e-4, "max_grad_norm": 10.0, "gamma": 0.9, "gae_lambda": 0.95, "clip_eps": 0.2,
        "ent_coef": 0.0, "vf_coef": 0.5,
    },
    "Pendulum-v1": {
        "activation": "swish", "num_envs": 100, "num_steps": 100, "num_epochs": 10, "num_minibatches": 10,
        "learning_rate": 1e-3, "max_grad_norm": 10.0, "gamma": 0.995, "gae_lambda": 0.95, "clip_eps": 0.2,
        "ent_coef": 0.0, "vf_coef": 0.5, "normalize_observations": True,
    },
}  # fmt: skip

PPO = _PPO()
