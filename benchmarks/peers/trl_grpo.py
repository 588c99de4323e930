"""The peer of real language models: TRL's GRPOTrainer on the model, prompts and score of one of rlzoo's tasks.

    python3.11 -m venv trl-1.16
    trl-1.16/bin/pip install torch==2.13.0 trl==1.16.0 vaderSentiment
    trl-1.16/bin/python benchmarks/peers/trl_grpo.py MODEL PROMPTS --score compound --new-tokens 24 --steps 4

PROMPTS is a .jsonl file with "prompt", the text, and the columns that the score takes, as `rlzoo` saves it. One process
trains once and prints one line of JSON: for each update its sampled tokens, its mean score and the seconds since the
first; and the peak memory (ru_maxrss, or that of the GPU, in 1e9 bytes). The first update warms up. Groups, optimiser
and clip range are those of rlzoo's defaults for language models. What cannot be the same: TRL has the KL to the
reference in the loss (k3), rlzoo in the reward of each token.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import time
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def compound(completions: list[str], **columns: Any) -> list[float]:
    """VADER's compound sentiment."""
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    analyzer = SentimentIntensityAnalyzer()
    return [analyzer.polarity_scores(text)["compound"] for text in completions]


def last_number(completions: list[str], answer: list[int], **columns: Any) -> list[float]:
    """1 if the last whole number of a response is the answer, else 0."""
    numbers = (re.findall(r"0*(\d+)", text) for text in completions)
    return [float(x[-1:] == [str(right)]) for x, right in zip(numbers, answer, strict=True)]


SCORES = {score.__name__: score for score in (compound, last_number)}


class Clock(TrainerCallback):
    """The seconds at which each update has ended."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_end(self, *args: Any, **more: Any) -> None:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter())


def train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Trains for `steps` buffers of responses; what the module's docstring says."""
    dtype = getattr(torch, arguments.precision)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    with open(arguments.prompts, encoding="utf-8") as file:
        prompts = Dataset.from_list([json.loads(line) for line in file])
    per_buffer = arguments.responses // arguments.minibatch * arguments.epochs
    config = GRPOConfig(
        output_dir=arguments.scratch, seed=arguments.seed, use_cpu=arguments.device == "cpu",
        bf16=dtype == torch.bfloat16,
        num_generations=arguments.group, per_device_train_batch_size=arguments.minibatch,
        steps_per_generation=arguments.responses // arguments.minibatch, num_iterations=arguments.epochs,
        max_steps=arguments.steps * per_buffer, max_completion_length=arguments.new_tokens,
        temperature=1.0, top_p=1.0, top_k=0, epsilon=0.2, beta=arguments.beta, loss_type="bnpo", scale_rewards="none",
        learning_rate=arguments.learning_rate, lr_scheduler_type="constant", adam_epsilon=1e-5, weight_decay=0.0,
        max_grad_norm=0.5, gradient_checkpointing=False, logging_steps=1, save_strategy="no", report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    tokens: list[int] = []
    scores: list[float] = []

    def score(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        values = SCORES[arguments.score](completions, **columns)
        tokens.append(sum(map(len, completion_ids)))
        scores.append(sum(values) / len(values))
        return values

    clock = Clock()
    trainer = GRPOTrainer(model, score, config, train_dataset=prompts, processing_class=tokenizer, callbacks=[clock])
    start = time.perf_counter()
    trainer.train()
    seconds = [x - start for x in clock.seconds[per_buffer - 1 :: per_buffer]]
    if arguments.device == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    else:
        peak = torch.cuda.max_memory_allocated() / 1e9
    return {"tokens": tokens, "scores": scores, "seconds": seconds, "peak_memory_gb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("prompts")
    parser.add_argument("--score", choices=SCORES, required=True)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--scratch", default="trl-output", help="folder for what TRL writes")
    sizes = {"new_tokens": 24, "steps": 4, "responses": 64, "group": 8, "minibatch": 32, "epochs": 2}
    for name, value in (sizes | {"seed": 0, "threads": 2}).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--beta", type=float, default=0.02)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(json.dumps(train(arguments)))


if __name__ == "__main__":
    main()
