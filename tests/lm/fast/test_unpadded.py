"""Passes without padding in which a prompt stands once, against plain passes over all rows."""

import numpy as np
import pytest
import torch
from lm_builders import KINDS, buffer_of, make_fast, make_model, make_rows, make_small, move
from tiny import PAD
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rlzoo.lm.fast import model as fast_model
from rlzoo.lm.fast.attention import NAMES
from rlzoo.lm.fast.model import accelerate_model
from rlzoo.lm.fast.unpadded import Unpadded
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.model.pretrained import new_causal_lm
from rlzoo.lm.model.tokens import Tokens
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

SIZES = [(4, 3), (4, 6), (4, 1), (2, 5), (2, 4), (3, 0), (3, 2)]
"""Rows of (prompt, response). Those of 4 share their prompt, and those of 2. The last two do not."""


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(fast_model, "_WORTH", {"cpu": 1.0, "other": 1.0})


def shared(**settings):
    """Rows of which some share their prompt. One row has a reply of two tokens, and the last has no response."""
    rows = make_rows(SIZES, **settings)
    start = int(rows.acts.any(0).int().argmax()) - 3
    prompt = slice(start, start + 4)
    for first, others in ((0, (1, 2)), (3, (4,))):
        for i in others:
            rows.token[i, prompt] = rows.token[first, prompt]
    rows.acts[1, start + 5 : start + 7] = False
    return rows


def results(model, rows):
    """Log-probabilities, values, and the gradient of the sum of their squares."""
    policy, value = model(rows)
    logp = policy.log_prob(rows.action)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradient = torch.autograd.grad(logp.square().sum() + value.square().sum(), parameters)
    return logp.detach(), value.detach(), torch.cat([g.reshape(-1) for g in gradient])


