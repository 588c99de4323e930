"""What looks wrong in the metrics of a run: a table of rules, each with a likely reason and what to turn.

A rule looks at arrays alone. Its bounds leave alone every preset of the package (`tests/runs/test_diagnose.py` holds
records of healthy and of broken runs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlzoo.core.errors import RunError
from rlzoo.core.schedules import linear_ends
from rlzoo.runs.configuration.record import read_settings
from rlzoo.runs.registry import reward_threshold
from rlzoo.runs.run import Run

Array = np.ndarray[Any, Any]

PAGE = "docs/metrics.md"
"""The page that explains metrics, with a section for each rule."""

_UNKNOWN_AT_FIRST = ("mean_return", "mean_length", "success_rate")
"""Metrics that are null until an episode has ended."""


@dataclass(frozen=True)
class Record:
    """The records of a run as arrays. Missing values are NaN."""

    metrics: Mapping[str, Array]
    """(iterations,) each, by name."""
    evaluations: Mapping[str, Array] = field(default_factory=dict)
    """(evaluations,) each, of the stochastic evaluations, by name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | None = None
    """Mean return that counts as solved."""

    @classmethod
    def of(cls, run: Run) -> Record:
        """The record of a run directory.

        Raises:
            RunError: there is no run, or its `config.json` is damaged.
        """
        settings = read_settings(Run.open(run).path / "config.json")
        return cls(
            metrics=_columns(run.metrics()),
            evaluations=_columns([x for x in run.evaluations() if not x["deterministic"]]),
            settings=settings,
            threshold=reward_threshold(str(settings.get("env"))),
        )

    def has(self, *names: str) -> bool:
        """Whether the run has these metrics."""
        return all(name in self.metrics for name in names)

    def known(self, name: str) -> Array:
        """The values of a metric that are numbers."""
        x = self.metrics.get(name, np.zeros(0))
        return x[~np.isnan(x)]

    def rises(self, name: str) -> bool:
        """Whether the last fifth of a metric is above the first by more than the spread within the first."""
        x = self.known(name)
        fifth = max(1, len(x) // 5)
        return len(x) > 0 and float(np.median(x[-fifth:]) - np.median(x[:fifth])) > float(np.std(x[:fifth]))

    def middle(self, name: str, start: float = 0.0, end: float = 1.0) -> float:
        """Median of a metric over a part of the run, given as shares of its iterations; NaN if it has no value."""
        x = self.metrics[name]
        part = x[int(start * len(x)) : max(int(np.ceil(end * len(x))), 1)]
        part = part[~np.isnan(part)]
        return float(np.median(part)) if part.size else np.nan

    def bound(self, *names: str) -> tuple[str, float] | None:
        """The first of the settings that is a number or a linear schedule, with its largest value."""
        for name in names:
            value = self.settings.get(name)
            if isinstance(value, str) and value.startswith("linear:"):
                return name, max(linear_ends(value))
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return name, float(value)
        return None

    @property
    def solved(self) -> bool:
        """Whether the returns at the end are at least the threshold, or differ little after a long rise."""
        x = self.known("mean_return")
        if len(x) == 0:
            return False
        end = self.middle("mean_return", 0.95)
        rise = end - x[0]
        spread = self.evaluations.get("std_return", np.zeros(0))
        settled = len(spread) > 0 and rise > 0 and bool(spread[-1] < 0.1 * rise)
        return settled or (self.threshold is not None and end >= self.threshold)


Look = Callable[[Record], str | None]
"""What a record shows, in words with numbers; None if nothing looks wrong."""


class Rule(NamedTuple):
    """Something that can look wrong."""

    name: str
    """Also the section of `docs/metrics.md`."""
    seen: Look
    reason: str
    """What it likely means."""
    turn: str
    """Settings to change."""


@dataclass(frozen=True)
class Finding:
    """A rule that applies to a run."""

    name: str
    seen: str
    reason: str
    turn: str
    page: str


RULES: list[Rule] = []
"""What `rlzoo diagnose` looks for."""


def rule(*needs: str, reason: str, turn: str) -> Callable[[Look], Look]:
    """Adds a rule with the name of the function, which looks at records that have the metrics `needs`."""

    def add(look: Look) -> Look:
        def seen(record: Record) -> str | None:
            return look(record) if record.has(*needs) else None

        RULES.append(Rule(look.__name__.replace("_", "-"), seen, reason, turn))
        return seen

    return add


def diagnose(run: Run | Path | str) -> list[Finding]:
    """What looks wrong in a run's metrics and evaluations; nothing if it is an empty list.

    Raises:
        RunError: there is no run, or it has no metrics yet.
    """
    run = Run.open(run)
    record = Record.of(run)
    if not record.metrics:
        raise RunError(f"{run.path} has no metrics yet")
    return findings(record)


def findings(record: Record) -> list[Finding]:
    """The rules that apply to a record."""
    seen = [(rule, rule.seen(record)) for rule in RULES]
    return [Finding(x.name, text, x.reason, x.turn, f"{PAGE}#{x.name}") for x, text in seen if text is not None]


@rule(
    reason="A loss or a statistic overflowed, often after too large a step or with rewards of very different sizes.",
    turn="lower learning_rate or max_kl; normalize_reward; normalize_obs",
)
def not_finite(r: Record) -> str | None:
    counts = {name: int(np.isnan(x).sum()) for name, x in r.metrics.items() if name not in _UNKNOWN_AT_FIRST}
    worst = max(counts, key=lambda name: counts[name])
    return (
        f"{worst} is not a number in {counts[worst]} of {len(r.metrics[worst])} iterations" if counts[worst] else None
    )


@rule(
    "mean_return",
    "step",
    reason="Episodes have no time limit, or it is longer than the run. Returns and evaluations need complete episodes.",
    turn="--env-kwargs max_episode_steps=N; raise total_steps",
)
def no_episode_ends(r: Record) -> str | None:
    if not np.isnan(r.metrics["mean_return"]).all():
        return None
    return f"no episode has ended in {int(r.metrics['step'][-1]):,} steps"


@rule(
    reason="No episode has found a reward, so there is nothing to learn from yet.",
    turn="noise_correlation (0.9) or ent_coef to explore; a reward on the way; more total_steps",
)
def all_returns_equal(r: Record) -> str | None:
    x = r.known("mean_return")
    spread = r.evaluations.get("std_return", np.zeros(0))
    if len(x) < 5 or np.ptp(x) > 0 or (len(spread) and np.nanmax(spread) > 0) or r.solved:
        return None
    return f"every episode returns {x[-1]:g}"


@rule(
    reason="The policy has lost what it had learned: too large steps late in the run, or too small buffers.",
    turn="learning_rate linear:X:0 or max_kl linear:X:0; larger num_envs or num_steps; rlzoo play --checkpoint best",
)
def returns_fall(r: Record) -> str | None:
    x = r.known("mean_return")
    if len(x) < 10 or r.solved:
        return None
    start, peak, end = float(x[0]), x.max(), float(np.median(x[-max(1, len(x) // 20) :]))
    noise = np.nanmedian(r.evaluations["std_return"]) if len(r.evaluations.get("std_return", ())) else 0.0
    if peak - start <= noise or peak - end <= 0.3 * (peak - start):
        return None
    return f"the mean return fell from {peak:.4g} to {end:.4g}; it began at {start:.4g}"


@rule(
    "kl",
    reason="An update moves the policy further than its data can tell. Advantages of the old policy do not hold there.",
    turn="lower max_kl, learning_rate or epochs; for ppo-clip set target_kl",
)
def step_too_large(r: Record) -> str | None:
    name, wanted = r.bound("max_kl", "target_kl") or ("a usual update", 0.04)
    median, largest = r.middle("kl"), float(np.nanmax(r.metrics["kl"], initial=0.0))
    if median > 2.5 * wanted:
        return f"the median KL of an update is {median:.2g}; {name} is {wanted:g}"
    return f"one update had a KL of {largest:.2g}" if largest > 1 else None


@rule(
    "kl",
    reason="Updates hardly change the policy, so the run spends its steps on nothing.",
    turn="raise learning_rate, epochs or max_kl",
)
def step_too_small(r: Record) -> str | None:
    if line_search_fails(r) is not None or step_too_large(r) is not None:
        return None
    median = r.middle("kl", 0, 0.5)
    return f"the median KL of an update is {median:.1g} in the first half of the run" if median < 1e-5 else None


@rule(
    "accepted",
    reason="The quadratic model does not hold as far as the step goes, or its direction is not an ascent direction.",
    turn="lower max_kl; raise cg_iters or cg_damping; larger buffers (num_envs, num_steps)",
)
def line_search_fails(r: Record) -> str | None:
    share = 1 - float(np.nanmean(r.metrics["accepted"]))
    return f"{share:.0%} of the steps were rejected at every length" if share > 0.3 else None


@rule(
    "cg_residual",
    reason="The direction is nearer to the plain gradient than to the natural gradient.",
    turn="raise cg_iters (10) or cg_damping (0.1)",
)
def too_few_cg_iterations(r: Record) -> str | None:
    residual = r.middle("cg_residual")
    if not residual > 0.3:
        return None
    return f"conjugate gradient leaves a residual of {residual:.0%} with cg_iters {r.settings.get('cg_iters', '?')}"


@rule(
    "clip_fraction",
    reason="Most steps have no gradient any more: the policy leaves the clip range early in each update.",
    turn="lower learning_rate or epochs; larger minibatch_size; set target_kl",
)
def clipping_too_often(r: Record) -> str | None:
    share = r.middle("clip_fraction")
    return f"the ratio of {share:.0%} of the steps is outside of the clip range" if share > 0.4 else None


@rule(
    "clip_fraction",
    reason="The policy stays so near to the old one that clipping has no effect; more could be learned from "
    "each buffer.",
    turn="raise learning_rate or epochs",
)
def never_clipping(r: Record) -> str | None:
    if step_too_large(r) is not None:
        return None
    share = r.middle("clip_fraction", 0, 0.5)
    return f"the ratio of {share:.1%} of the steps is outside of the clip range" if share < 1e-3 else None


@rule(
    "kl_coef",
    reason="The penalty cannot hold the KL at target_kl: steps are too large for any β.",
    turn="lower learning_rate or epochs; raise target_kl",
)
def penalty_at_its_bound(r: Record) -> str | None:
    bound = r.bound("kl_coef_max")
    if bound is None or r.middle("kl_coef", 0.5) < bound[1]:
        return None
    return f"kl_coef is at its upper bound {bound[1]:g}"


@rule(
    "gradient_steps",
    reason="The first few minibatches already move the policy by target_kl; the rest of the buffer is not used.",
    turn="lower learning_rate; raise target_kl; lower epochs",
)
def updates_cut_short(r: Record) -> str | None:
    if r.bound("target_kl") is None:
        return None
    median, most = r.middle("gradient_steps"), float(np.nanmax(r.metrics["gradient_steps"]))
    return f"target_kl stops the median update after {median:g} of {most:g} steps" if median < 0.2 * most else None


@rule(
    reason="The policy became deterministic before it had found good actions, and no longer explores.",
    turn="ent_coef (0.01); lower learning_rate or max_kl; a higher log_std_init for Box actions",
)
def entropy_collapses(r: Record) -> str | None:
    if r.solved:
        return None
    name, share = ("action_std", 0.05) if r.has("action_std") else ("entropy", 0.02)
    x = r.known(name)
    if len(x) < 10 or not x[0] > 0 or x.min() < 0:  # a negative entropy is that of a density, which has no zero
        return None
    early = x[len(x) // 3]
    return f"{name} fell from {x[0]:.2g} to {early:.2g} in a third of the run" if early < share * x[0] else None


@rule(
    "explained_variance",
    reason="The value predicts returns no better than their mean, so advantages are mostly noise.",
    turn="raise vf_learning_rate, vf_epochs or vf_coef; normalize_reward; normalize_obs; a lower gamma",
)
def value_lags(r: Record) -> str | None:
    relative = ("leave-one-out", "group-mean", "group-norm")
    no_value = r.settings.get("baseline") is False or r.settings.get("estimator") in relative
    if no_value or r.solved or len(r.known("mean_return")) == 0:
        return None
    if all_returns_equal(r) is not None:
        return None
    median = r.middle("explained_variance", 0.5)
    return f"the median explained_variance of the second half is {median:.2g}" if median < 0.1 else None


@rule(
    "grad_norm",
    reason="Losses grow without bound: a value that diverges, or a policy near a boundary of its distribution.",
    turn="lower learning_rate or vf_learning_rate; normalize_reward; max_grad_norm 0.5",
)
def gradient_grows(r: Record) -> str | None:
    first, last = r.middle("grad_norm", 0, 0.2), r.middle("grad_norm", 0.8)
    return f"grad_norm grew from {first:.2g} to {last:.2g}" if last > 30 * first > 0 else None


@rule(
    "grad_norm",
    reason="Nearly all of the gradient is that of a value with large returns; clipping leaves the policy little of it.",
    turn="normalize_reward; lower vf_coef; raise max_grad_norm",
)
def gradient_always_clipped(r: Record) -> str | None:
    bound = r.bound("max_grad_norm")
    if bound is None:
        return None
    median = r.middle("grad_norm")
    return f"the median grad_norm is {median:.3g}; max_grad_norm is {bound[1]:g}" if median > 20 * bound[1] else None


@rule(
    "ended",
    reason="Longer responses score higher, or the limit is shorter than the responses.",
    turn="raise max_new_tokens; missing_eos_penalty (1); SFT texts with an end; stop_tokens",
)
def responses_never_stop(r: Record) -> str | None:
    first, last = r.middle("ended", 0, 0.1), r.middle("ended", 0.8)
    meant_to_stop = first > 0.2 or (r.settings.get("missing_eos_penalty") or 0) > 0  # some tasks fill the limit
    if last >= 0.05 or not meant_to_stop:
        return None
    return f"{last:.0%} of the responses end with a stop token, and {first:.0%} did at first"


@rule(
    "ended",
    reason="Short responses cost less KL or score higher: the length has become the goal.",
    turn="look at the samples; lower beta; a score that does not grow as responses shrink; lower learning_rate",
)
def responses_collapse(r: Record) -> str | None:
    first, last = r.middle("mean_length", 0, 0.1), r.middle("mean_length", 0.9)
    return f"responses shrank from {first:.3g} to {last:.3g} tokens" if last < 0.35 * first else None


@rule(
    "score_std",
    reason="Equal scores give advantages of 0: the score is saturated, or the same for all responses.",
    turn="a finer score; harder prompts; higher temperature; more responses_per_prompt",
)
def scores_all_equal(r: Record) -> str | None:
    share = float(np.mean(r.metrics["score_std"][len(r.metrics["score_std"]) // 2 :] < 1e-6))
    return f"all scores of a buffer are equal in {share:.0%} of the second half" if share > 0.5 else None


@rule(
    "kl_reference",
    "score",
    reason="The policy leaves the reference without a higher score for it.",
    turn="lower learning_rate or epochs; raise beta; set beta_target",
)
def kl_runs_away(r: Record) -> str | None:
    if r.rises("score"):
        return None
    nats = _kl_of_a_token(r)
    return f"the KL to the reference is {nats:.2g} nats a token, and the score does not rise" if nats > 1.2 else None


@rule(
    "kl_reference",
    "score",
    reason="So far from the reference a learned score is no longer a measure of what it was trained on.",
    turn="read the samples (rlzoo play); raise beta, or set beta_target; stop at the best true measure",
)
def reward_hacking(r: Record) -> str | None:
    if not r.rises("score"):
        return None
    returns, nats = r.evaluations.get("mean_return", np.zeros(0)), _kl_of_a_token(r)
    if len(returns) >= 3 and returns[-1] < returns.max() - 0.3 * abs(returns.max() - returns[0]):
        return f"the score rises while the evaluations fall from {returns.max():.3g} to {returns[-1]:.3g}"
    return f"the score rises while the KL to the reference is {nats:.2g} nats a token" if nats > 1.2 else None


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Numbers of records by name, with NaN for all else and for what a record does not have."""
    names = dict.fromkeys(
        name for record in records for name, x in record.items() if x is None or type(x) in (int, float)
    )

    def number(x: Any) -> float:
        return float(x) if type(x) in (int, float) else np.nan

    return {name: np.array([number(record.get(name)) for record in records]) for name in names}


def _kl_of_a_token(r: Record) -> float:
    """Nats of KL to the reference for each token of a response, in the last fifth of the run."""
    return r.middle("kl_reference", 0.8) / max(r.middle("mean_length", 0.8), 1.0)
