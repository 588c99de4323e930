"""Product reviews: what the generator promises, the score against its definition, tokenizer and files."""

import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rlzoo.core.errors import ConfigError
from rlzoo.lm.finetune.sft import train_tokenizer
from rlzoo.lm.tasks import reviews

TEXTS = reviews.texts(3000, seed=0)
PAIRS = reviews.pairs(2000, seed=0)
PROMPTS = reviews.prompts(7680, seed=0)
SENTIMENTS = reviews.sentiment([""] * len(TEXTS), TEXTS)


def words(text):
    return re.findall("[a-z]+", text.lower())


def count(text, kind):
    return sum(word in kind for word in words(text))


def test_the_word_lists_are_apart():
    assert len(reviews.POSITIVE) == len(reviews.NEGATIVE) == 23
    assert not reviews.POSITIVE & reviews.NEGATIVE


@pytest.mark.parametrize("mood", [1, 0, -1])
def test_each_part_has_one_word_of_its_mood_and_none_of_the_other(mood):
    for part in (*reviews.ADJECTIVES[mood], *reviews.REMARKS[mood], *reviews.CLOSINGS[mood]):
        assert (count(part, reviews.POSITIVE), count(part, reviews.NEGATIVE)) == (mood == 1, mood == -1), part


def test_every_sentiment_word_is_in_use():
    used = set(itertools.chain.from_iterable(map(words, TEXTS)))
    assert used >= reviews.POSITIVE | reviews.NEGATIVE


def test_the_rest_has_no_sentiment():
    rest = [*PROMPTS, *reviews.VERBS, *reviews.ADVERBS, *reviews.PARTS]
    assert not any(count(text, reviews.POSITIVE | reviews.NEGATIVE) for text in rest)


def test_prompts_are_distinct_and_read_well():
    assert len(set(PROMPTS)) == 7680
    assert {"The battery of this phone", "In daily use, my lamp has a cable that"} <= set(PROMPTS)
    assert "After a week, this clock has an alarm that" in PROMPTS
    for prompt in PROMPTS:
        assert re.fullmatch(r"[A-Z][a-z]*( [a-z]+)*(, [a-z]+( [a-z]+)*)?", prompt)
    assert reviews.prompts(5, seed=1) == reviews.prompts(5, seed=1) != reviews.prompts(5, seed=2)
    assert reviews.prompts(5, seed=1) == reviews.prompts(9, seed=1)[:5]


@pytest.mark.parametrize("n", [-1, 7681])
def test_more_prompts_than_there_are_are_refused(n):
    with pytest.raises(ConfigError, match=rf"n must be in \[0, 7680\].*got {n}"):
        reviews.prompts(n, seed=0)


def test_texts_are_distinct_reviews_of_12_to_25_words():
    assert len(set(TEXTS)) == 3000
    known = tuple(PROMPTS)
    for text in TEXTS:
        assert 12 <= len(text.split()) <= 25
        assert text.startswith(known)
        assert re.fullmatch(r"[A-Z][a-zA-Z, ]* (and|but) [a-zA-Z ]+\. [A-Z][a-zA-Z ]+\.", text), text
        assert "  " not in text


def test_the_shortest_and_the_longest_text_fit():
    """The longest of each part together, and the shortest."""
    parts = [PROMPTS, reviews.VERBS, reviews.ADVERBS, ["good"], ["and"]]
    parts += [[*itertools.chain(*reviews.REMARKS.values()), "the delivery is good"]]
    parts += [list(itertools.chain(*reviews.CLOSINGS.values()))]
    lengths = [[len(part.split()) for part in slot] for slot in parts]
    assert sum(map(min, lengths)) >= 12
    assert sum(map(max, lengths)) <= 25


def test_half_of_the_texts_are_positive():
    """The share of positive among texts that are not neutral, to four standard errors."""
    signs = np.sign(SENTIMENTS)
    decided = signs[signs != 0]
    assert len(decided) > 0.75 * len(signs)
    assert abs((decided > 0).mean() - 0.5) < 4 * 0.5 / len(decided) ** 0.5


