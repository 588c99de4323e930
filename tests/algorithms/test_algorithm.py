"""What holds for all five algorithms."""

import dataclasses
import json
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from builders import SPACES, Imitation, make_buffer, make_model, parameters, with_junk

from rlzoo.algorithms import NPG, TRPO, PPOClip, PPOPenalty, Reinforce, State, measure
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate
from rlzoo.core.distributions import Categorical, DiagGaussian
from rlzoo.core.estimators import GAE, Estimator, LeaveOneOut, MonteCarlo
from rlzoo.core.models import ActorCritic, Policy, Value
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.optim import adam
from rlzoo.runs.registry import ALGORITHMS, algorithm_class

SMALL = {
    "reinforce": Reinforce(vf_minibatch_size=8),
    "npg": NPG(vf_minibatch_size=8),
    "trpo": TRPO(vf_minibatch_size=8),
    "ppo-penalty": PPOPenalty(epochs=3, minibatch_size=8, ent_coef=0.01),
    "ppo-clip": PPOClip(epochs=3, minibatch_size=8, ent_coef=0.01, clip_value=True, stop_kl=0.5),
}
ALL = pytest.mark.parametrize("algorithm", SMALL.values(), ids=SMALL)


@dataclass(frozen=True)
class Fixed(Estimator):
    """Advantages of one value, and of another in masked steps."""

    advantage: float
    masked: float = 0.0

    def __call__(self, buffer):
        advantage = torch.where(buffer.mask, self.advantage, self.masked).to(buffer.reward.dtype)
        return buffer.replace(advantage=advantage, return_=advantage + buffer.value[:, :-1])


@dataclass(frozen=True)
class Spoiled(Estimator):
    """GAE, with nonsense in masked steps."""

    def __call__(self, buffer):
        buffer = GAE()(buffer)
        return buffer.replace(
            advantage=torch.where(buffer.mask, buffer.advantage, 1e3),
            return_=torch.where(buffer.mask, buffer.return_, -1e3),
        )


def with_estimator(algorithm, estimator):
    return dataclasses.replace(algorithm, estimator=estimator)


def updated(algorithm, buffer, updates=2, **model):
    """The model and the metrics after some updates, from the same start on every call."""
    model = make_model(**model)
    state = algorithm.init(model, np.random.default_rng(0))
    for _ in range(updates):
        metrics = algorithm.update(model, state, buffer)
    return model, metrics


def test_every_algorithm_is_registered_by_its_name():
    assert list(ALGORITHMS) == list(SMALL)
    assert all(algorithm_class(name) is type(algorithm) for name, algorithm in SMALL.items())


@pytest.mark.parametrize("shared_trunk", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("space", SPACES)
@ALL
def test_update_moves_policy_and_value_and_reports_finite_metrics(algorithm, space, shared_trunk):
    network = {"space": SPACES[space], "shared_trunk": shared_trunk}
    model, start = make_model(**network), make_model(**network)
    buffer = make_buffer(model, whole_episodes=True)
    model, metrics = updated(algorithm, buffer, **network)
    assert np.isfinite(list(metrics.values())).all()
    kl = "kl" if isinstance(algorithm, NPG | TRPO | PPOPenalty) else "kl_k3"
    assert {kl, "entropy", "explained_variance", "grad_norm"} <= metrics.keys()
    assert len(metrics.keys() & {"kl", "kl_k3"}) == 1
    for mine in ("policy_parameters", "value_parameters"):
        pairs = zip(getattr(model, mine)(), getattr(start, mine)(), strict=True)
        assert any(not torch.equal(new, old) for new, old in pairs)


def test_a_parameter_has_one_optimizer():
    model, rng = make_model(), np.random.default_rng(0)
    two = {"policy": adam.Adam(model.policy_parameters()), "all": adam.Adam(list(model.parameters()))}
    with pytest.raises(ConfigError, match="a parameter is in two optimizers; an Adam must have it for itself"):
        State(rng, two)


def test_children_of_the_generator_go_on_from_a_checkpoint():
    states = [State(np.random.default_rng(0)) for _ in range(2)]
    states[0].rng.spawn(3)
    states[1].rng.spawn(5)
    states[1].load_state_dict(states[0].state_dict())
    first, second = (state.rng.spawn(1)[0].random() for state in states)
    assert first == second


@ALL
def test_junk_in_forced_steps_changes_no_parameter(algorithm):
    buffer = make_buffer(make_model(), whole_episodes=True)
    assert not buffer.mask.all()
    clean, _ = updated(algorithm, buffer)
    spoiled, _ = updated(algorithm, with_junk(buffer))
    assert torch.equal(parameters(spoiled), parameters(clean))


@ALL
def test_junk_advantages_and_returns_of_forced_steps_change_no_parameter(algorithm):
    buffer = make_buffer(make_model(), whole_episodes=True)
    clean, _ = updated(with_estimator(algorithm, GAE()), buffer)
    spoiled, _ = updated(with_estimator(algorithm, Spoiled()), buffer)
    torch.testing.assert_close(parameters(spoiled), parameters(clean), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2])
