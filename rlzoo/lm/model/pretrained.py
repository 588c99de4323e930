"""Hugging Face models and tokenizers: loading, random weights, saving; rows of tokens of unequal length."""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from rlzoo.core.errors import ConfigError, no_such, require
from rlzoo.lm.finetune.data import check_output

Attention = Literal["auto", "sdpa", "eager"]
"""Fused attention (sdpa), or attention in plain operations, which has a second derivative; `auto` is the fused one
where the architecture has it."""

_hub: Any = huggingface_hub.utils
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_DTYPE = "dtype" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 56) else "torch_dtype"
HEAD = "score"
"""Name of a reward model's head: Linear, from the hidden state of the last token to the score."""


def load_tokenizer(name: Path | str) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or of a model on the Hub. Where it has no padding, end of sequence serves as such.

    Raises:
        ConfigError: there is none, or it has neither of the two.
    """
    name = str(name)
    with _loading(name, "tokenizer"):
        hub = _where(name, "tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **hub)
    files = tokenizer.vocab_files_names.values()
    found = not Path(name).is_dir() or not files or any((Path(name) / file).is_file() for file in files)
    require(found, f"{name} holds no tokenizer: there is no tokenizer.json")
    if tokenizer.pad_token_id is None:
        require(
            tokenizer.eos_token_id is not None,
            f"the tokenizer of {name} has neither a padding nor an end-of-sequence token; add one with "
            "tokenizer.add_special_tokens({'eos_token': '<eos>'}), model.resize_token_embeddings(len(tokenizer)) "
            "and save_pretrained of both",
        )
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_causal_lm(name: Path | str, attention: Attention = "auto") -> PreTrainedModel:
    """A causal language model, from a directory or from the Hub.

    It is in float32, in evaluation mode, and has no dropout left that training mode could turn on. What it brings
    of a generation configuration is forgotten.

    Raises:
        ConfigError: there is none, it is damaged, or it is of another kind; one line says which.
    """
    return _load(AutoModelForCausalLM, str(name), attention)


def load_reward_model(name: Path | str, attention: Attention = "auto", head_seed: int | None = None) -> PreTrainedModel:
    """A sequence classifier of one label, with a head called `score`, else as `load_causal_lm`.

    Args:
        head_seed: where there is no head yet, as in a causal language model, make one: weights normal with
            standard deviation 1/√(H + 1) (Stiennon et al. 2020), bias 0. None makes that an error.

    Raises:
        ConfigError: there is none, it is damaged, or it is of another kind; one line says which.
    """
    return _load(AutoModelForSequenceClassification, str(name), attention, head_seed)


def new_causal_lm(
    config: Path | str | Mapping[str, Any],
    vocab_size: int | None = None,
    seed: int = 0,
    attention: Attention = "auto",
) -> PreTrainedModel:
    """A causal language model of random weights, the same for the same seed; the global generators stay as they are.

    Args:
        config: a config.json, a directory that holds one, or what it would hold: "model_type" and its settings.
        vocab_size: in place of the configuration's.

    Raises:
        ConfigError: no such architecture or setting, or the settings do not go together.
    """
    name, given = _read_config(config)
    kind = given.pop("model_type", None)
    require(isinstance(kind, str), f'{name} has no "model_type", such as "gpt2"')
    require(
        kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        f"{name}: {no_such('causal language model', str(kind), MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}",
    )
    for foreign in ("dtype", "torch_dtype", "auto_map", "architectures", "transformers_version", "_name_or_path"):
        given.pop(foreign, None)
    if vocab_size is not None:
        given["vocab_size"] = vocab_size
    with _loading(name, "model"):
        plain = AutoConfig.for_model(kind)
        _check_settings(kind, given, {*vars(plain), *plain.attribute_map})
        made = AutoConfig.for_model(kind, **given)
        _forget_tokens(made)
        _zero_dropout(made)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(
            made, attn_implementation=None if attention == "auto" else attention, trust_remote_code=False
        )
    return _ready(model.float(), name)


def is_config(source: Path | str) -> bool:
    """Whether it describes a model without weights: a .json file, or a directory with no more than a config.json."""
    path = Path(source)
    return path.suffix == ".json" or (path.is_dir() and (path / "config.json").is_file() and not _weights(path))


def initialise_from(
    source: Path | str, vocab_size: int | None = None, seed: int = 0, attention: Attention = "auto"
) -> PreTrainedModel:
    """`new_causal_lm` of a configuration, else `load_causal_lm`.

    Args:
        vocab_size: that of the tokenizer; random weights get as many, others must have at least as many.
        seed: of random weights.

    Raises:
        ConfigError: see both; or the vocabulary is too small.
    """
    if is_config(source):
        return new_causal_lm(source, vocab_size, seed, attention)
    model = load_causal_lm(source, attention)
    if vocab_size is not None:
        check_vocabulary(model, vocab_size, str(source))
    return model


def check_vocabulary(model: Any, vocab_size: int, name: str) -> None:
    """Raises `ConfigError` if there are more tokens than the Hugging Face model has embeddings for."""
    has = len(model.get_input_embeddings().weight)
    require(vocab_size <= has, f"the tokenizer has {vocab_size} tokens, but the model {name} only {has}")


def use_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes the tokenizer's padding, beginning and end of sequence into the model's configuration.

    A sequence classifier needs the first to find the last token that is not padding.
    """
    for config in {id(x): x for x in (model.config, model.config.get_text_config())}.values():
        for name in _TOKENS:
            setattr(config, name, getattr(tokenizer, name))
    if model.can_generate():
        for name in _TOKENS:
            setattr(model.generation_config, name, getattr(tokenizer, name))