def test_texts_take_every_sentiment_that_three_parts_allow():
    assert sorted(set(np.round(SENTIMENTS, 3))) == [-1, -0.333, 0, 0.333, 1]
    assert {text.count(" but ") for text in TEXTS} == {0, 1}


def test_opposite_verdict_and_remark_are_joined_by_but():
    for text in TEXTS:
        verdict, remark = re.split(" and | but ", text.split(". ")[0])
        signs = [count(part, reviews.POSITIVE) - count(part, reviews.NEGATIVE) for part in (verdict, remark)]
        assert (" but " in text) == (signs[0] * signs[1] == -1)


@pytest.mark.parametrize("make", [reviews.texts, reviews.pairs])
def test_a_seed_makes_the_same_again_and_another_seed_others(make):
    assert make(20, seed=3) == make(20, seed=3) != make(20, seed=4)
    assert make(20, seed=3)[:5] == make(5, seed=3)
    assert make(0, seed=3) == []
    with pytest.raises(ConfigError, match="n must be at least 0, got -1"):
        make(-1, seed=3)


def test_openings_may_be_given():
    openings = ["The price of this tea", "My tea"]
    assert {text[:6] for text in reviews.texts(50, 0, openings)} == {"The pr", "My tea"}
    assert {pair["prompt"] for pair in reviews.pairs(50, 0, openings)} == set(openings)
    with pytest.raises(ConfigError, match="openings must hold at least one prompt"):
        reviews.texts(1, 0, [])


def test_pairs_choose_the_more_positive_continuation():
    prompts, chosen, rejected = ([pair[key] for pair in PAIRS] for key in ("prompt", "chosen", "rejected"))
    assert set(prompts) <= set(PROMPTS)
    better, worse = reviews.sentiment(prompts, chosen), reviews.sentiment(prompts, rejected)
    assert (np.array(better) > worse).all()
    assert len({tuple(pair.values()) for pair in PAIRS}) == 2000
    assert {tuple(pair) for pair in PAIRS} == {("prompt", "chosen", "rejected")}
    assert all(response.startswith(" ") and response.endswith(".") for response in chosen + rejected)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (" is great, and I love it. A joy to own.", 1.0),
        (" is great, but I regret it. It fails every time.", -1 / 3),
        (" is GREAT, and the manual is great. We hate it.", 1 / 3),
        (" is poor.", -1.0),
        (" is plain, and we own two. It came in a box.", 0.0),
        (" is great, but we hate it.", 0.0),
        (" is greatly overpoor.", 0.0),  # only whole words count
        ("great", 1.0),
        ("", 0.0),
    ],
)
def test_sentiment_by_hand(response, expected):
    assert reviews.sentiment(["A terrible great excellent prompt"], [response]) == [pytest.approx(expected)]


@given(st.lists(st.sampled_from(["great", "Love", "bad", "hate", "box", "ungreat", "bade"])), st.sampled_from(" .,\n"))
def test_sentiment_equals_its_definition(drawn, separator):
    positive = drawn.count("great") + drawn.count("Love")
    negative = drawn.count("bad") + drawn.count("hate")
    expected = (positive - negative) / (positive + negative) if positive + negative else 0.0
    assert reviews.sentiment([""], [separator.join(drawn)]) == [expected]


def test_sentiment_needs_a_prompt_for_each_response():
    with pytest.raises(ValueError, match="shorter"):
        reviews.sentiment(["a", "b"], ["c"])


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 384)


def test_the_tokenizer_has_the_size_asked_for(tokenizer):
    assert len(tokenizer) == 384
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1)
    assert tokenizer.convert_ids_to_tokens([0, 1]) == ["<eos>", "<pad>"]
    assert len(train_tokenizer(["a"], 300)) == 258  # no merge to learn
    assert len(train_tokenizer(["abab"] * 9, 258)) == 258


