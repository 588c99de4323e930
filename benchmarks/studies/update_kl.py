"""How an update's KL is spread over the tokens, and what the update costs: clip, penalty and trust region.

    python benchmarks/studies/update_kl.py run      # five seeds -> results/update-kl.jsonl
    python benchmarks/studies/update_kl.py report   # -> results/update-kl.md

PPO-clip with its preset trains the SFT checkpoint for some iterations. Then each algorithm updates that policy once,
with the same responses. One setting of each is solved for, so that the mean of KL(π_old ‖ π) over the tokens is the
same; the others are those of the preset. With the learning rate at which PPO has this KL with neither clip nor penalty,
the penalty would be zero; so PPO-penalty has twice that learning rate. The KL is exact at each token. Both PPOs
continue with Adam's moments. Seconds are processor time of the update alone, on one thread. Finished updates are not
repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlzoo import Trainer, make_config
from rlzoo.benchmark.reports.statistics import median_interval
from rlzoo.benchmark.reports.tables import estimate
from rlzoo.core.collector import evaluate
from rlzoo.runs.configuration.defaults import starting_from

RESULTS = Path(__file__).parents[1] / "results" / "update-kl.jsonl"
SEEDS = range(10, 15)
WARM_UP = {"RandomWalks": 10, "Reviews": 5}
MEAN_KL = 0.01
TOLERANCE = 0.03
LABELS: dict[str, tuple[str, str, float, dict[str, Any]]] = {
    "ppo, neither": ("ppo-clip", "learning_rate", 3e-5, {"clip_coef": 1e6}),
    "ppo-clip": ("ppo-clip", "learning_rate", 3e-5, {}),
    "ppo-penalty": ("ppo-penalty", "kl_coef", 1.0, {"kl_coef_min": 1e-9, "kl_coef_max": 1e9}),
    "npg": ("npg", "step_kl", 0.01, {}),
    "npg, Fisher of all rows": ("npg", "step_kl", 0.01, {"fisher_fraction": 1.0}),
    "trpo": ("trpo", "max_kl", 0.01, {}),
    "trpo, Fisher of all rows": ("trpo", "max_kl", 0.01, {"fisher_fraction": 1.0}),
}
"""Algorithm, the setting that is solved for, its first value, and further settings."""
COLUMNS = {"mean": 4, "median": 4, "p99": 3, "max": 2, "above": 0, "seconds": 2}
HEADS = ["mean", "median", "99 %", "maximum", "% of the KL in 1 % of the tokens", "seconds"]


class Start:
    """A policy in the middle of training, and responses of it."""

    def __init__(self, task: str, seed: int) -> None:
        self.task, self.seed = task, seed
        settings = {"seed": seed, "attention": "eager"}  # fused attention has no forward-mode derivatives
        trainer = Trainer(make_config("ppo-clip", task, **starting_from("ppo-clip", task, settings)[0]))
        for _ in range(WARM_UP[task]):
            trainer.iterate()
        self.model = trainer.model
        experience = trainer.task.collector.collect(trainer.task.actor())
        self.buffer = trainer.task.env.score(experience._replace(buffer=evaluate(self.model, experience.buffer)))[0]
        self.batch = self.buffer.rows(self.model.context)
        with torch.no_grad():
            self.old = self.model.distribution(self.batch.obs).detach()
        self.theta = {name: x.clone() for name, x in self.model.state_dict().items()}
        self.adam = {key: torch.as_tensor(x).clone() for key, x in trainer.state.optimizers["all"].state_dict().items()}
        trainer.task.close()

    def update(self, algorithm: str, **settings: Any) -> dict[str, float]:
        """The KL of the tokens after one update, and its seconds."""
        config = make_config(algorithm, self.task, **starting_from(algorithm, self.task, settings)[0])
        self.model.load_state_dict(self.theta)
        state = config.algorithm.init(self.model, np.random.default_rng(self.seed))
        if "all" in state.optimizers:
            state.optimizers["all"].load_state_dict({key: x.clone() for key, x in self.adam.items()})
        start = time.process_time()
        config.algorithm.update(self.model, state, self.buffer)
        seconds = time.process_time() - start
        with torch.no_grad():
            kl = self.old.kl(self.model.distribution(self.batch.obs))[self.batch.mask].clamp(min=0).numpy()
        worst = np.sort(kl)[-math.ceil(len(kl) / 100) :]
        return {
            "mean": float(kl.mean()),
            "median": float(np.median(kl)),
            "p99": float(np.quantile(kl, 0.99)),
            "max": float(kl.max()),
            "above": 100 * float(worst.sum() / kl.sum()),
            "tokens": len(kl),
            "seconds": seconds,
        }

    def at_equal_kl(self, label: str, **more: Any) -> dict[str, Any]:
        """The update whose mean KL is nearest to `MEAN_KL`, by a secant search on logarithms."""
        algorithm, setting, value, settings = LABELS[label]
        tried: list[tuple[float, dict[str, float]]] = []
        power = {"learning_rate": 2.0, "kl_coef": -1.0, "max_kl": 1.0}[setting]
        for _ in range(12):
            tried.append((value, self.update(algorithm, **settings, **more, **{setting: value})))
            miss = MEAN_KL / tried[-1][1]["mean"]
            if abs(miss - 1) <= TOLERANCE:
                break
            if len(tried) > 1:
                (a, x), (b, y) = tried[-2:]
                slope = math.log(y["mean"] / x["mean"]) / math.log(b / a)
                power = slope if slope * power > 0 and abs(slope) > 0.2 else power
            value *= min(max(miss ** (1 / power), 0.1), 10)
        value, result = min(tried, key=lambda item: abs(math.log(item[1]["mean"] / MEAN_KL)))
        return {"task": self.task, "seed": self.seed, "label": label, setting: value, **result}


def read() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def run() -> None:
    torch.set_num_threads(1)
    for seed in SEEDS:
        for task in WARM_UP:
            results = {x["label"]: x for x in read() if (x["task"], x["seed"]) == (task, seed)}
            remaining = [label for label in LABELS if label not in results]
            start = Start(task, seed) if remaining else None
            for label in remaining:
                assert start is not None
                more = {"learning_rate": 2 * results["ppo, neither"]["learning_rate"]} if label == "ppo-penalty" else {}
                results[label] = start.at_equal_kl(label, **more)
                print(results[label], flush=True)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(results[label]) + "\n")


def report() -> None:
    runs = read()
    lines = ["| task | algorithm | " + " | ".join(HEADS) + " |", "|---|---" + "|--:" * len(HEADS) + "|"]
    for task in WARM_UP:
        for label in LABELS:
            mine = [x for x in runs if (x["task"], x["label"]) == (task, label)]
            cells = [estimate(median_interval([x[name] for x in mine]), digits) for name, digits in COLUMNS.items()]
            lines.append(f"| {task} | {label} | " + " | ".join(cells) + " |")
    text = "\n".join([*lines, ""])
    RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "report"])
    {"run": run, "report": report}[parser.parse_args().what]()