def test_the_tokens_of_rows_by_hand():
    """Prompt 1 2 with responses 5 6 7 and 8, and prompt 3 with 9 4. Nothing is read after a row's last action."""
    token = np.array([[1, 2, 5, 6, 7], [0, 3, 9, 4, 0], [1, 2, 8, 0, 0]])
    attention = np.array([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0], [1, 1, 1, 0, 0]], np.bool_)
    acts = np.array([[0, 1, 1, 1, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]], np.bool_)
    x = Unpadded.of(token, attention, acts, torch.device("cpu"))
    assert x.token.tolist() == [[3, 1, 2, 5, 6, 9]]
    assert x.position.tolist() == [[0, 0, 1, 2, 3, 1]]
    assert x.step.tolist() == [1, 2, 3, 6, 7, 11]
    assert x.source.tolist() == [2, 3, 4, 0, 5, 2]
    prompts, responses = x.parts
    assert prompts.query.tolist() == prompts.key.tolist() == [[0, 0], [1, 2]]
    assert prompts.token.tolist() == [0, 2, 3]
    assert responses.query.tolist() == [[3, 4], [5, 0], [0, 0]]
    assert responses.key.tolist() == [[1, 2, 3, 4], [0, 0, 5, 0], [1, 2, 0, 0]]
    assert responses.token.tolist() == [0, 1, 2]
    assert responses.mask[:, 0].int().tolist() == [
        [[1, 1, 1, 0], [1, 1, 1, 1]],
        [[1, 0, 1, 0], [1, 0, 1, 1]],
        [[1, 1, 1, 0], [1, 1, 1, 1]],
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("settings", [{}, {"critic": True}, {"rank": 2}], ids=["plain", "critic", "adapter"])
def test_results_and_gradients_are_those_of_plain_passes(kind, attention, settings):
    plain, fast = (make(kind, attention=attention, **settings) for make in (make_model, make_fast))
    assert fast.trunk.unpads
    for rows in (shared(), shared(before=2, after=1), make_rows(SIZES, layout="right"), make_rows([(2, 3), (1, 9)])):
        for mine, expected in zip(results(fast, rows), results(plain, rows), strict=True):
            assert (mine - expected).norm() < 3e-6 * expected.norm()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_in_double_precision_the_difference_is_rounding(attention):
    plain, fast = (make(attention=attention, dtype=torch.float64) for make in (make_model, make_fast))
    for mine, expected in zip(results(fast, shared()), results(plain, shared()), strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-11)


def test_in_lower_precision_results_are_near():
    plain, fast = (make(settings={"precision": torch.bfloat16}) for make in (make_model, make_fast))
    for mine, expected in zip(results(fast, shared()), results(plain, shared()), strict=True):
        assert (mine - expected).norm() < 0.03 * expected.norm()


@pytest.mark.parametrize("rank", [None, 2])
def test_fisher_products_are_those_of_plain_passes(rank):
    plain, fast = make_small(rank), make_small(rank)
    accelerate_model(fast)
    assert fast.trunk.unpads
    batch = buffer_of(shared(vocabulary=7, padding=0))
    batch = batch.replace(reward=batch.reward.double(), obs=batch.obs.columns(0, batch.mask.shape[1]))
    products = []
    for model in (plain, fast):
        policy = FlatPolicy(model)
        v = torch.randn(policy.theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        products.append(fisher_vector_product(policy, policy.theta, batch)(v))
    torch.testing.assert_close(*products, rtol=0, atol=1e-10)
    assert products[0].abs().max() > 0.01


def lengths_of_passes(model, monkeypatch):
    seen, run = [], model.trunk.run
    monkeypatch.setattr(
        model.trunk, "run", lambda token, *x, **more: seen.append(token.shape) or run(token, *x, **more)
    )
    return seen


def test_a_prompt_is_read_once_and_no_padding(monkeypatch):
    model, rows = make_fast(), shared()
    seen = lengths_of_passes(model, monkeypatch)
    model(rows)
    responses = [2, 5, 0, 4, 3, 0, 1]  # what is read of them: all but the last token
    assert seen == [(1, 4 + 2 + 3 + sum(responses))]


def test_where_little_is_saved_rows_are_read_as_they_are(monkeypatch):
    monkeypatch.setattr(fast_model, "_WORTH", {"cpu": 0.9, "other": 0.9})
    model = make_fast()
    seen = lengths_of_passes(model, monkeypatch)
    model(make_rows([(2, 5), (2, 5), (2, 5), (1, 5)]))
    model(make_rows([(2, 5), (2, 5), (2, 5), (2, 1)]))
    assert seen == [(4, 6), (1, 20)]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_of_another_kind_is_left_alone(attention, monkeypatch):
    """A layer that sees a window alone tells its attention function."""
    model, rows = make_model("llama", attention=attention), shared()
    expected = results(model, rows)
    for layer in model.trunk.base.layers:
        forward = layer.self_attn.forward
        monkeypatch.setattr(layer.self_attn, "forward", lambda *x, f=forward, **more: f(*x, **more, sliding_window=3))
    accelerate_model(model)
    assert not model.trunk.unpads
    assert model.trunk.base.config._attn_implementation == {"sdpa": NAMES["sdpa"], "eager": "eager"}[attention]
    for mine, theirs in zip(results(model, rows), expected, strict=True):
        assert (mine - theirs).norm() < 3e-6 * theirs.norm()


def test_attention_that_is_replaced_is_not_given_tokens_without_rows():
    model, rows = make_fast(), shared()
    expected = results(model, rows)
    model.actor.set_attn_implementation("eager")
    for name in ("eager", NAMES["eager"]):
        assert model.trunk.base.config._attn_implementation == name
        for mine, before in zip(results(model, rows), expected, strict=True):
            assert (mine - before).norm() < 3e-6 * before.norm()
        accelerate_model(model)


def test_a_window_that_is_in_the_mask_alone_is_left_alone():
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {"intermediate_size": 48, "num_local_experts": 2, "sliding_window": 5}
    config = {"model_type": "phimoe", "initializer_range": 0.2, **shape, **experts}
    plain, fast = (move(LanguageModel(new_causal_lm(config, PAD + 1))) for _ in range(2))
    accelerate_model(fast)
    rows = shared()
    assert rows.attention.sum(1).max() > 5
    for mine, theirs in zip(results(fast, rows), results(plain, rows), strict=True):
        assert (mine - theirs).norm() < 3e-6 * theirs.norm()


def test_a_model_that_reads_the_tokens_of_rows_as_one_row_is_left_alone(monkeypatch):
    """As one would that does not pass what it does not know to its attention."""
    inner = fast_model.use_fastest_attention

    def use(model):
        inner(model)
        attention = ALL_ATTENTION_FUNCTIONS[NAMES["sdpa"]]
        ALL_ATTENTION_FUNCTIONS.register(NAMES["sdpa"], lambda *x, unpadded=None, **more: attention(*x, **more))

    monkeypatch.setattr(fast_model, "use_fastest_attention", use)
    model, rows = make_fast(), shared()
    assert not model.trunk.unpads
    for mine, expected in zip(results(model, rows), results(make_model(), rows), strict=True):
        assert (mine - expected).norm() < 3e-6 * expected.norm()


def test_rows_without_an_acting_step_are_read_as_they_are():
    rows = make_rows([(2, 3), (2, 1)])
    none = Tokens(rows.token, rows.attention, torch.zeros_like(rows.acts))
    assert not make_fast()(none)[1].any()
