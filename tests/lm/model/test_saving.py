"""Saved models: complete or absent, read by Hugging Face, and generating to the end of sequence."""

import os
from pathlib import Path

import pytest
import torch
from tiny import CONFIGS, EOS, PAD, make_lm, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rlzoo.core.system.errors import ConfigError
from rlzoo.lm.model.pretrained import load_causal_lm, new_causal_lm
from rlzoo.lm.model.saving import check_output, save, use_tokens


def test_saved_model_is_read_by_hugging_face(tmp_path):
    model = make_lm()
    save(model, make_tokenizer(), tmp_path / "a" / "b")
    ids = torch.tensor([[3, 1, 4]])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "a/b")(ids).logits
    torch.testing.assert_close(theirs, model(ids).logits, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "a/b")("dba")["input_ids"] == [3, 1, 0]
    assert {path.suffix for path in (tmp_path / "a/b").iterdir()} == {".json", ".safetensors"}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_saving_replaces_a_model_and_nothing_else(tmp_path):
    save(make_lm(seed=1), make_tokenizer(), tmp_path / "out")
    (tmp_path / "out" / "more").touch()
    save(make_lm(seed=2), make_tokenizer(), tmp_path / "out")
    assert not (tmp_path / "out" / "more").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert torch.equal(load_causal_lm(tmp_path / "out").lm_head.weight, make_lm(seed=2).lm_head.weight)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ConfigError, match="something other than a model"):
        save(make_lm(), make_tokenizer(), tmp_path / "other")
    assert (tmp_path / "other" / "notes.txt").exists()


