"""What looks wrong in the metrics of a run: a table of rules, each with a likely reason and the settings to change.

A rule reads arrays alone. No preset of the package breaks one (`tests/runs/test_diagnose.py` holds records of healthy
and of broken runs).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlzoo.core.env import Array
from rlzoo.core.system.errors import RunError
from rlzoo.core.system.schedules import linear_ends
from rlzoo.runs.configuration.record import read_settings
from rlzoo.runs.configuration.unused import unused
from rlzoo.runs.registry import reward_threshold
from rlzoo.runs.run import Run

PAGE = "docs/metrics.md"
"""The page that explains metrics, with a section for each rule."""

_NAME = r"`\w+`(?: \([\d.]+\))?"
_NAMES = re.compile(rf"{_NAME}(?:(?:, | or ){_NAME})*")

_UNKNOWN_AT_FIRST = ("mean_return", "mean_length")
"""Metrics that are null until an episode has ended."""


@dataclass(frozen=True)
class History:
    """The records of a run as arrays. Null is NaN."""

    metrics: Mapping[str, Array]
    """(iterations,) each, by name, of the iterations that have it. `kl` is exact or estimated."""
    evaluations: Mapping[str, Array] = field(default_factory=dict)
    """(evaluations,) each, of the stochastic evaluations, by name."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | None = None
    """Mean return that counts as solved."""

    @classmethod
    def of(cls, run: Run) -> History:
        """The record of a run directory."""
        settings = read_settings(run.path / "config.json")
        metrics = _columns(run.metrics())
        if "kl_k3" in metrics:
            metrics["kl"] = metrics.pop("kl_k3")
        evaluations = _columns([x for x in run.evaluations() if not x["deterministic"]])
        return cls(metrics, evaluations, settings, reward_threshold(str(settings.get("env"))))

    def numbers(self, name: str) -> Array:
        """The values of a metric that are numbers."""
        x = self.metrics.get(name, np.zeros(0))
        return x[~np.isnan(x)]

    def returns(self, statistic: str) -> Array:
        """`mean_return`, `std_return` or `exact` of each evaluation."""
        return self.evaluations.get(statistic, np.zeros(0))

    def rises(self, name: str) -> bool:
        """Whether the last fifth of a metric is above the first by more than the spread within the first."""
        x = self.numbers(name)
        fifth = max(1, len(x) // 5)
        return len(x) > 0 and float(np.median(x[-fifth:]) - np.median(x[:fifth])) > float(np.std(x[:fifth]))

    def median(self, name: str, start: float = 0.0, end: float = 1.0) -> float:
        """Median of a metric from `start` to `end`, as fractions of the run; NaN if it has no value."""
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
    def spread(self) -> Array:
        """`std_return` of each evaluation; none if evaluations have another unit than the returns of training."""
        own_score = self.settings.get("reward") or self.settings.get("reward_model")
        return np.zeros(0) if own_score and self.returns("exact").any() else self.returns("std_return")

    @property
    def warm_up(self) -> float:
        """Share of the run at whose start the policy did not move (`vf_warmup`)."""
        rate = self.metrics.get("learning_rate", np.ones(1))
        return float(np.argmax(rate != 0)) / len(rate)

    @property
    def has_no_value(self) -> bool:
        """Whether the advantages need no value. The PPOs train one all the same, unless `vf_coef` is 0."""
        relative = ("leave-one-out", "group-mean", "group-norm")
        return self.settings.get("baseline") is False or self.settings.get("estimator") in relative

    @property
    def solved(self) -> bool:
        """Whether the returns at the end are at least the threshold, or differ little after a long rise."""
        x = self.numbers("mean_return")
        if len(x) == 0:
            return False
        end = self.median("mean_return", 0.95)
        rise, spread = end - x[0], self.spread
        settled = len(spread) > 0 and rise > 0 and bool(spread[-1] < 0.1 * rise)
        return settled or (self.threshold is not None and end >= self.threshold)


class Rule(NamedTuple):
    """Something that can look wrong."""

    name: str
    """Also the section of `docs/metrics.md`."""
    needs: str
    """Metrics without which the rule does not apply."""
    seen: Callable[[History], str | None]
    """What a record shows, in words with numbers; None if nothing looks wrong."""
    reason: str
    """What it likely means."""
    change: str
    """What to change. Names of settings are in backticks."""
    unless: str = ""
    """Rules that explain it if they apply too, and `solved` if it does not count in a run that is solved."""

    def change_of(self, settings: Collection[str]) -> str:
        """`change` with these settings alone, which a run has and which have an effect."""

        def own(names: re.Match[str]) -> str:
            has = [x for x in re.findall(_NAME, names[0]) if x.split("`")[1] in settings]
            return " or ".join(filter(None, [", ".join(has[:-1]), *has[-1:]]))

        parts = [(part, _NAMES.sub(own, part)) for part in self.change.split("; ")]
        return "; ".join(left for part, left in parts if "`" in left or "`" not in part).replace("`", "")


@dataclass(frozen=True)
class Finding:
    """A rule that applies to a run."""

    name: str
    seen: str
    reason: str
    change: str
    page: str


def diagnose(run: Run | Path | str) -> list[Finding]:
    """What looks wrong in a run's metrics and evaluations; nothing if it is an empty list.

    Raises:
        RunError: there is no run, or it has no metrics yet.
    """
    run = Run.open(run)
    record = History.of(run)
    if not record.metrics:
        raise RunError(f"{run.path} has no metrics yet")
    return findings(record)


def findings(record: History) -> list[Finding]:
    """The rules that apply to a record."""
    seen = {x.name: x.seen(record) for x in RULES if {*x.needs.split()} <= record.metrics.keys()}
    texts = {name: text for name, text in seen.items() if text is not None}
    reasons = {*texts} | ({"solved"} if record.solved else set())
    own = record.settings.keys() - unused(record.settings)
    found = [x for x in RULES if x.name in texts and not reasons & {*x.unless.split()}]
    return [Finding(x.name, texts[x.name], x.reason, x.change_of(own), f"{PAGE}#{x.name}") for x in found]


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Numbers by name, of the records that have the name, with NaN for null. A hook need not return each every time."""
    columns: dict[str, list[float | None]] = {}
    for name, x in itertools.chain.from_iterable(record.items() for record in records):
        if x is None or type(x) in (bool, int, float):
            columns.setdefault(name, []).append(x)
    return {name: np.array(column, float) for name, column in columns.items()}


def _above(x: float, bound: float, text: str) -> str | None:
    """`text` with `x` in it if `x` is above the bound. NaN is not."""
    return text.format(x) if x > bound else None


def _below(x: float, bound: float, text: str) -> str | None:
    return text.format(x) if x < bound else None


def _not_finite(r: History) -> str | None:
    counts = {name: int(np.isnan(x).sum()) for name, x in r.metrics.items() if name not in _UNKNOWN_AT_FIRST}
    worst = max(counts, key=lambda name: counts[name])
    return _above(counts[worst], 0, f"{worst} is not a number in {{}} of {len(r.metrics[worst])} iterations")


def _returns_equal(r: History) -> str | None:
    x, spread = r.numbers("mean_return"), r.spread
    if len(x) < 5 or np.ptp(x) > 0 or (len(spread) and np.nanmax(spread) > 0):
        return None
    return f"every episode returns {x[-1]:g}"


def _returns_fall(r: History) -> str | None:
    x, spread = r.numbers("mean_return"), r.spread
    if len(x) < 10:
        return None
    start, peak, end = float(x[0]), x.max(), float(np.median(x[-max(1, len(x) // 20) :]))
    noise = np.nanmedian(spread) if len(spread) else 0.0
    if peak - start <= noise or peak - end <= 0.3 * (peak - start):
        return None
    return f"the mean return fell from {peak:.4g} to {end:.4g}; it began at {start:.4g}"


def _no_progress(r: History) -> str | None:
    x, spread = r.numbers("mean_return"), r.spread
    if len(x) < 10 or len(spread) == 0:
        return None
    start, end = float(x[0]), float(np.median(x[-max(1, len(x) // 10) :]))
    noise = float(np.nanmedian(spread)) / 10  # that of the mean of 100 episodes
    return _below(end - start, 2 * noise, f"the mean return began at {start:.4g} and is {end:.4g}")


def _gamma_too_small(r: History) -> str | None:
    _, gamma = r.bound("gamma") or ("", 1.0)
    steps, length = 1 / max(1 - gamma, 1e-9), r.median("mean_length", 0.5)
    if gamma >= 0.9 or not length > 20 * steps:
        return None
    return f"gamma {gamma:g} weighs rewards of the next {steps:.2g} steps, and episodes have {length:.4g}"


def _never_explores(r: History) -> str | None:
    name, least = ("action_std", 1e-3) if "action_std" in r.metrics else ("entropy", 0.01)
    x = r.numbers(name)
    # A negative entropy is that of a density, which has no zero.
    if len(x) < 5 or x.min() < 0:
        return None
    return _below(float(x.max()), least, f"{name} is at most {{:.2g}} from the first update on")


def _step_too_large(r: History) -> str | None:
    name, bound = r.bound("max_kl", "step_kl", "stop_kl", "target_kl") or ("a usual update", 0.04)
    text = f"the median KL of an update is {{:.2g}}; {name} is {bound:g}"
    largest = float(np.nanmax(r.metrics["kl"], initial=0.0))
    return _above(r.median("kl"), 2.5 * bound, text) or _above(largest, 1, "one update had a KL of {:.2g}")


def _too_few_cg_iterations(r: History) -> str | None:
    if "kl_reference" in r.metrics:  # of a language model, where few iterations fit the buffer less
        return None
    text = "conjugate gradient leaves a residual of {:.0%} with cg_iters " + str(r.settings.get("cg_iters", "?"))
    return _above(r.median("cg_residual"), 0.3, text)


def _penalty_at_its_bound(r: History) -> str | None:
    _, bound = r.bound("kl_coef_max") or ("", np.inf)
    return f"kl_coef is at its upper bound {bound:g}" if r.median("kl_coef", 0.5) >= bound else None


def _updates_cut_short(r: History) -> str | None:
    if r.bound("stop_kl") is None:
        return None
    most = max(float(np.nanmax(r.metrics["gradient_steps"])), _planned_steps(r.settings))
    text = f"stop_kl ends the median update after {{:g}} of {most:g} steps"
    return _below(r.median("gradient_steps"), 0.2 * most, text)


def _planned_steps(settings: Mapping[str, Any]) -> float:
    """Gradient steps of an update that nothing stops; 0 if the settings do not say it."""
    size, sizes = "minibatch_responses", ["responses_per_batch"]
    if settings.get(size) is None:
        size, sizes = "minibatch_size", ["num_envs", "num_steps"]
    if any(settings.get(name) is None for name in ("epochs", size, *sizes)):
        return 0.0
    total = math.prod(settings[name] for name in sizes)
    minibatches = 1 if settings[size] == "all" else math.ceil(total / min(settings[size], total))
    return float(settings["epochs"] * minibatches)


def _entropy_collapses(r: History) -> str | None:
    name, least = ("action_std", 0.05) if "action_std" in r.metrics else ("entropy", 0.02)
    x = r.numbers(name)
    # A negative entropy is that of a density, which has no zero.
    if len(x) < 10 or not x[0] > 0 or x.min() < 0:
        return None
    return _below(x[len(x) // 3], least * x[0], f"{name} fell from {x[0]:.2g} to {{:.2g}} in a third of the run")


def _value_lags(r: History) -> str | None:
    if r.has_no_value or not len(r.numbers("mean_return")):
        return None
    text = "the median explained_variance of the second half is {:.2g}"
    return _below(r.median("explained_variance", 0.5), 0.1, text)


def _gradient_grows(r: History) -> str | None:
    first, last = r.median("grad_norm", 0, 0.2), r.median("grad_norm", 0.8)
    return f"grad_norm grew from {first:.2g} to {last:.2g}" if last > 30 * first > 0 else None


def _gradient_always_clipped(r: History) -> str | None:
    _, bound = r.bound("max_grad_norm") or ("", np.inf)
    # The gradient of an algorithm without vf_coef is that of the policy alone.
    if "vf_coef" not in r.settings or (r.has_no_value and not r.settings["vf_coef"]):
        return None
    return _above(r.median("grad_norm"), 20 * bound, f"the median grad_norm is {{:.3g}}; max_grad_norm is {bound:g}")


def _responses_never_stop(r: History) -> str | None:
    first, last = r.median("ended", 0, 0.1), r.median("ended", 0.8)
    if first <= 0.2 and not (r.settings.get("missing_eos_penalty") or 0) > 0:  # some tasks fill the limit
        return None
    return _below(last, 0.05, f"{{:.0%}} of the responses end with a stop token, and {first:.0%} did at first")


def _responses_collapse(r: History) -> str | None:
    first, last = r.median("mean_length", 0, 0.1), r.median("mean_length", 0.9)
    return _below(last, 0.35 * first, f"responses shrank from {first:.3g} to {{:.3g}} tokens")


def _scores_all_equal(r: History) -> str | None:
    x = r.metrics["score_std"]
    share = float(np.mean(x[len(x) // 2 :] < 1e-6))
    return _above(share, 0.5, "all scores of a buffer are equal in {:.0%} of the second half")


def _kl_per_token(r: History) -> float:
    """Nats of KL to the reference for each token of a response, in the last fifth of the run."""
    return r.median("kl_reference", 0.8) / max(r.median("mean_length", 0.8), 1.0)


def _kl_runs_away(r: History) -> str | None:
    text = "the KL to the reference is {:.2g} nats a token, and the score does not rise"
    return None if r.rises("score") else _above(_kl_per_token(r), 1.2, text)


def _reward_hacking(r: History) -> str | None:
    if not r.rises("score"):
        return None
    x, spread = r.returns("mean_return"), r.returns("std_return")
    noise = 3 * np.nanmedian(spread) / math.sqrt(r.settings.get("eval_episodes") or 20) if len(spread) else 0.0
    if len(x) >= 3 and x.max() - x[-1] > max(noise, 0.3 * abs(x.max() - x[0])):
        return f"the score rises while the evaluations fall from {x.max():.3g} to {x[-1]:.3g}"
    return _above(_kl_per_token(r), 1.2, "the score rises while the KL to the reference is {:.2g} nats a token")


# fmt: off
RULES = [
    Rule("not-finite", "", _not_finite,
         "A loss or a statistic overflowed, often after too large a step or with rewards of very different sizes.",
         "lower `learning_rate`, `max_kl` or `step_kl`; `normalize_reward`; `normalize_obs`"),
    Rule("no-episode-ends", "mean_return step",
         lambda r: _below(len(r.numbers("mean_return")), 1, f"no episode ended in {r.metrics['step'][-1]:,.0f} steps"),
         "Episodes have no time limit, or it is longer than the run. Returns and evaluations need complete episodes.",
         "--env-kwargs max_episode_steps=N; raise `total_steps`"),
    Rule("all-returns-equal", "", _returns_equal,
         "No episode has found a reward, so there is nothing to learn from yet.",
         "`noise_correlation` (0.9) or `ent_coef` to explore; a reward on the way; more `total_steps`", "solved"),
    Rule("returns-fall", "", _returns_fall,
         "The policy has lost what it had learned: too large steps late in the run, or too small buffers.",
         "`learning_rate`, `max_kl` or `step_kl` linear:X:0; larger `num_envs`, `num_steps` or "
         "`responses_per_batch`; rlzoo play --checkpoint best", "solved"),
    Rule("no-progress", "mean_return", _no_progress,
         "The policy is no better than at the start: too few steps so far, or advantages that say nothing.",
         "raise `total_steps`; `learning_rate`, `max_kl` or `step_kl` ten times as large or small; `gamma`; "
         "`normalize_obs`", "solved all-returns-equal returns-fall"),
    Rule("gamma-too-small", "mean_length", _gamma_too_small,
         "What an action earns after these steps does not count, so long-term gains cannot be learned.",
         "raise `gamma` (0.99)", "solved"),
    Rule("step-too-large", "kl", _step_too_large,
         "An update moves the policy further than its data can tell. Advantages of the old policy do not hold there.",
         "lower `max_kl`, `step_kl`, `learning_rate` or `epochs`; set `stop_kl`"),
    Rule("step-too-small", "kl",
         lambda r: _below(r.median("kl", r.warm_up, (1 + r.warm_up) / 2), 1e-5,
                          "the median KL of an update is {:.1g} in the first half of the run"),
         "Updates hardly change the policy, so the run spends its steps on nothing.",
         "raise `learning_rate`, `epochs`, `max_kl` or `step_kl`", "line-search-fails step-too-large"),
    Rule("line-search-fails", "accepted",
         lambda r: _above(1 - float(np.nanmean(r.metrics["accepted"])), 0.3,
                          "{:.0%} of the steps were rejected at every length"),
         "The quadratic model does not hold as far as the step goes, or its direction is not an ascent direction.",
         "lower `max_kl`; raise `cg_iters` or `cg_damping`; larger `num_envs`, `num_steps` or `responses_per_batch`"),
    Rule("too-few-cg-iterations", "cg_residual", _too_few_cg_iterations,
         "The direction is nearer to the plain gradient than to the natural gradient.",
         "raise `cg_iters` (10)"),
    Rule("clipping-too-often", "clip_fraction",
         lambda r: _above(r.median("clip_fraction"), 0.4, "the ratio of {:.0%} of the steps is outside the clip range"),
         "Most steps have no gradient any more: the policy leaves the clip range early in each update.",
         "lower `learning_rate` or `epochs`; larger `minibatch_size` or `minibatch_responses`; set `stop_kl`"),
    Rule("never-clipping", "clip_fraction",
         lambda r: _below(r.median("clip_fraction", r.warm_up, (1 + r.warm_up) / 2), 1e-3,
                          "the ratio of {:.1%} of the steps is outside the clip range"),
         "The policy stays so near to the old one that clipping has no effect; more could be learned from each buffer.",
         "raise `learning_rate` or `epochs`", "step-too-large"),
    Rule("penalty-at-its-bound", "kl_coef", _penalty_at_its_bound,
         "The penalty cannot hold the KL at target_kl: steps are too large for any β.",
         "lower `learning_rate` or `epochs`; raise `target_kl`"),
    Rule("updates-cut-short", "gradient_steps", _updates_cut_short,
         "The first few minibatches already move the policy by stop_kl; the rest of the buffer is not used.",
         "lower `learning_rate`; raise `stop_kl`; lower `epochs`"),
    Rule("entropy-collapses", "", _entropy_collapses,
         "The policy became deterministic before it had found good actions, and no longer explores.",
         "`ent_coef` (0.01); lower `learning_rate`, `max_kl` or `step_kl`; a higher `log_std_init` for Box actions",
         "solved"),
    Rule("never-explores", "entropy", _never_explores,
         "The policy is deterministic: the first update was far too large, or it started so. It learns nothing more.",
         "lower `learning_rate`, `max_kl` or `step_kl`; a higher `log_std_init` for Box actions; higher `temperature`",
         "solved"),
    Rule("value-lags", "explained_variance", _value_lags,
         "The value predicts returns no better than their mean, so advantages are mostly noise.",
         "raise `vf_learning_rate`, `vf_epochs` or `vf_coef`; `normalize_reward`; `normalize_obs`; a lower `gamma`",
         "solved all-returns-equal"),
    Rule("gradient-grows", "grad_norm", _gradient_grows,
         "Losses grow without bound: a value that diverges, or a policy near a boundary of its distribution.",
         "lower `learning_rate` or `vf_learning_rate`; `normalize_reward`; `max_grad_norm` 0.5"),
    Rule("gradient-always-clipped", "grad_norm", _gradient_always_clipped,
         "Nearly all of the gradient is that of a value with large returns; clipping leaves the policy little of it.",
         "`normalize_reward`; lower `vf_coef`; raise `max_grad_norm`"),
    Rule("responses-never-stop", "ended", _responses_never_stop,
         "Longer responses score higher, or the limit is shorter than the responses.",
         "raise `max_new_tokens`; `missing_eos_penalty` (1); SFT texts with an end; `stop_tokens`"),
    Rule("responses-collapse", "ended mean_length", _responses_collapse,
         "Short responses cost less KL or score higher: the length has become the goal.",
         "look at the samples; lower `beta`; a score that does not grow as responses shrink; lower `learning_rate`"),
    Rule("scores-all-equal", "score_std", _scores_all_equal,
         "Only the KL to the reference is left to learn from: the score is saturated, or the same for all responses.",
         "a finer score; harder prompts; higher `temperature`; more `responses_per_prompt`"),
    Rule("kl-runs-away", "kl_reference score mean_length", _kl_runs_away,
         "The policy leaves the reference without a higher score for it.",
         "lower `learning_rate` or `epochs`; raise `beta`; set `beta_target`"),
    Rule("reward-hacking", "kl_reference score mean_length", _reward_hacking,
         "So far from the reference a learned score is no longer a measure of what it was trained on.",
         "read the samples (rlzoo play); raise `beta`, or set `beta_target`; stop at the best true measure"),
]
# fmt: on
"""What `rlzoo diagnose` looks for."""
