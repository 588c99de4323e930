"""`rlzoo.sft` and `rlzoo.train_reward_model` with objects instead of names."""

import json
from pathlib import Path

import datasets
import pandas
import pytest
import tiny
import torch
from simulated_gpu import GPU, simulated
from tokenizers import pre_tokenizers
from transformers import AutoModel, AutoModelForSequenceClassification

import rlzoo
from rlzoo.core.system.errors import ConfigError, RunError
from rlzoo.lm.finetune.reward_model import RewardModelSettings
from rlzoo.lm.model.pretrained import load_tokenizer
from rlzoo.lm.reward.reward_model import RewardModel
from rlzoo.runs.files import lock

TEXTS = [f"say {c}" for c in "abcdefgh"]
PAIRS = [{"prompt": f"is {c}", "chosen": " good", "rejected": " bad"} for c in "abcdefgh"]
BRIEF = {"epochs": 1, "held_out": 0.0, "learning_rate": 1e-3}


def changed(model):
    return not torch.equal(model.transformer.wte.weight, tiny.make_lm().transformer.wte.weight)


def test_loaded_model_is_trained_in_place(tmp_path):
    model, said = tiny.make_lm(), []
    data = datasets.Dataset.from_dict({"text": TEXTS})
    metrics = rlzoo.sft(
        data, model, tmp_path / "out", tokenizer=tiny.make_tokenizer(), progress=tiny.Said(said), **BRIEF
    )
    assert changed(model)
    assert metrics["epoch"] == 1
    assert said[-1] == f"saved in {tmp_path / 'out'}"
    assert rlzoo.sft(TEXTS, model, tokenizer=tiny.make_tokenizer(), **BRIEF)["loss"] < metrics["loss"]


@pytest.mark.parametrize("mode", [torch.no_grad(), torch.autocast("cpu", torch.bfloat16)])
def test_a_context_of_pytorch_that_spoils_training_is_an_error(mode):
    with mode, pytest.raises(ConfigError, match=r"leave torch.no_grad\(\)|^torch.autocast keeps old weights"):
        rlzoo.sft(TEXTS, tiny.make_lm(), tokenizer=tiny.make_tokenizer(), **BRIEF)


def test_loaded_model_stays_on_its_device(tmp_path):
    words = tiny.make_tokenizer()
    with simulated():
        model = tiny.make_lm().to(GPU)
        rlzoo.sft(TEXTS, model, tokenizer=words, **BRIEF)
        assert model.device.type == GPU
        rewards = tiny.make_reward_model(tiny.save_lm(tmp_path))
        rewards.model.to(GPU)
        rlzoo.train_reward_model(PAIRS, rewards, **BRIEF)
        assert rewards.model.device.type == GPU
        rlzoo.sft(TEXTS, model, tokenizer=words, device="cpu", **BRIEF)
        assert model.device.type == "cpu"


def test_completions_alone_are_in_the_loss():
    records = [{"prompt": text, "completion": "x"} for text in TEXTS]
    still = {**BRIEF, "learning_rate": 1e-12}
    loss = rlzoo.sft(records, tiny.make_lm(), tokenizer=tiny.make_tokenizer(), **still)["loss"]
    tokenizer, model = tiny.make_tokenizer(), tiny.make_lm()
    total = 0.0
    for text in TEXTS:
        ids = torch.tensor([[*tokenizer(text + "x")["input_ids"], tiny.EOS]])
        logp = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        total -= logp[-2:].sum().item()
    assert loss == pytest.approx(total / (2 * len(TEXTS)), rel=1e-5)


def test_language_model_gets_a_head_in_a_copy(tmp_path):
    model = tiny.make_lm()
    rlzoo.train_reward_model(PAIRS, model, tmp_path / "out", tokenizer=tiny.make_tokenizer(), **BRIEF)
    assert not changed(model)
    rewards = RewardModel.load(tmp_path / "out")
    before = rewards.model.transformer.wte.weight.clone()
    rlzoo.train_reward_model(PAIRS, rewards, **BRIEF)
    assert not torch.equal(rewards.model.transformer.wte.weight, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, 'model must be a directory, a Hub name or a loaded model, such as model="gpt2", got int'),
        ({"model": "gpt2"}, 'out is missing: the folder to save the model in, such as out="models/sft"'),
        ({}, "tokenizer is missing: a loaded model needs one, such as tokenizer=tokenizer"),
        ({"tokenizer": 3}, 'tokenizer must be a directory, a Hub name or a loaded one, such as tokenizer="gpt2"'),
        ({"tokenizer": tiny.make_tokenizer(), "vocab_size": 300}, "vocab_size is for a configuration without a"),
        ({"lr": 1e-3}, "no setting 'lr'; did you mean 'learning_rate'"),
        ({"texts": []}, "texts: there are none"),
        ({"texts": pandas.DataFrame({"text": TEXTS})}, "texts must be a file, a list or a datasets.Dataset"),
    ],
)
def test_wrong_objects(arguments, message):
    with pytest.raises(ConfigError, match=message):
        rlzoo.sft(**{"texts": TEXTS, "model": tiny.make_lm(), **arguments})


