"""Reward-model training: the loss, what it learns, what does not matter, and files in and out."""

import json
import math

import numpy as np
import pytest
import torch
from tiny import (
    CHARACTERS,
    CONFIGS,
    EOS,
    PAD,
    Said,
    make_lm,
    make_reward_model,
    make_tokenizer,
    save_lm,
    score_by_definition,
)
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import rlzoo
from rlzoo.core.system.errors import ConfigError, NonFiniteError
from rlzoo.lm.finetune.data import Pair, split
from rlzoo.lm.finetune.reward_model import RewardModelSettings, preference_loss, train_reward_model
from rlzoo.lm.reward.reward_model import RewardModel

KINDS = list(CONFIGS)
EACH_KIND = pytest.mark.parametrize("kind", ["gpt2", *(pytest.param(x, marks=pytest.mark.slow) for x in KINDS[1:])])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save_lm(tmp_path_factory.mktemp("models") / kind, kind) for kind in KINDS}


@pytest.fixture
def make(folders):
    return lambda kind="gpt2": make_reward_model(folders[kind])


def settings(**more):
    return RewardModelSettings(**{"batch_size": 8, "learning_rate": 1e-3, "held_out": 0.0, **more})


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
            [score_by_definition(rewards.model, make_tokenizer()(p.prompt + text)["input_ids"]) for text in p[1:3]]
            for p in pairs
        ]
    )
    expected = preference_loss(*scores.T, torch.tensor([0.5, 0.0]), 0.1).mean().item()
    metrics = train_reward_model(pairs, settings(learning_rate=1e-12, centring=0.1), rewards)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-4)


@EACH_KIND
def test_size_of_micro_batches_does_not_matter(make, kind):
    weights = []
    for tokens in (1, 40, 10_000):
        rewards = make(kind)
        rewards.model.double()
        train_reward_model(make_pairs(24), settings(micro_batch_tokens=tokens), rewards)
        weights.append(nn.utils.parameters_to_vector(rewards.model.parameters()))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(weights[2], weights[0], rtol=0, atol=1e-8)


@EACH_KIND
def test_training_learns_what_was_preferred(make, kind):
    rewards, seen = make(kind), []
    metrics = train_reward_model(
        make_pairs(300), settings(epochs=4, learning_rate=3e-3, held_out=0.2), rewards, seen.append
    )
    assert [x["epoch"] for x in seen] == [1, 2, 3, 4]
    assert metrics["held_out_accuracy"] > 0.95
    assert metrics["held_out_loss"] < 0.3 < math.log(2)
    better, worse = rewards(["x", "x"], ["cda", "cdb"])
    assert better > worse


def test_accuracy_and_calibration_are_over_pairs_whose_prompts_were_not_trained_on(make):
    pairs, rewards = make_pairs(), make()
    metrics = train_reward_model(pairs, settings(held_out=0.3), rewards)
    train, held_out = ([pairs[i] for i in side] for side in split([pair.prompt for pair in pairs], 0.3, 0))
    assert not {p.prompt for p in held_out} & {p.prompt for p in train}
    prompts = [p.prompt for p in held_out]
    chosen, rejected = rewards(prompts, [p.chosen for p in held_out]), rewards(prompts, [p.rejected for p in held_out])
    right = sum(c > r for c, r in zip(chosen, rejected, strict=True))
    assert metrics["held_out_accuracy"] == right / len(held_out)
    assert 0 < right < len(held_out)
    assert (np.mean(chosen + rejected), np.std(chosen + rejected)) == pytest.approx((0, 1), abs=1e-5)
    assert (metrics["gain"], metrics["bias"]) == (rewards.gain, rewards.bias)


def test_a_pair_of_equal_responses_is_not_right(make):
    texts = ["a", "b", "ab", "cab", "bcd", "dcbae"]
    pairs = [Pair(f"{prompt}u", text, text) for prompt in "pq" for text in texts]
    for size in range(1, 60, 7):
        metrics = train_reward_model(
            pairs, settings(learning_rate=1e-12, held_out=0.5, micro_batch_tokens=size), make()
        )
        assert metrics["held_out_accuracy"] == 0


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
    fits = []
    for seed in (0, 0, 1):
        rewards = make()
        metrics = train_reward_model(make_pairs(), settings(seed=seed, held_out=0.2), rewards)
        fits.append((nn.utils.parameters_to_vector(rewards.model.parameters()), metrics))
    assert torch.equal(fits[0][0], fits[1][0])
    assert fits[0][1] == fits[1][1]
    assert not torch.equal(fits[0][0], fits[2][0])


def test_gradient_that_is_not_finite_stops_training(make):
    with pytest.raises(NonFiniteError, match="the loss in epoch 1 is not finite"):
        train_reward_model([pair._replace(margin=math.inf) for pair in make_pairs()], settings(), make())


# Files


@pytest.fixture
def pairs_path(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair._asdict()) + "\n" for pair in make_pairs()))
    return path


def test_from_pairs_and_a_language_model_to_a_reward_model(folders, pairs_path, tmp_path, capfd):
    said = []
    chosen = settings(epochs=2, held_out=0.2, max_tokens=5)
    metrics = rlzoo.train_reward_model(
        pairs_path, folders["gpt2"], tmp_path / "out", settings=chosen, progress=Said(said)
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
    rlzoo.train_reward_model(pairs_path, folder, tmp_path / "out", settings=settings())
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").config.pad_token_id == EOS
    assert AutoTokenizer.from_pretrained(tmp_path / "out").pad_token_id == EOS


def test_training_can_go_on_from_a_reward_model(folders, pairs_path, tmp_path):
    rlzoo.train_reward_model(pairs_path, folders["gpt2"], tmp_path / "one", settings=settings())
    still = settings(learning_rate=1e-12, seed=9)
    rlzoo.train_reward_model(pairs_path, tmp_path / "one", tmp_path / "two", settings=still)
    one, two = RewardModel.load(tmp_path / "one"), RewardModel.load(tmp_path / "two")
    assert two(["xy", "z"], ["abc", "d"]) == pytest.approx(one(["xy", "z"], ["abc", "d"]), abs=1e-4)


def test_directories_that_hold_too_little_are_refused(folders, pairs_path, tmp_path):
    with pytest.raises(ConfigError, match="is no reward model"):
        RewardModel.load(folders["gpt2"])
    make_lm().save_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"the tokenizer of .*bare|bare holds no tokenizer"):
        rlzoo.train_reward_model(pairs_path, tmp_path / "bare", tmp_path / "out", settings=settings())