def max_positions(model: PreTrainedModel) -> int | None:
    """The longest row that the model takes; None if it does not say."""
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path | str) -> None:
    """Writes both as Hugging Face does, weights as safetensors; a model that is there already is replaced.

    All is written and flushed under a temporary name and then renamed: what has its final name is complete.

    Raises:
        ConfigError: the folder holds something other than a model.
        OSError: it cannot be written.
    """
    check_output(folder, overwrite=True)
    folder = Path(folder).resolve()
    new, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("tmp", "old"))
    if old.exists() and not folder.exists():  # killed between the two renames
        old.rename(folder)
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with quiet():
            model.save_pretrained(new)
            tokenizer.save_pretrained(new)
        mode = (new / "config.json").stat().st_mode  # that of weights is for the owner alone
        for path in new.iterdir():
            path.chmod(mode)
            _sync(path)
        _sync(new)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        _sync(folder.parent)
    except SafetensorError as error:
        raise OSError(f"{folder} cannot be written: {error}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Tokens of each text, with those that the tokenizer itself puts around it."""
    with quiet():
        return tokenizer(list(texts))["input_ids"] if texts else []


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' progress bars, log lines and warnings off the terminal."""
    bars: Any = transformers_logging
    levels = [(library, library.get_verbosity()) for library in (transformers_logging, huggingface_hub.logging)]
    shown, hub_shown = bars.is_progress_bar_enabled(), not _hub.are_progress_bars_disabled()
    bars.disable_progress_bar()
    _hub.disable_progress_bars()
    for library, _ in levels:
        library.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for library, level in levels:
            library.set_verbosity(level)
        if hub_shown:
            _hub.enable_progress_bars()
        if shown:
            bars.enable_progress_bar()


@contextlib.contextmanager
def _loading(name: str, what: str) -> Iterator[None]:
    """In silence, with the generators restored, and any error as a `ConfigError` of one line.

    Files from anywhere make the libraries raise nearly anything.
    """
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the {what} of {name} cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _where(name: str, what: str) -> dict[str, Any]:
    """Arguments for `from_pretrained`: the Hub is asked once, shortly, as transformers itself tries for a minute.

    Raises:
        ConfigError: neither a directory nor on the Hub nor in its cache.
    """
    if Path(name).is_dir():
        return {"local_files_only": True}
    require(not Path(name).exists(), f"{name} is a file; a {what} is a directory")
    try:
        _hub.validate_repo_id(name)
    except ValueError:
        raise ConfigError(f"no such directory: {name}") from None
    try:
        huggingface_hub.HfApi().model_info(name, timeout=10)
    except Exception as error:
        if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json"), str):
            return {"local_files_only": True}
        reason = _first_line(error)
        raise ConfigError(f"no such directory: {name}; nor can it be had from the Hugging Face Hub: {reason}") from None
    return {}


def _weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def _load(auto: Any, name: str, attention: Attention, head_seed: int | None = None) -> PreTrainedModel:
    classifier = auto is AutoModelForSequenceClassification
    folder = Path(name)
    if folder.is_dir():
        require((folder / "config.json").is_file(), f"{name} holds no model: there is no config.json")
        require(_weights(folder), f"{name} holds no weights: there is no model.safetensors")
    with _loading(name, "model"):
        where = _where(name, "model")
        labels = {"num_labels": 1} if classifier else {}
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **labels, **where)
        _zero_dropout(config)
        model, info = auto.from_pretrained(
            name,
            config=config,
            attn_implementation=None if attention == "auto" else attention,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # told below, in one line
            output_loading_info=True,
            **{_DTYPE: torch.float32},
            **where,
        )
    if classifier:
        kind = type(model).__name__
        require(isinstance(getattr(model, HEAD, None), nn.Linear), f"{name} is a {kind}, which has no head {HEAD!r}")
    for key, stored, wanted in info["mismatched_keys"]:
        raise ConfigError(
            f"the weights in {name} do not fit its config.json: {key} is {tuple(stored)}, not {tuple(wanted)}"
        )
    missing = sorted(info["missing_keys"])
    if classifier and missing and all(key.startswith(f"{HEAD}.") for key in missing):
        require(head_seed is not None, f"{name} is no reward model; make one of it: rlzoo reward-model")
        _start_head(model.get_submodule(HEAD), int(head_seed or 0))
        missing = []
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    require(not missing, f"{name} lacks weights that its config.json asks for: {', '.join(missing[:1])}{more}")
    return _ready(model, name)


