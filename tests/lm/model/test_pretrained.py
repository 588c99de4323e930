"""Hugging Face models and tokenizers: what is loaded, and what is refused."""

import json
import logging
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import CONFIGS, EOS, PAD, lm_loss, make_lm, make_tokenizer, save_lm
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
)
from transformers.utils import logging as transformers_logging

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.model import pretrained
from rlzoo.lm.model.language_model import with_adapter
from rlzoo.lm.model.padding import pad
from rlzoo.lm.model.pretrained import (
    encode,
    is_config,
    load_causal_lm,
    load_reward_model,
    load_tokenizer,
    max_positions,
    new_causal_lm,
)
from rlzoo.lm.model.saving import save, use_tokens

KINDS = list(CONFIGS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A saved model of each architecture, with its tokenizer."""
    return {kind: save_lm(tmp_path_factory.mktemp("models") / kind, kind) for kind in KINDS}


@pytest.fixture
def folder(folders, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(folders["gpt2"], tmp_path / "model")


def edit(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


# Loading


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_model_is_the_one_saved(folders, kind):
    model = load_causal_lm(folders[kind])
    assert not model.training
    saved = make_lm(kind)
    assert model.state_dict().keys() == saved.state_dict().keys()
    assert all(torch.equal(x, saved.state_dict()[name]) for name, x in model.state_dict().items())
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    torch.testing.assert_close(model(ids).logits, saved(ids).logits, rtol=0, atol=1e-5)


DROPOUT = {
    "gpt2": {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5, "summary_first_dropout": 0.5},
    "llama": {"attention_dropout": 0.5},
    "gpt_neox": {"attention_dropout": 0.5, "hidden_dropout": 0.5},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_training_mode_turns_no_dropout_on(folders, tmp_path, kind, attention):
    folder = shutil.copytree(folders[kind], tmp_path / kind)
    edit(folder, **DROPOUT[kind])
    ids = torch.arange(20).reshape(2, 10)
    drops = AutoModelForCausalLM.from_pretrained(folder).train()
    assert not torch.equal(drops(ids).logits, drops(ids).logits)
    settings = {**CONFIGS[kind], **DROPOUT[kind]}
    for model in (load_causal_lm(folder, attention), new_causal_lm(settings, 20, attention=attention)):
        evaluated = model(ids).logits
        assert torch.equal(model.train()(ids).logits, evaluated)
        assert all(getattr(model.config, name) == 0 for name in DROPOUT[kind])


@pytest.fixture
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_new_weights_do_not_depend_on_the_programs_precision(double_precision):
    config = CONFIGS["gpt2"]
    models = [with_adapter(new_causal_lm(config, 20), 2, seed=0)]
    torch.set_default_dtype(torch.float32)
    models.append(with_adapter(new_causal_lm(config, 20), 2, seed=0))
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


class StubbornConfig(GPT2Config):
    model_type = "stubborn"


class Stubborn(GPT2LMHeadModel):
    """Has a dropout that its configuration says nothing of."""

    config_class = StubbornConfig

    def __init__(self, config):
        super().__init__(config)
        self.transformer.drop = nn.Dropout(0.5)


def test_training_mode_turns_on_no_dropout_that_is_not_in_the_configuration(folder):
    AutoConfig.register("stubborn", StubbornConfig, exist_ok=True)
    AutoModelForCausalLM.register(StubbornConfig, Stubborn, exist_ok=True)
    edit(folder, model_type="stubborn")
    model, ids = load_causal_lm(folder), torch.arange(20).reshape(2, 10)
    assert isinstance(model, Stubborn)
    evaluated = model(ids).logits
    assert torch.equal(model.train()(ids).logits, evaluated)


def test_weights_of_lower_precision_become_float32(folders, tmp_path):
    halved = AutoModelForCausalLM.from_pretrained(folders["gpt2"]).bfloat16()
    halved.save_pretrained(tmp_path)
    model = load_causal_lm(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.transformer.wte.weight, halved.transformer.wte.weight.float())


def test_every_tensor_has_its_own_aligned_memory(folders, folder):
    """Whatever the alignment in the file, which follows from the length of its header."""
    offsets = set()
    for path in (*folders.values(), folder):
        header = int.from_bytes((path / "model.safetensors").read_bytes()[:8], "little")
        offsets.add(header % 64)
        for model in (load_causal_lm(path), load_reward_model(path, head_seed=0)):
            tensors = [*model.parameters(), *model.buffers()]
            assert {x.data_ptr() % 64 for x in tensors} == {0}
            assert len({x.untyped_storage().data_ptr() for x in tensors}) == len(tensors)
    assert len(offsets) > 1


def test_loading_leaves_the_generators_alone(folder):
    state = torch.get_rng_state()
    load_causal_lm(folder)
    load_reward_model(folder, head_seed=0)
    new_causal_lm(CONFIGS["gpt2"], 20)
    assert torch.equal(torch.get_rng_state(), state)


def test_models_are_loaded_in_several_threads(folder):
    with ThreadPoolExecutor(4) as pool:
        models = [*pool.map(lambda _: load_causal_lm(folder), range(8))]
    assert all(model.lm_head.weight is model.transformer.wte.weight for model in models)


def test_loading_and_saving_make_no_noise(folder, tmp_path, capfd):
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    assert verbosity < logging.CRITICAL
    assert bars
    model, tokenizer = load_reward_model(folder, head_seed=0), load_tokenizer(folder)
    encode(tokenizer, ["a" * 3000])
    save(model, tokenizer, tmp_path / "out")
    edit(folder, n_layer=3)
    with pytest.raises(ConfigError):
        load_causal_lm(folder)
    assert capfd.readouterr() == ("", "")
    assert transformers_logging.get_verbosity() == verbosity
    assert transformers_logging.is_progress_bar_enabled() == bars


def test_eager_attention_has_a_second_derivative(folders):
    models = [load_causal_lm(folders["gpt2"], attention) for attention in ("sdpa", "eager")]
    batch = pad([[3, 1, 4], [1, 5, 9, 2, 6]], PAD)
    losses = [lm_loss(model, *batch) for model in models]
    torch.testing.assert_close(losses[0], losses[1])
    weight = models[1].transformer.wpe.weight
    (gradient,) = torch.autograd.grad(losses[1], weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), weight)
    assert second.abs().sum() > 0


def refused(folder, message, load=load_causal_lm):
    with pytest.raises(ConfigError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert folder is None or str(folder) in str(caught.value)


def test_directory_without_configuration_or_weights_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "other")
    refused(folder, r"holds no weights: there is no model\.safetensors")
    refused(folder, "holds no weights", load_reward_model)
    (folder / "config.json").unlink()
    refused(folder, r"holds no model: there is no config\.json")


@pytest.mark.parametrize("size", [0, 4, 1000, -100])
def test_cut_weights_are_refused(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    refused(folder, "the model of .* cannot be loaded: ")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_type": "gptx"}, "cannot be loaded: .*gptx"),
        ({"n_embd": 64}, r"do not fit its config\.json: transformer\.\S+ is \(.*\), not \(.*\)"),
        ({"n_layer": 3}, r"lacks weights that its config\.json asks for: transformer\.h\.2\.\S+ and 11 more"),
        ({"n_head": 3}, "cannot be loaded: .*divisible"),
        ({"n_embd": "wide"}, "cannot be loaded: "),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}, "cannot be loaded: .*execute"),
    ],
)
def test_configuration_that_does_not_work_is_refused(folder, settings, message):
    edit(folder, **settings)
    refused(folder, message)


def test_damaged_configuration_is_refused(folder):
    (folder / "config.json").write_text("{")
    refused(folder, r"cannot be loaded: .*config\.json")


def test_weights_that_are_not_finite_are_refused(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.transformer.ln_f.bias[3] = torch.nan
    model.save_pretrained(folder)
    refused(folder, r"are damaged: transformer\.ln_f\.bias is not finite")


def test_model_that_looks_ahead_is_refused(tmp_path):
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=20)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    refused(tmp_path, "looks ahead: it is no causal language model")


def test_name_that_is_neither_here_nor_on_the_hub_is_refused(tmp_path, monkeypatch):
    def model_info(self, name, timeout):
        raise ConnectionError("Name or service\nnot known")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    for load in (load_causal_lm, load_reward_model, load_tokenizer):
        refused(tmp_path / "none", "no such directory: .*none$", load)
        refused("some/model", "no such directory: some/model; nor .* Hugging Face Hub: Name or service$", load)
    path = tmp_path / "model.pt"
    path.touch()
    refused(path, "is a file; a model is a directory")


@pytest.mark.slow
def test_model_in_the_cache_of_the_hub_needs_no_network(folders, tmp_path):
    cached = tmp_path / "hub" / "models--some--model"
    shutil.copytree(folders["gpt2"], cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    code = "from rlzoo.lm.model.pretrained import *; load_causal_lm('some/model')"
    code += "; print(len(load_tokenizer('some/model')))"
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{PAD + 1}\n", "")


# Random weights


def test_random_weights_follow_from_the_seed():
    first, again, other = (make_lm(seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(x, again[name]) for name, x in first.items())
    assert not torch.equal(first["transformer.wte.weight"], other["transformer.wte.weight"])


def test_configuration_from_a_file_a_directory_or_a_mapping(tmp_path):
    settings = {**CONFIGS["gpt2"], "vocab_size": 20, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    shutil.copy(tmp_path / "config.json", tmp_path / "small.json")
    models = [new_causal_lm(config) for config in (tmp_path, str(tmp_path / "small.json"), settings)]
    for model in models:
        assert not model.training
        assert model.config.pad_token_id is model.config.eos_token_id is None
        assert torch.equal(model.transformer.wte.weight, models[0].transformer.wte.weight)
        assert model.transformer.wte.weight.shape == (20, 32)
        assert model.transformer.wte.weight.dtype == torch.float32
    assert len(new_causal_lm(settings, vocab_size=30).transformer.wte.weight) == 30


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_layer": 2}, 'the configuration has no "model_type"'),
        ({"model_type": "gtp2"}, "no causal language model 'gtp2'; did you mean 'gpt2'"),
        ({"model_type": "gpt2", "n_layers": 2}, "no setting of gpt2 'n_layers'; did you mean 'n_layer'"),
        ({"model_type": "gpt2", "n_embd": 32, "n_head": 3}, "cannot be loaded: .*divisible"),
        ({"model_type": "gpt2", "n_embd": -1}, "cannot be loaded: "),
        ({"model_type": "gpt2", "vocab_size": "many"}, "cannot be loaded: "),
        ({"model_type": "gemma3"}, 'gemma3 is more than a language model; give its text_config alone, .*_text"'),
    ],
)
def test_settings_that_make_no_model_are_refused(settings, message):
    refused(None, message, lambda _: new_causal_lm(settings))


def test_settings_that_only_others_know_are_let_through():
    assert new_causal_lm({**CONFIGS["gpt2"], "n_ctx": 32, "task_specific_params": {}}, 20).config.n_ctx == 32


def test_configuration_file_that_is_missing_or_damaged_is_refused(tmp_path):
    refused(tmp_path / "x.json", "no such file", new_causal_lm)
    (tmp_path / "x.json").write_text("{")
    refused(tmp_path / "x.json", "is not JSON", new_causal_lm)
    (tmp_path / "x.json").write_text("[]")
    refused(tmp_path / "x.json", "is not a JSON object", new_causal_lm)


def test_what_is_a_configuration(folders, tmp_path):
    assert not is_config(folders["gpt2"])
    assert not is_config("gpt2")
    shutil.copy(folders["gpt2"] / "config.json", tmp_path)
    assert is_config(tmp_path)


@pytest.mark.parametrize("begins", [False, True])
def test_an_end_of_sequence_that_the_tokenizer_adds_is_left_out(begins):
    """A prompt goes on; and a text that holds the token keeps it."""
    tokenizer = make_tokenizer()
    expected = pretrained.encode(tokenizer, ["", "ab", "a<eos>"])
    assert expected[2][-1] == EOS
    form = "<eos> $A <eos>" if begins else "$A <eos>"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=form, special_tokens=[("<eos>", EOS)])
    assert tokenizer("ab")["input_ids"][-1] == EOS
    rows = pretrained.encode(tokenizer, ["", "ab", "a<eos>"])
    assert [row[1:] if begins else row for row in rows] == expected


def test_longest_row():
    assert [max_positions(make_lm(kind)) for kind in KINDS] == [32, 32, 32]
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 2.0}
    rope["original_max_position_embeddings"] = 16
    assert max_positions(make_lm("llama", rope_parameters={"rope_theta": 1e4, **rope})) == 16
    mpt = {"model_type": "mpt", "d_model": 8, "n_heads": 2, "n_layers": 1, "max_seq_len": 24}
    assert max_positions(new_causal_lm(mpt, 20)) == 24
    doge = {"model_type": "doge", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    assert max_positions(new_causal_lm({**doge, "intermediate_size": 8, "keep_window_size": 12}, 20)) == 12


# Tokenizers


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_tokenizer_of_its_own_is_loaded_as_it_was_saved(kind, tmp_path):
    """transformers takes Qwen2's class for that of a qwen2 model, which splits texts in another way."""
    loaded = load_tokenizer(save_lm(tmp_path, "llama", model_type=kind, num_key_value_heads=2))
    assert loaded("abc  d")["input_ids"] == make_tokenizer()("abc  d")["input_ids"]


def test_end_of_sequence_serves_as_padding(tmp_path):
    make_tokenizer(pad=None).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == EOS


def test_own_padding_stays(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    assert (load_tokenizer(tmp_path).pad_token_id, load_tokenizer(tmp_path).eos_token_id) == (PAD, EOS)
    make_tokenizer(eos=None).save_pretrained(tmp_path)
    assert (load_tokenizer(tmp_path).pad_token_id, load_tokenizer(tmp_path).eos_token_id) == (PAD, None)


def test_tokenizer_without_either_is_refused(tmp_path):
    make_tokenizer(eos=None, pad=None).save_pretrained(tmp_path)
    refused(
        tmp_path, r"neither a padding nor an end-of-sequence token; add one with tokenizer\.add_special", load_tokenizer
    )


@pytest.mark.parametrize("kind", KINDS)
def test_directory_without_a_tokenizer_is_refused(folders, tmp_path, kind):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folders[kind] / name, tmp_path)
    refused(tmp_path, "tokenizer", load_tokenizer)


def test_damaged_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text("{")
    refused(folder, "the tokenizer of .* cannot be loaded", load_tokenizer)


def test_model_learns_the_tokens(tmp_path):
    model = new_causal_lm(CONFIGS["llama"], PAD + 1)
    use_tokens(model, make_tokenizer(pad=None))
    assert (model.config.pad_token_id, model.config.eos_token_id, model.config.bos_token_id) == (None, EOS, None)
    use_tokens(model, make_tokenizer())
    assert (model.config.pad_token_id, model.config.eos_token_id) == (PAD, EOS)
    assert (model.generation_config.pad_token_id, model.generation_config.eos_token_id) == (PAD, EOS)


# Reward models


@pytest.mark.parametrize("kind", KINDS)
def test_reward_model_takes_over_the_transformer(folders, kind):
    model, start = load_reward_model(folders[kind], head_seed=3), load_causal_lm(folders[kind])
    trunk = start.base_model.state_dict()
    assert all(torch.equal(x, trunk[name]) for name, x in model.base_model.state_dict().items())
    again, other = (load_reward_model(folders[kind], head_seed=seed) for seed in (3, 4))
    assert torch.equal(model.score.weight, again.score.weight)
    assert not torch.equal(model.score.weight, other.score.weight)


def test_head_starts_small(tmp_path):
    folder = save_lm(tmp_path / "wide", n_embd=1024, n_layer=1, n_head=1)
    weight = load_reward_model(folder, head_seed=0).score.weight
    assert weight.shape == (1, 1024)
    assert weight.std().item() == pytest.approx(1 / math.sqrt(1025), rel=0.1)


def test_language_model_is_no_reward_model(folders):
    refused(folders["gpt2"], "is no reward model; train one from it: rlzoo reward-model", load_reward_model)


def test_classifier_with_another_head_is_refused(tmp_path):
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=20)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    refused(tmp_path, "BertForSequenceClassification, which has no head 'score'", load_reward_model)