@ALL
def test_batch_of_one_leaves_weights_finite(algorithm, steps):
    buffer = make_buffer(make_model(), rows=1, steps=steps)
    model, metrics = updated(algorithm, buffer)
    assert parameters(model).isfinite().all()
    assert np.isfinite(list(metrics.values())).all()


@ALL
def test_buffer_without_an_unmasked_step_changes_nothing(algorithm):
    model = make_model()
    buffer = make_buffer(model)
    empty, metrics = updated(algorithm, buffer.replace(mask=torch.zeros_like(buffer.mask)))
    assert torch.equal(parameters(empty), parameters(model))
    assert np.isfinite(list(metrics.values())).all()


@ALL
def test_zero_advantage_leaves_the_policy_alone(algorithm):
    changes = {"normalize_advantage": False}
    if "ent_coef" in {field.name for field in dataclasses.fields(algorithm)}:
        changes["ent_coef"] = 0.0
    start = make_model()
    algorithm = dataclasses.replace(algorithm, estimator=Fixed(0.0), **changes)
    model, _ = updated(algorithm, make_buffer(start))
    for new, old in zip(model.policy_parameters(), start.policy_parameters(), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=1e-9)


@pytest.mark.parametrize("quantity", ["reward", "obs"])
@ALL
def test_nan_in_the_buffer_is_a_named_error_and_changes_nothing(algorithm, quantity):
    model = make_model()
    buffer = make_buffer(model, whole_episodes=True)
    broken = torch.full_like(getattr(buffer, quantity), torch.nan)
    before = parameters(model)
    state = algorithm.init(model, np.random.default_rng(0))
    with pytest.raises(NonFiniteError, match=r"gradient of .* is not finite"):
        algorithm.update(model, state, buffer.replace(**{quantity: broken}))
    assert torch.equal(parameters(model), before)


@ALL
def test_update_leaves_the_buffer_alone(algorithm):
    buffer = make_buffer(make_model(), whole_episodes=True)
    before = buffer.map(torch.clone)
    updated(algorithm, buffer)
    for name in ("obs", "action", "reward", "terminated", "truncated", "mask", "logp", "value"):
        assert torch.equal(getattr(buffer, name), getattr(before, name))


class Constant(torch.nn.Module):
    """The same numbers in every state: a view of parameters, which training changes in place, or a copy."""

    def __init__(self, numbers, copies):
        super().__init__()
        self.numbers, self.copies = torch.nn.Parameter(torch.tensor(numbers, dtype=torch.float64)), copies

    def forward(self, obs):
        x = self.numbers.expand(*obs.shape[:-1], *self.numbers.shape)
        return x.clone() if self.copies else x


