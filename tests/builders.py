"""Small models and buffers of every kind, the same on every call."""

import math
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import torch
from gymnasium import spaces

from rlzoo.control.fast import accelerate
from rlzoo.control.networks import Network
from rlzoo.control.task import Control, ControlTask
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate
from rlzoo.core.distributions import Categorical, DiagGaussian, MultiCategorical
from rlzoo.core.env import VectorEnv
from rlzoo.core.task import Setup
from rlzoo.optim.fast.codegen import write_loop
from rlzoo.optim.fast.tape import Tape
from rlzoo.optim.natural_gradient import FlatPolicy

SPACES = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(np.float32([-2, 0]), np.float32([2, 1])),
    "multidiscrete": spaces.MultiDiscrete([2, 3]),
    "multibinary": spaces.MultiBinary(3),
}
NETWORKS = {
    "tanh": {},
    "relu": {"activation": "relu", "hidden": (7, 6)},
    "box": {"space": SPACES["box"], "normalize_obs": True},
    "box, state-dependent std": {"space": SPACES["box"], "state_dependent_std": True},
    "multidiscrete, shared trunk": {"space": SPACES["multidiscrete"], "shared_trunk": True},
    "no hidden layer": {"hidden": (), "shared_trunk": True},
}
"""Networks of every kind that has a written-out backward pass, and a policy with only one layer."""


def make_model(space=SPACES["discrete"], obs_size=4, seed=0, dtype=torch.float64, spread=0.5, **network):
    """An `ActorCritic` whose policy is far from uniform: every parameter moved by `spread` times a normal."""
    generator = torch.Generator().manual_seed(seed)
    network = Network(**{"hidden": (5,), **network})
    model = network.build(spaces.Box(-np.inf, np.inf, (obs_size,)), space, generator)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(spread * torch.randn(p.shape, generator=generator))
    return model.to(dtype)


def accelerated(model):
    """The same model with the faster networks."""
    accelerate(SimpleNamespace(model=model))
    return model


def tape_gradients(loss, parameters):
    """The gradients of `loss()` for the parameters by a tape, on which at least one module is recorded."""
    for p in parameters:
        p.grad = torch.zeros_like(p)
    with Tape() as tape:
        total = loss()
    assert tape.records
    tape.backward(total, parameters)
    grads = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None
    return grads


def make_ends(rng, rows, steps, rate=0.2):
    """`terminated`, `truncated` and `mask` of random episodes, each followed by one forced step."""
    terminated, truncated = np.zeros((2, rows, steps), bool)
    mask = np.ones((rows, steps), bool)
    for i, t in np.ndindex(rows, steps):
        if t and (terminated | truncated)[i, t - 1]:
            mask[i, t] = False
        elif rng.random() < rate:
            (terminated if rng.random() < 0.5 else truncated)[i, t] = True
    return tuple(map(torch.from_numpy, (terminated, truncated, mask)))


def make_buffer(model, rows=4, steps=8, seed=0, whole_episodes=False):
    """An evaluated buffer of the model's own actions at random observations, with random rewards and ends."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    inputs = next(m for m in model.modules() if isinstance(m, torch.nn.Linear)).in_features
    obs = torch.randn(rows, steps + 1, inputs, generator=generator, dtype=dtype)
    terminated, truncated, mask = make_ends(rng, rows, steps)
    if whole_episodes:
        terminated[:, -1] = True
    with torch.no_grad():
        action = model.distribution(obs[:, :-1]).sample(generator)
    reward = torch.randn(rows, steps, generator=generator, dtype=dtype) * mask
    return evaluate(model, Buffer(obs, action, reward, terminated, truncated, mask))


def parameters(model):
    """A copy of all parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def with_junk(buffer):
    """`buffer` with finite nonsense in all that a forced step has no say in."""
    forced = ~buffer.mask

    def spoil(x, junk):
        return torch.where(forced.reshape(forced.shape + (1,) * (x.ndim - 2)), torch.full_like(x, junk), x)

    return buffer.replace(
        action=spoil(buffer.action, 1),
        reward=spoil(buffer.reward, math.pi * 100),
        logp=spoil(buffer.logp, -7.0),
        terminated=buffer.terminated | forced,
    )


class Imitation:
    """An auxiliary loss in two terms: −coef·E[log π(a|s)] at states and actions of its own.

    `drawn` lists the rows of the objectives that it was drawn for.
    """

    def __init__(self, model, coef=0.7, seed=4):
        generator = torch.Generator().manual_seed(seed)
        p = next(model.parameters())
        inputs = next(m for m in model.modules() if isinstance(m, torch.nn.Linear)).in_features
        self.obs = torch.randn(7, 1, inputs, generator=generator, dtype=p.dtype)
        with torch.no_grad():
            self.action = model.distribution(self.obs).sample(generator)
        self.coef, self.drawn = coef, []

    def draw(self, rows):
        self.drawn.append(rows)
        return [self.loss_of(slice(0, 2)), self.loss_of(slice(2, 7))]

    def loss_of(self, rows):
        def term(model):
            logp = model.distribution(self.obs[rows]).log_prob(self.action[rows])
            return -self.coef * logp.sum() / len(self.obs)

        return term

    def loss(self, model):
        """The whole loss at once."""
        return self.loss_of(slice(None))(model)


