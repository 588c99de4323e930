"""Reward models: where the score is read, what the loss is, and what survives saving."""

import json
import math

import numpy as np
import pytest
import torch
from tiny import CHARACTERS, CONFIGS, EOS, PAD, make_lm, make_tokenizer, save_lm
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlzoo.core.errors import ConfigError, NonFiniteError
from rlzoo.lm.finetune.data import Pair, held_out
from rlzoo.lm.finetune.reward_model import (
    RewardModel,
    RewardModelSettings,
    last_scores,
    preference_loss,
    run_reward_model,
    train_reward_model,
)
from rlzoo.lm.model.padding import pad, position_ids
from rlzoo.lm.model.pretrained import load_reward_model

KINDS = list(CONFIGS)
ROWS = [[3, 1, 4, 1, 5, 9], [2, 6], [5, 3, 5], [8]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_lm(tmp_path_factory.mktemp("models") / kind, kind) for kind in KINDS}


@pytest.fixture
def make(folders):
    """A reward model that has not been trained, its head ten times as large as it starts."""

    def made(kind="gpt2", seed=0, tokenizer=None):
        model = load_reward_model(folders[kind], head_seed=seed)
        with torch.no_grad():
            model.score.weight *= 10
        return RewardModel(model, tokenizer or make_tokenizer())

    return made


def settings(**more):
    return RewardModelSettings(**{"batch_size": 8, "learning_rate": 1e-3, "held_out": 0.0, **more})


def by_definition(model, row):
    hidden = model.base_model(torch.tensor([row]))[0]
    return model.score(hidden[0, -1]).item()


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


# The loss