@pytest.mark.parametrize("end", [0.5, "x", [1, None], {}, -1, 2**40, [1, -5]])
def test_end_of_sequence_of_another_kind(tmp_path, end):
    folder = save_lm(tmp_path / "model")
    record = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**record, "eos_token_id": end}))
    with pytest.raises(ConfigError, match=r"generation_config\.json"):
        load_causal_lm(folder)


@pytest.mark.parametrize(("text", "license"), [("mit", "mit"), ("[mit]", None), ("7", None), ("x" * 999, "x" * 200)])
def test_licence_is_a_short_text(tmp_path, text, license):
    folder = save_lm(tmp_path / "model")
    (folder / "README.md").write_text(f"---\nlicense: {text}\n---\n")
    assert getattr(load_causal_lm(folder).config, "rlzoo_license", None) == license


@pytest.mark.parametrize("longest", [{"a": 1}, "many", True])
def test_length_of_a_tokenizer_must_be_a_number(longest, tmp_path):
    path = save_lm(tmp_path / "model")
    settings = json.loads((path / "tokenizer_config.json").read_text()) | {"model_max_length": longest}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"model_max_length .* must be a number"):
        load_tokenizer(path)


def test_model_of_too_many_layers_is_refused_at_once(tmp_path):
    path = save_lm(tmp_path / "model")
    settings = json.loads((path / "config.json").read_text()) | {"n_layer": 2**31}
    (path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"config.json has 2,147,483,648 layers; at most 1,000 are built"):
        load_causal_lm(path)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.int64])
