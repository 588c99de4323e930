"""The whole comparison: the policies that are judged, every variant, and policies some minibatches later."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from rlzoo.algorithms.ppo_clip import PPOClip
from rlzoo.benchmark.estimators import natural, variants
from rlzoo.benchmark.estimators.exact import BETA, Enumeration, ascend, fit_walks, new_model, small_walks
from rlzoo.benchmark.estimators.judge import Estimate, Judge, take
from rlzoo.benchmark.estimators.tabular import Table
from rlzoo.benchmark.estimators.variants import Variant
from rlzoo.core.estimators import LeaveOneOut
from rlzoo.core.progress import Progress
from rlzoo.core.streams import stream
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.reward.shaping import KL_ESTIMATORS, sequence_kl

STALENESS = (0, 1, 2, 4, 8, 16, 32)
"""Minibatches that the policy is ahead of its samples."""
MINIBATCH = 12
"""Responses of each of these minibatches."""
LEARNING_RATE = 1e-3
CHECK = 10
_ASCENT = 6
"""Steps of exact gradient ascent from the reference to the policy."""


@dataclass(frozen=True)
class Facts:
    """Exact values of a policy."""

    score: float
    kl: float
    length: float
    norm: float
    """‖∇J‖."""


@dataclass(frozen=True)
class Study:
    batches: int
    seed: int
    facts: Facts
    responses: int
    parameters: int
    check: Estimate
    """k1 in the reward over `CHECK` times as many other batches."""
    sections: dict[str, list[tuple[Variant, Estimate]]]
    stale: dict[int, list[tuple[Variant, Estimate]]]
    """By the number of minibatches that the policy is ahead."""
    moved: dict[int, float]
    """KL(π_old ‖ π) of a whole response after so many minibatches, exact."""
    kl: list[tuple[str, float, float]]
    """Exact mean and standard deviation of Σ_t kl_t over responses, by the estimator of kl_t."""
    natural: list[tuple[int | None, Estimate]]
    """By the number of responses of the Fisher matrix."""


def run(batches: int, seed: int, progress: Progress) -> Study:
    """Measures every variant over that many batches, drawn by the seed."""
    graph, task = small_walks()
    model = new_model(task.vocabulary)
    fit_walks(model, graph, task)
    reference = Table.of(model, task)
    ascend(model, task, task.logp(model).detach(), BETA, _ASCENT, rate=0.02)
    table = Table.of(model, task)
    judge = Judge(task, reference, table, table, BETA)
    rows = judge.draw(batches, rng(seed, 0))
    groups = {
        "kl": variants.KL, "baselines": variants.BASELINES, "lengths": variants.LENGTHS, "whitening": variants.WHITENING
    }  # fmt: skip
    total = sum(map(len, groups.values())) + len(variants.STALE) * len(STALENESS) + len(natural.RESPONSES)
    done = 0

    def advance(name: str) -> None:
        nonlocal done
        done += 1
        progress.advance(done / total, name)

    check = judge.measure(variants.KL[0], judge.draw(CHECK * batches, rng(seed, 4)), rng(seed, 1))
    sections: dict[str, list[tuple[Variant, Estimate]]] = {}
    for name, group in groups.items():
        sections[name] = []
        for variant in group:
            sections[name].append((variant, judge.measure(variant, rows, rng(seed, 1))))
            advance(variant.name)
    steps = []
    for responses in natural.RESPONSES:
        steps.append((responses, natural.measure(judge, rows, responses, rng(seed, 2))))
        advance("natural gradient")
    stale: dict[int, list[tuple[Variant, Estimate]]] = {}
    moved: dict[int, float] = {}
    for ahead, later in zip(STALENESS, later_policies(model, task, judge, rng(seed, 3)), strict=True):
        behind = Judge(task, reference, later, table, beta=0.0)
        moved[ahead] = kl(task, table, later)
        stale[ahead] = []
        for variant in variants.STALE:
            stale[ahead].append((variant, behind.measure(variant, rows, rng(seed, 1))))
            advance(f"{variant.name}, {ahead} minibatches later")
    return Study(
        batches=batches, seed=seed, facts=facts(judge), responses=len(task.score), parameters=table.jacobian.shape[1],
        check=check, sections=sections, kl=kl_values(judge), stale=stale, moved=moved, natural=steps,
    )  # fmt: skip


def rng(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(stream(seed, "benchmark", purpose))


def facts(judge: Judge) -> Facts:
    p = judge.probability
    distance = p @ (judge.buffer.logp - judge.reference_logp).sum(1)
    return Facts(float(p @ judge.task.score), float(distance), judge.mean_length, float(judge.gradient.norm()))


@torch.no_grad()
def kl_values(judge: Judge) -> list[tuple[str, float, float]]:
    """Mean and standard deviation of Σ_t kl_t over responses of π, by the estimator of kl_t."""
    found = []
    for name in KL_ESTIMATORS:
        per_token = variants.token_kl(name, judge.new.model(), judge.reference.model(), judge.buffer, judge.buffer.logp)
        total, p = sequence_kl(per_token, judge.task.mask), judge.probability
        mean = p @ total
        found.append((name, float(mean), float((p @ (total - mean).square()).sqrt())))
    return found


@torch.no_grad()
def kl(task: Enumeration, old: Table, new: Table) -> float:
    """KL(π_old ‖ π_new) of a whole response, exact."""
    before, after = (task.logp(table.model(), task.state) for table in (old, new))
    return float(task.probability(before) @ (before - after).sum(1))


def later_policies(model: LanguageModel, task: Enumeration, judge: Judge, rng: np.random.Generator) -> Iterator[Table]:
    """The policy after each number of minibatches in `STALENESS`, trained by PPO-clip on samples of its own.

    These are not the samples that the estimators get: the bias is that of a distribution of samples that is not the
    policy's, and not that of a fit to some of them.
    """
    model = copy.deepcopy(model)
    algorithm = PPOClip(LeaveOneOut(), vf_coef=0.0, normalize_advantage=False)
    state = algorithm.init(model, rng)
    whole = judge.experience(variants.Variant("score", reward_kl=None)).replace(obs=task.rows.obs)
    batch = algorithm.estimator(take(whole, judge.draw(1, rng)[0]))
    minibatches = (part for _ in itertools.count() for part in batch.minibatches(MINIBATCH, state.rng))
    for before, ahead in itertools.pairwise((0, *STALENESS)):
        for minibatch in itertools.islice(minibatches, ahead - before):
            state.optimizers["all"].minimize(
                algorithm.loss, model, minibatch, state.at(algorithm.clip_coef), 0.0,
                learning_rate=LEARNING_RATE, max_grad_norm=algorithm.max_grad_norm,
            )  # fmt: skip
        yield Table.of(model, task)