class PolicyAt(FlatPolicy):
    """θ ↦ π_θ(·|s) at fixed observations; with a term, θ ↦ term(model)."""

    def __init__(self, model, obs):
        super().__init__(model)
        self.obs = obs

    @property
    def theta(self):
        return super().theta.requires_grad_()

    def __call__(self, theta, term=None):
        return super().__call__(theta, term or (lambda model: model.distribution(self.obs)))


KINDS = {
    "discrete": {"space": SPACES["discrete"]},
    "multidiscrete": {"space": SPACES["multidiscrete"]},
    "box": {"space": SPACES["box"]},
    "box, state-dependent std": {"space": SPACES["box"], "state_dependent_std": True},
    "shared trunk": {"space": SPACES["discrete"], "shared_trunk": True},
}
"""Kinds of policies whose Fisher matrix can be written out."""


def make_policy(kind):
    generator = torch.Generator().manual_seed(1)
    return PolicyAt(
        make_model(hidden=(3,), **KINDS[kind]), torch.randn(6, 1, 4, generator=generator, dtype=torch.float64)
    )


def mean_kl(model, batch):
    """E[KL(π_old ‖ π_θ)] by its definition."""
    return batch.mean(batch.old.kl(model.distribution(batch.obs)))


def explicit_fisher(policy, theta, weight):
    """Σ weight·E_a[∇log π ∇log πᵀ] of a `FlatPolicy` over its states: summed over the actions, or for a Gaussian
    by its information matrix."""

    def jacobian(f):
        return torch.func.jacrev(f)(theta.detach())

    distribution = policy(theta).detach()
    if isinstance(distribution, DiagGaussian):
        mean = jacobian(lambda t: policy(t).mean) * torch.exp(-distribution.log_std).unsqueeze(-1)
        log_std = jacobian(lambda t: policy(t).log_std) * math.sqrt(2)
        return torch.einsum("rt,rtap,rtaq->pq", weight, mean, mean) + torch.einsum(
            "rt,rtap,rtaq->pq", weight, log_std, log_std
        )
    match distribution:
        case Categorical(logits):
            actions = torch.arange(logits.shape[-1])
        case MultiCategorical(parts):
            actions = torch.cartesian_prod(*(torch.arange(part.logits.shape[-1]) for part in parts))
    fisher = 0
    for action in actions:
        taken = action.expand(*weight.shape, *action.shape)
        score = jacobian(lambda t, taken=taken: policy(t).log_prob(taken))
        fisher = fisher + torch.einsum("rt,rtp,rtq->pq", weight * distribution.log_prob(taken).exp(), score, score)
    return fisher


def evaluate_model(model, env, episodes, *, seed, deterministic=False, **settings):
    """Plays complete episodes of a control environment with a model, in a task of its own."""
    task = ControlTask(Control(**settings), Setup(env), model)
    try:
        return task.evaluate(episodes, seed=seed, deterministic=deterministic)
    finally:
        task.close()


def train_until(trainer, steps, measure, bound, every):
    """Trains until a measurement, made every few steps and at the end, exceeds `bound`; the last measurement.

    Training ends after `steps` at most. A test that needs a level within a budget stops where it is reached.
    """
    due = trainer.step + every
    while trainer.step < steps:
        trainer.iterate()
        if due <= trainer.step < steps:
            due = trainer.step + every
            if (result := measure()) > bound:
                return result
    return measure()


class Scripted(VectorEnv):
    """Copy i plays episodes of `lengths[i]` steps, cut by a time limit in odd copies; observes (copy, episode,
    time) and pays 1 + time. Its forced steps follow NEXT_STEP autoreset."""

    def __init__(self, lengths):
        self.lengths = np.array(lengths)
        self.num_envs = len(lengths)
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,))
        self.action_space = spaces.Discrete(2)
        self.episode = np.full(self.num_envs, -1)

    def _observe(self):
        return np.stack([np.arange(self.num_envs), self.episode, self.time], 1).astype(np.float32)

    def reset(self):
        self.episode = self.episode + 1
        self.time = np.zeros(self.num_envs, int)
        self.over = np.zeros(self.num_envs, bool)
        return self._observe(), self.over.copy()

    def step(self, action):
        assert action.shape == (self.num_envs,)
        reward = np.where(self.over, 0, 1 + self.time).astype(np.float32)
        self.episode = self.episode + self.over
        self.time = np.where(self.over, 0, self.time + 1)
        self.over = self.time == self.lengths
        odd = np.arange(self.num_envs) % 2 == 1
        return self._observe(), reward, self.over & ~odd, self.over & odd, self.over.copy()

    def state_dict(self):
        return {"episode": self.episode, "time": self.time, "over": self.over}

    def load_state_dict(self, state):
        self.episode, self.time, self.over = state["episode"], state["time"], state["over"]


class PythonLoop:
    """A `Compilation` without a compiler."""

    made: ClassVar[list["PythonLoop"]] = []

    def __init__(self, step, carry, inputs):
        self.step, self.carried = step, len(carry)
        self.code = write_loop(step, len(carry), (torch.tensor(0), *carry, *inputs)).code
        self.made.append(self)

    def loop(self):
        def run(count, *tensors):
            carry, inputs = tensors[: self.carried], tensors[self.carried :]
            for i in range(int(count)):
                carry = self.step(torch.tensor(i), *carry, *inputs)
            return carry

        return run
