"""A language model with faster parts against the plain one, and what the faster parts leave out."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from lm_builders import (
    KINDS,
    collect,
    experience,
    make_env,
    make_fast,
    make_model,
    make_rows,
    make_small,
    move,
    same,
)
from simulated_gpu import GPU, simulated
from tiny import PAD

from rlzoo.core.buffer import Buffer
from rlzoo.lm.fast import accelerate, attention, packed
from rlzoo.lm.fast.model import FastLanguageModel, FastTokenHead, FastTrunk, accelerate_model
from rlzoo.lm.model.acting import TokenActor
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

SIZES = [(2, 3), (5, 1), (1, 6), (3, 4)]
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)
SETTINGS = {
    "plain": {},
    "critic": {"critic": True},
    "adapter": {"rank": 2},
    "temperature": {"settings": {"temperature": 0.7}},
    "checkpointing": {"settings": {"gradient_checkpointing": True}},
}


def task_of(env, say=lambda line: None):
    progress = SimpleNamespace(say=say)
    return SimpleNamespace(model=env.model, env=env, setup=SimpleNamespace(progress=progress))


def both(kind, **settings):
    """An environment with plain implementations, and one with the faster ones."""
    envs = [make_env(make_model(kind, **settings), rows=20, kl_estimator="full") for _ in range(2)]
    accelerate(task_of(envs[1]))
    for env in envs:
        move(env.model)
    return envs


def results(model, batch, other):
    """Log-probabilities, KL, entropy and value at the acting steps, and the gradient of their sum."""
    policy, value = model(batch.obs)
    action = torch.nn.functional.pad(batch.action, (0, 1))
    parts = [policy.log_prob(action), policy.entropy(), value, other.distribution(batch.obs).kl(policy)]
    weight = torch.linspace(-1, 2, action.numel()).view(action.shape)
    total = sum((weight * x).sum() for x in parts)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(total, parameters)
    return [x.detach() for x in parts], torch.cat([g.reshape(-1) for g in gradient])


@ALL_KINDS
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_faster_parts_give_the_same_results(kind, settings, monkeypatch):
    """Sampled tokens, rewards, log-probabilities, KL, entropy, values and gradients."""
    monkeypatch.setattr(packed, "_WORTH", 0)
    plain, fast = both(kind, **settings)
    assert (type(plain.model), type(fast.model)) == (LanguageModel, FastLanguageModel)
    assert plain.model.state_dict().keys() == fast.model.state_dict().keys()
    one, two = experience(plain), experience(fast)
    assert same(one.buffer.obs, two.buffer.obs)
    torch.testing.assert_close(one.buffer.reward, two.buffer.reward, rtol=0, atol=1e-4)
    assert one.metrics == pytest.approx(two.metrics, abs=1e-4)
    (parts, gradient), (fast_parts, fast_gradient) = (
        results(env.model, one.buffer, env.reference) for env in (plain, fast)
    )
    for a, b in zip(parts, fast_parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    assert (gradient - fast_gradient).norm() < 1e-5 * gradient.norm()


@pytest.mark.parametrize("rank", [None, 2])
def test_faster_parts_give_the_same_fisher_products(rank):
    plain = make_small(rank)
    fast = copy.deepcopy(plain)
    accelerate_model(fast)
    rows = make_rows(SIZES, vocabulary=7, padding=0)
    products = []
    for model in (plain, fast):
        policy = FlatPolicy(model)
        mask = rows.acts
        zero = torch.zeros(mask.shape, dtype=torch.float64)
        batch = Buffer(rows, rows.action, zero, mask, mask, mask)
        v = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        products.append(fisher_vector_product(policy, policy.theta, batch)(v))
    torch.testing.assert_close(*products, rtol=0, atol=1e-10)
    assert products[0].abs().max() > 0.01


def test_in_lower_precision_the_reference_is_rounded_like_the_actor():
    env = make_env(make_model(settings={"precision": torch.bfloat16}))
    accelerate(task_of(env))
    assert {p.dtype for p in env.model.parameters()} == {torch.float32}
    assert env.reference.trunk.base.h[0].mlp.c_fc.weight.dtype == torch.bfloat16
    assert env.reference.head.head.weight.dtype == torch.bfloat16
    assert env.reference.trunk.base.wte.weight.dtype == torch.float32
    assert experience(env).metrics["kl_reference"] == pytest.approx(0, abs=1e-6)


def test_a_copy_stays_fast_and_a_second_call_changes_nothing():
    env = make_env(make_model(critic=True))
    for _ in range(2):
        accelerate(task_of(env))
    for model in (env.model, copy.deepcopy(env.model)):
        kinds = type(model), type(model.trunk), type(model.value.trunk), type(model.policy)
        assert kinds == (FastLanguageModel, FastTrunk, FastTrunk, FastTokenHead)
    rows = make_rows(SIZES)
    assert torch.equal(copy.deepcopy(env.model).distribution(rows).entropy(), env.model.distribution(rows).entropy())


@pytest.mark.parametrize("module", [attention, packed])
def test_where_a_private_interface_is_missing_plain_implementations_stay(module, monkeypatch):
    def check_interfaces():
        raise AttributeError("sdpa_mask has no argument x")

    monkeypatch.setattr(module, "check_interfaces", check_interfaces)
    env, lines = make_env(make_model()), []
    accelerate(task_of(env, lines.append))
    assert type(env.model) is LanguageModel
    assert lines == ["language models are slower with these versions of PyTorch and transformers: "
                     "sdpa_mask has no argument x"]  # fmt: skip


@ALL_KINDS
def test_packed_weights_are_gone_after_a_step(kind, monkeypatch):
    monkeypatch.setattr(packed, "_WORTH", 0)
    model, seen = make_fast(kind), []
    inner = packed._packed_forward
    monkeypatch.setattr(packed, "_packed_forward", lambda *x: seen.append(inner(*x)) or seen[-1])
    collect(make_env(model))
    assert any(seen)
    assert not any("forward" in vars(m) for m in model.modules())
    assert model.distribution(make_rows([(2, 3)])).entropy().requires_grad


def test_a_forward_pass_that_the_user_gave_a_layer_is_used_in_sampling_and_stays(monkeypatch):
    monkeypatch.setattr(packed, "_WORTH", 0)
    env = make_env(make_fast("llama"))
    layer, calls = env.model.actor.model.layers[0].mlp.up_proj, []
    forward = layer.forward
    layer.forward = own = lambda x: calls.append(len(x)) or forward(x)
    collect(env)
    assert len(calls) > 1
    assert layer.forward is own


def test_a_model_that_was_used_can_be_saved_whole():
    model = make_fast()
    copied, rows = pickle.loads(pickle.dumps(model)), make_rows(SIZES)
    assert torch.equal(copied.distribution(rows).entropy(), model.distribution(rows).entropy())


def test_columns_without_tokens_or_actions_are_left_out(monkeypatch):
    """Where the tokens are read in rows, one costs what lies between the first token of all and the last action."""
    model, seen = make_fast(), []
    model.trunk.unpads = False
    run = model.trunk.run

    def noted(token, *rest, **more):
        seen.append(token)
        return run(token, *rest, **more)

    monkeypatch.setattr(model.trunk, "run", noted)
    rows = make_rows(SIZES, before=3, after=4)
    assert rows.token.shape[1] == 3 + 11 + 4
    model(rows)
    assert seen[0].shape == (4, 10)


@ALL_KINDS
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_host_waits_for_the_gpu_once_to_learn_which_columns_hold_tokens(kind, attention):
    """And once more in Hugging Face's code if there is no padding."""
    for sizes, waits in ((SIZES, ["_to_copy"]), ([(2, 3), (2, 3)], ["_to_copy", "_local_scalar_dense"])):
        rows = make_rows(sizes)
        expected = make_model(kind, attention=attention)(rows)[1]
        with simulated() as gpu:
            model = make_fast(kind, attention=attention).to(GPU)
            tokens = rows.map(lambda x: x.to(GPU))
            gpu.waits.clear()
            _, value = model(tokens)
            assert gpu.waits == waits
            torch.testing.assert_close(value.cpu(), expected, rtol=0, atol=1e-5)