def test_the_tokenizer_is_the_same_each_time(tokenizer):
    assert train_tokenizer(TEXTS, 384).get_vocab() == tokenizer.get_vocab()


def test_the_tokenizer_learns_merges(tokenizer):
    """Half as many tokens as bytes, or fewer."""
    ids = tokenizer(TEXTS)["input_ids"]
    assert sum(map(len, ids)) < 0.5 * sum(map(len, TEXTS))
    assert " and" in [tokenizer.decode([i]) for i in ids[0]] + [tokenizer.decode([i]) for i in ids[1]]


@given(text=st.text())
def test_the_tokenizer_loses_nothing(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("text", [" two  spaces , and\n\tlines \r\n", "naïve – 漢字 🙂", " 's don 't , .", "", " "])
def test_the_tokenizer_keeps_spaces_and_foreign_letters(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_end_is_one_token_and_can_be_left_out(tokenizer):
    ids = tokenizer("It fails.<eos><pad>")["input_ids"]
    assert ids[-2:] == [0, 1]
    assert tokenizer.decode(ids) == "It fails.<eos><pad>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "It fails."


def test_a_review_is_cut_between_prompt_and_response(tokenizer):
    """The tokens of a prompt and of its continuation are those of the two together."""
    for pair in PAIRS[:200]:
        prompt, response = tokenizer(pair["prompt"])["input_ids"], tokenizer(pair["chosen"])["input_ids"]
        assert prompt + response == tokenizer(pair["prompt"] + pair["chosen"])["input_ids"]


@pytest.mark.parametrize("kind", [PreTrainedTokenizerFast, AutoTokenizer])
def test_the_tokenizer_is_saved_and_loaded(tokenizer, kind, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    loaded = kind.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.eos_token_id, loaded.pad_token_id) == (0, 1)
    for text in (*TEXTS[:50], " two  spaces , 漢字 🙂"):
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.decode(loaded(text)["input_ids"]) == text


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews") / "deep" / "folder"
    return folder, reviews.write(folder, seed=5)


def test_write_makes_the_files(written):
    folder, counts = written
    assert counts == {"texts.txt": 6000, "pairs.jsonl": 6000, "prompts.txt": 2000, "held_out_prompts.txt": 400}
    assert {path.name for path in folder.iterdir()} == set(counts)
    for name, lines in counts.items():
        text = (folder / name).read_bytes().decode("utf-8")
        assert text.endswith("\n")
        assert len(set(text.splitlines())) == len(text.split("\n")) - 1 == lines


def test_no_other_file_uses_a_held_out_prompt(written):
    folder, _ = written
    texts, prompts, held_out = (
        (folder / name).read_text(encoding="utf-8").splitlines()
        for name in ("texts.txt", "prompts.txt", "held_out_prompts.txt")
    )
    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {tuple(pair) for pair in pairs} == {("prompt", "chosen", "rejected")}
    assert set(prompts) | set(held_out) <= set(PROMPTS)
    assert not set(held_out) & ({*prompts} | {pair["prompt"] for pair in pairs})
    assert not any(text.startswith(tuple(held_out)) for text in texts)


def test_write_makes_the_same_files_from_the_same_seed(written, tmp_path):
    folder, counts = written
    reviews.write(tmp_path / "again", seed=5)
    reviews.write(tmp_path / "other", seed=6)
    for name in counts:
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()


def test_write_overwrites_nothing(tmp_path):
    (tmp_path / "prompts.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"prompts\.txt exists: give another folder"):
        reviews.write(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert reviews.main([str(folder)]) == 2
        line = capsys.readouterr().err
        assert re.fullmatch(r"rlzoo: .*file.*: .*; give a folder that can be written\n", line)


def test_the_module_runs_as_a_command(tmp_path):
    command = [sys.executable, "-m", "rlzoo.lm.tasks.reviews", str(tmp_path / "out"), "--seed", "5"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"{tmp_path / 'out' / 'texts.txt'}: 6000 lines"
    assert done.stderr == ""
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
