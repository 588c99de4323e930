"""Hugging Face models and tokenizers: loading, and models with random weights."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import transformers  # its model classes take seconds to import, so they are looked up where they are used
from safetensors import safe_open
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rlzoo.core.models import single_precision
from rlzoo.core.system.errors import ConfigError, no_such, require
from rlzoo.core.system.files import read_bytes
from rlzoo.core.system.progress import SILENT, Progress
from rlzoo.lm.model import gguf
from rlzoo.lm.model.hugging_face import license_of, loading, location, quiet
from rlzoo.lm.model.precision import equal_but_for_rounding
from rlzoo.lm.model.saving import LICENSE, SPECIAL_TOKENS, read_config

Attention = Literal["auto", "sdpa", "eager"]
"""Implementation of attention: fused (sdpa), or in plain operations (eager), with forward-mode derivatives. `auto` is
the fused one where the architecture has it."""

_MOST_LAYERS = 1000
"""Layers of a model that is loaded: a damaged configuration may ask for millions, which take hours to build."""
SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Hub name of the model that the name `smollm2` stands for."""
HEAD = "score"
"""Name of a reward model's head, a linear map from the hidden state of the last token to the score."""


def load_tokenizer(name: Path | str) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer of a directory or of a model on the Hub. Without a padding token it pads with end of sequence.

    Raises:
        ConfigError: there is none, it has neither of the two tokens, its model_max_length is no number, or its
            vocabulary is empty.
    """
    name = located(str(name))
    folder = Path(name)
    holds = any(any(folder.glob(x)) for x in ("config.json", "tokenizer*", "*.model"))
    require(holds or not folder.is_dir(), f"{name} holds no model and no tokenizer: there is no config.json")
    with loading(name, "tokenizer"):
        where = location(name, "tokenizer")
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False, **where)
        if _is_general(folder) and type(tokenizer) is not transformers.PreTrainedTokenizerFast:
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(name, **where)
    files = tokenizer.vocab_files_names.values()
    holds = any((folder / file).is_file() for file in ("tokenizer.json", *files))
    require(holds or not files or not folder.is_dir(), f"{name} holds no tokenizer: there is no tokenizer.json")
    longest = tokenizer.model_max_length
    number = isinstance(longest, int | float) and not isinstance(longest, bool)
    require(number, f"the tokenizer of {name} has model_max_length {repr(longest)[:80]}, which must be a number")
    require(tokenizer.vocab_size > 0, f"the tokenizer of {name} has an empty vocabulary")
    return with_padding(tokenizer, f"of {name}")


def _is_general(folder: Path) -> bool:
    """Whether a directory's tokenizer is that of its tokenizer.json alone, and of no architecture's class.

    For Qwen2, `AutoTokenizer` takes the architecture's class all the same, which splits texts by rules of its own.
    """
    if not (folder / "tokenizer.json").is_file() or not (folder / "tokenizer_config.json").is_file():
        return False
    kind = json.loads(read_bytes(folder / "tokenizer_config.json")).get("tokenizer_class")
    return kind in ("PreTrainedTokenizerFast", "TokenizersBackend")


def with_padding(tokenizer: transformers.PreTrainedTokenizerBase, name: str) -> transformers.PreTrainedTokenizerBase:
    """The tokenizer, which pads with end of sequence if it has no padding token. `ConfigError` if it has neither."""
    if tokenizer.pad_token_id is None:
        fault = f"the tokenizer {name} has neither a padding nor an end-of-sequence token"
        remedy = "add one with tokenizer.add_special_tokens({'eos_token': '<eos>'}) and resize the model's embeddings"
        require(tokenizer.eos_token_id is not None, f"{fault}; {remedy}")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_causal_lm(name: Path | str, attention: Attention = "auto") -> transformers.PreTrainedModel:
    """A causal language model, from a directory or from the Hub.

    It is in float32 and in evaluation mode, and its dropout is removed. Its generation configuration is kept for
    saving; rlzoo's own sampling does not use it.

    Raises:
        ConfigError: there is none, it is damaged, or it is of another kind.
    """
    return _load(transformers.AutoModelForCausalLM, str(name), attention)


def load_reward_model(
    name: Path | str, attention: Attention = "auto", head_seed: int | None = None
) -> transformers.PreTrainedModel:
    """A sequence classifier with one label and a head called `score`; otherwise like `load_causal_lm`.

    Args:
        head_seed: seed of a new head for a model without one, such as a causal language model. Weights are normal with
            standard deviation 1/√(H + 1) (Stiennon et al. 2020), the bias is 0. With None a missing head is an error.
    """
    return _load(transformers.AutoModelForSequenceClassification, str(name), attention, head_seed)


def new_causal_lm(
    config: Path | str | Mapping[str, Any],
    vocab_size: int | None = None,
    seed: int = 0,
    attention: Attention = "auto",
) -> transformers.PreTrainedModel:
    """A causal language model with random weights, which are the same for the same seed.

    The global generators are not changed.

    Args:
        config: a config.json, a directory that holds one, or its content: "model_type" and settings.
        vocab_size: replaces that of the configuration.

    Raises:
        ConfigError: no such architecture or setting, or the settings do not go together.
    """
    name, settings = _read_config(config)
    kind = settings.pop("model_type", None)
    require(isinstance(kind, str), f'{name} has no "model_type", such as "gpt2"')
    fault = no_such("causal language model", str(kind), MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    require(kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, f"{name}: {fault}")
    for foreign in ("dtype", "torch_dtype", "auto_map", "architectures", "transformers_version", "_name_or_path"):
        settings.pop(foreign, None)
    if vocab_size is not None:
        settings["vocab_size"] = vocab_size
    with loading(name, "model"):
        plain = transformers.AutoConfig.for_model(kind)
        text = plain.get_text_config()
        remedy = f'give its text_config alone, with "model_type": "{text.model_type}"'
        require(text is plain, f"{name}: {kind} is more than a language model; {remedy}")
        _check_names(kind, settings, {*vars(plain), *plain.attribute_map})
        complete = transformers.AutoConfig.for_model(kind, **settings)
        _forget_tokens(complete)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        auto: Any = transformers.AutoModelForCausalLM
        chosen = None if attention == "auto" else attention
        with single_precision():
            model = auto.from_config(complete, attn_implementation=chosen, trust_remote_code=False)
    return _ready(model.float(), name)


def located(name: str, progress: Progress = SILENT) -> str:
    """The directory or Hub name of a model: the converted file for a GGUF file or `smollm2`, the final actor of a run.

    Raises `ConfigError` for a run that has no final actor, and for a GGUF file that cannot be converted.
    """
    if name == "smollm2" and not Path(name).exists():
        return str(gguf.converted(gguf.smollm2(), progress))
    if name.lower().endswith(".gguf") and not Path(name).is_dir():
        return str(gguf.converted(Path(name), progress))
    record = read_config(name)
    if not {"algorithm", "env"} <= record.keys() or "model_type" in record:
        return name
    actor = Path(name, "actor")
    fault = f"{name} is a run of {record['env']} without actor/: a language run that has finished has one"
    require(actor.is_dir(), fault)
    return str(actor)


def check_given(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """A loaded model, checked as one that is loaded by its name, and its precision; its dropout is removed.

    Raises:
        ConfigError: it is not in float32 or float64, it is damaged, or of another kind.
    """
    name = f"the given {type(model).__name__}"
    check_precision(model.parameters(), name)
    return _ready(model, name)


def check_precision(trained: Iterable[nn.Parameter], name: str) -> None:
    """Raises `ConfigError` if a parameter is in half precision, in which small steps are rounded away."""
    half = next((p.dtype for p in trained if p.dtype not in (torch.float32, torch.float64)), None)
    require(half is None, f"{name} is in {half}: training needs float32, such as model.float()")


def is_config(source: Path | str) -> bool:
    """Whether `source` is a configuration without weights: a .json file, or a directory with a config.json only."""
    path = Path(located(str(source)))
    return path.suffix == ".json" or (path.is_dir() and (path / "config.json").is_file() and not _weights(path))


def check_vocabulary(model: Any, vocab_size: int, name: str) -> None:
    """Raises `ConfigError` if the Hugging Face model has fewer embeddings than `vocab_size`."""
    has = len(model.get_input_embeddings().weight)
    require(vocab_size <= has, f"the tokenizer has {vocab_size} tokens, but the model {name} only {has}")


def max_positions(model: transformers.PreTrainedModel) -> int | None:
    """Length of the model's context; None if its configuration does not say.

    That of a model with longrope is the original one: beyond it, a longer row places its earlier tokens differently. Of
    Doge it is the window: beyond it, a token that continues from the cache sees others than in the whole row.
    """
    config: Any = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    names = ("max_position_embeddings", "max_seq_len", "keep_window_size")
    limits = [getattr(config, name, None) for name in names]
    if rope.get("rope_type") == "longrope":
        original = "original_max_position_embeddings"
        limits += [rope.get(original), getattr(config, original, None)]
    return min((x for x in limits if isinstance(x, int) and x > 0), default=None)


def encode(tokenizer: transformers.PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Tokens of each text, with special tokens that the tokenizer adds, such as the beginning, but no end of sequence.

    With a chat template that writes no beginning there are no special tokens, as in `apply_chat_template`.

    Raises:
        ConfigError: the tokenizer has no tokens for a text.
    """
    template, begin = str(tokenizer.chat_template or ""), tokenizer.bos_token
    begins = not template or "bos_token" in template or (begin is not None and str(begin) in template)
    try:
        with quiet():
            rows = tokenizer(list(texts), add_special_tokens=begins)["input_ids"] if texts else []
            return [row[:-1] for row in rows] if _adds_end(tokenizer, rows, texts) else rows
    except Exception as error:  # tokenizers raise Exception itself
        raise ConfigError(f"the tokenizer cannot read the texts: {error}") from error


