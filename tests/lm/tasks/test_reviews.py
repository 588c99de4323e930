"""Product reviews: the properties of the generated data, the score against its definition, and files."""

import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.system.errors import ConfigError
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


@pytest.mark.parametrize("mood", [1, 0, -1])
def test_each_part_has_one_word_of_its_mood_and_none_of_the_other(mood):
    for part in (*reviews.ADJECTIVES[mood], *reviews.REMARKS[mood], *reviews.CLOSINGS[mood]):
        assert (count(part, reviews.POSITIVE), count(part, reviews.NEGATIVE)) == (mood == 1, mood == -1), part


def test_every_sentiment_word_is_in_use_and_the_rest_has_no_sentiment():
    assert len(reviews.POSITIVE) == len(reviews.NEGATIVE) == 23
    assert not reviews.POSITIVE & reviews.NEGATIVE
    assert set(itertools.chain.from_iterable(map(words, TEXTS))) >= reviews.POSITIVE | reviews.NEGATIVE
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
    prompts = tuple(PROMPTS)
    for text in TEXTS:
        assert 12 <= len(text.split()) <= 25
        assert text.startswith(prompts)
        assert re.fullmatch(r"[A-Z][a-zA-Z, ]* (and|but) [a-zA-Z ]+\. [A-Z][a-zA-Z ]+\.", text), text
        assert "  " not in text


def test_half_of_the_texts_are_positive():
    """The share of positive among texts that are not neutral, to four standard errors."""
    assert sorted(set(np.round(SENTIMENTS, 3))) == [-1, -0.333, 0, 0.333, 1]
    signs = np.sign(SENTIMENTS)
    decided = signs[signs != 0]
    assert len(decided) > 0.75 * len(signs)
    assert abs((decided > 0).mean() - 0.5) < 4 * 0.5 / len(decided) ** 0.5


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


def test_openings_may_be_given():
    openings = ["The price of this tea", "My tea"]
    assert {text[:6] for text in reviews.texts(50, 0, openings)} == {"The pr", "My tea"}
    assert {pair["prompt"] for pair in reviews.pairs(50, 0, openings)} == set(openings)


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


def test_a_review_is_cut_between_prompt_and_response():
    """The tokens of a prompt and of its continuation are those of the two together, about half as many as bytes."""
    tokenizer = train_tokenizer(TEXTS, 384)
    assert len(tokenizer) == 384
    assert sum(map(len, tokenizer(TEXTS)["input_ids"])) < 0.5 * sum(map(len, TEXTS))
    for pair in PAIRS[:200]:
        prompt, response = tokenizer(pair["prompt"])["input_ids"], tokenizer(pair["chosen"])["input_ids"]
        assert prompt + response == tokenizer(pair["prompt"] + pair["chosen"])["input_ids"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews") / "deep" / "folder"
    return folder, reviews.write(folder, seed=5)


def test_files(written, tmp_path):
    folder, counts = written
    assert counts == {"texts.txt": 6000, "pairs.jsonl": 6000, "prompts.txt": 2000, "held_out_prompts.txt": 400}
    assert {path.name for path in folder.iterdir()} == set(counts)
    files = {name: (folder / name).read_text(encoding="utf-8").split("\n") for name in counts}
    for name, (*lines, last) in files.items():
        assert last == ""
        assert len(set(lines)) == len(lines) == counts[name]
    texts, prompts, held_out = (files[name][:-1] for name in ("texts.txt", "prompts.txt", "held_out_prompts.txt"))
    pairs = [json.loads(line) for line in files["pairs.jsonl"][:-1]]
    assert {tuple(pair) for pair in pairs} == {("prompt", "chosen", "rejected")}
    assert set(prompts) | set(held_out) <= set(PROMPTS)
    assert not set(held_out) & ({*prompts} | {pair["prompt"] for pair in pairs})
    assert not any(text.startswith(tuple(held_out)) for text in texts)


@pytest.mark.slow
def test_the_module_runs_as_a_command_and_overwrites_nothing(written, tmp_path, capsys):
    folder, counts = written
    arguments = [str(tmp_path / "out"), "--seed", "5"]
    command = [sys.executable, "-m", "rlzoo.lm.tasks.reviews", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == f"{tmp_path / 'out' / 'texts.txt'}: 6000 lines"
    assert done.stderr == ""
    for name in counts:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()
    assert reviews.main(arguments) == 2
    again = capsys.readouterr().err
    assert again.count("\n") == 1
    assert "texts.txt exists: give another folder" in again


def test_a_folder_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        assert reviews.main([str(folder)]) == 2
        assert re.fullmatch(r"rlzoo: .*(File exists|Not a directory): .*file.*\n", capsys.readouterr().err)
