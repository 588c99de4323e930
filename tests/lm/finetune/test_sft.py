"""Supervised fine-tuning: what the loss is over, what must not matter, and files in and out."""

import json
import math
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from simulated_gpu import GPU, simulated
from tiny import CONFIGS, EOS, PAD, Said, lm_loss, make_lm, make_tokenizer, save_lm
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlzoo
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.lm.finetune.data import split
from rlzoo.lm.finetune.sft import (
    SFTSettings,
    batches_by_length,
    describe,
    fit,
    mean_of,
    schedule,
    sft,
    train_tokenizer,
)
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.pretrained import load_causal_lm, max_positions, new_causal_lm

WORDS = ["good", "bad", "ugly", "nice", "phone", "camera", "the", "is", "a", "of"]


def make_texts(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 5))) for _ in range(n)]


def weights_of(model):
    return nn.utils.parameters_to_vector(model.parameters())


def rows_of(texts):
    return [[*make_tokenizer()(text)["input_ids"], EOS] for text in texts]


# Batches


@given(st.lists(st.integers(1, 30), min_size=1, max_size=300), st.integers(1, 9), st.integers(0, 99))
def test_batches_hold_each_row_once(widths, size, seed):
    rows = [2 * i for i in range(len(widths))]
    doubled = [width for width in widths for _ in (0, 1)]
    batches = batches_by_length(rows, doubled, size, np.random.default_rng(seed))
    assert sorted(i for batch in batches for i in batch) == rows
    assert Counter(map(len, batches)) == Counter(len(rows[i : i + size]) for i in range(0, len(rows), size))


def test_batches_hold_rows_of_similar_width_in_random_order():
    widths = np.random.default_rng(0).permutation(100).tolist()
    batches = batches_by_length(range(100), widths, 10, np.random.default_rng(1))
    ranges = [(min(widths[i] for i in batch), max(widths[i] for i in batch)) for batch in batches]
    assert all(high - low == 9 for low, high in ranges)
    assert ranges != sorted(ranges)


