"""One update of each algorithm from the same policy, on the same responses, at the same KL.

What it gains, how its KL is spread over the tokens, and what it costs:

    python benchmarks/studies/update_kl.py run      # three seeds -> results/update-kl.jsonl
    python benchmarks/studies/update_kl.py report   # -> results/update-kl.md

PPO-clip with its preset trains the SFT checkpoint for some iterations. Then each algorithm updates that policy once,
with the same responses. One setting of each is solved for, so that the mean of KL(π_old ‖ π) over the tokens is that of
three distances; the others are those of the preset, or of `NATURAL`. With the learning rate at which PPO has this KL
with neither clip nor penalty, the penalty would be zero; so PPO-penalty has twice that learning rate. The KL is exact
at each token. Both PPOs continue with Adam's moments; elsewhere Adam is new, so its first step goes along the signs of
the gradient.

The gain is Σ_t (π/π_old - 1)·Â over a response, averaged over responses of π_old: how much the return of a response
rises, to first order. It is measured on responses that the update has not seen, and on its own. Seconds are processor
time of the update alone, on one thread. Finished updates are not repeated.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import tyro

from rlzoo import Trainer, make_config
from rlzoo.benchmark.reports.statistics import median_interval
from rlzoo.benchmark.reports.tables import NOTHING, estimate
from rlzoo.core.buffer import Buffer
from rlzoo.core.collector import evaluate, score
from rlzoo.core.estimators import GAE
from rlzoo.runs.configuration.defaults import starting_from
from rlzoo.runs.files import append_jsonl, read_jsonl

RESULTS = Path(__file__).parents[1] / "results" / "update-kl.jsonl"
SEEDS = range(10, 13)
WARM_UP = {"RandomWalks": 10, "Reviews": 5, "Arithmetic": 10, "Sentiment": 5}
"""Iterations of PPO-clip before the update, by task."""
REAL = "Sentiment"
UNSEEN, UNSEEN_OF_REAL = 2_000, 256
"""Responses at least that measure the gain."""
MEAN_KLS = (0.003, 0.01, 0.03)
TOLERANCE, TOLERANCE_OF_REAL = 0.03, 0.1
ESTIMATOR = GAE(gamma=1.0, gae_lambda=0.95)
COMMON: dict[str, Any] = {"estimator": "gae", "gamma": 1.0, "gae_lambda": 0.95, "responses_per_prompt": 1}
LARGE = 4
"""Buffers of how many times the responses are larger ones."""
NATURAL: dict[str, Any] = {"cg_iters": 5, "cg_damping": 0.01, "fisher_fraction": 0.25}
LABELS: dict[str, tuple[str, str, float, dict[str, Any]]] = {
    "ppo, neither": ("ppo-clip", "learning_rate", 3e-5, {"clip_coef": 1e6}),
    "ppo-clip": ("ppo-clip", "learning_rate", 3e-5, {}),
    "ppo-penalty": ("ppo-penalty", "kl_coef", 1.0, {"kl_coef_min": 1e-9, "kl_coef_max": 1e9}),
    "reinforce, first step of Adam": ("reinforce", "learning_rate", 3e-5, {}),
    "npg": ("npg", "step_kl", 0.01, NATURAL),
    "npg, F of all rows": ("npg", "step_kl", 0.01, NATURAL | {"fisher_fraction": 1.0}),
    "npg, F of a quarter of the tokens": ("npg", "step_kl", 0.01, NATURAL),
    "npg, F of all rows, 2 products": ("npg", "step_kl", 0.01, NATURAL | {"fisher_fraction": 1.0, "cg_iters": 2}),
    "npg, F of all rows, damping 0.1": ("npg", "step_kl", 0.01, NATURAL | {"fisher_fraction": 1.0, "cg_damping": 0.1}),
    "npg, F of all rows, damping 1": ("npg", "step_kl", 0.01, NATURAL | {"fisher_fraction": 1.0, "cg_damping": 1.0}),
    "trpo, 4 passes of Adam": ("trpo", "learning_rate", 3e-5, {"epochs": 4, "max_kl": 1e3}),
    "ppo-clip, 4 times the responses": ("ppo-clip", "learning_rate", 3e-5, {}),
    "npg, 4 times the responses": ("npg", "step_kl", 0.01, NATURAL),
}
"""Algorithm, the setting that is solved for, its first value, and further settings."""
COLUMNS = {"seen": 3, "max": 2, "above": 0, "seconds": 2}
HEADS = ["on its own responses", "largest KL of a token", "% of the KL in 1 % of the tokens", "seconds"]
OF_TOKENS = "npg, F of a quarter of the tokens"
LARGER = ("ppo-clip, 4 times the responses", "npg, 4 times the responses")
LABELS_OF_REAL = (
    "ppo-clip", "reinforce, first step of Adam", "npg, F of all rows", "npg, F of all rows, 2 products",
    "trpo, 4 passes of Adam",
)  # fmt: skip


def updates_of(task: str, seed: int) -> list[tuple[str, float]]:
    """Labels and distances."""
    if task != REAL:
        return list(itertools.product(LABELS, MEAN_KLS))
    return [(label, MEAN_KLS[1]) for label in LABELS_OF_REAL if seed == SEEDS[0]]


@contextmanager
def fisher_of_tokens() -> Iterator[None]:
    """F averages over a share of the tokens of all rows, in place of all tokens of a share of the rows."""

    def sample(self: Buffer, fraction: float, rng: np.random.Generator) -> Buffer:
        chosen = torch.from_numpy(rng.random(self.mask.shape) < fraction)
        return self.replace(mask=self.mask & chosen)

    with patch.object(Buffer, "sample", sample):
        yield


class Start:
    """A policy in the middle of training, responses of it, and others that no update sees."""

    def __init__(self, task: str, seed: int) -> None:
        self.task, self.seed = task, seed
        self.precision = {"precision": "bfloat16"} if task == REAL else {}
        # Fused attention has no forward-mode derivatives.
        settings = {"seed": seed, "attention": "eager", **self.precision}
        trainer = Trainer(make_config("ppo-clip", task, **starting_from("ppo-clip", task, settings)[0]))
        for _ in range(WARM_UP[task]):
            trainer.iterate()
        self.model = trainer.model
        self.estimator = trainer.algorithm.estimator if task == REAL else ESTIMATOR
        self.theta = {name: x.clone() for name, x in self.model.state_dict().items()}
        self.adam = {key: torch.as_tensor(x).clone() for key, x in trainer.state.optimizers["all"].state_dict().items()}
        number = int(starting_from("ppo-clip", task, {})[0]["responses_per_batch"])
        sizes = (1,) if task == REAL else (1, LARGE)
        self.buffers = {size: next(self.responses(size * number, seed)) for size in sizes}
        unseen = self.responses(sizes[-1] * number, seed + 1000)
        wanted = UNSEEN_OF_REAL if task == REAL else UNSEEN
        self.unseen = list(itertools.islice(unseen, math.ceil(wanted / (sizes[-1] * number))))
        trainer.task.close()

    def responses(self, number: int, seed: int) -> Iterator[Buffer]:
        """Buffers of responses of the policy."""
        settings = {"seed": seed, "responses_per_batch": number, **self.precision}
        other = Trainer(make_config("ppo-clip", self.task, **starting_from("ppo-clip", self.task, settings)[0]))
        other.model.load_state_dict(self.theta)
        while True:
            experience = other.task.collect()
            yield score(other.task.env, experience._replace(buffer=evaluate(other.model, experience.buffer))).buffer

    def update(self, label: str, **further: Any) -> dict[str, float]:
        """The KL of the tokens after one update, its gain, and its seconds."""
        algorithm, _, _, settings = LABELS[label]
        common = self.precision if self.task == REAL else COMMON
        settings = starting_from(algorithm, self.task, {})[0] | common | settings | further
        buffer = self.buffers[LARGE if label in LARGER else 1]
        config = make_config(algorithm, self.task, **settings)
        self.model.load_state_dict(self.theta)
        state = config.algorithm.init(self.model, np.random.default_rng(self.seed))
        if "all" in state.optimizers:
            state.optimizers["all"].load_state_dict({key: x.clone() for key, x in self.adam.items()})
        batch = buffer.rows(self.model.context)
        with torch.no_grad():
            old = self.model.distribution(batch.obs).detach()
        start = time.process_time()
        with fisher_of_tokens() if label == OF_TOKENS else nullcontext():
            config.algorithm.update(self.model, state, buffer)
        seconds = time.process_time() - start
        with torch.no_grad():
            kl = old.kl(self.model.distribution(batch.obs))[batch.mask].clamp(min=0).numpy()
        worst = np.sort(kl)[-math.ceil(len(kl) / 100) :]
        return {
            "mean": float(kl.mean()),
            "max": float(kl.max()),
            "above": 100 * float(worst.sum() / kl.sum()),
            "tokens": len(kl),
            "seconds": seconds,
        }

    def gains(self, label: str) -> dict[str, float]:
        """The gain of the update that was made last, on its own responses and on others."""
        return {"seen": self.gain([self.buffers[LARGE if label in LARGER else 1]]), "unseen": self.gain(self.unseen)}

    @torch.no_grad()
    def gain(self, buffers: Sequence[Buffer]) -> float:
        """Σ_t (π/π_old - 1)·Â, averaged over responses."""
        total = 0.0
        for buffer in buffers:
            part = self.estimator(buffer).rows(self.model.context)
            ratio = torch.exp(self.model.distribution(part.obs).log_prob(part.action) - part.logp)
            total += float(((ratio - 1) * part.advantage)[part.mask].sum())
        return total / sum(buffer.num_rows for buffer in buffers)

    def at_equal_kl(self, label: str, mean_kl: float, value: float, **further: Any) -> dict[str, Any]:
        """The update whose mean KL is nearest to `mean_kl`, by a secant search on logarithms from `value`."""
        setting = LABELS[label][1]
        tried: list[tuple[float, dict[str, float]]] = []
        power = {"learning_rate": 2.0, "kl_coef": -1.0, "max_kl": 1.0, "step_kl": 1.0}[setting]
        for _ in range(12):
            tried.append((value, self.update(label, **further, **{setting: value})))
            miss = mean_kl / tried[-1][1]["mean"]
            if abs(miss - 1) <= (TOLERANCE_OF_REAL if self.task == REAL else TOLERANCE):
                break
            if len(tried) > 1:
                (a, x), (b, y) = tried[-2:]
                slope = math.log(y["mean"] / x["mean"]) / math.log(b / a)
                power = slope if slope * power > 0 and abs(slope) > 0.2 else power
            value *= min(max(miss ** (1 / power), 0.1), 10)
        value, result = min(tried, key=lambda item: abs(math.log(item[1]["mean"] / mean_kl)))
        if result is not tried[-1][1]:
            self.update(label, **further, **{setting: value})
        key = {"task": self.task, "seed": self.seed, "label": label, "mean_kl": mean_kl}
        return {**key, setting: value, **result, **self.gains(label)}


def read() -> list[Any]:
    return [x for _, x in read_jsonl(RESULTS)]


def run() -> None:
    torch.set_num_threads(1)
    for seed in SEEDS:
        for task in WARM_UP:
            done = {(x["label"], x["mean_kl"]): x for x in read() if (x["task"], x["seed"]) == (task, seed)}
            remaining = [key for key in updates_of(task, seed) if key not in done]
            start = Start(task, seed) if remaining else None
            value: dict[str, float] = {}
            for label, mean_kl in remaining:
                assert start is not None
                setting = LABELS[label][1]
                further = {}
                if label == "ppo-penalty":
                    further["learning_rate"] = 2 * done["ppo, neither", mean_kl]["learning_rate"]
                result = start.at_equal_kl(label, mean_kl, value.get(label, LABELS[label][2]), **further)
                value[label] = result[setting]
                done[label, mean_kl] = result
                print(result, flush=True)
                append_jsonl(RESULTS, [result])


def report() -> None:
    """A table for each task. The spread over the tokens and the seconds are those at the middle distance."""
    runs, lines = read(), []
    middle = MEAN_KLS[1]
    gains = " | ".join(f"gain, KL {x:g}" for x in MEAN_KLS)
    for task in WARM_UP:
        lines += [f"**{task}**", "", f"| update | {gains} | {' | '.join(HEADS)} |"]
        lines.append("|---" + "|--:" * (len(MEAN_KLS) + len(HEADS)) + "|")
        for label in LABELS:
            mine = [x for x in runs if (x["task"], x["label"]) == (task, label)]

            def cell(name: str, digits: int, mean_kl: float, mine: list[dict[str, Any]] = mine) -> str:
                values = [x[name] for x in mine if x["mean_kl"] == mean_kl]
                return estimate(median_interval(values), digits) if values else NOTHING

            cells = [cell("unseen", 3, mean_kl) for mean_kl in MEAN_KLS]
            cells += [cell(name, digits, middle) for name, digits in COLUMNS.items()]
            if mine:
                lines.append(f"| {label} | {' | '.join(cells)} |")
        lines.append("")
    text = "\n".join(lines)
    RESULTS.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "report": report}, description=__doc__)
