"""Actions that an environment calls illegal are never taken, and are in no log-probability, entropy or KL."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import short_runs
import torch
from builders import make_model
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_space, iterate

import rlzoo
from rlzoo.control.deploy import ControlPolicy
from rlzoo.control.envs.source import Source
from rlzoo.control.spaces import flat_mask, native_actions
from rlzoo.core.distributions import Categorical, DiagGaussian, MultiCategorical, Product
from rlzoo.core.models import ActorCritic
from rlzoo.core.seen import Seen
from rlzoo.core.system.errors import ConfigError, EnvError, TrainingError
from rlzoo.runs.train import train


class Forbidding(gymnasium.Env):
    """Action a is legal at step t unless a = t mod K. An illegal action ends the program."""

    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self, action_space=None, tell="info", fault=None, fault_at=3):
        self.action_space = action_space or spaces.Discrete(4)
        self.tell, self.fault, self.fault_at = tell, fault, fault_at
        if tell == "method":
            self.action_masks = self._mask

    def _mask(self):
        if self.t == self.fault_at and self.fault is not None:
            return self.fault
        counts = [self.action_space.n] if isinstance(self.action_space, spaces.Discrete) else self.action_space.nvec
        return np.concatenate([np.arange(n) != self.t % n for n in counts]).astype(np.int8)

    def _info(self):
        return {"action_mask": self._mask()} if self.tell == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), self._info()

    def step(self, action):
        counts = [self.action_space.n] if isinstance(self.action_space, spaces.Discrete) else self.action_space.nvec
        assert all(a != self.t % n for a, n in zip(np.atleast_1d(action), counts, strict=True)), "illegal"
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 11, False, self._info()


SMALL = {k: x for k, x in short_runs.QUICK.items() if k != "env"} | {"total_steps": 320, "num_steps": 40}


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.MultiDiscrete([2, 3])], ids=["discrete", "multi"])
@pytest.mark.parametrize("tell", ["info", "method"])
@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"network": "gru", "cell_size": 4}, marks=pytest.mark.slow), {"fast": False}],
    ids=["mlp", "gru", "torch"],
)
def test_no_illegal_action_is_ever_taken(space, tell, more, tmp_path):
    run = train("ppo-clip", lambda: Forbidding(space, tell), out=tmp_path / "run", **SMALL, **more)
    assert run.evaluations()[-1]["mean_length"] == 11


class SeesMasks(ActorCritic):
    def inputs(self, obs):
        return torch.cat([obs.obs, obs.legal.float()], -1)


def test_networks_of_ones_own_may_see_the_legal_actions(tmp_path):
    model = make_model(Forbidding().action_space, obs_size=6, dtype=torch.float32)
    run = train("ppo-clip", Forbidding, model=SeesMasks(model.policy, model.value), out=tmp_path / "run", **SMALL)
    assert run.finished


class Obedient(gymnasium.Wrapper):
    """An illegal action ends the program."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.mask = info["action_mask"]
        return obs, info

    def step(self, action):
        assert self.mask[action], "illegal"
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.mask = info["action_mask"]
        return obs, reward, terminated, truncated, info


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo-clip", "trpo"])
def test_taxi_takes_no_illegal_action(algorithm, tmp_path):
    settings = {"total_steps": 8000, "wrappers": [Obedient], "out": tmp_path / "run", "final_eval_episodes": 5}
    run = train(algorithm, "Taxi-v4", **settings)
    assert run.evaluations()[-1]["mean_return"] > -200.5  # -1 a step: no penalty of an illegal action
    with pytest.raises(TrainingError, match="illegal"):
        train(algorithm, "Taxi-v4", action_masks=False, **settings | {"out": tmp_path / "without"})


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["reinforce", "npg", "trpo", "ppo-penalty"])
def test_every_algorithm_trains(algorithm, tmp_path):
    settings = {k: x for k, x in SMALL.items() if algorithm != "reinforce" or k != "num_steps"}
    run = train(algorithm, Forbidding, out=tmp_path / "run", **settings)
    assert all(np.isfinite(x) for record in run.metrics() for x in record.values() if isinstance(x, float))