class ConstantPolicy(Policy):
    def __init__(self, copies):
        super().__init__()
        self.mean, self.log_std = Constant([0.1, 0.2], copies), Constant([-0.3, 0.4], copies)

    def forward(self, features, memory=None):
        return DiagGaussian(self.mean(features), self.log_std(features)), memory


class ConstantValue(Value):
    def __init__(self, copies):
        super().__init__()
        self.net = Constant(0.5, copies)

    def forward(self, features):
        return self.net(features)


@ALL
def test_the_old_policy_and_value_stay_where_they_are_views_of_parameters(algorithm):
    metrics = []
    for copies in (True, False):
        model = ActorCritic(ConstantPolicy(copies), ConstantValue(copies))
        state, buffer = algorithm.init(model, np.random.default_rng(0)), make_buffer(make_model(SPACES["box"]))
        metrics.append(algorithm.update(model, state, evaluate(model, buffer)))
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-9)


@ALL
def test_restored_state_goes_on_to_the_bit(algorithm):
    buffer = make_buffer(make_model(), whole_episodes=True)
    model = make_model()
    state = algorithm.init(model, np.random.default_rng(0))
    algorithm.update(model, state, buffer)
    weights, saved = parameters(model), state.state_dict()
    saved = {**saved, "optimizers": {k: {n: torch.as_tensor(x).clone() for n, x in v.items()}
                                     for k, v in saved["optimizers"].items()}}  # fmt: skip

    other = make_model(seed=1)
    other_state = algorithm.init(other, np.random.default_rng(9))
    other.load_state_dict({name: x.clone() for name, x in model.state_dict().items()})
    assert torch.equal(parameters(other), weights)
    other_state.load_state_dict(saved)
    for m, s in ((model, state), (other, other_state)):
        algorithm.update(m, s, buffer)
    assert torch.equal(parameters(other), parameters(model))
    assert other_state.scalars == state.scalars


@pytest.mark.parametrize("micro_batch_steps", [11, 25])
@ALL
def test_uneven_micro_batches_change_no_update(algorithm, micro_batch_steps):
    start = make_model()
    buffer = make_buffer(start, whole_episodes=True)
    weights = []
    for steps in (None, micro_batch_steps):
        model = make_model()
        model.micro_batch_steps, model.auxiliary = steps, Imitation(start)
        state = algorithm.init(model, np.random.default_rng(0))
        algorithm.update(model, state, buffer)
        weights.append(parameters(model))
    assert not torch.equal(weights[0], parameters(start))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-9)


def ascent(algorithm, model, buffer, monkeypatch):
    """The gradient (P,) in the policy's parameters that the first step of an update climbs."""
    gradients, state = [], algorithm.init(model, np.random.default_rng(0))
    if algorithm.second_order:
        state.conjugate_gradient = lambda _, b, *iters: gradients.append(b) or (torch.zeros_like(b), 0.0)
    else:
        size = sum(p.numel() for p in model.policy_parameters())  # they come first
        monkeypatch.setattr(adam, "clip_norm", lambda g, *rest: gradients.append(-g[:size]) or float(g.norm()))
    algorithm.update(model, state, buffer)
    return gradients[0]


@ALL
def test_auxiliary_loss_adds_its_gradient(algorithm, monkeypatch):
    """∇(total) = ∇(RL) + ∇(auxiliary), in the step of each algorithm."""
    sizes = {"minibatch_size": "all"} if "minibatch_size" in vars(algorithm) else {}
    algorithm = dataclasses.replace(algorithm, **sizes)
    buffer = make_buffer(make_model(), whole_episodes=True)
    model = make_model()
    model.auxiliary = Imitation(model)
    grads = torch.autograd.grad(model.auxiliary.loss(model), model.policy_parameters())
    added = torch.cat([g.reshape(-1) for g in grads])
    expected = ascent(algorithm, make_model(), buffer, monkeypatch) - added
    torch.testing.assert_close(ascent(algorithm, model, buffer, monkeypatch), expected, rtol=0, atol=1e-10)
    assert added.norm() > 0.1


