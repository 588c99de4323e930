"""The faster Adam against the plain one."""

import logging
from functools import partial, wraps

import numpy as np
import pytest
import torch
from builders import NETWORKS, SPACES, Imitation, PythonLoop, accelerated, make_buffer, make_model, parameters

from rlzoo.algorithms import PPOClip
from rlzoo.core.estimators import GAE
from rlzoo.core.fast import library
from rlzoo.core.system.errors import NonFiniteError
from rlzoo.optim.adam import Adam, fit_value
from rlzoo.optim.epochs import Epochs
from rlzoo.optim.fast import adam as fast
from rlzoo.optim.fast.adam import FastAdam

ALL_NETWORKS = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def policy_loss(model, batch, scale):
    return -scale * batch.mean(model.distribution(batch.obs).log_prob(batch.action) * batch.advantage)


def make_batch(model):
    return GAE()(make_buffer(model)).rows(1)


@pytest.mark.parametrize("micro_batch_steps", [None, 11])
@ALL_NETWORKS
def test_steps_equal_those_of_the_plain_adam_to_rounding(network, micro_batch_steps):
    algorithm = PPOClip(ent_coef=0.01, clip_value=True)
    models = make_model(**network), accelerated(make_model(**network))
    plain, faster = Adam(list(models[0].parameters())), FastAdam(Adam(list(models[1].parameters())))
    batch = make_batch(models[0])
    for model, optimizer in zip(models, (plain, faster), strict=True):
        model.micro_batch_steps, model.auxiliary = micro_batch_steps, Imitation(make_model(**network))
        for _ in range(5):
            norm = optimizer.minimize(algorithm.loss, model, batch, 0.2, 0.01, learning_rate=0.01, max_grad_norm=0.5)
            assert norm > 0
    for name in ("theta", "m", "v"):
        torch.testing.assert_close(getattr(faster, name), getattr(plain, name), rtol=0, atol=1e-12)
    assert faster.count == plain.count == 5


class Decay:
    """An auxiliary loss that no network computes: ½‖θ‖² of the model, as one term."""

    def draw(self, rows):
        return [lambda model: 0.5 * sum(p.square().sum() for p in model.parameters())]


def test_auxiliary_losses_without_a_network_add_up_with_those_that_have_one():
    models = make_model(), accelerated(make_model())
    adams, batch = [Adam(list(model.parameters())) for model in models], make_batch(models[0])
    for model, optimizer in zip(models, (adams[0], FastAdam(adams[1])), strict=True):
        model.auxiliary = Decay()
        optimizer.minimize(policy_loss, model, batch, 1.0, learning_rate=0.01)
    torch.testing.assert_close(adams[1].m, adams[0].m, rtol=0, atol=1e-12)


@pytest.mark.parametrize("hidden", [(5,), (63, 61)])
def test_steps_equal_torch(hidden):
    """Parameters whose number is no multiple of a vector's length."""
    ours, theirs = make_model(hidden=hidden), make_model(hidden=hidden)
    optimizer = FastAdam(Adam(list(ours.parameters())))
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    assert len(optimizer.theta) % 8
    batch = make_batch(ours)
    for _ in range(10):
        optimizer.minimize(policy_loss, ours, batch, 3.0, learning_rate=0.01)
        reference.zero_grad()
        policy_loss(theirs, batch, 3.0).backward()
        reference.step()
    torch.testing.assert_close(parameters(ours), parameters(theirs), rtol=0, atol=1e-12)


def test_gradients_of_the_parameters_are_left_empty():
    model = accelerated(make_model(hidden=(), shared_trunk=True))  # a trunk without a layer, and linear heads
    optimizer = FastAdam(Adam(list(model.parameters())))
    optimizer.minimize(policy_loss, model, make_batch(model), 1.0, learning_rate=0.1)
    assert all(p.grad is None for p in model.parameters())


@pytest.fixture
def loops(monkeypatch):
    monkeypatch.setattr(fast, "Compilation", PythonLoop)
    monkeypatch.setattr(PythonLoop, "made", [])
    return PythonLoop.made