OTHERS = [np.nan, 0.5, -1, 2, -np.inf, 1j]
"""Entries that are no part of a mask: an additive one has 0 and -inf, which mean the opposite."""


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (np.zeros(4), "step 3: copy 0 has no legal action"),
        (np.ones(3), "copy 0 .*action mask of shape .3,., the action space has 4 categories"),
        ("all", "copy 0 .*action mask of kind str, the action space has 4 categories"),
        *((np.array([1, 0, x, 1]), f"copy 0 .*action mask with {x}: its entries must be bool") for x in OTHERS),
    ],
)
def test_wrong_mask_is_one_line(fault, said):
    env = Source(lambda: Forbidding(fault=fault)).make(2, 0)
    env.reset()
    env.step(np.array([1, 1]))
    env.step(np.array([2, 2]))
    with pytest.raises(EnvError, match=said):
        env.step(np.array([3, 3]))
    env.close()


def test_part_without_a_legal_category_is_named():
    env = Source(lambda: Forbidding(spaces.MultiDiscrete([2, 3]), fault=np.array([1, 1, 0, 0, 0]), fault_at=0)).make(
        1, 0
    )
    with pytest.raises(EnvError, match="step 0: copy 0 has no legal action in part 1"):
        env.reset()
    env.close()


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    run = train("ppo-clip", Forbidding, out=tmp_path_factory.mktemp("runs") / "run", **SMALL)
    return rlzoo.load_policy(run, env=Forbidding)


def test_deployed_policy_takes_a_mask(policy):
    for legal in range(4):
        assert policy(np.zeros(2, np.float32), np.arange(4) == legal) == legal
    assert policy(np.zeros((3, 2), np.float32), np.eye(4)[[2, 0, 1]]).tolist() == [2, 0, 1]


MASKED = np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 0]], bool)
"""Of each row of a batch: the only legal category of two, and of three."""


@pytest.mark.parametrize(
    ("space", "nested"),
    [
        (spaces.MultiDiscrete([2, 3]), lambda x: (x[..., :2], x[..., 2:])),
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,)), spaces.Discrete(3)]),
         lambda x: (x[..., :2], None, x[..., 2:])),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([spaces.Discrete(3)])),
         lambda x: {"a": x[..., :2], "b": (x[..., 2:],)}),
    ],
    ids=["MultiDiscrete", "Tuple", "Dict"],
)  # fmt: skip
def test_deployed_policy_takes_masks_nested_like_the_actions(space, nested):
    deployed = ControlPolicy(make_model(space, dtype=torch.float32), spaces.Box(-1, 1, (4,)), space)
    forms = nested(MASKED), [nested(row) for row in MASKED], MASKED
    expected = [deployed(np.ones(4), row) for row in MASKED]
    assert not data_equivalence(expected[0], expected[1])
    for form in forms:
        rows = iterate(batch_space(space, 3), deployed(np.ones((3, 4)), form))
        assert all(data_equivalence(*pair) for pair in zip(rows, expected, strict=True))


def test_square_mask_of_one_observation():
    space = spaces.MultiBinary((2, 2))
    mask = np.array([[[0, 1], [1, 0]], [[1, 0], [0, 1]]])
    assert ControlPolicy(make_model(space, dtype=torch.float32), spaces.Box(-1, 1, (4,)), space)(
        np.ones(4), mask
    ).tolist() == [
        [1, 0],
        [0, 1],
    ]


