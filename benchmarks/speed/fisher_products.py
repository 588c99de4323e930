"""Fisher products over graphs that are kept, beside forward-mode passes: microseconds of one product.

    python benchmarks/speed/fisher_products.py

A policy of single steps (context 1) takes the first way, one of whole rows the second, so the same model is measured
with either context, in turns, on one thread. Writes benchmarks/results/fisher-products.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from rlzoo import Trainer, make_config
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

RESULT = Path(__file__).parents[1] / "results" / "fisher-products.md"
CASES = {"CartPole-v1": {"num_envs": 2, "num_steps": 512}, "HalfCheetah-v5": {"num_envs": 1, "num_steps": 2048}}
ROUNDS, PRODUCTS = 7, 50


def microseconds(policy: FlatPolicy, batch: Buffer, context: int) -> float:
    """The processor time of one product."""
    policy.model.context = context
    product = fisher_vector_product(policy, policy.theta, batch, 0.1)
    v = torch.randn(len(policy.theta), generator=torch.Generator().manual_seed(0))
    product(v)
    start = time.process_time()
    for _ in range(PRODUCTS):
        product(v)
    return (time.process_time() - start) / PRODUCTS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    lines = ["| task | rows | forward mode, µs | kept graphs, µs | ratio |", "|---|--:|--:|--:|--:|"]
    for env, settings in CASES.items():
        trainer = Trainer(make_config("trpo", env, **settings, total_steps=5000, compile=False))
        batch = trainer.algorithm.estimator(evaluate(trainer.model, trainer.task.collect().buffer)).rows(1)
        policy = FlatPolicy(trainer.model)
        rounds = [[microseconds(policy, batch, context) for context in (0, 1)] for _ in range(ROUNDS)]
        forward, kept = (statistics.median(x) for x in zip(*rounds, strict=True))
        ratio = statistics.median(a / b for a, b in rounds)
        lines.append(f"| {env} | {batch.num_rows:,} | {forward:,.0f} | {kept:,.0f} | {ratio:.2f} |")
    RESULT.write_text("\n".join(lines) + "\n\n`python benchmarks/speed/fisher_products.py`, medians of 7 rounds.\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
