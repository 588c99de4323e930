"""Records of lists, Parquet files, datasets and their directories, and what is said about the wrong ones."""

import sys

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from rlzoo.core.errors import ConfigError
from rlzoo.lm.finetune.data import Example, Pair, read_examples, read_pairs, read_prompts, read_texts

ASK = [{"role": "user", "content": "Hi"}]
TALK = [*ASK, {"role": "assistant", "content": "Yes"}]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"text": ["a", "b"], "prompt": ["p", None]}), path)
    return path


def test_parquet_file(table):
    assert read_texts(table) == ["a", "b"]
    with pytest.raises(ConfigError, match=r'x\.parquet, row 2: no "prompt" or "question"; it has "text"'):
        read_prompts(table)
    with pytest.raises(ConfigError, match=r'x\.parquet, row 1: no "chosen"; it has "text", "prompt"'):
        read_pairs(table)


def test_damaged_parquet_file(table):
    table.write_bytes(table.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"x\.parquet is no Parquet file, or damaged: ") as caught:
        read_texts(table)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("package", "name"), [("pyarrow", "x.parquet"), ("datasets", "folder")])
def test_package_that_is_missing(table, package, name, monkeypatch):
    (table.parent / "folder").mkdir()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"need.? a package: pip install {package}"):
        read_texts(table.parent / name)


def test_dataset_and_its_directories(tmp_path):
    data = datasets.Dataset.from_dict({"prompt": ["a", "b"], "answer": [1, 2]})
    assert read_prompts(data) == ["a", "b"]
    with pytest.raises(ConfigError, match='texts, row 1: no "text"; it has "prompt", "answer"'):
        read_texts(data)
    data.save_to_disk(tmp_path / "saved")
    assert read_prompts(tmp_path / "saved") == ["a", "b"]
    split = datasets.DatasetDict(train=data, test=data.select([1]))
    split.save_to_disk(tmp_path / "split")
    assert read_prompts(tmp_path / "split") == ["a", "b"]
    with pytest.raises(ConfigError, match=r"a DatasetDict of train, test: give one, such as dataset\['train'\]"):
        read_prompts(split)
    (tmp_path / "files").mkdir()
    data.to_parquet(tmp_path / "files" / "train-00000-of-00001.parquet")
    assert read_prompts(tmp_path / "files") == ["a", "b"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty holds no dataset: "):
        read_prompts(tmp_path / "empty")


def test_lists():
    assert read_prompts(["a", {"prompt": "b"}]) == ["a", "b"]
    assert read_pairs([Pair("p", "c", "r", 1.0), {"prompt": "q", "chosen": "d", "rejected": "s"}]) == [
        Pair("p", "c", "r", 1.0),
        Pair("q", "d", "s"),
    ]
    found = read_examples(["a", TALK, {"prompt": "p", "completion": "c"}, {"messages": TALK}])
    assert [x[:2] for x in found] == [(None, "a"), (None, TALK), ("p", "c"), (None, TALK)]
    assert read_examples(found) is found
    assert found[2].place == "texts, entry 3"
    assert [x.plain() for x in found[:3]] == ["a", "Hi\nYes", "pc"]


def test_equal_examples_have_equal_keys():
    one, two = read_examples([{"prompt": "a", "completion": "bc"}, {"prompt": "ab", "completion": "c"}])
    assert one.key != two.key
    assert one.key == Example("a", "bc", "elsewhere").key


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (3, r"prompts must be a file, a list or a datasets.Dataset, such as prompts=\[...\], got int 3"),
        ({"prompt": ["a"]}, "prompts must be a file, a list"),
        ([], "prompts: there are none"),
        (["a", 3], 'prompts, entry 2: must be a text, messages or a record, such as "Say hello"'),
        (["a", " "], "prompts, entry 2: empty prompt"),
        ([{"text": "a"}], 'prompts, entry 1: no "prompt" or "question"; it has "text"'),
        ([[{"role": "user"}]], 'entry 1: "prompt", message 1: not a message with "role" and "content"'),
        (
            [[{"role": "robot", "content": "x"}]],
            "entry 1: \"prompt\", message 1: unknown role 'robot' .known: system, ",
        ),
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
    ("record", "message"),
    [
        ({"label": 1}, 'entry 1: no "text", "messages" or "completion"; it has "label"'),
        ({"messages": ASK}, "entry 1: no assistant turn to train on"),
        ({"messages": "Hi"}, '"messages" must be a string or messages'),
        ({"prompt": "a", "completion": TALK[1:]}, '"prompt" is a text, but "completion" is messages'),
        ({"completion": "a"}, 'no "prompt" or "question"; it has "completion"'),
    ],
)
def test_wrong_examples(record, message):
    with pytest.raises(ConfigError, match=message):
        read_examples([record])


def test_pairs_that_do_not_begin_alike():
    other = [{"role": "user", "content": "Ho"}, TALK[1]]
    with pytest.raises(ConfigError, match='entry 1: "chosen" and "rejected" must begin alike, and then differ'):
        read_pairs([{"chosen": TALK, "rejected": other}])
    with pytest.raises(ConfigError, match='"prompt" is a text, but "chosen" is messages'):
        read_pairs([{"prompt": "a", "chosen": TALK[1:], "rejected": TALK[1:]}])