@pytest.mark.parametrize("of_value", [None, 0.003])
@pytest.mark.parametrize("size", [8, 11, "all"])
@ALL_NETWORKS
def test_the_loop_that_is_compiled_equals_the_steps_of_the_plain_adam(network, size, of_value, loops):
    """All but the compilation: random order, a last smaller minibatch, whitening, scalars, rates, clipping, state."""
    algorithm = PPOClip(ent_coef=0.01, clip_value=True)
    models = make_model(**network), make_model(**network)
    plain, native = (
        Adam(list(model.parameters()), value=[] if of_value is None else model.value_parameters()) for model in models
    )
    native = FastAdam(native, compile=True)
    batch = make_batch(models[0])
    rngs = [np.random.default_rng(0) for _ in models]
    for step in range(3):
        results = [
            optimizer.minimize_each(
                algorithm.loss,
                model,
                Epochs(batch, 3, size, rng, whiten=True),
                *(0.2 / (1 + step), 0.01),
                learning_rate=0.01 / (1 + step),
                vf_learning_rate=of_value,
                max_grad_norm=0.5,
            )
            for model, optimizer, rng in zip(models, (plain, native), rngs, strict=True)
        ]
        assert results[1] == (results[0][0], pytest.approx(results[0][1], rel=1e-9))
    torch.testing.assert_close(parameters(models[1]), parameters(models[0]), rtol=0, atol=1e-9)
    assert len(loops) == 1
    assert native.count == plain.count
    assert rngs[0].bit_generator.state == rngs[1].bit_generator.state


def test_the_fit_of_the_value_is_compiled_too(loops):
    models = make_model(), make_model()
    batch = make_batch(models[0])
    batch = batch.replace(mask=batch.mask & (torch.arange(batch.num_rows)[:, None] > 9))  # minibatches without steps
    plain, native = Adam(models[0].value_parameters()), FastAdam(Adam(models[1].value_parameters()), compile=True)
    for model, optimizer in zip(models, (plain, native), strict=True):
        fit_value(model, optimizer, batch, 2, 4, 1e-2, np.random.default_rng(0))
    assert len(loops) == 1
    assert native.count == plain.count
    torch.testing.assert_close(parameters(models[1]), parameters(models[0]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [8, "all"])
def test_buffers_of_other_sizes_share_a_loop_up_to_a_power_of_two(size, loops):
    """Whole episodes: the rows of a buffer are as many as the longest episode takes."""
    models = make_model(), make_model()
    batch = make_batch(models[0])
    plain, native = Adam(models[0].value_parameters()), FastAdam(Adam(models[1].value_parameters()), compile=True)
    for rows in (32, 27, 17, 29, 16):
        episodes = batch.with_tensors(x[:rows] for x in batch.tensors())
        for model, optimizer in zip(models, (plain, native), strict=True):
            fit_value(model, optimizer, episodes, 2, size, 1e-2, np.random.default_rng(0))
    assert len(loops) == 2  # one for up to 32 rows, one for up to 16
    assert native.count == plain.count
    torch.testing.assert_close(parameters(models[1]), parameters(models[0]), rtol=0, atol=1e-9)


def test_a_fit_of_no_epochs_compiles_nothing(loops):
    model = make_model()
    optimizer = FastAdam(Adam(model.value_parameters()), compile=True)
    fit_value(model, optimizer, make_batch(model), 0, 4, 1e-2, np.random.default_rng(0))
    assert loops == []
    assert optimizer.count == 0


def test_steps_with_a_hook_on_a_gradient_are_not_compiled(loops):
    model = make_model()
    optimizer, before = FastAdam(Adam(list(model.parameters())), compile=True), parameters(model)
    for p in model.parameters():
        p.register_hook(torch.zeros_like)
    epochs = Epochs(make_batch(model), 1, 8, np.random.default_rng(0))
    optimizer.minimize_each(policy_loss, model, epochs, 1.0, learning_rate=0.1)
    assert loops == []
    assert torch.equal(parameters(model), before)


def test_steps_with_a_hook_on_an_accumulated_gradient_are_not_compiled(loops):
    model = make_model()
    optimizer, before = FastAdam(Adam(list(model.parameters())), compile=True), parameters(model)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: p.grad.__setitem__(..., 0))
    epochs = Epochs(make_batch(model), 1, 8, np.random.default_rng(0))
    optimizer.minimize_each(policy_loss, model, epochs, 1.0, learning_rate=0.1)
    assert loops == []
    assert torch.equal(parameters(model), before)