def encode_further(tokenizer: transformers.PreTrainedTokenizerBase, text: str, **options: Any) -> list[int]:
    """Tokens of a text that follows another one, without special tokens around it.

    SentencePiece's tokenizers put a space before what they take for the first text.
    """
    alone = list(tokenizer(text, add_special_tokens=False, **options)["input_ids"])
    try:
        before, both = tokenizer(["\n", f"\n{text}"], add_special_tokens=False, **options)["input_ids"]
    except Exception:  # no tokens for a line feed; tokenizers raise Exception itself
        return alone
    return both[len(before) :] if before and both[: len(before)] == before else alone


def _adds_end(tokenizer: transformers.PreTrainedTokenizerBase, rows: list[list[int]], texts: Sequence[str]) -> bool:
    """Whether the tokenizer adds an end of sequence, told by the first text that is not empty."""
    row, text = next(((row, text) for row, text in zip(rows, texts, strict=True) if text), ([], ""))
    if row[-1:] != [tokenizer.eos_token_id]:
        return False
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    return len(bare) < len(row) and row[len(row) - 1 - len(bare) : -1] == bare


def _weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in ("*.safetensors", "pytorch_model*.bin"))


def _load(auto: Any, name: str, attention: Attention, head_seed: int | None = None) -> transformers.PreTrainedModel:
    classifier = auto is transformers.AutoModelForSequenceClassification
    name = located(name)
    folder = Path(name)
    if folder.is_dir():
        require((folder / "config.json").is_file(), f"{name} holds no model: there is no config.json")
        require(_weights(folder), f"{name} holds no weights: there is no model.safetensors")
    with loading(name, "model"):
        where = location(name, "model")
        labels = {"num_labels": 1} if classifier else {}
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False, **labels, **where)
        of_rewards = any(x.endswith("ForSequenceClassification") for x in config.architectures or ())
        require(classifier or not of_rewards, f"{name} is a reward model, not a language model")
        layers = getattr(config, "num_hidden_layers", 0)
        fault = f"{name}: config.json has {layers:,} layers; at most {_MOST_LAYERS:,} are built"
        require(layers <= _MOST_LAYERS, fault)
        model, info = auto.from_pretrained(
            name,
            config=config,
            attn_implementation=None if attention == "auto" else attention,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # reported below, in one line
            output_loading_info=True,
            dtype=torch.float32,
            **where,
        )
    _check_floats(folder, model)
    head = getattr(model, HEAD, None)
    fault = f"{name} is a {type(model).__name__}, which has no head {HEAD!r}"
    require(not classifier or isinstance(head, nn.Linear), fault)
    for key, stored, wanted in info["mismatched_keys"]:
        misfit = f"{key} is {tuple(stored)}, not {tuple(wanted)}"
        raise ConfigError(f"the weights in {name} do not fit its config.json: {misfit}")
    missing = sorted(info["missing_keys"])
    if classifier and missing and all(key.startswith(f"{HEAD}.") for key in missing):
        if head_seed is None:
            raise ConfigError(f"{name} is no reward model; train one from it: rlzoo reward-model")
        _start_head(model.get_submodule(HEAD), head_seed)
    elif missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(f"{name} lacks weights that its config.json asks for: {missing[0]}{more}")
    for x in (*model.parameters(), *model.buffers()):  # in the mapped file, products round by the alignment of each
        x.data = x.data.clone()
    if not hasattr(model.config, LICENSE) and (license := license_of(name)):
        setattr(model.config, LICENSE, license)
    return _ready(model, name)


