"""Records of text files, lists, Parquet files, datasets and their directories, and the messages for wrong ones."""

import sys

import datasets
import pyarrow
import pytest
from pyarrow import parquet

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.finetune.data import Pair, read_pairs, read_prompts, read_texts
from rlzoo.lm.finetune.sft import train_tokenizer


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize("data", ["a \n b", "a \n b\n", "a \r\n b\r\n", "\N{ZERO WIDTH NO-BREAK SPACE}a \n b\n"])
def test_line_ends_and_byte_order_marks_are_no_part_of_a_text(tmp_path, data):
    path = write(tmp_path, "t.txt", data)
    assert read_texts(path) == read_prompts(path) == ["a ", " b"]


def test_only_line_feeds_end_lines(tmp_path):
    text = "a\u2028b\x0bc\x85d"
    assert read_texts(write(tmp_path, "t.txt", text + "\nz")) == [text, "z"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.txt", "a\n \nb\n", r"x\.txt, line 2: the line is empty"),
        ("x.txt", "a\n\n", r"x\.txt, line 2: the line is empty"),
        ("x.txt", b"a\nb\n\xff\xfe\n", r"x\.txt, line 3: not UTF-8"),
        ("x.jsonl", "", r"x\.jsonl is empty"),
        ("x.csv", "a", r"x\.csv: the name must end in \.txt, \.jsonl or \.parquet"),
        ("x.parquet", "PAR1", r"x\.parquet is no Parquet file, or damaged: "),
    ],
)
def test_wrong_files(tmp_path, name, data, message):
    for read in (read_prompts, read_texts):
        with pytest.raises(ConfigError, match=message) as caught:
            read(write(tmp_path, name, data))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["What is 2 + 2? " * 400, "a\0b"])
def test_text_in_place_of_a_file(text):
    with pytest.raises(ConfigError, match=r"the name must end in \.txt, \.jsonl or \.parquet"):
        read_prompts(text)


@pytest.mark.parametrize("read", [read_prompts, read_texts, read_pairs])
def test_file_that_is_missing(tmp_path, read):
    with pytest.raises(ConfigError, match=r"no such file: .*x\.jsonl"):
        read(tmp_path / "x.jsonl")


def test_a_text_file_has_no_pairs(tmp_path):
    with pytest.raises(ConfigError, match=r"x\.txt: pairs are read from a \.jsonl file"):
        read_pairs(write(tmp_path, "x.txt", "a"))


def test_lists():
    assert read_prompts(["a", {"prompt": "b"}]) == ["a", "b"]
    pairs = [Pair("p", "c", "r", 1.0), {"prompt": "q", "chosen": "d", "rejected": "s"}]
    assert read_pairs(pairs) == [pairs[0], Pair("q", "d", "s")]


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


@pytest.mark.parametrize(("package", "name"), [("pyarrow.parquet", "x.parquet"), ("datasets", "folder")])
def test_package_that_is_missing(table, package, name, monkeypatch):
    (table.parent / "folder").mkdir()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"needs? a package: pip install 'rlzoo\[data\]'"):
        read_texts(table.parent / name)


def test_dataset_and_its_directories(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    data = datasets.Dataset.from_dict({"prompt": ["a", "b"], "answer": [1, 2]})
    assert read_prompts(data) == ["a", "b"]
    with pytest.raises(ConfigError, match='texts, row 1: no "text"; it has "prompt", "answer"'):
        read_texts(data)
    splits = datasets.DatasetDict(train=data, test=data.select([1]))
    with pytest.raises(ConfigError, match=r"a list or a datasets.Dataset .one split.*got DatasetDict"):
        read_prompts(splits)
    data.save_to_disk(tmp_path / "saved")
    splits.save_to_disk(tmp_path / "splits")
    datasets.DatasetDict(x=data, y=data).save_to_disk(tmp_path / "others")
    for name in ("files", "json", "broken", "empty"):
        (tmp_path / name).mkdir()
    data.to_parquet(tmp_path / "files" / "train-00000-of-00001.parquet")
    (tmp_path / "json" / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b", "x": [1]}\n')
    (tmp_path / "broken" / "train.jsonl").write_text("{")
    capfd.readouterr()
    for name in ("saved", "splits", "files", "json"):
        prompts = read_prompts(tmp_path / name)
        assert prompts == ["a", "b"]
    assert [x.columns for x in prompts] == [{"x": None}, {"x": [1]}]
    with pytest.raises(ConfigError, match="others: it has the splits x, y: give the directory of one"):
        read_prompts(tmp_path / "others")
    train_tokenizer(["a"]).save_pretrained(tmp_path / "model")
    for name in ("broken", "empty", "model"):
        with pytest.raises(ConfigError, match=f"{name} holds no dataset: ") as caught:
            read_prompts(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
    assert "%|" not in capfd.readouterr().err  # no progress bar
