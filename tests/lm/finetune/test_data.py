"""Prompts, texts, examples and pairs, and the messages for wrong ones."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune.data import Example, Pair, read_examples, read_pairs, read_prompts, read_texts, split
from rlzoo.lm.reward.prompt import Prompt

ASK = [{"role": "user", "content": "Hi"}]
TALK = [*ASK, {"role": "assistant", "content": "Yes"}]


def lines(tmp_path, *records):
    path = tmp_path / "x.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in records))
    return path


def test_prompts_texts_and_pairs_of_json_lines(tmp_path):
    path = lines(tmp_path, {"prompt": "a\nb", "text": "x"}, {"question": "c", "text": "é"})
    assert read_prompts(path)[0] == "a\nb"
    assert read_prompts(path)[1] == "c"
    assert read_texts(path) == ["x", "é"]
    one = {"question": "q", "chosen": "c", "rejected": "r", "source": 3}
    two = '{"prompt": "p", "chosen": "\\u00e9", "rejected": "s", "margin": 2}'
    assert read_pairs(lines(tmp_path, one, two)) == [Pair("q", "c", "r", 0.0), Pair("p", "é", "s", 2.0)]


def test_prompt_comes_before_a_question_of_another_kind():
    assert read_prompts([{"prompt": "a", "question": ASK}]) == ["a"]


def test_prompts_in_a_list_keep_their_columns():
    (prompt,) = read_prompts([Prompt("a", {"answer": 1})])
    assert (prompt, prompt.columns) == ("a", {"answer": 1})


def test_examples():
    examples = read_examples(["a", TALK, {"prompt": "p", "completion": "c"}, {"messages": TALK}])
    assert [x[:2] for x in examples] == [(None, "a"), (None, TALK), ("p", "c"), (None, TALK)]
    assert read_examples(examples) is examples
    assert examples[2].place == "texts, entry 3"
    assert [x.plain() for x in examples[:3]] == ["a", "Hi\nYes", "pc"]
    one, two = read_examples([{"prompt": "a", "completion": "bc"}, {"prompt": "ab", "completion": "c"}])
    assert one.key == Example("a", "bc", "elsewhere").key != two.key


GOOD = {"prompt": "p", "chosen": "c", "rejected": "r"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ("", "the line is empty"),
        ({"prompt": "p", "choosen": "c", "rejected": "r"}, 'no "chosen"; it has "prompt", "choosen", "rejected"'),
        ({"chosen": "c", "rejected": "r"}, 'no "prompt" or "question"; '),
        ({}, 'no "chosen"; it has nothing'),
        ({**GOOD, "chosen": ""}, '"chosen" is empty'),
        ({**GOOD, "prompt": " "}, '"prompt" is empty'),
        ({**GOOD, "rejected": 3}, '"rejected" must be a string'),
        ({**GOOD, "rejected": None}, 'no "rejected"; it has "prompt", "chosen"'),
        ({**GOOD, "chosen": "\ud800"}, '"chosen" is not Unicode'),
        ({**GOOD, "margin": "1"}, '"margin" must be a number'),
        ({**GOOD, "margin": float("nan")}, '"margin" must be a number'),
        ({**GOOD, "margin": -1}, '"margin" must be a number'),
        ({**GOOD, "margin": True}, '"margin" must be a number'),
    ],
)
def test_wrong_pairs(tmp_path, line, message):
    with pytest.raises(ConfigError, match=rf"x\.jsonl, line 2: {message}") as caught:
        read_pairs(lines(tmp_path, GOOD, line, GOOD))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, r"prompts must be a file, a list or a datasets.Dataset .one split., such as prompts=\[...\], got int 3"),
        ({"prompt": ["a"]}, "prompts must be a file, a list"),
        ([], "prompts: there are none"),
        (["a", 3], 'prompts, entry 2: must be a text, messages or a record, such as "Say hello"'),
        (["a", " "], 'prompts, entry 2: "prompt" is empty'),
        ([{"text": "a"}], 'prompts, entry 1: no "prompt" or "question"; it has "text"'),
        ([[{"role": "user"}]], 'entry 1: "prompt", message 1: not a message with "role" and "content"'),
        ([[{"role": "robot", "content": "x"}]], "message 1: unknown role 'robot' .one of system, "),
        ([[{"role": "user", "content": 3}]], 'entry 1: "prompt", message 1: "content" must be a string'),
        ([[{"role": "user", "content": "\ud800"}]], "message 1: content is not Unicode"),
        ([[]], 'entry 1: "prompt" must be a string or messages'),
        ([ASK], "entry 1: messages need a tokenizer with a chat template"),
    ],
)
def test_wrong_prompts(source, message):
    with pytest.raises(ConfigError, match=message) as caught:
        read_prompts(source)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("read", "record", "message"),
    [
        (read_examples, {"label": 1}, 'no "text", "messages" or "completion"; it has "label"'),
        (read_examples, {"messages": ASK}, "no assistant turn to train on"),
        (read_examples, {"messages": "Hi"}, '"messages" must be a string or messages'),
        (read_examples, {"prompt": "a", "completion": TALK[1:]}, '"prompt" is a text, but "completion" is messages'),
        (read_examples, {"completion": "a"}, 'no "prompt" or "question"; it has "completion"'),
        (
            *(read_pairs, {"chosen": TALK, "rejected": [{"role": "user", "content": "Ho"}, TALK[1]]}),
            '"chosen" and "rejected" must begin alike, and then differ',
        ),
        (
            *(read_pairs, {"prompt": "a", "chosen": TALK[1:], "rejected": TALK[1:]}),
            '"prompt" is a text, but "chosen" is messages',
        ),
    ],
)
def test_wrong_examples_and_pairs(read, record, message):
    with pytest.raises(ConfigError, match=f"entry 1: {message}"):
        read([record])


@given(st.lists(st.integers(0, 9).map(str), min_size=1), st.floats(0, 0.99), st.integers(0, 99))
def test_equal_keys_are_on_the_same_side(keys, share, seed):
    different = len(set(keys))
    count = max(1, round(share * different)) if share > 0 else 0
    if count >= different:
        with pytest.raises(ConfigError, match="leaves nothing to train on"):
            split(keys, share, seed)
        return
    train, held_out = split(keys, share, seed)
    assert sorted(train + held_out) == list(range(len(keys)))
    assert len({keys[i] for i in held_out}) == count
    assert not {keys[i] for i in train} & {keys[i] for i in held_out}
    assert split(keys, share, seed) == (train, held_out)


def test_another_seed_holds_out_others():
    keys = [str(i) for i in range(100)]
    assert split(keys, 0.5, 0) != split(keys, 0.5, 1)


def test_reading_needs_no_heavy_library():
    code = "import sys, rlzoo.lm.finetune.data; sys.exit(bool({'torch', 'transformers', 'datasets'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