@pytest.mark.parametrize("name", ["tokenizer", "settings"])
def test_reward_model_has_its_own_tokenizer(name, tmp_path):
    more = {"tokenizer": tiny.make_tokenizer(), "settings": RewardModelSettings(tokenizer="gpt2")}[name]
    with pytest.raises(ConfigError, match="tokenizer does nothing with a RewardModel, which has its own; leave it out"):
        rlzoo.train_reward_model(PAIRS, tiny.make_reward_model(tiny.save_lm(tmp_path)), **{name: more})


def test_configuration_keeps_its_tokenizer_of_any_kind(tmp_path):
    folder = tmp_path / "bare"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny.CONFIGS["gpt2"]))
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "zz", "<eos>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\nz z\n")
    own = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<eos>", "bos_token": "<eos>", "unk_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    rlzoo.sft(TEXTS, folder, tmp_path / "out", **BRIEF)
    assert load_tokenizer(tmp_path / "out").get_vocab() == load_tokenizer(folder).get_vocab()


def test_models_that_cannot_be_trained(tmp_path):
    with pytest.raises(ConfigError, match=r"the given GPT2LMHeadModel is in torch.bfloat16: training needs float32"):
        rlzoo.sft(TEXTS, tiny.make_lm().bfloat16(), tokenizer=tiny.make_tokenizer())
    half = tiny.make_reward_model(tiny.save_lm(tmp_path))
    half.model.bfloat16()
    with pytest.raises(ConfigError, match=r"GPT2ForSequenceClassification is in torch.bfloat16: training needs"):
        rlzoo.train_reward_model(PAIRS, half)
    broken = tiny.make_lm()
    with torch.no_grad():
        broken.transformer.wpe.weight.fill_(torch.inf)
    with pytest.raises(ConfigError, match=r"damaged: transformer.wpe.weight is not finite"):
        rlzoo.sft(TEXTS, broken, tokenizer=tiny.make_tokenizer())
    with pytest.raises(ConfigError, match="out is missing: a language model gets a new head in a copy"):
        rlzoo.train_reward_model(PAIRS, tiny.make_lm(), tokenizer=tiny.make_tokenizer())
    classes = AutoModelForSequenceClassification.from_config(tiny.make_lm().config)
    with pytest.raises(
        ConfigError, match="the given GPT2ForSequenceClassification has 2 labels; a reward model has one"
    ):
        rlzoo.train_reward_model(PAIRS, classes, tokenizer=tiny.make_tokenizer())


def test_nothing_is_left_beside_the_model(tmp_path):
    given = {"tokenizer": tiny.make_tokenizer(), **BRIEF}
    rlzoo.sft(TEXTS, tiny.make_lm(), tmp_path / "model", **given)
    with pytest.raises(ConfigError, match="no such directory"):
        rlzoo.sft(TEXTS, tmp_path / "nowhere", tmp_path / "other", **given)
    assert [x.name for x in tmp_path.iterdir()] == ["model"]


def test_one_process_at_a_time(tmp_path):
    out = tmp_path / "model"
    with lock(out, tmp_path / ".model.lock"), pytest.raises(RunError, match="model is in use by another process"):
        rlzoo.sft(TEXTS, tiny.make_lm(), out, tokenizer=tiny.make_tokenizer(), **BRIEF)
    assert not out.exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory in which nobody can make files")
def test_directory_that_cannot_be_made_is_not_one_in_use():
    with pytest.raises(OSError, match="/proc"):
        rlzoo.sft(TEXTS, tiny.make_lm(), "/proc/model", tokenizer=tiny.make_tokenizer(), **BRIEF)


def test_models_of_another_kind(tmp_path):
    config, tokenizer = tiny.make_lm().config, tiny.make_tokenizer()
    config.num_labels = 1
    classifier = AutoModelForSequenceClassification.from_config(config)
    for model, fault in (
        (AutoModel.from_config(config), "the given GPT2Model is no causal language model"),
        (classifier, "the given GPT2ForSequenceClassification is no causal language model"),
        (RewardModel(classifier, tokenizer), "model is a reward model; give a language model"),
    ):
        with pytest.raises(ConfigError, match=fault):
            rlzoo.sft(TEXTS, model, tokenizer=tokenizer, **BRIEF)
    rlzoo.train_reward_model(PAIRS, tiny.make_lm(), tmp_path / "reward", tokenizer=tokenizer, **BRIEF)
    with pytest.raises(ConfigError, match="reward is a reward model, not a language model"):
        rlzoo.sft(TEXTS, tmp_path / "reward", tmp_path / "sft", **BRIEF)


def test_what_a_model_folder_holds_beside_the_model_is_not_lost(tmp_path):
    out, given = tmp_path / "model", {"tokenizer": tiny.make_tokenizer(), **BRIEF}
    rlzoo.sft(TEXTS, tiny.make_lm(), out, **given)
    rlzoo.sft(TEXTS, tiny.make_lm(), out, overwrite=True, **given)
    (out / "checkpoint-500").mkdir()
    with pytest.raises(ConfigError, match="checkpoint-500 would be lost with the model beside it"):
        rlzoo.sft(TEXTS, tiny.make_lm(), out, overwrite=True, **given)