class Telling(gymnasium.Env):
    """Says which actions are legal by a method that cannot be called once the episode has ended."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space, mask):
        self.action_space, self.mask = action_space, mask

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps == 3, False, {}

    def action_masks(self):
        assert self.steps < 3, "the episode has ended"
        return self.mask


def steps_of(source):
    """The mask, or None, at the reset and at each of five steps."""
    env = source.make(1, 0)
    seen = [env.reset()[0], *(env.step(np.zeros((1, 1)))[0] for _ in range(5))]
    env.close()
    return [None if not isinstance(x, Seen) else x.legal.tolist() for x in seen]


def test_masks_are_asked_for_where_an_action_is_to_be_taken():
    discrete = partial(Telling, spaces.Discrete(2), [1, 0])
    assert steps_of(Source(discrete)) == [[[True, False]]] * 3 + [[[True, True]]] + [[[True, False]]] * 2
    assert steps_of(Source(partial(Telling, spaces.Discrete(2), "not a mask"), masks=False)) == [None] * 6
    assert steps_of(Source(partial(Telling, spaces.Box(-1, 1, (1,)), None))) == [None] * 6


def test_masks_of_a_vector_environment_may_be_nested():
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(3))
    mask = {"a": np.array([1, 0]), "b": np.array([0, 1, 1])}

    class ByInfo(Telling):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {"action_mask": mask}

    env = Source(SyncVectorEnv([partial(ByInfo, space, None)] * 2)).make(2, 0)
    assert env.reset()[0].legal.tolist() == [[True, False, False, True, True]] * 2


class Identity(gymnasium.vector.VectorWrapper):
    pass


@pytest.mark.parametrize("kind", [SyncVectorEnv, pytest.param(AsyncVectorEnv, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrapper", [lambda x: x, Identity], ids=["bare", "wrapped"])
def test_masks_that_a_vector_environment_would_not_give_are_an_error(kind, wrapper):
    vector = wrapper(kind([partial(Telling, spaces.Discrete(2), [1, 0])] * 2))
    with pytest.raises(ConfigError, match=r"^the masks of action_masks\(\) in \w+ would be ignored: give "):
        Source(vector).make(2, 0)
    Source(vector, masks=False).make(2, 0).reset()
    vector.close()


@pytest.mark.parametrize("vector", [False, True])
def test_masks_that_begin_after_the_first_reset_are_an_error(vector):
    class Late(Forbidding):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0], {}

    env = Source(SyncVectorEnv([Late]) if vector else Late).make(1, 0)
    env.reset()
    with pytest.raises(EnvError, match="step 1: info has an action mask, and had none at the first reset"):
        env.step(np.ones(1, int))
    env.close()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.zeros(4), "action_mask allows no action in row 0"),
        (np.ones(3), "action mask of shape .3,., the action space has 4 categories"),
        (np.ones((2, 4)), "action mask of shape .2, 4., the action space has 4 categories"),
        (7, "action mask of"),
    ],
)
def test_wrong_mask_for_a_deployed_policy_is_one_line(mask, said, policy):
    with pytest.raises(ConfigError, match=said):
        policy(np.zeros(2, np.float32), mask)
    with pytest.raises(ConfigError, match="action_mask has 2 rows, and obs has 1"):
        policy(np.zeros((1, 2), np.float32), np.ones((2, 4)))
    for none in ({}, (), (None, None)):
        with pytest.raises(ConfigError, match="action_mask has 0 rows, and obs has 2"):
            policy(np.zeros((2, 2), np.float32), none)


@pytest.mark.parametrize("env", [Forbidding, lambda: Nested()], ids=["masks", "parts"])
@pytest.mark.parametrize("format", ["c", "onnx"])
def test_what_no_export_holds_is_said(env, format, tmp_path):
    run = train("ppo-clip", env, out=tmp_path / "run", **SMALL)
    with pytest.raises(ConfigError, match="use load_policy"):
        rlzoo.export(run, format, env=env)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_restricted_distribution_is_the_conditional_one(dtype):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 5, dtype=dtype, generator=rng).mul(30).requires_grad_()
    legal = torch.rand(50, 5, generator=rng) < 0.5
    legal[torch.arange(50), torch.randint(5, (50,), generator=rng)] = True
    policy = Categorical(logits).restrict(legal)
    p = policy.log_probs.exp()
    assert (p[~legal] == 0).all()
    conditional = logits.double().softmax(-1) * legal  # single precision would round small ones to 0
    conditional = conditional / conditional.sum(-1, keepdim=True)
    torch.testing.assert_close(p, conditional.to(dtype), rtol=1e-4, atol=1e-6)
    other = Categorical(torch.randn(50, 5, dtype=dtype, generator=rng)).restrict(legal)
    assert bool(policy.entropy().isfinite().all())
    assert bool(policy.kl(other).isfinite().all())
    (grad,) = torch.autograd.grad((policy.entropy() + policy.kl(other)).sum(), logits)
    assert bool(grad.isfinite().all())
    assert (grad[~legal] == 0).all()
    assert legal.gather(1, policy.mode.unsqueeze(1)).all()
    for _ in range(50):
        assert legal.gather(1, policy.sample(rng).unsqueeze(1)).all()


def test_product_is_the_sum_of_its_parts():
    rng = torch.Generator().manual_seed(0)

    def make():
        one = Categorical(torch.randn(7, 3, generator=rng))
        two = DiagGaussian(torch.randn(7, 2, generator=rng), torch.zeros(7, 2))
        many = MultiCategorical((Categorical(torch.randn(7, 2, generator=rng)), one))
        return Product((one, two, many), (1, 2, 2))

    policy, other = make(), make()
    action = policy.sample(rng)
    assert action.shape == (7, 5)
    pieces = action[:, 0].long(), action[:, 1:3], action[:, 3:].long()
    for whole, parts in (
        (policy.log_prob(action), [p.log_prob(a) for p, a in zip(policy.parts, pieces, strict=True)]),
        (policy.entropy(), [p.entropy() for p in policy.parts]),
        (policy.kl(other), [p.kl(q) for p, q in zip(policy.parts, other.parts, strict=True)]),
    ):
        torch.testing.assert_close(whole, sum(parts))
    assert torch.equal(policy.from_noise(torch.zeros(7, policy.noise_size)), policy.mode)
    legal = torch.ones(7, 8, dtype=torch.bool)
    legal[:, [0, 1, 3, 5, 6]] = False
    assert (policy.restrict(legal).mode[:, [0, 3, 4]] == torch.tensor([2.0, 1.0, 2.0])).all()


SPACE = spaces.Dict(
    arm=spaces.Tuple([spaces.Box(-2, 2, (2,)), spaces.Discrete(3, start=5)]), legs=spaces.MultiDiscrete([2, 4])
)


class Nested(gymnasium.Env):
    """Reward for legs (1, 2), and actions that must lie in the space."""

    observation_space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(-1, 1, (2,)))
    action_space = SPACE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        reward = float(action["legs"][0] == 1) + float(action["legs"][1] == 2)
        return self.observation_space.sample(), reward, self.t == 8, False, {}


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [("ppo-clip", "mlp"), *(pytest.param(x, "gru", marks=pytest.mark.slow) for x in ("reinforce", "npg", "trpo"))],
)
def test_product_spaces_train(algorithm, network, tmp_path):
    settings = {k: x for k, x in SMALL.items() if algorithm != "reinforce" or k != "num_steps"}
    run = train(algorithm, Nested, out=tmp_path / "run", network=network, **settings)
    policy = rlzoo.load_policy(run, env=Nested, deterministic=False)
    env = Nested()
    obs, _ = env.reset(seed=0)
    for _ in range(5):
        action = policy(obs)
        assert SPACE.contains(action)
        obs, *_ = env.step(action)


@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_product_actions_reach_every_copy(asynchronous):
    env = Source(Nested, asynchronous=asynchronous).make(3, 0)
    env.reset()
    action = np.array([[0.5, 3, 0, 1, 2], [0, 0, 1, 0, 2], [0, 0, 2, 1, 3]], np.float32)
    _, reward, *_ = env.step(action)
    assert reward.tolist() == [2, 1, 1]
    native = native_actions(SPACE, action)
    np.testing.assert_allclose(native["arm"][0][0], [0.5, 2])
    assert native["arm"][1].tolist() == [5, 6, 7]
    env.close()


def test_masks_of_nested_spaces_are_nested():
    mask = {"arm": (None, np.array([1, 0, 1])), "legs": (np.array([1, 0]), np.array([0, 0, 1, 1]))}
    assert flat_mask(SPACE, mask).tolist() == [True, False, True, True, False, False, False, True, True]