def _check_floats(folder: Path, model: nn.Module) -> None:
    """Raises `ConfigError` if a parameter is stored as integers in the folder: quantised weights are no numbers."""
    names = [name for name, _ in model.named_parameters()]
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            for key in [*file.keys()]:
                kind = file.get_slice(key).get_dtype()
                whole = kind[0] in "IU" and any(f".{name}".endswith(f".{key}") for name in names)
                require(not whole, f"{path}: {key} is of integers ({kind}); weights must be floating-point numbers")


@torch.no_grad()
def _start_head(head: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    head.weight.copy_(torch.randn(head.weight.shape, generator=generator) / (head.in_features + 1) ** 0.5)
    if head.bias is not None:
        head.bias.zero_()


def _ready(model: Any, name: str) -> transformers.PreTrainedModel:
    """The model in evaluation mode, without dropout, with its weights and its causality checked."""
    without_dropout(model)
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    tokens = ends if isinstance(ends, list) else [] if ends is None else [ends]
    numbers = all(isinstance(x, int) and 0 <= x < 2**31 for x in tokens)
    require(numbers, f"eos_token_id in generation_config.json of {name} must be the number of a token, got {ends!r}")
    spoiled = next((key for key, p in model.named_parameters() if not bool(p.isfinite().all())), None)
    require(spoiled is None, f"the weights in {name} are damaged: {spoiled} is not finite")
    model.eval()
    with torch.no_grad(), loading(name, "model"):
        rows = torch.tensor([[0, 0], [0, 1]], device=model.device)
        first, second = model.base_model(rows, use_cache=False)[0][:, 0]
    require(equal_but_for_rounding(second, first), f"{name} looks ahead: it is no causal language model")
    return model


def without_dropout(model: nn.Module) -> None:
    """Sets dropout to 0, and lets embeddings train their row of padding.

    The padding may be a token of texts, such as the end of sequence.
    """
    for module in model.modules():
        _zero_dropout(module)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.Embedding):
            module.padding_idx = None


