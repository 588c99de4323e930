"""Fisher products: forward-mode passes, graphs that are kept, and passes that are written out. Microseconds of one.

    python benchmarks/speed/fisher_products.py

A policy of whole rows (context 0) takes the first way; one of single steps takes the second, or the third with the
built-in networks. The same model is measured in each way, in turns, on one thread. Writes
benchmarks/results/fisher-products.md.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
import tyro

from rlzoo import Trainer, make_config
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate
from rlzoo.optim.fast.tape import TapeJacobian
from rlzoo.optim.fisher import fisher_vector_product
from rlzoo.optim.natural_gradient import FlatPolicy

RESULT = Path(__file__).parents[1] / "results" / "fisher-products.md"
CASES = {"CartPole-v1": {"num_envs": 2, "num_steps": 512}, "HalfCheetah-v5": {"num_envs": 1, "num_steps": 2048}}
WAYS = {"forward mode": (0, None), "kept graphs": (1, None), "written out": (1, TapeJacobian)}
ROUNDS, PRODUCTS = 7, 50


def microseconds(policy: FlatPolicy, batch: Buffer, way: str) -> float:
    """The processor time of one product."""
    policy.model.context, policy.model.jacobian = WAYS[way]
    product = fisher_vector_product(policy, policy.theta, batch, 0.1)
    v = torch.randn(len(policy.theta), generator=torch.Generator().manual_seed(0))
    product(v)
    start = time.process_time()
    for _ in range(PRODUCTS):
        product(v)
    return (time.process_time() - start) / PRODUCTS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    heads = ["task", "rows", *(f"{way}, µs" for way in WAYS), "first / last", "second / last"]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    for env, settings in CASES.items():
        trainer = Trainer(make_config("trpo", env, **settings, total_steps=5000, compile=False))
        batch = trainer.algorithm.estimator(evaluate(trainer.model, trainer.task.collect().buffer)).rows(1)
        policy = FlatPolicy(trainer.model)
        rounds = [[microseconds(policy, batch, way) for way in WAYS] for _ in range(ROUNDS)]
        times = [f"{statistics.median(x):,.0f}" for x in zip(*rounds, strict=True)]
        ratios = [f"{statistics.median(x[i] / x[-1] for x in rounds):.2f}" for i in (0, 1)]
        lines.append(f"| {' | '.join([env, f'{batch.num_rows:,}', *times, *ratios])} |")
    RESULT.write_text(
        "\n".join(lines) + f"\n\n`python benchmarks/speed/fisher_products.py`, medians of {ROUNDS} rounds.\n"
    )
    print(RESULT.read_text())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