def test_step_size_by_hand():
    assert [schedule(k, 6, 0.3) for k in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert [schedule(k, 4, 0.0) for k in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert [schedule(k, 2, 1.0) for k in range(2)] == [0.5, 1.0]


# The loop


def settings(**more):
    return SFTSettings(**{"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "held_out": 0.0, **more})


def quadratic(weights, targets):
    """A model of one parameter and the sum of ½·weight·(θ − target)² over rows."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    return model, lambda part: sum(0.5 * weights[i] * (model.weight - targets[i]).square().sum() for i in part)


def test_loss_is_averaged_over_counts_and_not_over_micro_batches():
    """Rows that count 1 and 3; the gradient at 0 is −(1·8 + 3·4)/4 = −5, in one micro-batch or in two."""
    for tokens in (1, 100):
        model, loss = quadratic([1, 3], [8.0, 4.0])
        seen = []
        model.weight.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad.item()))
        brief = settings(max_grad_norm=None, micro_batch_tokens=tokens, learning_rate=1e-9, epochs=2)
        fit(model, [0, 1], [5, 5], [1, 3], loss, brief, lambda *_: None)
        steps = len(seen) // 2
        assert seen[steps - 1 :: steps] == pytest.approx([-5, -5])


def test_first_step_of_adamw_by_hand():
    """Adam's first step is the step size; a matrix decays by step size times weight decay of itself as well."""
    model = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(2.0)
    one = settings(learning_rate=0.1, weight_decay=0.5, warmup=0.0)
    fit(model, [0], [1], [1], lambda _: model.weight.sum() + model.bias.sum(), one, lambda *_: None)
    assert model.weight.item() == pytest.approx(2.0 * (1 - 0.05) - 0.1)
    assert model.bias.item() == pytest.approx(2.0 - 0.1)


def test_gradients_from_before_do_not_count():
    model, loss = quadratic([1], [8.0])
    model.weight.grad = torch.full_like(model.weight, 1e6)
    fit(model, [0], [1], [1], loss, settings(learning_rate=0.1, weight_decay=0.0, warmup=0.0), lambda *_: None)
    assert model.weight.item() == pytest.approx(0.1)  # towards 8


def test_loss_of_an_epoch_is_that_of_its_batches():
    model, loss = quadratic([1, 3], [8.0, 4.0])
    seen = []
    fit(model, [0, 1], [5, 5], [1, 3], loss, settings(learning_rate=1e-9, epochs=2), lambda *x: seen.append(x))
    expected = (0.5 * 64 + 1.5 * 16) / 4
    assert seen == [(1, pytest.approx(expected)), (2, pytest.approx(expected))]
    assert mean_of(loss, [1], [5, 5], [1, 3], 1) == pytest.approx(8.0)


def test_loss_or_gradient_that_is_not_finite_changes_nothing():
    model, loss = quadratic([math.nan], [8.0])
    with pytest.raises(NonFiniteError, match="the loss in epoch 1 is not finite"):
        fit(model, [0], [1], [1], loss, settings(), lambda *_: None)
    with pytest.raises(NonFiniteError, match="the gradient of the loss in epoch 1 is not finite"):
        fit(model, [0], [1], [1], lambda _: model.weight.sqrt().sum(), settings(), lambda *_: None)
    assert model.weight.item() == 0


def test_parameters_that_are_frozen_stay():
    model = make_lm()
    model.transformer.wpe.requires_grad_(False)
    before = model.transformer.wpe.weight.clone()
    sft(make_texts(8), settings(), model, make_tokenizer())
    assert torch.equal(model.transformer.wpe.weight, before)
    assert not torch.equal(model.transformer.wte.weight, make_lm().transformer.wte.weight)


# Training on texts


@pytest.mark.parametrize(
    ("texts", "max_tokens", "rows"),
    [
        (["good", "a", "the phone is"], None, rows_of(["good", "a", "the phone is"])),
        (["abcdef", "ab"], 4, [[0, 1, 2, 3], [0, 1, EOS]]),  # a text that is cut has no end
    ],
)
def test_loss_counts_the_end_and_no_padding(texts, max_tokens, rows):
    metrics = sft(texts, settings(max_tokens=max_tokens, learning_rate=1e-12), make_lm(), make_tokenizer())
    assert metrics["loss"] == pytest.approx(lm_loss(make_lm(), *pad(rows, PAD)).item(), rel=1e-5)
    assert metrics["cut"] == (0 if max_tokens is None else 1)


def test_max_tokens_above_the_context_are_those_of_the_context():
    longest = max_positions(make_lm())
    metrics = sft(
        ["a" * 2 * longest], settings(max_tokens=2 * longest, learning_rate=1e-12), make_lm(), make_tokenizer()
    )
    assert metrics["cut"] == 1


@pytest.mark.parametrize("kind", ["gpt2", *(pytest.param(x, marks=pytest.mark.slow) for x in ("llama", "gpt_neox"))])
def test_size_of_micro_batches_does_not_matter(kind):
    texts, weights = make_texts(24), []
    for tokens in (1, 40, 10_000):
        model = make_lm(kind).double()
        sft(texts, settings(micro_batch_tokens=tokens), model, make_tokenizer())
        weights.append(weights_of(model))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(weights[2], weights[0], rtol=0, atol=1e-8)


def test_training_learns_what_the_texts_hold():
    """After a letter, one of two that are equally likely: ln 2 a letter, and nothing for the end after 4 letters."""
    rng = np.random.default_rng(0)
    texts = ["x" + "".join(rng.choice(["a", "b"], 4)) + "." * (k % 3) for k in range(300)]
    texts = list(dict.fromkeys(text.rstrip(".") for text in texts)) * 12
    seen = []
    model = make_lm(initializer_range=0.02)
    sft(texts, settings(epochs=6, learning_rate=3e-3, held_out=0.2), model, make_tokenizer(), seen.append)
    assert [metrics["epoch"] for metrics in seen] == [1, 2, 3, 4, 5, 6]
    ids, attention = pad(rows_of(["xabab", "xbbaa"]), PAD)
    assert lm_loss(model, ids, attention).item() == pytest.approx(4 * math.log(2) / 5, abs=0.08)
    assert seen[-1]["held_out_loss"] < seen[0]["held_out_loss"]
    assert seen[-1]["held_out_perplexity"] == pytest.approx(math.exp(seen[-1]["held_out_loss"]))


def test_texts_held_out_give_the_held_out_loss_and_change_no_weight():
    texts = make_texts(20)
    train, held_out = ([texts[i] for i in side] for side in split(texts, 0.3, 0))
    assert 0 < len(set(held_out)) < len(set(texts))
    models = make_lm(), make_lm()
    metrics = sft(texts, settings(held_out=0.3), models[0], make_tokenizer())
    sft(train, settings(), models[1], make_tokenizer())
    assert metrics["held_out_loss"] == pytest.approx(lm_loss(models[0], *pad(rows_of(held_out), PAD)).item(), rel=1e-5)
    assert torch.equal(*map(weights_of, models))


def test_held_out_texts_without_a_predicted_token_have_no_loss(monkeypatch):
    monkeypatch.setattr("rlzoo.lm.finetune.sft.split", lambda *_: ([1], [0]))
    texts = [{"prompt": prompt, "completion": "x"} for prompt in ("abcdef", "a")]
    assert sft(texts, settings(max_tokens=4), make_lm(), make_tokenizer()).keys() == {"epoch", "loss", "cut"}


def test_same_seed_gives_the_same_weights_and_another_does_not():
    texts, fits, state = make_texts(40), [], torch.get_rng_state()
    for seed in (0, 0, 1):
        model = make_lm()
        metrics = sft(texts, settings(seed=seed, held_out=0.1), model, make_tokenizer())
        fits.append((weights_of(model), metrics))
    assert torch.equal(fits[0][0], fits[1][0])
    assert fits[0][1] == fits[1][1]
    assert not torch.equal(fits[0][0], fits[2][0])
    assert torch.equal(torch.get_rng_state(), state)  # PyTorch's own generator is left alone


def test_end_that_the_tokenizer_puts_itself_is_not_doubled():
    class Ends:
        eos_token_id, pad_token_id, chat_template, bos_token = EOS, PAD, None, None

        def __len__(self):
            return PAD + 1

        def __call__(self, texts, add_special_tokens=True):
            return {"input_ids": rows_of(texts) if add_special_tokens else rows_of([texts])[0][:-1]}

    losses = [sft(["ab", "c"], settings(), make_lm(), tokenizer)["loss"] for tokenizer in (Ends(), make_tokenizer())]
    assert losses[0] == losses[1]


def test_tokenizer_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="no end-of-sequence token"):
        sft(["a", "b"], settings(), make_lm(), make_tokenizer(eos=None))
    with pytest.raises(ConfigError, match=f"the tokenizer has {PAD + 1} tokens, but the model to train only 9"):
        sft(["a", "b"], settings(), new_causal_lm(CONFIGS["gpt2"], 9), make_tokenizer())
    with pytest.raises(ConfigError, match="leaves nothing to train on"):
        sft(["a"], settings(held_out=0.1), make_lm(), make_tokenizer())
    with pytest.raises(ConfigError, match=r"no parameter to train; unfreeze it, such as model\.requires_grad_\(True\)"):
        sft(["a", "b"], settings(), make_lm().requires_grad_(False), make_tokenizer())


WRONG = {"epochs": 0, "batch_size": 0, "learning_rate": 0.0, "warmup": 1.5, "held_out": 1.0, "max_tokens": 1}


@pytest.mark.parametrize(("name", "x"), [*WRONG.items(), ("seed", 2**64)])
def test_settings_out_of_range_are_an_error(name, x):
    with pytest.raises(ConfigError, match=f"{name} must be"):
        SFTSettings(**{name: x})


# Tokenizer


@pytest.fixture(scope="module")
def trained():
    return train_tokenizer(make_texts(200), 280)


@given(st.text().filter(lambda text: "<" not in text))
@example(" two  spaces , and\n\tlines \r\n")
@example("naïve – 漢字 🙂")
@example(" 's don 't , .")
def test_trained_tokenizer_gives_back_any_string(trained, text):
    ids = trained(text)["input_ids"]
    assert trained.decode(ids) == text
    assert all(0 <= i < len(trained) for i in ids)


def test_trained_tokenizer_by_hand(trained, tmp_path):
    assert len(trained) == 280
    assert len(train_tokenizer(["a"], 300)) == 258  # no merge to learn
    assert trained.convert_ids_to_tokens([0, 1]) == [trained.eos_token, trained.pad_token] == ["<eos>", "<pad>"]
    ids = trained("good<eos><pad>")["input_ids"]
    assert len(ids) == 3
    assert (trained.decode(ids), trained.decode(ids, skip_special_tokens=True)) == ("good<eos><pad>", "good")
    trained.save_pretrained(tmp_path)
    vocabularies = [trained.get_vocab(), AutoTokenizer.from_pretrained(tmp_path).get_vocab()]
    vocabularies.append(train_tokenizer(make_texts(200), 280).get_vocab())
    assert vocabularies[0] == vocabularies[1] == vocabularies[2]


# Files


@pytest.fixture
def texts_path(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(make_texts(40)))
    return path


@pytest.fixture
def config_path(tmp_path):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(CONFIGS["gpt2"]))
    return path


def test_from_texts_and_a_configuration_to_a_model(texts_path, config_path, tmp_path, capfd):
    said = []
    chosen = settings(vocab_size=280, held_out=0.1, epochs=2, max_tokens=9)
    metrics = rlzoo.sft(texts_path, config_path, tmp_path / "out", settings=chosen, progress=Said(said))
    assert capfd.readouterr() == ("", "")
    assert metrics.keys() == {"epoch", "cut", "loss", "held_out_loss", "held_out_perplexity", "seconds"}
    assert [line.split(":")[0] for line in said[1:3]] == ["epoch 1/2", "epoch 2/2"]
    assert said[-1] == f"saved in {tmp_path / 'out'}; {metrics['cut']} texts were too long and were cut"
    model, tokenizer = (auto.from_pretrained(tmp_path / "out") for auto in (AutoModelForCausalLM, AutoTokenizer))
    assert len(tokenizer) == len(model.transformer.wte.weight) <= 280
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    capfd.readouterr()


def test_same_command_gives_the_same_files(texts_path, config_path, tmp_path):
    for name in ("one", "two"):
        rlzoo.sft(texts_path, config_path, tmp_path / name, settings=settings())
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_tokenizer_of_the_settings_or_of_the_configuration_is_used(texts_path, config_path, tmp_path):
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    rlzoo.sft(texts_path, config_path, tmp_path / "one", settings=settings(tokenizer=str(tmp_path / "tokenizer")))
    shutil.copy(config_path, tmp_path / "tokenizer" / "config.json")
    rlzoo.sft(texts_path, tmp_path / "tokenizer", tmp_path / "two", settings=settings())
    for name in ("one", "two"):
        assert len(load_causal_lm(tmp_path / name).transformer.wte.weight) == PAD + 1


def test_output_that_is_taken_is_refused_before_anything_else(texts_path, tmp_path):
    folder = save_lm(tmp_path / "start")
    before = load_causal_lm(folder).lm_head.weight
    with pytest.raises(ConfigError, match="holds a model already"):
        rlzoo.sft(tmp_path / "none.txt", folder, folder, settings=settings())
    assert torch.equal(load_causal_lm(folder).lm_head.weight, before)
    rlzoo.sft(texts_path, folder, folder, settings=settings(), overwrite=True)
    assert len(AutoTokenizer.from_pretrained(folder)) == PAD + 1
    assert not torch.equal(load_causal_lm(folder).lm_head.weight, before)


def test_training_that_breaks_off_leaves_nothing(texts_path, config_path, tmp_path):
    with pytest.raises(NonFiniteError):
        rlzoo.sft(texts_path, config_path, tmp_path / "out", settings=settings(learning_rate=1e30, epochs=9))
    assert not (tmp_path / "out").exists()


def test_line_of_an_epoch():
    metrics = {"epoch": 2, "cut": 0, "loss": math.pi, "held_out_loss": 2.0}
    assert describe(metrics, 3) == "epoch 2/3: loss 3.142, held-out loss 2"


@pytest.mark.parametrize("tokens", [1, 100])
def test_the_host_waits_for_the_gpu_once_for_each_step_and_not_for_each_micro_batch(tokens):
    """It reads whether loss and gradient are finite, the loss of the step, and that of the epoch."""
    with simulated() as gpu:
        model, loss = quadratic([1, 3, 2, 1], [8.0, 4.0, 2.0, 1.0])
        model.to(GPU)
        gpu.waits.clear()
        fit(model, range(4), [5] * 4, [1] * 4, loss, settings(micro_batch_tokens=tokens), lambda *_: None)
        assert gpu.waits == ["_local_scalar_dense"] * 4