def test_another_shape_or_setting_is_another_loop(loops):
    model = make_model()
    optimizer, batch = FastAdam(Adam(list(model.parameters())), compile=True), make_batch(model)
    rng = np.random.default_rng(0)
    for epochs in (Epochs(batch, 1, 8, rng), Epochs(batch, 1, 8, rng, whiten=True), Epochs(batch, 2, 8, rng)):
        optimizer.minimize_each(policy_loss, model, epochs, 1.0, learning_rate=0.1)
    optimizer.minimize_each(policy_loss, model, Epochs(batch, 1, 8, rng), 2.0, learning_rate=0.2)
    assert len(loops) == 3
    assert loops[0].code != loops[1].code


@pytest.mark.parametrize("network", [NETWORKS["tanh"], NETWORKS["box"]], ids=["tanh", "box"])
def test_the_code_is_that_of_the_next_run(network, loops):
    for _ in range(2):
        model = make_model(**network)
        optimizer = FastAdam(Adam(list(model.parameters())), compile=True)
        for epochs in (1, 2):
            minibatches = Epochs(make_batch(model), epochs, 8, np.random.default_rng(0))
            optimizer.minimize_each(policy_loss, model, minibatches, 1.0, learning_rate=0.1)
        SPACES["box"].sample()  # its generator is no part of the step
    assert [loop.code for loop in loops[:2]] == [loop.code for loop in loops[2:]]


def test_until_it_waits_for_the_compilation_steps_are_those_of_the_plain_adam(loops):
    model, waits = make_model(), []
    optimizer = FastAdam(Adam(list(model.parameters())), compile=True, waits=lambda: bool(waits))
    reference = Adam(list((other := make_model()).parameters()))
    batch = make_batch(model)
    for own, adam in ((model, optimizer), (other, reference)):
        adam.minimize_each(policy_loss, own, Epochs(batch, 2, 8, np.random.default_rng(0)), 1.0, learning_rate=0.1)
    assert len(loops) == 1  # it has begun
    torch.testing.assert_close(parameters(model), parameters(other), rtol=0, atol=1e-12)


def test_non_finite_gradient_of_a_compiled_loop_changes_nothing(loops):
    model = make_model()
    optimizer, before = FastAdam(Adam(list(model.parameters())), compile=True), parameters(model)
    epochs = Epochs(make_batch(model), 2, 8, np.random.default_rng(0))
    with pytest.raises(NonFiniteError, match="gradient of policy_loss is not finite"):
        optimizer.minimize_each(policy_loss, model, epochs, float("nan"), learning_rate=0.1)
    assert torch.equal(parameters(model), before)
    assert optimizer.count == 0


def test_a_failed_compilation_leaves_eager_steps(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "missing-compiler")
    library.say.cache_clear()
    model = make_model()
    optimizer, before = FastAdam(Adam(list(model.parameters())), compile=True), parameters(model)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            epochs = Epochs(make_batch(model), 2, 8, np.random.default_rng(0))
            steps, _ = optimizer.minimize_each(policy_loss, model, epochs, 1.0, learning_rate=0.1)
    assert steps == optimizer.count / 3
    assert not torch.equal(parameters(model), before)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("kind", ["closure", "default", "keyword", "partial", "decorated"])
def test_a_loss_that_holds_values_which_may_change_is_not_compiled(loops, kind):
    model, scale = make_model(), 2.0
    losses = {
        "closure": lambda model, batch: policy_loss(model, batch, scale),
        "default": lambda model, batch, coef=2.0: policy_loss(model, batch, coef),
        "keyword": lambda model, batch, *, coef=2.0: policy_loss(model, batch, coef),
        "partial": partial(policy_loss, scale=2.0),
        "decorated": decorated(lambda model, batch: policy_loss(model, batch, 2.0)),
    }
    loss = losses[kind]
    optimizer = FastAdam(Adam(list(model.parameters())), compile=True)
    optimizer.minimize_each(loss, model, Epochs(make_batch(model), 1, 8, np.random.default_rng(0)), learning_rate=0.1)
    assert optimizer.count > 0
    assert loops == []


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def loss(self, model, batch):
        return policy_loss(model, batch, self.scale)