@pytest.mark.parametrize(("name", "kl"), [("ppo-penalty", "target_kl"), ("ppo-clip", "stop_kl")])
@pytest.mark.parametrize("normalize", [True, False])
def test_advantages_are_whitened_in_each_minibatch(name, kl, normalize):
    model, advantages = make_model(), []
    algorithm = dataclasses.replace(SMALL[name], normalize_advantage=normalize, **{kl: 1e9})
    state = algorithm.init(model, np.random.default_rng(0))
    loss = algorithm.loss
    record = lambda model, b, *scalars, **more: advantages.append(b) or loss(model, b, *scalars, **more)  # noqa: E731
    object.__setattr__(algorithm, "loss", record)
    algorithm.update(model, state, make_buffer(model))
    assert len(advantages) == 12
    assert all((abs(float(b.mean(b.advantage))) < 1e-12) == normalize for b in advantages)
    assert all((float(b.mean(b.advantage.square())) == pytest.approx(1)) == normalize for b in advantages)


@pytest.mark.parametrize("name", ["reinforce", "npg", "trpo"])
@pytest.mark.parametrize(("estimator", "fits"), [(MonteCarlo(), True), (LeaveOneOut(), False)])
def test_a_value_is_fitted_if_advantages_depend_on_it(name, estimator, fits):
    start = make_model()
    model, _ = updated(with_estimator(SMALL[name], estimator), make_buffer(start, whole_episodes=True))
    for of, moves in (("policy_parameters", True), ("value_parameters", fits)):
        pairs = zip(getattr(model, of)(), getattr(start, of)(), strict=True)
        assert any(not torch.equal(a, b) for a, b in pairs) == moves


@pytest.mark.parametrize("name", ["reinforce", "npg", "trpo"])
def test_value_learning_rate_follows_its_schedule(name):
    buffer, steps = make_buffer(make_model(), whole_episodes=True), []
    for schedule in (0.01, "linear:0.04:0"):
        model = make_model()
        algorithm = dataclasses.replace(SMALL[name], vf_learning_rate=schedule, vf_epochs=1)
        state = algorithm.init(model, np.random.default_rng(0))
        state.progress = 0.75
        algorithm.update(model, state, buffer)
        steps.append(torch.cat([p.detach().reshape(-1) for p in model.value_parameters()]))
    assert torch.equal(*steps)


@ALL
def test_setting_out_of_range_is_an_error(algorithm):
    with pytest.raises(ConfigError, match=r"must be"):
        dataclasses.replace(algorithm, **{dataclasses.fields(algorithm)[1].name: -1.0})


def one_of_each(old_logits, new_logits):
    """Every action once, under a uniform old policy: means over the batch are its expectations."""
    k = len(new_logits)
    zeros = torch.zeros(k, 1, dtype=torch.float64)
    no = torch.zeros(k, 1, dtype=torch.bool)
    old = Categorical(old_logits.expand(k, 1, k))
    action = torch.arange(k)[:, None]
    batch = Buffer(zeros, action, zeros, no, no, ~no, old.log_prob(action), zeros, zeros, zeros)
    return batch, old, Categorical(new_logits.expand(k, 1, k))


def acting(policy):
    """A model with this policy."""
    return SimpleNamespace(distribution=lambda _: policy)


def test_kl_is_exact_where_the_batch_holds_the_old_policy_and_else_the_k3_estimate():
    """Under a uniform old policy both are KL(old ‖ new)."""
    new_logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64)
    batch, old, new = one_of_each(torch.zeros(3, dtype=torch.float64), new_logits)
    expected = pytest.approx(float(old.kl(new)[0, 0]))
    assert float(new.kl(old)[0, 0]) != expected
    assert measure(acting(new), batch)["kl_k3"] == expected
    old_logits = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    batch, old, new = one_of_each(old_logits, new_logits)
    assert measure(acting(new), batch.replace(old=old))["kl"] == pytest.approx(float(old.kl(new)[0, 0]))