def test_loss_by_hand():
    chosen, rejected, margin = torch.tensor([[2.0, 0.0, 1.0], [1.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
    expected = [math.log(1 + math.exp(-1)), math.log(2), math.log(1 + math.exp(3))]
    assert preference_loss(chosen, rejected, margin).tolist() == pytest.approx(expected)
    centred = [expected[0] + 0.9, expected[1], expected[2] + 1.6]
    assert preference_loss(chosen, rejected, margin, centring=0.1).tolist() == pytest.approx(centred)


def test_loss_of_hopeless_pairs_is_finite():
    loss = preference_loss(torch.tensor([-1e4]), torch.tensor([1e4]), torch.tensor([0.0]))
    assert loss.tolist() == [2e4]


def make_pairs(n=60, seed=0, prompts=15):
    """The chosen response has an "a" somewhere, the rejected one a "b"."""
    rng = np.random.default_rng(seed)
    letters = list("cdefgh")
    pairs = []
    for k in range(n):
        filler = rng.choice(letters, (2, 3))
        place = rng.integers(0, 3, 2)
        filler[0, place[0]], filler[1, place[1]] = "a", "b"
        prompt = CHARACTERS[20 + k % prompts] + "".join(rng.choice(letters, k % prompts % 3))
        pairs.append(Pair(prompt, "".join(filler[0]), "".join(filler[1])))
    return pairs


def test_loss_of_training_is_the_mean_over_pairs(make):
    pairs = [Pair("xy", "a", "bcd", 0.5), Pair("z", "abc", "d")]
    rewards = make()
    scores = torch.tensor(
        [
            [by_definition(rewards.model, make_tokenizer()(p.prompt + text)["input_ids"]) for text in p[1:3]]
            for p in pairs
        ]
    )
    expected = preference_loss(*scores.T, torch.tensor([0.5, 0.0]), 0.1).mean().item()
    metrics = train_reward_model(pairs, settings(learning_rate=1e-12, centring=0.1), rewards)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_size_of_micro_batches_does_not_matter(make, kind):
    weights = []
    for tokens in (1, 40, 10_000):
        rewards = make(kind)
        rewards.model.double()
        train_reward_model(make_pairs(24), settings(micro_batch_tokens=tokens), rewards)
        weights.append(nn.utils.parameters_to_vector(rewards.model.parameters()))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(weights[2], weights[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_what_was_preferred(make, kind):
    rewards, seen = make(kind), []
    known = settings(epochs=4, learning_rate=3e-3, held_out=0.2)
    metrics = train_reward_model(make_pairs(300), known, rewards, seen.append)
    assert [x["epoch"] for x in seen] == [1, 2, 3, 4]
    assert metrics["held_out_accuracy"] > 0.95
    assert metrics["held_out_loss"] < 0.3 < math.log(2)
    better, worse = rewards(["x", "x"], ["cda", "cdb"])
    assert better > worse


def test_accuracy_is_over_pairs_whose_prompts_were_not_trained_on(make):
    pairs, rewards = make_pairs(), make()
    metrics = train_reward_model(pairs, settings(held_out=0.3), rewards)
    out = held_out([pair.prompt for pair in pairs], 0.3, 0)
    measured = [pair for pair, held in zip(pairs, out, strict=True) if held]
    assert not {p.prompt for p in measured} & {p.prompt for p, held in zip(pairs, out, strict=True) if not held}
    prompts = [p.prompt for p in measured]
    chosen, rejected = rewards(prompts, [p.chosen for p in measured]), rewards(prompts, [p.rejected for p in measured])
    right = sum(c > r for c, r in zip(chosen, rejected, strict=True))
    assert metrics["held_out_accuracy"] == right / len(measured)
    assert 0 < right < len(measured)


def test_margin_asks_for_more(make):
    """With a large margin training goes on to part the scores of a pair that is in order already."""
    gaps = []
    for margin in (0.0, 50.0):
        rewards = make()
        pairs = [pair._replace(margin=margin) for pair in make_pairs()]
        train_reward_model(pairs, settings(epochs=3, learning_rate=3e-3), rewards)
        better, worse = rewards(["x", "x"], ["cda", "cdb"])
        gaps.append((better - worse) / rewards.gain)
    assert gaps[1] > gaps[0] + 1


def test_same_seed_gives_the_same_weights(make):
    found = []
    for seed in (0, 0, 1):
        rewards = make()
        metrics = train_reward_model(make_pairs(), settings(seed=seed, held_out=0.2), rewards)
        found.append((nn.utils.parameters_to_vector(rewards.model.parameters()), metrics))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert not torch.equal(found[0][0], found[2][0])


def test_gradient_that_is_not_finite_stops_training(make):
    with pytest.raises(NonFiniteError, match="the loss in epoch 1 is not finite"):
        train_reward_model([pair._replace(margin=math.inf) for pair in make_pairs()], settings(), make())


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
    rewards, texts = make(), [pair.prompt + pair.chosen for pair in make_pairs()]
    raw = rewards(texts, [""] * 60)
    for _ in range(2):
        gain, bias = rewards.calibrate(texts)
        assert (gain, bias) == pytest.approx((1 / np.std(raw), -np.mean(raw) / np.std(raw)), rel=1e-4)
        scores = rewards(texts, [""] * 60)
        assert (np.mean(scores), np.std(scores)) == pytest.approx((0, 1), abs=1e-5)


def test_training_calibrates_on_what_was_held_out(make):
    pairs, rewards = make_pairs(), make()
    metrics = train_reward_model(pairs, settings(held_out=0.3), rewards)
    out = held_out([pair.prompt for pair in pairs], 0.3, 0)
    texts = [p.prompt + text for p, held in zip(pairs, out, strict=True) if held for text in (p.chosen, p.rejected)]
    scores = rewards(texts, [""] * len(texts))
    assert (np.mean(scores), np.std(scores)) == pytest.approx((0, 1), abs=1e-5)
    assert (metrics["gain"], metrics["bias"]) == (rewards.gain, rewards.bias)


def test_scores_that_are_all_equal_cannot_be_calibrated(make):
    with pytest.raises(ConfigError, match="gives one score to all 2 texts"):
        make().calibrate(["ab", "ab"])


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


@pytest.fixture
def pairs_path(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in make_pairs()))
    return path


def test_from_pairs_and_a_language_model_to_a_reward_model(folders, pairs_path, tmp_path, capfd):
    said = []
    metrics = run_reward_model(
        pairs_path, folders["gpt2"], tmp_path / "out", settings(epochs=2, held_out=0.2, max_tokens=5), said.append
    )
    assert capfd.readouterr() == ("", "")
    assert metrics.keys() == {
        "epoch", "loss", "held_out_loss", "held_out_accuracy", "gain", "bias", "cut", "seconds"
    }  # fmt: skip
    assert [line.split(":")[0] for line in said[1:3]] == ["epoch 1/2", "epoch 2/2"]
    assert said[-1].startswith(f"saved in {tmp_path / 'out'}; ")
    rewards = RewardModel.load(tmp_path / "out")
    assert (rewards.gain, rewards.bias) == (metrics["gain"], metrics["bias"])
    assert rewards.model.config.pad_token_id == PAD


def test_padding_that_is_the_end_is_known_to_hugging_face(tmp_path, pairs_path):
    folder = save_lm(tmp_path / "start", tokenizer=make_tokenizer(pad=None))
    run_reward_model(pairs_path, folder, tmp_path / "out", settings(), lambda _: None)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.pad_token_id == EOS
    assert AutoTokenizer.from_pretrained(tmp_path / "out").pad_token_id == EOS


def test_training_can_go_on_from_a_reward_model(folders, pairs_path, tmp_path):
    run_reward_model(pairs_path, folders["gpt2"], tmp_path / "one", settings(), lambda _: None)
    known = settings(learning_rate=1e-12, seed=9)
    run_reward_model(pairs_path, tmp_path / "one", tmp_path / "two", known, lambda _: None)
    one, two = RewardModel.load(tmp_path / "one"), RewardModel.load(tmp_path / "two")
    assert two(["xy", "z"], ["abc", "d"]) == pytest.approx(one(["xy", "z"], ["abc", "d"]), abs=1e-4)


def test_output_that_is_taken_is_refused_before_anything_else(folders, tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="something other than a model"):
        run_reward_model(tmp_path / "none.jsonl", folders["gpt2"], tmp_path, settings(), lambda _: None, overwrite=True)


def test_directories_that_hold_too_little_are_refused(folders, pairs_path, tmp_path):
    with pytest.raises(ConfigError, match="is no reward model"):
        RewardModel.load(folders["gpt2"])
    make_lm().save_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"the tokenizer of .*bare|bare holds no tokenizer"):
        run_reward_model(pairs_path, tmp_path / "bare", tmp_path / "out", settings(), lambda _: None)