def _zero_dropout(part: nn.Module | transformers.PretrainedConfig) -> None:
    """Sets what is called dropout to 0 in a module or configuration, and in the configurations within."""
    for name, x in vars(part).items():
        if isinstance(x, transformers.PretrainedConfig):
            _zero_dropout(x)
        elif "drop" in name and isinstance(x, (int, float)) and not isinstance(x, bool):
            setattr(part, name, type(x)(0))


def _read_config(config: Path | str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of a configuration for messages, and its settings."""
    if isinstance(config, Mapping):
        return "the configuration", dict(config)
    path = Path(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        record = json.loads(read_bytes(path))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    require(isinstance(record, dict), f"{path} is not a JSON object")
    return str(path), record


def _check_names(kind: str, names: Iterable[str], standard: Collection[str]) -> None:
    """Refuses settings that look like a misspelling. Other settings that are not standard ones are legal."""
    for name in set(names) - set(standard):
        near = [x for x in difflib.get_close_matches(name, standard, cutoff=0.85) if x not in names]
        require(not near, no_such(f"setting of {kind}", name, near))


def _forget_tokens(config: transformers.PretrainedConfig) -> None:
    """Removes special tokens that are not in the vocabulary: defaults for another one."""
    for name in SPECIAL_TOKENS:
        token = getattr(config, name, None)
        if isinstance(token, int) and token >= config.vocab_size:
            setattr(config, name, None)