def test_metrics_are_masked_means():
    model = make_model()
    batch = GAE()(make_buffer(model)).rows(1)
    with torch.no_grad():
        policy = model.distribution(batch.obs)
        metrics = measure(model, batch.replace(logp=batch.logp - 0.1))
        entropy = policy.entropy()[batch.mask].mean()
    assert metrics["entropy"] == pytest.approx(float(entropy))
    assert metrics["kl_k3"] == pytest.approx(np.exp(0.1) - 1 - 0.1)


def test_explained_variance_by_hand():
    batch, _, new = one_of_each(*torch.zeros(2, 4, dtype=torch.float64))
    returns = torch.tensor([[1.0], [2], [3], [4]], dtype=torch.float64)
    errors = torch.tensor([[0.5], [-0.5], [0.5], [-0.5]], dtype=torch.float64)
    for changes, expected in (
        ({"return_": returns, "value": returns - errors}, 1 - 0.25 / 1.25),
        ({"return_": returns / 2**23, "value": (returns - errors) / 2**23}, 1 - 0.25 / 1.25),
        ({"return_": returns, "value": returns}, 1),
        ({}, 1),
    ):
        assert measure(acting(new), batch.replace(**changes))["explained_variance"] == expected


@pytest.mark.parametrize("name", ["ppo-clip", "ppo-penalty"])
@pytest.mark.parametrize("shared_trunk", [False, True])
def test_the_policy_waits_until_the_value_is_warm(name, shared_trunk):
    algorithm = dataclasses.replace(SMALL[name], vf_warmup=2)
    model = make_model(shared_trunk=shared_trunk)
    state, own = algorithm.init(model, np.random.default_rng(0)), {id(p) for p in model.value_parameters()}
    moved = []
    for _ in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        metrics = algorithm.update(model, state, make_buffer(model))
        now = zip(model.parameters(), before, strict=True)
        moved.append({id(p) in own for p, old in now if not torch.equal(p, old)})
    assert moved == [{True}, {True}, {True, False}]
    assert metrics.get("kl_coef", algorithm.learning_rate) in (1.0, algorithm.learning_rate)


@pytest.mark.parametrize("name", ["ppo-clip", "ppo-penalty"])
def test_a_warm_up_goes_on_after_a_checkpoint(name):
    algorithm = dataclasses.replace(SMALL[name], vf_warmup=2, vf_learning_rate=1e-2)
    models, states = [], []
    for _ in range(2):
        models.append(make_model())
        states.append(algorithm.init(models[-1], np.random.default_rng(0)))
    algorithm.update(models[0], states[0], make_buffer(models[0]))
    models[1].load_state_dict(models[0].state_dict())
    states[1].load_state_dict(states[0].state_dict())
    for model, state in zip(models, states, strict=True):
        for _ in range(2):
            algorithm.update(model, state, make_buffer(model, seed=1))
    assert torch.equal(parameters(models[0]), parameters(models[1]))


@pytest.mark.parametrize("settings", [{"vf_warmup": 5}, {"kl_coef": 1, "target_kl": 1e-9}])
def test_a_restored_state_is_saved_in_the_same_bytes(settings):
    algorithm, model = dataclasses.replace(SMALL["ppo-penalty"], **settings), make_model()
    state = algorithm.init(model, np.random.default_rng(0))
    algorithm.update(model, state, make_buffer(model))
    restored = algorithm.init(model, np.random.default_rng(0))
    restored.load_state_dict(state.state_dict())
    assert json.dumps(restored.state_dict()["scalars"]) == json.dumps(state.state_dict()["scalars"])
