"""Reward models: where the score is read, calibration, and what is saved."""

import json

import numpy as np
import pytest
import torch
from tiny import CONFIGS, EOS, PAD, make_lm, make_reward_model, make_tokenizer, save_lm
from tiny import score_by_definition as by_definition
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.model.padding import pad, position_ids
from rlzoo.lm.reward.reward_model import RewardModel, last_scores

KINDS = list(CONFIGS)
ROWS = [[3, 1, 4, 1, 5, 9], [2, 6], [5, 3, 5], [8]]
TEXTS = ["uabc", "vdea", "wfgh", "xacb", "yhgd", "zb", "ucab", "vh", "wgg", "xfed"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_lm(tmp_path_factory.mktemp("models") / kind, kind) for kind in KINDS}


@pytest.fixture
def make(folders):
    return lambda kind="gpt2": make_reward_model(folders[kind])


# Where the score is read


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_score_is_read_at_the_last_token_of_a_padded_row(make, kind, side):
    rewards = make(kind)
    expected = [by_definition(rewards.model, row) for row in ROWS]
    assert np.std(expected) > 0.1
    ids, attention = pad(ROWS, PAD, side)
    torch.testing.assert_close(last_scores(rewards.model, ids, attention), torch.tensor(expected), rtol=0, atol=1e-4)
    wide = (nn.functional.pad(ids, (3, 2), value=PAD), nn.functional.pad(attention, (3, 2)))
    torch.testing.assert_close(last_scores(rewards.model, *wide), torch.tensor(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_hugging_face_reads_the_same_score(make, kind, side):
    model = make(kind).model
    ids, attention = pad(ROWS, PAD, side)
    assert model.config.pad_token_id == PAD
    theirs = model(input_ids=ids, attention_mask=attention.long(), position_ids=position_ids(attention)).logits
    torch.testing.assert_close(last_scores(model, ids, attention), theirs.squeeze(1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_last_token_counts_though_padding_has_the_same_id(make, side):
    """As in GPT-2, where end of sequence serves as padding."""
    model = make().model
    rows = [[3, 1, EOS], [2, 6, 5, 3, EOS], [4, 1]]
    expected = torch.tensor([by_definition(model, row) for row in rows])
    torch.testing.assert_close(last_scores(model, *pad(rows, EOS, side)), expected, rtol=0, atol=1e-4)
    assert abs(by_definition(model, [3, 1]) - expected[0]) > 1e-2


def test_what_padding_holds_does_not_matter(make):
    model = make().model
    ids, attention = pad(ROWS, PAD)
    junk = torch.where(attention, ids, torch.arange(6))
    torch.testing.assert_close(last_scores(model, junk, attention), last_scores(model, ids, attention))


# Scores


def test_scores_are_those_of_prompt_and_response_in_one(make):
    rewards = make()
    prompts, responses = ["xy", "z", "a.b", "!"], ["abc", "", " ", "defghij"]
    texts = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    expected = [by_definition(rewards.model, make_tokenizer()(text)["input_ids"]) for text in texts]
    for tokens in (1, 12, 1000):
        rewards.micro_batch_tokens = tokens
        assert rewards(prompts, responses) == pytest.approx(expected, abs=1e-4)
    assert all(isinstance(score, float) for score in rewards(prompts, responses))
    assert rewards([], []) == []


@pytest.mark.parametrize("number", [2, 3, 7])
def test_equal_texts_have_equal_scores(make, number):
    rewards = make()
    for text in TEXTS:
        assert len(set(rewards([text] * number, [""] * number))) == 1
    assert rewards(["u", "v", "u"], ["ab", "d", "ab"]) == rewards(["u", "v", "ua"], ["ab", "d", "b"])


def test_scores_of_rows_of_tokens(make):
    rewards = make()
    rewards.calibrate(["abc", "de", "fgh"])
    expected = [rewards.gain * by_definition(rewards.model, row) + rewards.bias for row in ROWS]
    for side in ("left", "right"):
        scores = rewards.score_ids(*pad(ROWS, PAD, side))
        assert not scores.requires_grad
        assert scores.tolist() == pytest.approx(expected, abs=1e-4)


def test_text_without_a_token_is_refused(make):
    with pytest.raises(ConfigError, match="row 1 has no token to score"):
        make()(["a", ""], ["b", ""])


def test_text_that_is_too_long_loses_its_beginning(make):
    rewards = make()
    assert rewards(["a" * 10], ["b" * 30 + "cd"]) == rewards(["b"], ["b" * 29 + "cd"])


def test_calibrated_scores_have_mean_0_and_deviation_1(make):
    rewards, texts = make(), TEXTS
    raw = rewards(texts, [""] * len(TEXTS))
    for _ in range(2):
        gain, bias = rewards.calibrate(texts)
        assert (gain, bias) == pytest.approx((1 / np.std(raw), -np.mean(raw) / np.std(raw)), rel=1e-4)
        scores = rewards(texts, [""] * len(TEXTS))
        assert (np.mean(scores), np.std(scores)) == pytest.approx((0, 1), abs=1e-5)


def test_scores_that_are_all_equal_cannot_be_calibrated(make):
    rewards = make()
    calibrated = rewards.calibrate(TEXTS)
    with pytest.raises(ConfigError, match="gives the same score to all 2 texts"):
        rewards.calibrate(["ab", "ab"])
    assert (rewards.gain, rewards.bias) == calibrated


# Files


@pytest.mark.parametrize("kind", KINDS)
def test_saved_reward_model_gives_the_same_scores(make, tmp_path, kind):
    rewards = make(kind)
    rewards.calibrate(["abc", "de", "fgh"])
    rewards.save(tmp_path / "out")
    again = RewardModel.load(tmp_path / "out")
    assert (again.gain, again.bias) == (rewards.gain, rewards.bias) != (1.0, 0.0)
    assert again(["ab", "c"], ["d", "efg"]) == pytest.approx(rewards(["ab", "c"], ["d", "efg"]), abs=1e-5)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["rlzoo_gain"], config["rlzoo_bias"]) == (rewards.gain, rewards.bias)
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.config.rlzoo_gain, theirs.config.num_labels) == (rewards.gain, 1)
    batch = tokenizer(["abd", "cefg"], padding=True, return_tensors="pt", padding_side="right")
    logits = theirs(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
    expected = (rewards.gain * logits + rewards.bias).tolist()
    assert rewards(["ab", "c"], ["d", "efg"]) == pytest.approx(expected, abs=1e-4)


def test_model_without_calibration_gives_what_its_head_gives(make, tmp_path):
    rewards = make()
    rewards.save(tmp_path / "out")
    assert (RewardModel.load(tmp_path / "out").gain, RewardModel.load(tmp_path / "out").bias) == (1.0, 0.0)


def test_a_model_in_training_mode_scores_without_dropout():
    config = make_lm().config
    config.resid_pdrop, config.embd_pdrop, config.num_labels = 0.5, 0.5, 1
    classifier = AutoModelForSequenceClassification.from_config(config)
    classifier.config.pad_token_id = 0
    scores = RewardModel(classifier.train(), make_tokenizer())
    assert scores(["ab"], ["cde"]) == scores(["ab"], ["cde"])


def test_only_a_classifier_of_one_label_gives_scores():
    lm = make_lm()  # a new configuration has two labels
    for model in (lm, AutoModelForSequenceClassification.from_config(lm.config)):
        with pytest.raises(ConfigError, match="is no sequence classifier with one label"):
            RewardModel(model, make_tokenizer())