def test_saving_that_fails_leaves_the_model_that_was_there(tmp_path, monkeypatch):
    save(make_lm(seed=1), make_tokenizer(), tmp_path / "out")
    broken = make_tokenizer()
    monkeypatch.setattr(broken, "save_pretrained", lambda folder: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(make_lm(seed=2), broken, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert torch.equal(load_causal_lm(tmp_path / "out").lm_head.weight, make_lm(seed=1).lm_head.weight)


def test_an_error_of_the_tokenizers_library_is_one_of_the_file(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise Exception("No space left on device (os error 28)")

    tokenizer = make_tokenizer()
    monkeypatch.setattr(tokenizer, "save_pretrained", full)
    with pytest.raises(OSError, match=r"model cannot be written: No space left on device"):
        save(make_lm(), tokenizer, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_model_survives_a_kill_between_the_renames(tmp_path):
    """The old one lies under a hidden name; saving that then fails puts it back."""
    save(make_lm(seed=1), make_tokenizer(), tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / ".out.old")
    broken = make_tokenizer()
    broken.save_pretrained = None
    with pytest.raises(TypeError):
        save(make_lm(seed=2), broken, tmp_path / "out")
    assert torch.equal(load_causal_lm(tmp_path / "out").lm_head.weight, make_lm(seed=1).lm_head.weight)


def test_old_model_is_kept_until_the_new_one_has_its_place(tmp_path, monkeypatch):
    save(make_lm(seed=1), make_tokenizer(), tmp_path / "out")
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: rename(path, to) if path.name == "out" else os.rmdir(tmp_path))
    with pytest.raises(OSError, match="not empty"):
        save(make_lm(seed=2), make_tokenizer(), tmp_path / "out")
    assert torch.equal(load_causal_lm(tmp_path / ".out.old").lm_head.weight, make_lm(seed=1).lm_head.weight)


def test_saved_weights_may_be_read_by_whoever_may_read_the_rest(tmp_path):
    save(make_lm(), make_tokenizer(), tmp_path / "out")
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1


def test_a_folder_of_further_chat_templates_can_be_entered(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    save(make_lm(), tokenizer, tmp_path / "out")
    (templates,) = (path for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert templates.stat().st_mode == (tmp_path / "out").stat().st_mode
    (template,) = templates.iterdir()
    assert template.stat().st_mode == (tmp_path / "out" / "config.json").stat().st_mode


def test_a_folder_of_hidden_files_is_not_empty(tmp_path):
    """Such as a repository without files."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    with pytest.raises(ConfigError, match="something other than a model"):
        save(make_lm(), make_tokenizer(), tmp_path)
    assert (tmp_path / ".git" / "HEAD").exists()


def test_folder_for_a_model(tmp_path):
    check_output(tmp_path / "new")
    check_output(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="something other than a model"):
            check_output(tmp_path, overwrite)
        with pytest.raises(ConfigError, match="is a file"):
            check_output(tmp_path / "notes.txt", overwrite)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="something other than a model"):
        check_output(tmp_path, overwrite=True)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ConfigError, match=r"holds a model already; .* --overwrite"):
        check_output(tmp_path)
    check_output(tmp_path, overwrite=True)
    (tmp_path / ".git").mkdir()
    with pytest.raises(ConfigError, match="is a repository, whose history would be lost"):
        check_output(tmp_path, overwrite=True)


# The generation configuration


def saved_generation_config(folder, config=None, **tokens):
    model = make_lm()
    model.generation_config = config or GenerationConfig()
    save(model, make_tokenizer(**tokens), folder)
    return GenerationConfig.from_pretrained(folder)


def test_end_of_sequence_and_padding_are_saved(tmp_path):
    config = saved_generation_config(tmp_path / "out")
    assert (config.eos_token_id, config.pad_token_id) == (EOS, PAD)


def test_a_tokenizer_without_end_of_sequence_adds_none(tmp_path):
    config = saved_generation_config(tmp_path / "out", eos=None)
    assert (config.eos_token_id, config.pad_token_id) == (None, PAD)


@pytest.mark.parametrize(("stops", "expected"), [(7, [7, EOS]), ([7, 8], [7, 8, EOS]), ([EOS, 7], [EOS, 7])])
def test_other_tokens_that_end_a_text_stay(stops, expected, tmp_path):
    config = saved_generation_config(tmp_path / "out", GenerationConfig(eos_token_id=stops, pad_token_id=9))
    assert (config.eos_token_id, config.pad_token_id) == (expected, 9)


def test_other_tokens_that_end_a_text_stay_where_those_of_the_tokenizer_are_used(tmp_path):
    model = make_lm()
    model.generation_config = GenerationConfig(eos_token_id=[7, 8], pad_token_id=9)
    use_tokens(model, make_tokenizer())
    save(model, make_tokenizer(), tmp_path / "out")
    config = GenerationConfig.from_pretrained(tmp_path / "out")
    assert (config.eos_token_id, config.pad_token_id) == ([7, 8, EOS], PAD)


@pytest.mark.parametrize(("special", "expected"), [(True, [PAD + 1, EOS]), (False, EOS)])
def test_another_special_token_that_ends_a_text_stays(special, expected, tmp_path):
    """As <|im_end|> where the tokenizer names another; not the number that a new configuration happens to have."""
    tokenizer, model = make_tokenizer(), new_causal_lm(CONFIGS["gpt2"], PAD + 2)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    model.generation_config.eos_token_id = PAD + 1 if special else 7
    use_tokens(model, tokenizer)
    save(model, tokenizer, tmp_path / "out")
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == expected


def test_the_generation_configuration_of_a_checkpoint_stays(tmp_path):
    """Through loading and saving, and even if it is one that transformers warns of."""
    own = {"do_sample": True, "top_k": 3, "temperature": 0.7, "max_new_tokens": 9}
    saved_generation_config(tmp_path / "one", GenerationConfig(**own))
    save(load_causal_lm(tmp_path / "one"), make_tokenizer(), tmp_path / "two")
    config = GenerationConfig.from_pretrained(tmp_path / "two")
    assert {name: getattr(config, name) for name in own} == own
    assert config.eos_token_id == EOS


def test_a_generation_configuration_that_cannot_be_written_leaves_its_tokens(tmp_path):
    save(make_lm(), make_tokenizer(), tmp_path / "one")
    (tmp_path / "one" / "generation_config.json").write_text('{"top_k": 5, "do_sample": false, "eos_token_id": 7}')
    save(load_causal_lm(tmp_path / "one"), make_tokenizer(), tmp_path / "two")
    config = GenerationConfig.from_pretrained(tmp_path / "two")
    assert (config.eos_token_id, config.pad_token_id) == ([7, EOS], PAD)
    assert load_causal_lm(tmp_path / "two").can_generate()
