"""rlzoo's PPO-clip beside TRL's GRPOTrainer on a real model: score, response tokens per second, peak memory.

    python benchmarks/speed/beside_trl.py --peer trl-1.16/bin/python --rounds 3
    python benchmarks/speed/beside_trl.py --peer trl-1.16/bin/python --tasks Sentiment --precisions bfloat16 \
        --device cuda --responses 512 --minibatch 128 --new-tokens 128

The environment of TRL is that of `benchmarks/peers/trl_grpo.py`. Contestants take turns, each in its own process, with
the same model, prompts, scores, groups of 8, sampled tokens, minibatches, epochs and Adam. A first update warms up and
is not in the tokens per second. Rounds that `results/beside-trl.jsonl` has with the same settings are not run again.
On a GPU, the results are in `beside-trl-cuda.*`, and memory is that of the GPU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from language_throughput import apart, clock, output_of, peak_memory_gb

from rlzoo.runs.files import append_jsonl, read_jsonl

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
TASKS = {"Sentiment": ("compound", 24), "SmallSums": ("last_number", 14)}
"""The score and the length of responses of each task."""
SIZES = {"responses": "responses_per_batch", "minibatch": "minibatch_responses", "new_tokens": "max_new_tokens"}
"""Sizes that an option changes, and rlzoo's names of them."""


def train(env: str, precision: str, seed: int, steps: int, threads: int, device: str, **sizes: int) -> dict[str, Any]:
    """Some updates of rlzoo: sampled tokens, mean score and seconds since the first, of each."""
    from rlzoo.runs.configuration.defaults import configure
    from rlzoo.runs.loop import Trainer

    torch.set_num_threads(threads)
    settings = {"precision": precision, "seed": seed, "total_steps": 10**6, "stop_kl": None, "device": device}
    settings |= {SIZES[name]: x for name, x in sizes.items()}
    trainer = Trainer(configure("ppo-clip", env, None, True, settings)[0])
    tokens: list[int] = []
    scores: list[float] = []
    seconds: list[float] = []
    start = time.perf_counter()
    for iteration in itertools.islice(trainer, steps):
        tokens.append(iteration.step - sum(tokens))
        scores.append(iteration.metrics["score"])
        seconds.append(clock(device) - start)
    peak = peak_memory_gb(device)
    return {"tokens": tokens, "scores": scores, "seconds": seconds, "peak_memory_gb": peak}


def write_inputs(env: str, folder: Path) -> None:
    """The model and prompts of a task, for TRL."""
    from rlzoo.lm.finetune.data import save_prompts
    from rlzoo.runs.configuration.defaults import configure
    from rlzoo.runs.loop import Trainer

    task: Any = Trainer(configure("ppo-clip", env, None, True, {})[0]).task
    save_prompts(folder / "prompts.jsonl", task.env.prompts.texts)
    task.model.save_pretrained(task.tokenizer, folder / "model", task.env.stop)


def rate(run: dict[str, Any]) -> float:
    """Response tokens per second, without the first update."""
    return float(sum(run["tokens"][1:]) / (run["seconds"][-1] - run["seconds"][0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="trl-1.16/bin/python", help="Python of the environment with TRL")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    for name in SIZES:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help="by default that of the task")
    arguments = parser.parse_args()
    sizes = {name: x for name in SIZES if (x := getattr(arguments, name)) is not None}
    record = RESULTS / ("beside-trl.jsonl" if arguments.device == "cpu" else "beside-trl-cuda.jsonl")
    runs = [run for _, run in read_jsonl(record)]
    common = {"steps": arguments.steps, "threads": arguments.threads, **sizes}
    device = {} if arguments.device == "cpu" else {"device": torch.cuda.get_device_name()}
    options = [f"--{name.replace('_', '-')}={x}" for name, x in {**common, "device": arguments.device}.items()]
    for env in arguments.tasks:
        with tempfile.TemporaryDirectory() as scratch:
            write_inputs(env, Path(scratch))
            score, new_tokens = TASKS[env]
            own = [f"--new-tokens={new_tokens}"] if "new_tokens" not in sizes else []
            files = [str(Path(scratch, name)) for name in ("model", "prompts.jsonl")]
            for seed, precision in itertools.product(range(arguments.rounds), arguments.precisions):
                theirs = [arguments.peer, str(HERE.parent / "peers" / "trl_grpo.py"), *files, "--score", score]
                theirs += ["--precision", precision, "--seed", str(seed), "--scratch", str(Path(scratch, "out")), *own]
                key = {"task": env, "precision": precision, "seed": seed, **common, **device}
                if any(key.items() <= run.items() for run in runs):
                    continue
                ours = apart(train, env, precision, seed, **common, device=arguments.device)
                pair = [{**key, "system": "rlzoo", **ours}, {**key, "system": "TRL", **output_of([*theirs, *options])}]
                runs += pair
                append_jsonl(record, pair)
    record.with_suffix(".md").write_text(report(runs))


def report(runs: list[dict[str, Any]]) -> str:
    """Medians over the rounds; ratios are medians of the rounds' ratios. Then means over the rounds, by update."""
    shape = [f"{name.replace('_', ' ')} {runs[0][name]}" for name in ("device", *SIZES) if runs and name in runs[0]]
    speeds = [
        *([f"{', '.join(shape)}.", ""] if shape else []),
        "Medians over the rounds (smallest to largest ratio), rlzoo / TRL. Tokens are those of responses.",
        "",
        "| task | precision | threads | rounds | rlzoo, tokens/s | TRL, tokens/s | ratio | peak memory, GB |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    curves = [
        "The mean score of an update's responses, with the tokens and seconds until its end, rlzoo / TRL.",
        "",
        "| task | precision | threads | update | tokens | seconds | score |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    median, mean = statistics.median, statistics.mean
    for key in dict.fromkeys(_key(run) for run in runs):
        task, precision, threads, steps = key
        ours, theirs = pair = [[x for x in runs if (_key(x), x["system"]) == (key, name)] for name in ("rlzoo", "TRL")]
        ratios = sorted(rate(a) / rate(b) for a, b in zip(ours, theirs, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})"
        own, other = (f"{median(map(rate, some)):.1f}" for some in pair)
        memory = " / ".join(f"{median(run['peak_memory_gb'] for run in some):.2f}" for some in pair)
        speeds.append(f"| {task} | {precision} | {threads} | {len(ratios)} | {own} | {other} | {spread} | {memory} |")
        for k in range(steps):
            tokens = " / ".join(f"{mean(sum(run['tokens'][: k + 1]) for run in some):.0f}" for some in pair)
            seconds = " / ".join(f"{mean(run['seconds'][k] for run in some):.0f}" for some in pair)
            score = " / ".join(f"{mean(run['scores'][k] for run in some):.2f}" for some in pair)
            curves.append(f"| {task} | {precision} | {threads} | {k + 1} | {tokens} | {seconds} | {score} |")
    return "\n".join([*speeds, "", *curves]) + "\n"


def _key(run: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(run[name] for name in ("task", "precision", "threads", "steps"))


if __name__ == "__main__":
    main()
