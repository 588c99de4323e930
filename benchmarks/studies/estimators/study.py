"""The measurement: every variant at one policy, and some of them at policies that are a few minibatches ahead."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.studies.estimators import natural, variants
from benchmarks.studies.estimators.judge import Estimate, Judge, take
from benchmarks.studies.estimators.tabular import Table
from benchmarks.studies.estimators.task import BETA, Enumeration, ascend, fit_walks, new_model, small_walks
from benchmarks.studies.estimators.variants import Variant
from rlzoo.algorithms.ppo_clip import PPOClip
from rlzoo.core.estimators import LeaveOneOut
from rlzoo.core.system.progress import track
from rlzoo.core.system.streams import stream
from rlzoo.lm.model.language_model import LanguageModel
from rlzoo.lm.reward.shaping import KL_ESTIMATORS, sequence_kl

STALENESS = (0, 1, 2, 4, 8, 16, 32)
"""Minibatches that the policy is ahead of its samples."""
MINIBATCH = 12
"""Responses of each of these minibatches."""
LEARNING_RATE = 1e-3
CHECK = 10
"""Times as many batches for the check, with k1 in the reward."""
_ASCENT = 6
"""Steps of exact gradient ascent from the reference to the policy."""


def measure(batches: int, seed: int) -> dict[str, Any]:
    """All measurements as JSON, each over that many batches, which the seed determines."""
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

    def estimates(judge: Judge, group: Sequence[Variant]) -> dict[str, Any]:
        measured = {}
        for variant in track("variant", group):
            measured[variant.name] = as_json(judge.measure(variant, rows, rng(seed, 1)))
        return measured

    check = dataclasses.asdict(judge.measure(variants.KL[0], judge.draw(CHECK * batches, rng(seed, 4)), rng(seed, 1)))
    sections = {name: estimates(judge, group) for name, group in groups.items()}
    steps = {}
    for responses in track("natural gradient", natural.RESPONSES):
        label = "all there are (exact)" if responses is None else str(responses)
        steps[label] = as_json(natural.measure(judge, rows, responses, rng(seed, 2)))
    stale = {}
    for ahead, later in zip(STALENESS, later_policies(model, task, judge, rng(seed, 3)), strict=True):
        behind = Judge(task, reference, later, table, beta=0.0)
        stale[str(ahead)] = {"kl": kl(task, table, later), **estimates(behind, variants.STALE)}
    return {
        "batches": batches, "seed": seed, "responses": len(task.score), "parameters": table.jacobian.shape[1],
        "check": check, "policy": facts(judge), "sections": sections, "kl": kl_values(judge),
        "enumerated": {"whole": enumerated(judge, variants.WHOLE), "scores": enumerated(judge, variants.SCORES)},
        "kl_gradients": kl_gradients(judge), "stale": stale,
        "natural": steps,
    }  # fmt: skip


def rng(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(stream(seed, "benchmark", purpose))


def as_json(estimate: Estimate) -> dict[str, Any]:
    return dataclasses.asdict(estimate) | {"verdict": estimate.verdict}


def facts(judge: Judge) -> dict[str, float]:
    """Exact values of the policy; `norm` is ‖∇J‖."""
    p = judge.probability
    distance = p @ (judge.buffer.logp - judge.reference_logp).sum(1)
    score, norm = float(p @ judge.task.score), float(judge.gradient.norm())
    return {"score": score, "kl": float(distance), "length": judge.mean_length, "norm": norm}


@torch.no_grad()
def kl_values(judge: Judge) -> dict[str, dict[str, float]]:
    """Exact mean and standard deviation of Σ_t kl_t over responses of π, by the estimator of kl_t."""
    values = {}
    for name in KL_ESTIMATORS:
        per_token = variants.token_kl(name, judge.new.model(), judge.reference.model(), judge.buffer, judge.buffer.logp)
        total, p = sequence_kl(per_token, judge.task.mask), judge.probability
        mean = p @ total
        values[name] = {"mean": float(mean), "std": float((p @ (total - mean).square()).sqrt())}
    return values


def enumerated(judge: Judge, group: Sequence[Variant]) -> dict[str, dict[str, float]]:
    """E[ĝ] of each variant against g = ∇J, without sampling."""
    exact = {}
    for variant in group:
        e, g = judge.expected(variant), judge.gradient
        along, size = float(e @ g / g.norm()), float(g.norm())
        cosine, distance = along / float(e.norm()), float((e - g).norm()) / size
        exact[variant.name] = {"scale": along / size, "cosine": cosine, "distance": distance}
    return exact


def kl_gradients(judge: Judge) -> dict[str, dict[str, float]]:
    """Relative distances of the mean gradient of each estimator in the loss from those of KL(π ‖ π_ref) and
    KL(π_ref ‖ π) of whole responses, exact."""
    task, model = judge.task, judge.new.model()
    logp, ref = task.logp(model, task.state), judge.reference_logp
    exact = {
        "forward": task.probability(logp) @ (logp - ref).sum(1),
        "reverse": task.probability(ref) @ (ref - logp).sum(1),
    }
    truth = {
        name: judge.new.gradient(torch.autograd.grad(value, model.logits, retain_graph=True)[0])
        for name, value in exact.items()
    }
    score_alone = judge.expected(Variant("score", reward_kl=None))
    distances = {}
    for variant in (*variants.KL, *variants.WHOLE):
        if variant.reward_kl is None:
            g = (score_alone - judge.expected(variant)) / judge.beta
            distances[variant.name] = {name: float((g - x).norm() / x.norm()) for name, x in truth.items()}
    return distances


@torch.no_grad()
def kl(task: Enumeration, old: Table, new: Table) -> float:
    """KL(π_old ‖ π_new) of a whole response, exact."""
    before, after = (task.logp(table.model(), task.state) for table in (old, new))
    return float(task.probability(before) @ (before - after).sum(1))


def later_policies(model: LanguageModel, task: Enumeration, judge: Judge, rng: np.random.Generator) -> Iterator[Table]:
    """The policy after each number of minibatches in `STALENESS`, trained by PPO-clip on samples of its own.

    The estimators get other samples. So a bias is that of samples from an earlier policy, and not of a fit to them.
    """
    model = copy.deepcopy(model)
    algorithm = PPOClip(LeaveOneOut(), vf_coef=0.0, normalize_advantage=False)
    state = algorithm.init(model, rng)
    whole = judge.experience(Variant("score", reward_kl=None)).replace(obs=task.rows)
    batch = algorithm.estimator(take(whole, judge.draw(1, rng)[0]))
    minibatches = (part for _ in itertools.count() for part in batch.minibatches(MINIBATCH, state.rng))
    for before, ahead in itertools.pairwise((0, *STALENESS)):
        for minibatch in itertools.islice(minibatches, ahead - before):
            state.optimizers["all"].minimize(
                algorithm.loss, model, minibatch, state.at(algorithm.clip_coef), 0.0,
                learning_rate=LEARNING_RATE, max_grad_norm=algorithm.max_grad_norm,
            )  # fmt: skip
        yield Table.of(model, task)