@ALL_KINDS
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("prompts", [["d", "hbeQ", "wj"], ["di", "hb"]], ids=["padded", "unpadded"])
def test_the_host_waits_for_the_gpu_once_for_each_token(kind, attention, prompts):
    """For the token itself. A prompt is sent while the GPU may still work, and it is read in one pass."""
    with simulated() as gpu:
        model = make_fast(kind, attention=attention, pad_token_id=PAD).to(GPU)
        env = make_env(model, prompts).over(prompts)
        actor = TokenActor(model, torch.Generator(GPU).manual_seed(0))
        obs, forced = env.reset()
        while True:
            gpu.waits.clear()
            action = actor(obs, forced, None)
            if not env.responses.alive.any():
                break
            assert gpu.waits == ([] if forced.all() else ["_to_copy"])
            obs, _, _, _, forced = env.step(action)


@ALL_KINDS
@torch.no_grad()
def test_a_gpu_keeps_values_in_the_precision_of_products(kind):
    """A CPU keeps them in float32. Acting still gives the log-probabilities of training, up to rounding."""
    rows = make_rows([(3, 5), (3, 5)])
    expected = make_model(kind).distribution(rows).log_prob(rows.action)[:, 3]
    with simulated():
        model = make_fast(kind, settings={"precision": torch.bfloat16}).to(GPU)
        _, memory = model.act(rows.columns(0, 3))
        policy, (memory, _) = model.act(rows.columns(3, 4), memory)
        kept = memory.cache.layers[0].values
        assert (kept.device.type, kept.dtype) == (GPU, torch.bfloat16)
        found = policy.log_prob(rows.action[:, 3].to(GPU)).cpu()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.2)
