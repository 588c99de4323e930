"""Saving models and tokenizers as Hugging Face directories, each complete or absent."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import transformers
from safetensors import SafetensorError
from transformers import GenerationConfig, PreTrainedTokenizerBase

from rlzoo.core.system.errors import require
from rlzoo.core.system.files import naming, read_bytes, seal, sync
from rlzoo.lm.model.hugging_face import quiet
from rlzoo.lm.model.tokens import is_special

LICENSE = "rlzoo_license"
"""Entry of config.json with the licence of the model that training started from."""
SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def check_output(folder: Path | str, overwrite: bool = False) -> None:
    """Raises `ConfigError` unless a folder is new or empty, or, with `overwrite`, holds a model and no repository."""
    folder = Path(folder)
    require(folder.is_dir() or not folder.exists(), f"{folder} is a file")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    require("model_type" in read_config(folder), f"{folder} holds something other than a model")
    history = (folder / ".git").exists()
    require(not history, f"{folder} is a repository, whose history would be lost; choose another folder")
    require(overwrite, f"{folder} holds a model already; choose another folder, or replace it: --overwrite")
    inner = next((x for x in sorted(folder.iterdir()) if x.is_dir() and not x.name.startswith(".")), None)
    require(inner is None, f"{inner} would be lost with the model beside it; choose another folder")


def read_config(folder: Path | str) -> dict[str, Any]:
    """The content of `config.json`; nothing if there is none that can be read."""
    try:
        config = json.loads(read_bytes(Path(folder, "config.json")))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def use_tokens(model: transformers.PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the tokenizer's padding, beginning and end of sequence into the model's configurations.

    A list of tokens that end a text stays, and so does another special token of the tokenizer (`save` adds its own).
    A sequence classifier needs the padding token to find the last token of a row.
    """
    configs: list[Any] = [model.config, model.config.get_text_config()]
    if model.can_generate():
        own: Any = model.generation_config
        end = own.eos_token_id
        other = isinstance(end, int) and end != tokenizer.eos_token_id and end < len(tokenizer)
        if other and is_special(tokenizer, end):
            own.eos_token_id = [end]
        configs.append(own)
    for config in configs:
        for name in SPECIAL_TOKENS:
            if not isinstance(getattr(config, name, None), list):
                setattr(config, name, getattr(tokenizer, name))


def save(
    model: transformers.PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path | str,
    stops: Collection[int] = (),
    sealed: bool = False,
) -> None:
    """Saves both as Hugging Face does, weights as safetensors. A model that the folder holds is replaced.

    A folder of the final name is complete. The generation configuration that is saved gets the tokenizer's end of
    sequence and padding, and `stops`, other tokens that end a text. A `sealed` folder has checksums (`files.seal`).
    Raises `ConfigError` if the folder holds something other than a model.
    """
    check_output(folder, overwrite=True)
    own: Any = model.generation_config if model.can_generate() else None
    saver: Any = model
    saver.should_save_on_this_rank = lambda _: True  # else only the first process of a group would write the weights
    try:
        with _replacing(Path(folder)) as new:
            if own is not None:
                model.generation_config = _generation_config(copy.deepcopy(own), tokenizer, new, stops)
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
            if sealed:
                seal(new)
    finally:
        if own is not None:
            model.generation_config = own
        del saver.should_save_on_this_rank


def save_adapter(model: Any, base: str, folder: Path) -> None:
    """Saves the adapter of a PEFT model, with the directory or Hub name of its base. One in the folder is replaced."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = base
    with _replacing(folder) as new:
        model.save_pretrained(new)
        (new / "README.md").unlink(missing_ok=True)  # a form to fill in


@contextlib.contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Context for writing a directory: yields a temporary path, which is flushed and gets its name in the end."""
    folder = folder.resolve()
    new, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("tmp", "old"))
    if old.exists() and not folder.exists():  # killed between the two renames
        old.rename(folder)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with quiet(), naming(folder):
            new.mkdir(parents=True)
            mode = new.stat().st_mode & 0o666  # weights are written readable for their owner only
            yield new
        for path in (*new.rglob("*"), new):
            if path.is_file():
                path.chmod(mode)
            sync(path)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        sync(folder.parent)
    except Exception as error:
        if type(error) in (SafetensorError, Exception):  # tokenizers has no class of its own
            raise OSError(f"{folder} cannot be written: {error}") from error
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _generation_config(
    config: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, stops: Collection[int]
) -> GenerationConfig:
    """`config` with all tokens that end a text, and padding; these alone if transformers refuses to write the rest."""
    own = config.eos_token_id
    own = [own] if own is None or isinstance(own, int) else own
    ends = [end for end in dict.fromkeys([*own, tokenizer.eos_token_id, *sorted(stops)]) if end is not None]
    config.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    try:
        config.save_pretrained(folder)
    except ValueError:  # published configurations may contradict themselves
        plain: Any = GenerationConfig
        return plain(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    return config
