"""rlzoo's PPO-clip beside TRL's GRPOTrainer on a real model: score, response tokens per second, peak memory.

    python benchmarks/speed/beside_trl.py --peer trl/bin/python --rounds 3

The environment of TRL is that of `benchmarks/peers/trl_grpo.py`. Contestants take turns, each in its own process, with
the same model, prompts, scores, groups of 8, sampled tokens, minibatches, epochs and Adam. A first update warms up and
is not in the tokens per second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
TASKS = {"Sentiment": ("compound", 24), "SmallSums": ("last_number", 14)}
"""The score and the length of responses of each task."""


def train(env: str, precision: str, steps: int, seed: int) -> dict[str, Any]:
    """Some updates of rlzoo: sampled tokens, mean score and seconds since the first, of each."""
    from rlzoo.runs.configuration.defaults import configured
    from rlzoo.runs.loop import Trainer

    config, _ = configured("ppo-clip", env, None, True, {"precision": precision, "seed": seed, "total_steps": 10**6})
    trainer = Trainer(config)
    start, tokens, scores, seconds = time.perf_counter(), [], [], []
    for iteration in itertools.islice(trainer, steps):
        tokens.append(iteration.step - sum(tokens))
        scores.append(iteration.metrics["score"])
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"tokens": tokens, "scores": scores, "seconds": seconds, "peak_memory_gb": peak}


def write_inputs(env: str, folder: Path) -> None:
    """The model and prompts of a task, for TRL."""
    from rlzoo.lm.finetune.data import save_prompts
    from rlzoo.runs.configuration.defaults import configured
    from rlzoo.runs.loop import Trainer

    task: Any = Trainer(configured("ppo-clip", env, None, True, {})[0]).task
    save_prompts(folder / "prompts.jsonl", task.env.prompts.texts)
    task.model.save_pretrained(task.tokenizer, folder / "model", task.env.stop)


def line_of(command: list[str]) -> dict[str, Any]:
    """The last line of a program's output, as JSON."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def rate(run: dict[str, Any]) -> float:
    """Response tokens per second, without the first update."""
    return float(sum(run["tokens"][1:]) / (run["seconds"][-1] - run["seconds"][0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="Python of the environment with TRL")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", nargs=3, metavar=("TASK", "PRECISION", "SEED"), help="measure rlzoo once")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.alone:
        env, precision, seed = arguments.alone
        print(json.dumps(train(env, precision, arguments.steps, int(seed))))
        return
    common = ["--steps", str(arguments.steps), "--threads", str(arguments.threads)]
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for env in arguments.tasks:
        with tempfile.TemporaryDirectory() as scratch:
            write_inputs(env, Path(scratch))
            score, new_tokens = TASKS[env]
            files = [str(Path(scratch, name)) for name in ("model", "prompts.jsonl")]
            for seed, precision in itertools.product(range(arguments.rounds), arguments.precisions):
                ours = [sys.executable, __file__, "--alone", env, precision, str(seed)]
                theirs = [arguments.peer, str(HERE.parent / "peers" / "trl_grpo.py"), *files, "--score", score]
                theirs += ["--new-tokens", str(new_tokens), "--precision", precision, "--seed", str(seed)]
                theirs += ["--scratch", str(Path(scratch, "out"))]
                for name, command in (("rlzoo", ours), ("TRL", theirs)):
                    run = line_of([*command, *common])
                    runs.setdefault((env, precision, name), []).append(run)
                    print(env, precision, name, json.dumps(run), flush=True)
    (RESULTS / "beside-trl.jsonl").write_text(
        "".join(
            json.dumps({"task": k[0], "precision": k[1], "system": k[2], **run}) + "\n" for k in runs for run in runs[k]
        )
    )
    (RESULTS / "beside-trl.md").write_text(report(runs))


def report(runs: dict[tuple[str, str, str], list[dict[str, Any]]]) -> str:
    """Medians over the rounds; ratios are medians of the rounds' ratios."""
    lines = [
        "Medians over the rounds (smallest to largest ratio), rlzoo / TRL. Tokens are those of responses. The score is "
        "that of the last buffer.",
        "",
        "| task | precision | rlzoo, tokens/s | TRL, tokens/s | ratio | peak memory, GB | score |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for env, precision in dict.fromkeys(key[:2] for key in runs):
        ours, theirs = runs[env, precision, "rlzoo"], runs[env, precision, "TRL"]
        rates = [[rate(run) for run in some] for some in (ours, theirs)]
        ratios = sorted(a / b for a, b in zip(*rates, strict=True))
        median = statistics.median
        memory, score = (
            " / ".join(f"{median(pick(run) for run in some):.2f}" for some in (ours, theirs))
            for pick in (lambda run: run["peak_memory_gb"], lambda run: run["scores"][-1])
        )
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} – {ratios[-1]:.2f})"
        speeds = f"{median(rates[0]):.1f} | {median(rates[1]):.1f}"
        lines.append(f"| {env} | {precision} | {speeds} | {spread} | {memory} | {score} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
