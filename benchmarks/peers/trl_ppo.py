"""The peer of the language models' benchmarks: TRL 0.11.4's PPOTrainer, with random weights and random scores.

TRL 0.11 announces this trainer's removal in 0.12, and is measured with the transformers of its time, so it gets an
environment of its own:

    python3.11 -m venv trl
    trl/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
    trl/bin/pip install trl==0.11.4 transformers==4.46.3 accelerate==1.2.1 datasets==3.6.0 rich==15.0.0
    trl/bin/python benchmarks/peers/trl_ppo.py gpt2
    trl/bin/python benchmarks/peers/trl_ppo.py small --precision bf16

One process measures one configuration and prints one line of JSON. A first iteration warms up and is not counted.
PPO takes 4 epochs at a learning rate of 1e-5, its other settings are TRL's defaults. All responses have the full
length: the end-of-sequence token is ruled out by `min_length`. Making prompts and scores is not timed.

- `generation_seconds`, `update_seconds`: medians over the iterations of `PPOTrainer.generate` and `PPOTrainer.step`,
  which includes the forward passes of the actor and the reference before the first epoch.
- `tokens_per_second`: response tokens of a batch / (generation_seconds + update_seconds).
- `peak_memory_gb`: greatest resident memory of the process (ru_maxrss, 1e9 bytes), or that of the GPU. Linux starts
  ru_maxrss at what the parent held, so start this from a small process.

`--precision bf16` asks Accelerate for mixed precision, which wraps the forward of the model with the value head but
not `generate`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import trl
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer, create_reference_model


@dataclass(frozen=True)
class Size:
    """Shape of the model (changes to GPT2Config's defaults) and of a batch."""

    prompts: int
    prompt_tokens: int
    new_tokens: int
    iterations: int
    model: dict[str, int] = field(default_factory=dict)


SIZES = {
    "gpt2": Size(prompts=16, prompt_tokens=16, new_tokens=32, iterations=3),
    "small": Size(
        prompts=64, prompt_tokens=8, new_tokens=20, iterations=20,
        model={"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 64, "bos_token_id": 63, "eos_token_id": 63},
    ),
}  # fmt: skip


def make_tokenizer(config: GPT2Config) -> PreTrainedTokenizerFast:
    """One word per id; the trainer uses it for padding only. The end of sequence pads, as is usual for GPT-2."""
    vocabulary = {str(i): i for i in range(config.vocab_size)}
    end = str(config.eos_token_id)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token=end)), eos_token=end, pad_token=end
    )


def sampling(size: Size, config: GPT2Config) -> dict[str, Any]:
    """Plain sampling of exactly `new_tokens` tokens."""
    return {
        "do_sample": True, "top_k": 0, "top_p": 1.0, "max_new_tokens": size.new_tokens,
        "min_length": size.prompt_tokens + size.new_tokens,
        "eos_token_id": config.eos_token_id, "pad_token_id": config.eos_token_id,
    }  # fmt: skip


def measure(size: Size, precision: str, iterations: int, device: str) -> dict[str, float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model_config = GPT2Config(**size.model, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = AutoModelForCausalLMWithValueHead.from_pretrained(GPT2LMHeadModel(model_config))
    words, shape = model_config.vocab_size - 1, (size.prompts, size.prompt_tokens)  # the last id is the end of sequence
    config = PPOConfig(
        seed=0, learning_rate=1e-5, ppo_epochs=4, batch_size=size.prompts, mini_batch_size=size.prompts,
        accelerator_kwargs={"cpu": device == "cpu", "mixed_precision": "bf16" if precision == "bf16" else "no"},
    )  # fmt: skip
    trainer = PPOTrainer(config, model, create_reference_model(model), make_tokenizer(model_config))
    options = sampling(size, model_config)
    generation, update = [], []
    for _ in range(1 + iterations):
        queries = list(torch.randint(words, shape, generator=generator).to(trainer.current_device))
        scores = list(torch.randn(size.prompts, generator=generator).to(trainer.current_device))
        start = time.perf_counter()
        responses = trainer.generate(queries, batch_size=size.prompts, return_prompt=False, **options)
        generation.append(time.perf_counter() - start)
        lengths = [len(response) for response in responses]
        if lengths != [size.new_tokens] * size.prompts:
            raise SystemExit(f"expected {size.prompts} responses of {size.new_tokens} tokens, got lengths {lengths}")
        start = time.perf_counter()
        trainer.step(queries, responses, scores)
        update.append(time.perf_counter() - start)
    seconds = statistics.median(generation[1:]), statistics.median(update[1:])
    return {
        "generation_seconds": seconds[0],
        "update_seconds": seconds[1],
        "tokens_per_second": size.prompts * size.new_tokens / sum(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=list(SIZES))
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--iterations", type=int, help="measured iterations (default: 3 for gpt2, 20 for small)")
    parser.add_argument("--threads", type=int, default=2, help="PyTorch threads")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the trainer")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    size = SIZES[arguments.size]
    arguments.iterations = arguments.iterations or size.iterations
    result = measure(size, arguments.precision, arguments.iterations, arguments.device)
    if arguments.device == "cpu":
        result["peak_memory_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    else:
        result["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__}
    print(json.dumps({**vars(arguments), **{name: round(x, 4) for name, x in result.items()}, **versions}))


if __name__ == "__main__":
    main()