def _start_head(head: nn.Module, seed: int) -> None:
    weight = head.weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        weight.copy_(torch.randn(weight.shape, generator=generator) / (weight.shape[1] + 1) ** 0.5)
        if isinstance(head.bias, Tensor):
            head.bias.zero_()


def _ready(model: Any, name: str) -> PreTrainedModel:
    """In evaluation mode for good, with its weights and its causality checked."""
    without_dropout(model)
    if model.can_generate():
        model.generation_config = type(model.generation_config)()
    spoiled = next((key for key, p in model.named_parameters() if not bool(p.isfinite().all())), None)
    require(spoiled is None, f"the weights in {name} are damaged: {spoiled} is not finite")
    model.eval()
    with torch.no_grad(), _loading(name, "model"):
        first, second = model.base_model(torch.tensor([[0, 0], [0, 1]]), use_cache=False)[0][:, 0]
    require(torch.allclose(first, second, atol=1e-4), f"{name} looks ahead: it is no causal language model")
    return model


def without_dropout(model: nn.Module) -> None:
    """Turns dropout off for good, in modules and in what attention reads as a number."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, x in vars(module).items():
            if "dropout" in name and isinstance(x, float):
                setattr(module, name, 0.0)


def _zero_dropout(config: PretrainedConfig) -> None:
    """Sets all that a configuration says of dropout, or of noise in training, to 0."""
    for name, x in vars(config).items():
        if isinstance(x, PretrainedConfig):
            _zero_dropout(x)
        elif ("drop" in name or "jitter" in name) and isinstance(x, (int, float)) and not isinstance(x, bool):
            setattr(config, name, type(x)(0))


def _read_config(config: Path | str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What to call a configuration in messages, and its settings."""
    if isinstance(config, Mapping):
        return "the configuration", dict(config)
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    require(isinstance(record, dict), f"{path} is not a JSON object")
    return str(path), record


def _check_settings(kind: str, given: Iterable[str], known: Collection[str]) -> None:
    """Configurations may hold settings that are not known, so only those that look like a slip are refused."""
    for name in set(given) - set(known):
        near = [x for x in difflib.get_close_matches(name, known, cutoff=0.85) if x not in given]
        require(not near, no_such(f"setting of {kind}", name, near))


def _forget_tokens(config: PretrainedConfig) -> None:
    """Takes out special tokens that are not in the vocabulary: defaults, made for another one."""
    for name in _TOKENS:
        token = getattr(config, name, None)
        if isinstance(token, int) and token >= config.vocab_size:
            setattr(config, name, None)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