def steps_of_both(steps):
    """The parameters after `steps(model, optimizer, batch)`, in eager mode and native."""
    after = []
    for compile in (False, True):
        model = make_model()
        steps(model, FastAdam(Adam(list(model.parameters())), compile), make_batch(model))
        after.append(parameters(model))
    return after


TWO = {
    "lambdas": [
        lambda model, batch: policy_loss(model, batch, 1.0),
        lambda model, batch: policy_loss(model, batch, -5.0),
    ],
    "methods": [Scaled(1.0).loss, Scaled(-5.0).loss],
}


@pytest.mark.parametrize("losses", TWO.values(), ids=TWO)
def test_losses_of_one_name_are_several_loops(losses, loops):
    def steps(model, optimizer, batch):
        rng = np.random.default_rng(0)
        for loss in losses * 2:
            optimizer.minimize_each(loss, model, Epochs(batch, 1, 8, rng), learning_rate=0.1)

    eager, native = steps_of_both(steps)
    assert len(loops) == 2
    torch.testing.assert_close(native, eager, rtol=0, atol=1e-9)


def test_a_loss_made_anew_in_each_update_has_one_loop(loops):
    model = make_model()
    optimizer, batch, rng = FastAdam(Adam(list(model.parameters())), True), make_batch(model), np.random.default_rng(0)
    for _ in range(2):
        loss = lambda model, batch: policy_loss(model, batch, 1.0)  # noqa: E731
        optimizer.minimize_each(loss, model, Epochs(batch, 1, 8, rng), learning_rate=0.1)
    assert len(loops) == 1


def summed_loss(model, batch, *scales):
    return policy_loss(model, batch, sum(scales) + model.extra.sum())


def test_other_scalars_tensors_of_the_model_and_betas_are_each_another_loop(loops):
    def steps(model, optimizer, batch):
        model.register_buffer("extra", torch.zeros(2))
        rng = np.random.default_rng(0)
        for scalars in ((1.0,), (1.0, 0.5), (1.0,)):
            optimizer.minimize_each(summed_loss, model, Epochs(batch, 1, 8, rng), *scalars, learning_rate=0.1)
            optimizer.betas = 0.5, 0.9
            model.extra = torch.ones(len(model.extra) + 1)

    eager, native = steps_of_both(steps)
    assert len(loops) == 3
    torch.testing.assert_close(native, eager, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rows", [32, 27])
def test_a_buffer_of_any_strides_has_one_loop(rows, loops):
    model = make_model()
    optimizer, rng = FastAdam(Adam(list(model.parameters())), compile=True), np.random.default_rng(0)
    batch = make_batch(model)
    batch = batch.with_tensors(x[:rows] for x in batch.tensors())
    flipped = batch.with_tensors(x.transpose(0, 1).contiguous().transpose(0, 1) for x in batch.tensors())
    for each in (batch, flipped):
        optimizer.minimize_each(policy_loss, model, Epochs(each, 1, 8, rng), 1.0, learning_rate=0.1)
    assert len(loops) == 1


def decorated(function):
    @wraps(function)
    def run(*args):
        return 2 * function(*args)

    return run


def test_another_bound_of_the_norm_is_another_loop(loops):
    after = []
    for compile in (False, True):
        model = make_model()
        optimizer, rng = FastAdam(Adam(list(model.parameters())), compile), np.random.default_rng(0)
        for bound in (None, 1e-6):
            epochs = Epochs(make_batch(model), 1, 8, rng)
            optimizer.minimize_each(policy_loss, model, epochs, 1.0, learning_rate=0.1, max_grad_norm=bound)
        after.append(parameters(model))
    assert len(loops) == 2
    torch.testing.assert_close(after[1], after[0], rtol=0, atol=1e-9)


def test_steps_with_an_auxiliary_loss_are_not_compiled(loops):
    model = make_model()
    model.auxiliary = Imitation(model)
    optimizer = FastAdam(Adam(list(model.parameters())), compile=True)
    epochs = Epochs(make_batch(model), 1, "all", np.random.default_rng(0))
    optimizer.minimize_each(policy_loss, model, epochs, 1.0, learning_rate=0.1)
    assert model.auxiliary.drawn == [32]
    assert loops == []