def test_weights_of_integers_are_refused(folder, kind):
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"] = (100 * weights["transformer.h.1.mlp.c_fc.weight"]).to(kind)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    refused(
        folder, r"model\.safetensors: \S*mlp\.c_fc\.weight is of integers \([IU]\d+\); weights must be floating-point"
    )


@pytest.mark.parametrize("listens", [False, True], ids=["refuses", "is silent"])
def test_a_hub_that_cannot_be_reached_is_asked_once_and_briefly(listens, monkeypatch):
    asked = []
    plain = huggingface_hub.HfApi.model_info

    def model_info(api, name, timeout):
        asked.append(timeout)
        return plain(api, name, timeout=timeout)

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        if not listens:
            server.close()
        start = time.monotonic()
        refused("some-model", "no such directory: some-model; nor is it on the Hugging Face Hub: ")
        assert time.monotonic() - start < 30  # transformers alone would try for a minute
    assert asked == [1.5]


@pytest.mark.parametrize(("unknown", "fault"), [(None, "has an empty vocabulary"), ("a", "Missing .* from the vocab")])
def test_tokenizer_without_the_tokens_that_it_needs(unknown, fault, tmp_path):
    folder = save_lm(tmp_path)
    record = json.loads((folder / "tokenizer.json").read_text())
    record["model"]["vocab"] = {} if unknown is None else {unknown: 0}
    record["model"]["unk_token"] = "[UNK]"
    (folder / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=fault):
        encode(load_tokenizer(folder), ["text"])


def test_a_folder_without_a_model_is_one_line(tmp_path):
    (tmp_path / "seed-1").mkdir()
    with pytest.raises(ConfigError, match=r"holds no model and no tokenizer: there is no config\.json$"):
        pretrained.load_tokenizer(tmp_path)
