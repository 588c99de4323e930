"""Prompts, texts and pairs as users bring them, and where they are told what is wrong."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlzoo.core.errors import ConfigError
from rlzoo.lm.finetune.data import Pair, held_out, read_pairs, read_prompts, read_texts


def write(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def test_prompts_are_the_lines_of_a_text_file(tmp_path):
    assert read_prompts(write(tmp_path, "p.txt", "One \n two\n")) == ["One ", " two"]


@pytest.mark.parametrize("data", ["a\nb", "a\nb\n", "a\r\nb\r\n", "\N{ZERO WIDTH NO-BREAK SPACE}a\nb\n"])
def test_line_ends_and_byte_order_marks_are_no_part_of_a_text(tmp_path, data):
    assert read_texts(write(tmp_path, "t.txt", data)) == ["a", "b"]


def test_only_line_feeds_end_lines(tmp_path):
    text = "a\u2028b\x0bc\x85d"
    assert read_texts(write(tmp_path, "t.txt", text + "\nz")) == [text, "z"]


def test_prompts_and_texts_from_json_lines(tmp_path):
    path = write(tmp_path, "p.jsonl", lines({"prompt": "a\nb", "text": "x"}, {"question": "c", "text": "é"}))
    assert read_prompts(path)[0] == "a\nb"
    assert read_prompts(path)[1] == "c"
    assert read_texts(path) == ["x", "é"]


def test_pairs_with_and_without_a_margin(tmp_path):
    one = {"question": "q", "chosen": "c", "rejected": "r", "source": 3}
    two = {"prompt": "p", "chosen": "d", "rejected": "s", "margin": 2}
    pairs = read_pairs(write(tmp_path, "p.jsonl", lines(one, two)))
    assert pairs == [Pair("q", "c", "r", 0.0), Pair("p", "d", "s", 2.0)]


def test_pair_as_written_elsewhere(tmp_path):
    path = write(tmp_path, "p.jsonl", '{"prompt": "p", "chosen": "\\u00e9", "rejected": "r", "margin": 0.5}')
    assert read_pairs(path) == [Pair("p", "é", "r", 0.5)]


GOOD = lines({"prompt": "p", "chosen": "c", "rejected": "r"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object"),
        ("", "line 2: empty pair"),
        ('{"prompt": "p", "choosen": "c", "rejected": "r"}', 'line 2: no "chosen"; .* "prompt", "choosen", "rejected"'),
        ('{"chosen": "c", "rejected": "r"}', 'line 2: no "prompt" or "question"; '),
        ("{}", "it has nothing"),
        ('{"prompt": "p", "chosen": "", "rejected": "r"}', 'line 2: "chosen" is empty'),
        ('{"prompt": " ", "chosen": "c", "rejected": "r"}', 'line 2: "prompt" is empty'),
        ('{"prompt": "p", "chosen": "c", "rejected": 3}', 'line 2: "rejected" must be a string'),
        ('{"prompt": "p", "chosen": "c", "rejected": null}', 'line 2: "rejected" must be a string'),
        ('{"prompt": "p", "chosen": "\\ud800", "rejected": "r"}', 'line 2: "chosen" is not Unicode'),
        ('{"prompt": "p", "chosen": "c", "rejected": "r", "margin": "1"}', 'line 2: "margin" must be a number'),
        ('{"prompt": "p", "chosen": "c", "rejected": "r", "margin": NaN}', 'line 2: "margin" must be a number'),
        ('{"prompt": "p", "chosen": "c", "rejected": "r", "margin": -1}', 'line 2: "margin" must be a number'),
        ('{"prompt": "p", "chosen": "c", "rejected": "r", "margin": true}', 'line 2: "margin" must be a number'),
    ],
)
def test_fault_of_a_pair_is_told_with_its_line(tmp_path, line, message):
    path = write(tmp_path, "pairs.jsonl", GOOD + line + "\n" + GOOD)
    with pytest.raises(ConfigError, match=rf"pairs\.jsonl, {message}" if "line 2" in message else message) as caught:
        read_pairs(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_prompts, read_texts])
def test_blank_line_is_a_fault(tmp_path, read):
    with pytest.raises(ConfigError, match=r"x\.txt, line 2: empty (prompt|text)"):
        read(write(tmp_path, "x.txt", "a\n \nb\n"))
    with pytest.raises(ConfigError, match=r"x\.txt, line 2: empty"):
        read(write(tmp_path, "x.txt", "a\n\n"))


def test_bytes_that_are_not_utf8_are_told_with_their_line(tmp_path):
    with pytest.raises(ConfigError, match=r"x\.txt, line 3: not UTF-8"):
        read_texts(write(tmp_path, "x.txt", b"a\nb\n\xff\xfe\n"))


@pytest.mark.parametrize("read", [read_prompts, read_texts, read_pairs])
def test_file_that_is_missing_empty_or_a_folder(tmp_path, read):
    with pytest.raises(ConfigError, match=r"no such file: .*x\.jsonl"):
        read(tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match=r"x\.jsonl is empty"):
        read(write(tmp_path, "x.jsonl", ""))
    (tmp_path / "y.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"y\.jsonl cannot be read: Is a directory"):
        read(tmp_path / "y.jsonl")


def test_kind_of_file_is_told_by_its_name(tmp_path):
    with pytest.raises(ConfigError, match=r"x\.csv: the name must end in \.txt, \.jsonl or \.parquet"):
        read_texts(write(tmp_path, "x.csv", "a"))
    with pytest.raises(ConfigError, match=r"x\.txt: pairs are read from a \.jsonl file"):
        read_pairs(write(tmp_path, "x.txt", "a"))


@given(st.lists(st.integers(0, 9).map(str), min_size=1), st.floats(0, 0.99), st.integers(0, 99))
def test_equal_keys_are_on_the_same_side(keys, share, seed):
    different = len(set(keys))
    count = max(1, round(share * different)) if share > 0 else 0
    if count >= different:
        with pytest.raises(ConfigError, match="leaves nothing to train on"):
            held_out(keys, share, seed)
        return
    out = held_out(keys, share, seed)
    assert len({key for key, side in zip(keys, out, strict=True) if side}) == count
    assert not {k for k, side in zip(keys, out, strict=True) if side} & {
        k for k, side in zip(keys, out, strict=True) if not side
    }
    assert held_out(keys, share, seed) == out


def test_other_seed_holds_out_others():
    keys = [str(i) for i in range(100)]
    assert held_out(keys, 0.5, 0) != held_out(keys, 0.5, 1)


def test_reading_needs_no_heavy_library():
    code = (
        "import sys; import rlzoo.lm.finetune.data; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
